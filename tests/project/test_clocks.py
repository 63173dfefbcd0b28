"""Durations come from monotonic clocks, so that a change of the system time does no harm."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SETTABLE = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
ENDS = {name.rpartition(".")[2] for name in SETTABLE}
DATES = {
    "serve/jumok_serve/text/terms/store.py": "when a glossary was made; how long ago its folder changed",
    "serve/jumok_serve/service/telemetry/tracing.py": "end of a span; its duration comes from a monotonic clock",
    "export/jumok_export/bundles/export.py": "creation date of a bundle",
    "serve/jumok_serve/service/auth/reloaded_files.py": "compared with the times of files",
}
"""Files that need a date, and the reason."""


def settable_clocks(source: str) -> Iterator[str]:
    """Uses of settable clocks under any import."""
    names: dict[str, str] = {}
    nodes = list(ast.walk(ast.parse(source)))
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module in ("time", "datetime"):
            for alias in node.names:
                whole = alias.name if alias.name in ("datetime", "date") else f"{node.module}.{alias.name}"
                names[alias.asname or alias.name] = whole
        elif isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.Name) and names.get(node.id) in SETTABLE:
            yield node.id
        elif isinstance(node, ast.Attribute) and node.attr in ENDS:
            of = ast.unparse(node.value)
            if f"{names.get(of, of).removeprefix('datetime.')}.{node.attr}" in SETTABLE:
                yield ast.unparse(node)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import time\ntime.time()", ["time.time"]),
        ("from time import time\ntime()", ["time"]),
        ("from time import time_ns as now\nnow()", ["now"]),
        ("import datetime\ndatetime.datetime.now()", ["datetime.datetime.now"]),
        ("from datetime import UTC, datetime\ndatetime.now(UTC)", ["datetime.now"]),
        ("import time\ntime.monotonic()\ntime.perf_counter()", []),
        ("from datetime import datetime\ndatetime.fromtimestamp(1.0)", []),
    ],
)
def test_uses_are_found(source: str, found: list[str]) -> None:
    assert list(settable_clocks(source)) == found


def test_only_dates_come_from_settable_clocks() -> None:
    files = [
        path
        for folder in ("proto", "clients", "serve", "export", "benchmarks")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "_pb2" not in path.name
    ]
    assert len(files) > 100
    found = {
        str(path.relative_to(ROOT))
        for path in files
        if any(True for _ in settable_clocks(path.read_text(encoding="utf-8")))
    }
    assert found == set(DATES)
