"""Glossaries in memory: read once, shared by calls, bounded, and dropped after a change."""

import gc
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jumok_proto.errors import OverloadedError
from jumok_proto.glossaries import GlossaryEntries
from jumok_serve.text.terms import store
from jumok_serve.text.terms.glossary import Glossary
from jumok_serve.text.terms.glossary_file import GlossaryFile
from jumok_serve.text.terms.store import GlossaryStore
from tests.support.calls import noted_calls

ENTRIES = GlossaryEntries(tsv="dog\tHund\n")
Reads = Callable[[], Counter[str]]
SIZE = Glossary.from_tsv(ENTRIES.tsv).num_bytes


@pytest.fixture
def stored(tmp_path: Path) -> GlossaryStore:
    return GlossaryStore(tmp_path)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """Number of reads by name of the glossary."""
    calls = noted_calls(monkeypatch, GlossaryFile, "content")
    return lambda: Counter(file.glossary.name for file, _ in calls)


def make(stored: GlossaryStore, owner: str, *names: str) -> None:
    for name in names:
        stored.create(owner, name, [ENTRIES])


def test_calls_that_wait_for_one_glossary_read_it_once(stored: GlossaryStore, reads: Reads) -> None:
    make(stored, "", "pets")
    together = threading.Barrier(8)

    def call(_: int) -> Glossary:
        together.wait()
        return stored.terms("", "pets", "en", "de")

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(call, range(8)))
    assert reads() == {"pets": 1}
    assert len(set(map(id, found))) == 1


def test_a_glossary_in_use_is_shared_although_it_is_not_kept(
    tmp_path: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MAX_KEPT_BYTES", SIZE)
    stored = GlossaryStore(tmp_path)
    names = ["first", "second", "third"]
    make(stored, "", *names)
    used = [stored.terms("", name, "en", "de") for _ in range(5) for name in names]
    assert len(set(map(id, used))) == len(names)
    assert reads() == dict.fromkeys(names, 1)
    used.clear()
    stored.terms("", "third", "en", "de")  # the only one that is kept
    stored.terms("", "first", "en", "de")
    assert reads() == {"first": 2, "second": 1, "third": 1}


def test_glossaries_in_use_are_bounded(stored: GlossaryStore, reads: Reads, monkeypatch: pytest.MonkeyPatch) -> None:
    """One owner may have half; a call that is refused reads nothing."""
    monkeypatch.setattr(store, "MAX_LOADED_BYTES", 4 * SIZE)
    for owner in ("anna", "ben", "eva"):
        make(stored, owner, "1", "2", "3")
    used = [stored.terms("anna", name, "en", "de") for name in "12"]
    with pytest.raises(OverloadedError, match="leave no memory for another: wait"):
        stored.terms("anna", "3", "en", "de")
    used += [stored.terms("ben", name, "en", "de") for name in "12"]
    with pytest.raises(OverloadedError):
        stored.terms("eva", "1", "en", "de")
    assert reads() == {"1": 2, "2": 2}
    assert stored.terms("anna", "1", "en", "de") is used[0]
    del used[0]
    assert [match.targets for match in stored.terms("anna", "3", "en", "de").find("dog")] == [("Hund",)]


def test_glossaries_that_are_only_kept_make_room(stored: GlossaryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_LOADED_BYTES", 4 * SIZE)
    make(stored, "", "1", "2", "3")
    for name in "123" * 3:
        assert len(stored.terms("", name, "en", "de")) == 1


@pytest.mark.parametrize("change", ["replaced", "deleted", "deleted by another process"])
def test_a_glossary_is_dropped_after_a_change(stored: GlossaryStore, tmp_path: Path, change: str) -> None:
    make(stored, "", "pets", "others")
    before = weakref.ref(stored.terms("", "pets", "en", "de"))
    others = weakref.ref(stored.terms("", "others", "en", "de"))
    assert before() is not None
    if change == "replaced":
        stored.update("", "pets", dictionaries=[GlossaryEntries(tsv="dog\tDogge")])
    elif change == "deleted":
        stored.delete("", "pets")
    else:
        GlossaryStore(tmp_path).delete("", "pets")
        stored.list("")
    gc.collect()
    assert before() is None
    assert others() is not None
    if change == "replaced":
        assert [match.targets for match in stored.terms("", "pets", "en", "de").find("dog")] == [("Dogge",)]
