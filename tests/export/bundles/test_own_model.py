"""The documented example of a model of one's own, run as it stands in the documentation."""

import contextlib
import io
import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[3] / "docs" / "own-model.md"


@pytest.mark.slow
def test_the_documented_example_does_what_its_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = PAGE.read_text(encoding="utf-8")
    program = "\n".join(re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE))
    (expected,) = re.findall(r"^```text\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with torch.random.fork_rng(), contextlib.redirect_stdout(printed):
        exec(compile(program, str(PAGE), "exec"), {"__name__": "example"})
    assert printed.getvalue().endswith(expected)
    assert (tmp_path / "recurrent-en-de" / "manifest.json").is_file()
