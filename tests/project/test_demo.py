"""The demonstration, as ``make demo`` runs it."""

import subprocess
import sys
from pathlib import Path

from tests.support.hang import HANG_S

DEMO = Path(__file__).parents[2] / "examples/demo.py"


def demonstrate(bundle: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(DEMO), str(bundle)]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)


def test_it_translates_and_ends_well(tiny_bundle: Path) -> None:
    done = demonstrate(tiny_bundle)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("tiny-en-de 1: en to de, int8 on cpu\n")
    assert done.stdout.count(" ms  ") == 8 + 2
    assert done.stdout.endswith("The server has stopped after SIGTERM with exit code 0.\n")


def test_a_server_that_does_not_start_is_reported_with_its_reason(tmp_path: Path) -> None:
    done = demonstrate(tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("demo failed: the server ended with exit code 1; it wrote:\n")
    assert "manifest.json is missing" in done.stderr
    assert "Traceback" not in done.stderr
