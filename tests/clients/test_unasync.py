"""The synchronous SDK is what its generator makes of the asynchronous one."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "clients" / "python" / "unasync.py"
unasync = SimpleNamespace(**runpy.run_path(str(SCRIPT)))


@pytest.mark.parametrize("name", unasync.FILES)
def test_committed_files_are_up_to_date(name: str) -> None:
    target = unasync.PACKAGE / unasync.FILES[name]
    assert target.read_text(encoding="utf-8") == unasync.generate(name), "run: make sync"


def test_every_phrase_occurs() -> None:
    sources = "".join((unasync.PACKAGE / name).read_text(encoding="utf-8") for name in unasync.FILES)
    assert [phrase for phrase in unasync.PHRASES if phrase not in sources] == []
