"""The documented examples of models of one's own, run as they stand in the documentation."""

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[3] / "docs" / "own-model.md"


PART = "## A model of another package"


def run(text: str, folder: Path) -> None:
    """Run the examples of a part of the page, which print its last block."""
    program = "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    (expected,) = re.findall(r"^```text\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    printed = io.StringIO()
    with contextlib.chdir(folder), torch.random.fork_rng(), contextlib.redirect_stdout(printed):
        exec(compile(program, str(PAGE), "exec"), {"__name__": "example"})
    assert printed.getvalue().endswith(expected)


@pytest.mark.slow
def test_the_documented_example_does_what_its_page_says(tmp_path: Path) -> None:
    run(PAGE.read_text(encoding="utf-8").partition(PART)[0], tmp_path)
    assert (tmp_path / "recurrent-en-de" / "manifest.json").is_file()


@pytest.mark.slow
def test_the_model_of_another_package_does_what_its_page_says(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8").partition(PART)[2]
    (command,) = re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    installed = subprocess.run(
        [sys.executable, "-m", *command.split()], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    if installed.returncode:
        pytest.skip(f"no package: {installed.stderr.strip().splitlines()[-1]}")
    run(text, tmp_path)
