"""The scenario of guided fuzzing, for a few inputs; and it finds a fault that is there."""

import asyncio
import random
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.faults.guided.scenario import FILE_READERS, LONGEST, LONGEST_FILE, READERS, fuzz_reader
from tests.faults.tools.findings import Findings

RUNS, RUNS_OF_FILES = 300, 100

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("atheris") is None, reason="atheris has no wheel for this machine"),
]


class Fragile:
    """A reader that fails at some bytes."""

    def __init__(self, bundle: Path) -> None:
        assert bundle.is_dir()

    def read(self, data: bytes) -> None:
        if len(data) > 2 and data[0] > 0x7F:
            raise KeyError("a fault of the reader")

    def seeds(self) -> Sequence[bytes]:
        return [b"some text"]

    def mutate(self, data: bytes, source: random.Random) -> bytes | None:
        return None


def fuzz(name: str, reader: str, folder: Path, bundle: Path) -> dict[str, tuple[str, bool]]:
    findings = Findings(scenario="guided")
    longest, runs = (LONGEST_FILE, RUNS_OF_FILES) if name in FILE_READERS else (LONGEST, RUNS)
    asyncio.run(fuzz_reader(name, reader, folder, bundle, findings, runs=runs, seed=1, longest=longest))
    return {check.what.removeprefix(f"{name}: "): (check.found, check.passed) for check in findings.checks}


@pytest.mark.parametrize("name", READERS | FILE_READERS)
def test_no_input_breaks_a_reader(name: str, tiny_bundle: Path, tmp_path: Path) -> None:
    found = fuzz(name, (READERS | FILE_READERS)[name], tmp_path, tiny_bundle)
    assert found["inputs that raise, crash, hang or fill the memory"] == ("0", True)
    assert found["growth in two further times, MiB"][1]
    assert found["edges that seeds reach"][1]
    assert int(found["inputs"][0]) > 0


def test_a_fault_is_found(tiny_bundle: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = fuzz("fragile", "tests.faults.test_guided:Fragile", tmp_path, tiny_bundle)
    faults, passed = found["inputs that raise, crash, hang or fill the memory"]
    assert faults.startswith("1, the first: crash-")
    assert not passed
    assert "a fault of the reader" in capfd.readouterr().err
