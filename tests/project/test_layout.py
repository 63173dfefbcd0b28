"""The source tree keeps to its own rules: packages by name, folders and files of bounded size."""

import subprocess
from collections import Counter
from pathlib import Path, PurePosixPath

import pytest

from tests.support.hang import HANG_S

ROOT = Path(__file__).parents[2]
SOURCES = ("proto", "serve", "export", "clients/python")
MAX_FILES = 16
MAX_LINES = 450


def tracked(*patterns: str, others: bool = True) -> list[PurePosixPath]:
    """List the files of the checkout that git tracks, and those that it does not know and would not ignore."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "--cached", *(["--others"] if others else []), "--exclude-standard", *patterns]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=HANG_S)
    return [PurePosixPath(line) for line in done.stdout.splitlines() if (ROOT / line).exists()]


def is_source(path: PurePosixPath) -> bool:
    generated = path.name.endswith(("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi"))
    return path.suffix in {".py", ".cc", ".h"} and path.name != "__init__.py" and not generated


def test_no_folder_of_sources_is_crowded() -> None:
    folders = Counter(str(path.parent) for path in tracked(*SOURCES, "benchmarks") if is_source(path))
    assert {folder: count for folder, count in folders.items() if count > MAX_FILES} == {}


def test_no_source_file_is_long() -> None:
    lines = {
        str(path): len((ROOT / path).read_text(encoding="utf-8").splitlines())
        for path in tracked(*SOURCES)
        if is_source(path)
    }
    assert {path: count for path, count in lines.items() if count > MAX_LINES} == {}


def test_no_folder_hides_another_distribution() -> None:
    """As import packages, `proto`, `serve`, `export` and `clients` would clash with other distributions."""
    assert [
        folder for folder in ("proto", "serve", "export", "clients") if (ROOT / folder / "__init__.py").exists()
    ] == []


def test_no_stray_file_is_tracked() -> None:
    """Beside the sources' folders, as what a package manager downloads or a compiler writes."""
    known = {
        *(".clang-format", ".dockerignore", ".gitignore", ".pre-commit-config.yaml", "CHANGELOG.md", "CONTRIBUTING.md"),
        *("Dockerfile", "LICENSE", "Makefile", "README.md", "SECURITY.md", "compose.yaml", "hatch_build.py"),
        *("mkdocs.yml", "pyproject.toml"),
    }
    files = tracked(others=False)
    assert {path.name for path in files if len(path.parts) == 1} <= known
    built = {".whl", ".so", ".o", ".gz", ".zip", ".pyc"}
    assert [str(path) for path in files if path.suffix in built] == []


def test_models_of_tests_are_small() -> None:
    sizes = {path: (ROOT / path).stat().st_size for path in tracked("tests/data/models")}
    assert {path: size for path, size in sizes.items() if size >= 2**20} == {}
    assert 0 < sum(sizes.values()) < 6_000_000


def test_no_import_is_relative() -> None:
    found = [
        f"{path}:{number}"
        for path in tracked("*.py")
        for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1)
        if line.lstrip().startswith("from .")
    ]
    assert found == []
