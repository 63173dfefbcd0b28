"""The demonstration, as ``make demo`` runs it."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.support.hang import HANG_S

DEMO = Path(__file__).parents[2] / "examples/demo.py"


def demonstrate(*bundles: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(DEMO), *map(str, bundles)]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)


def test_it_translates_and_ends_well(tiny_bundle: Path) -> None:
    done = demonstrate(tiny_bundle)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\ntiny-en-de 1: en to de, int8 on cpu\n" in done.stdout
    assert done.stdout.count(" ms  ") == 4 + 2
    assert done.stdout.endswith("The server has stopped after SIGTERM with exit code 0.\n")


def test_it_shows_captions_and_software_with_tags() -> None:
    done = demonstrate()
    assert (done.returncode, done.stderr) == (0, "")
    caption, german, korean = re.split(r"^\S+ 1: en to \w+, int8 on cpu\n", done.stdout, flags=re.MULTILINE)[1:]
    assert "Fahrrad" in caption
    assert "Dialog" in german
    assert re.search(r"[가-힣]", korean)
    for shown in (german, korean):
        source, translation = re.findall("^.*</p>$", shown, re.MULTILINE)
        tags = [Counter(re.findall("<[^>]+>", text)) for text in (source, translation)]
        assert tags[0] == tags[1]
        assert tags[0].total() == 6


def test_a_server_that_does_not_start_is_reported_with_its_reason(tmp_path: Path) -> None:
    done = demonstrate(tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("demo failed: the server ended with exit code 1; it wrote:\n")
    assert "manifest.json is missing" in done.stderr
    assert "Traceback" not in done.stderr
