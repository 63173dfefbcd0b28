"""Programs for those who change the structure: comparison of two checkouts, and the files of a request."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.hang import HANG_S
from tests.unchanged.__main__ import Differences

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> str:
    command = (sys.executable, "-m", *arguments)
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=HANG_S).stdout


@pytest.mark.slow
def test_a_checkout_answers_as_itself() -> None:
    assert run("tests.unchanged", str(ROOT), "--random-calls", "20").endswith(" compared, 0 differ\n")


def test_a_difference_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    differences = Differences()
    differences.note("same", 1, 1)
    differences.note("a call", "before it", "after it")
    assert (differences.compared, differences.found) == (2, 1)
    assert re.fullmatch(r"DIFFERS: a call\n\s+before: before it\n\s+after:\s+after it\n", capsys.readouterr().out)


@pytest.mark.slow
def test_the_files_of_a_request_are_the_servers_own() -> None:
    printed = run("tests.passed_files").splitlines()
    assert re.findall(r"^(\w+): \d+ files$", "\n".join(printed), re.MULTILINE) == [
        "TranslateText",
        "LibreTranslate",
        "TranslateFile",
    ]
    files = {line.strip() for line in printed if line.startswith(" ")}
    assert "serve/jumok_serve/tasks/translation.py" in files
    assert all((ROOT / file).is_file() and file.startswith(("serve/", "proto/")) for file in files)
