"""No duration is taken from a clock that can be set: a jump of the system's time does no harm."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SETTABLE = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
ENDS = {name.rpartition(".")[2] for name in SETTABLE}
DATES = {
    "serve/jumok_serve/service/telemetry/tracing.py": "when a span has ended; its duration was measured otherwise",
    "export/jumok_export/bundles/export.py": "when a bundle was made",
}
"""Files that say when something was, and why."""


def settable_clocks(source: str) -> Iterator[str]:
    """Every use of such a clock, however it was imported."""
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
def test_they_are_found(source: str, found: list[str]) -> None:
    assert list(settable_clocks(source)) == found


def test_only_dates_are_read_from_a_clock_that_can_be_set() -> None:
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
