"""The synchronous SDK is what its generator makes of the asynchronous one."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "clients" / "python" / "unasync.py"
_spec = importlib.util.spec_from_file_location("unasync", SCRIPT)
assert _spec is not None
assert _spec.loader is not None
unasync = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(unasync)


@pytest.mark.parametrize("name", unasync.FILES)
def test_committed_files_are_up_to_date(name: str) -> None:
    target = unasync.PACKAGE / unasync.FILES[name]
    assert target.read_text(encoding="utf-8") == unasync.generate(name), "run: make sync"


def test_every_phrase_occurs() -> None:
    sources = "".join((unasync.PACKAGE / name).read_text(encoding="utf-8") for name in unasync.FILES)
    assert [phrase for phrase in unasync.PHRASES if phrase not in sources] == []
