"""Settings of the process in which a command computes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jumok_export.cli.process import let_threads_sleep
from tests.support.hang import HANG_S


@pytest.mark.skipif(sys.platform != "linux", reason="PyTorch has other threads elsewhere")
def test_waiting_threads_of_an_import_sleep(tmp_path: Path) -> None:
    """OpenMP prints its settings when PyTorch loads it, after another library's copy of it."""
    others = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    done = subprocess.run(
        [sys.executable, "-m", "jumok", "import", str(tmp_path), "--out", str(tmp_path / "out")],
        env=others | {"OMP_DISPLAY_ENV": "VERBOSE"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "holds no model of a format that can be imported" in done.stderr
    assert re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)[-1] == "0"


def test_the_environment_may_say_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    let_threads_sleep()
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"


def test_cycles_are_searched_for_seldom_and_not_at_exit() -> None:
    program = """
import atexit, gc
atexit.register(lambda: print(gc.get_freeze_count() > 0))  # handlers run in the opposite order
from jumok_export.cli.process import collect_rarely
from jumok_serve.runtime.process_memory import NEW_OBJECTS
collect_rarely()
print(gc.get_threshold()[0] == NEW_OBJECTS, gc.get_freeze_count() > 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.stdout.split() == ["True", "False", "True"], done.stderr
