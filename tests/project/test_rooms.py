"""Who may import whom: read from the source, so that an import inside a function counts too."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

WIRE = {"grpc", "google.protobuf"}


@dataclass(frozen=True)
class Room:
    """A source folder, what it may import, and the only files that may also use libraries of optional extras."""

    folder: str
    allowed: set[str]
    exceptions: dict[str, set[str]] = field(default_factory=dict)


ROOMS = {
    "jumok_proto": Room("proto", WIRE | {"google.rpc"}),
    "jumok": Room(
        "clients/python",
        WIRE | {"google.rpc", "jumok_proto"},
        {
            "commands/_main.py": {"click"},
            "commands/_attention_figure.py": {"matplotlib"},
            "commands/_fonts.py": {"matplotlib"},
            "commands/_options.py": {"click"},
            "commands/_output.py": {"click"},
            "commands/admin.py": {"click"},
            "commands/attention.py": {"click"},
            "commands/health.py": {"click", "grpc_health"},
            "commands/score.py": {"click"},
            "commands/translate.py": {"click"},
        },
    ),
    "jumok_serve": Room(
        "serve",
        WIRE
        | {"google.rpc", "grpc_health", "grpc_reflection", "jumok_proto"}
        | {"numpy", "onnxruntime", "pydantic", "sentencepiece", "tokenizers"},
        {
            "cli/bundle_commands.py": {"click"},
            "cli/serve_commands.py": {"click"},
            "evaluation/evaluation.py": {"sacrebleu"},
            "text/sentence_splitting.py": {"sentencex"},
            "service/telemetry/metrics.py": {"prometheus_client"},
            "service/telemetry/tracing.py": {"opentelemetry"},
        },
    ),
    "jumok_export": Room(
        "export",
        {"jumok_proto", "jumok_serve", "numpy", "onnxruntime", "pydantic", "pydantic_core"}
        | {"sentencepiece", "tokenizers"}
        | {"lightning", "matplotlib", "onnx", "onnxscript", "sacrebleu", "safetensors", "torch"},
        {"cli.py": {"click"}, "importers/huggingface/tokenizer_files.py": {"transformers"}},
    ),
}
TYPES_ONLY = {"typing_extensions"}
"""Needed by generated type stubs (.pyi) alone, which nothing imports when a program runs."""


def imports(path: Path) -> Iterator[str]:
    """The dotted names of all modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            assert node.module is not None
            # `from google import protobuf` imports google.protobuf.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(module: str, packages: set[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def foreign(name: str, folder: Path) -> list[str]:
    """What the files in ``folder`` import, and those of the room of this name may not."""
    room = ROOMS[name]
    found = []
    for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.pyi")]):
        file = str(path.relative_to(folder))
        allowed = {name} | room.allowed | room.exceptions.get(file, set())
        if path.suffix == ".pyi":
            allowed |= TYPES_ONLY
        found += [
            f"{file} imports {module}"
            for module in imports(path)
            if module.partition(".")[0] not in sys.stdlib_module_names and not within(module, allowed)
        ]
    return found


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_imports_what_it_may(name: str) -> None:
    folder = ROOT / ROOMS[name].folder / name
    assert (folder / "__init__.py").is_file()
    assert foreign(name, folder) == []
    assert [file for file in ROOMS[name].exceptions if not (folder / file).is_file()] == []


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("jumok_serve", "import torch"),
        ("jumok_serve", "def f() -> None:\n    from jumok._client import Client"),
        ("jumok", "import numpy as np"),
        ("jumok", "from jumok_serve import Translator"),
        ("jumok", "import click"),
        ("jumok_proto", "from google import auth"),
        ("jumok_export", "import jumok.commands"),
    ],
)
def test_what_it_may_not_is_found(name: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "anywhere.py").write_text(line, encoding="utf-8")
    assert len(foreign(name, tmp_path)) == 1


def test_no_folder_hides_another_distribution() -> None:
    """As import packages, ``proto``, ``serve``, ``export`` and ``clients`` would clash with those of others."""
    assert [room.folder for room in ROOMS.values() if (ROOT / room.folder / "__init__.py").exists()] == []
