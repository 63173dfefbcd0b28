"""Stored glossaries: owners, limits, atomic changes, damaged files, and several processes."""

import json
import os
import re
import shutil
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jumok_proto.errors import GlossaryNotFoundError, InvalidArgumentError
from jumok_proto.glossaries import GlossaryEntries
from jumok_serve.text.terms import glossary, store
from jumok_serve.text.terms.glossary import MAX_ENTRIES
from jumok_serve.text.terms.store import GlossaryStore
from tests.support.refusals import refused


def entries(tsv: str, source: str = "en", target: str = "de") -> GlossaryEntries:
    return GlossaryEntries(tsv=tsv, source_language=source, target_language=target)


ANIMALS = entries("dog\tHund\tKöter\n#\ncat\tKatze\n")


@pytest.fixture
def stored(tmp_path: Path) -> GlossaryStore:
    return GlossaryStore(tmp_path / "made" / "glossaries")


def test_a_glossary_is_kept(stored: GlossaryStore, tmp_path: Path) -> None:
    made = stored.create("anna", "pets", [ANIMALS])
    for one in (stored, GlossaryStore(tmp_path / "made" / "glossaries")):
        assert one.list("anna") == [made]
        assert one.get("anna", "pets") == one.get("anna", made.id) == made
        assert one.entries("anna", "pets").tsv == "dog\tHund\tKöter\ncat\tKatze\n"
        assert [match.targets for match in one.terms("anna", "pets", "en", "de").find("A dog, a Cat")] == [
            ("Hund", "Köter"),
            ("Katze",),
        ]
    assert [(one.source_language, one.target_language, one.entry_count) for one in made.dictionaries] == [
        ("en", "de", 2)
    ]


def test_each_owner_has_its_own(stored: GlossaryStore) -> None:
    owners = ("", "shared", "..", ".", "anna@example.org", "a.b")
    made = {owner: stored.create(owner, "pets", [ANIMALS]) for owner in owners}
    assert len({glossary.id for glossary in made.values()}) == len(owners)
    stored.delete("..", "pets")
    for owner in owners:
        assert stored.list(owner) == ([] if owner == ".." else [made[owner]])
    with pytest.raises(GlossaryNotFoundError, match=r"no glossary '.*' is stored; available: pets"):
        stored.get("", made["anna@example.org"].id)
    assert stored.list("other") == []


def test_create_can_be_repeated_and_names_are_used_once(stored: GlossaryStore) -> None:
    made = stored.create("", "pets", [ANIMALS])
    same = entries("dog\tHund\tKöter\ncat\tKatze")
    assert stored.create("", "pets", [same]) == made
    with refused("name", "'pets' is stored already"):
        stored.create("", "pets", [GlossaryEntries(tsv="dog\tHund")])
    other = stored.create("", "other", [ANIMALS])
    with pytest.raises(InvalidArgumentError, match="'pets' is stored already"):
        stored.update("", other.id, name="pets")


def test_an_update_keeps_the_id_and_other_dictionaries(stored: GlossaryStore) -> None:
    made = stored.create("", "pets", [ANIMALS, entries("dog\tchien", "", "fr")])
    changed = stored.update("", "pets", name="animals", dictionaries=[entries("dog\tDogge", "EN")])
    assert (changed.id, changed.name, changed.created) == (made.id, "animals", made.created)
    assert stored.entries("", "animals", "en", "de").tsv == "dog\tDogge\n"
    assert stored.entries("", "animals", "en", "fr").tsv == "dog\tchien\n"
    without = stored.update("", made.id, dictionaries=[entries("")])
    assert [one.target_language for one in without.dictionaries] == ["fr"]
    with pytest.raises(InvalidArgumentError, match="none would be left: delete it instead"):
        stored.update("", made.id, dictionaries=[entries("# none\n", "", "fr")])
    assert stored.get("", made.id) == without


def test_terms_follow_an_update(stored: GlossaryStore) -> None:
    stored.create("", "pets", [ANIMALS])
    before = stored.terms("", "pets", "en", "de")
    assert stored.terms("", "pets", "en-GB", "de_AT") is before
    stored.update("", "pets", dictionaries=[entries("dog\tDogge")])
    assert [match.targets for match in stored.terms("", "pets", "en", "de").find("dog")] == [("Dogge",)]
    assert [match.targets for match in before.find("dog")] == [("Hund", "Köter")]


@pytest.mark.parametrize(
    ("source", "target", "chosen"),
    [
        ("en", "de", "one"),
        ("EN", "de_at", "two"),
        ("en-US", "de-CH", "one"),
        ("eng_Latn", "deu_Latn", "one"),
        ("fr", "de", "any"),
        ("en", "ru", None),
        ("", "", None),
    ],
)
def test_the_dictionary_of_the_languages_is_chosen(
    stored: GlossaryStore, source: str, target: str, chosen: str | None
) -> None:
    stored.create("", "pets", [entries("a\tone"), entries("a\ttwo", "en", "de-AT"), entries("a\tany", "")])
    if chosen is not None:
        assert stored.entries("", "pets", source, target).tsv == f"a\t{chosen}\n"
        return
    with pytest.raises(InvalidArgumentError, match="it has en to de, en to de-AT, any to de: choose one"):
        stored.entries("", "pets", source, target)


BAD_LANGUAGES = ["d" * 65, "de de", "de\nat", "\u202e", "ä", "de.AT"]


@pytest.mark.parametrize(
    ("name", "dictionaries", "message"),
    [
        ("", ["a\tb"], "name: needs 1 to 128 printable characters"),
        *((name, ["a\tb"], "name: needs 1 to 128") for name in ("x" * 129, "a\nb", " a")),
        ("a", ["a\tb\nc"], r"dictionaries\[0\].tsv: line 2 needs a source term"),
        ("a", ["a\tb\n\n" + "x" * 257 + "\tc"], r"line 3: a source term has 257 characters, at most 256"),
        ("a", ["a\t" + "\t".join(map(str, range(9)))], "line 1: the entry 'a' needs 1 to 8 target terms, got 9"),
        ("a", ["a-b\tc\nd\te\na- b\tc\nA-B\tf"], "line 4 has the source term of line 1, 'A-B'"),
        ("a", ["a\tb\rc"], "line 1: a target term of 'a' has a tab, a line break"),
        (
            "a",
            ["a\tb\n#\nc\td\n\ne\tf\n" + "".join(f"{number}\ta\n" for number in range(8))],
            "line 13 is one too many: a glossary takes at most 10 entries",
        ),
        ("a", [], "give a dictionary with some"),
        ("a", ["", entries("# none\n", "")], "give a dictionary with some"),
        (
            "a",
            [entries("a\tb"), entries("a\tb", "EN")],
            r"dictionaries\[1\]: an earlier dictionary has these languages",
        ),
        *(
            ("a", [entries("a\tb", tag)], r"dictionaries\[0\].source_language_code: must be a language tag")
            for tag in BAD_LANGUAGES
        ),
        *(
            ("a", [entries("a\tb", target=tag)], r"dictionaries\[0\].target_language_code: must be a language tag")
            for tag in BAD_LANGUAGES
        ),
    ],
)
def test_a_glossary_that_is_refused(
    stored: GlossaryStore,
    name: str,
    dictionaries: list[str | GlossaryEntries],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(glossary, "MAX_ENTRIES", 10)
    given = [GlossaryEntries(tsv=one) if isinstance(one, str) else one for one in dictionaries]
    with pytest.raises(InvalidArgumentError, match=message):
        stored.create("", name, given)
    assert stored.list("") == []


def test_many_entries(stored: GlossaryStore) -> None:
    lines = [f"word{number}\tWort{number}" for number in range(MAX_ENTRIES)]
    stored.create("", "many", [GlossaryEntries(tsv="\n".join(lines))])
    found = stored.terms("", "many", "en", "de").find("word0 word99999 word100000")
    assert [match.targets for match in found] == [("Wort0",), ("Wort99999",)]


def test_limits_of_an_owner(stored: GlossaryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_GLOSSARIES", 2)
    monkeypatch.setattr(store, "MAX_BYTES", 60)
    one = [GlossaryEntries(tsv="a\tb")]
    first = stored.create("", "first", [ANIMALS])
    with pytest.raises(InvalidArgumentError, match="may have 60 bytes of entries, and would have"):
        stored.create("", "second", [GlossaryEntries(tsv="a\t" + "b" * 60)])
    stored.create("", "second", one)
    with pytest.raises(InvalidArgumentError, match="at most 2 glossaries can be stored: delete some"):
        stored.create("", "third", one)
    stored.create("other", "third", [ANIMALS])
    stored.delete("", first.id)
    assert stored.create("", "third", one).name == "third"
    monkeypatch.setattr(store, "MAX_GLOSSARY_BYTES", 60)
    with pytest.raises(InvalidArgumentError, match="a glossary may have 60 bytes of entries, and would have"):
        stored.update("other", "third", dictionaries=[entries("a\t" + "b" * 40, "de", "en")])
    assert [found.entry_count for found in stored.get("other", "third").dictionaries] == [2]


def test_dictionaries_of_an_owner(stored: GlossaryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their descriptions are in memory, and in the first line of a file, whose length is bounded."""
    pairs = [GlossaryEntries(tsv="a\tb", source_language=f"{n:064}", target_language="b" * 64) for n in range(1250)]
    for number in range(4):
        stored.create("", str(number), pairs)
    with pytest.raises(InvalidArgumentError, match="may have 5000 dictionaries, and would have 5001: delete some"):
        stored.create("", "one more", [ANIMALS])
    with pytest.raises(InvalidArgumentError, match="would have 5001"):
        stored.update("", "0", dictionaries=[ANIMALS])
    monkeypatch.setattr(store, "MAX_DICTIONARIES", 10_000)
    for number in range(3):
        own = [GlossaryEntries(tsv="a\tb", source_language=f"{number}x{n:062}") for n in range(1250)]
        stored.update("", "0", dictionaries=own)
    assert len(stored.get("", "0").dictionaries) == 5000


def test_a_failed_write_changes_nothing(stored: GlossaryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = stored.create("", "pets", [ANIMALS])

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        stored.update("", "pets", dictionaries=[entries("x\ty")])
    monkeypatch.undo()
    assert stored.list("") == [made]
    assert stored.entries("", "pets").tsv.startswith("dog\tHund")
    assert [path.name for path in (tmp_path / "made" / "glossaries" / "shared").iterdir()] == [f"{made.id}.glossary"]


def changed_line(**change: Any) -> Callable[[bytes], bytes]:
    """A change of the values in the first line of a file."""

    def change_of(content: bytes) -> bytes:
        line, _, rest = content.partition(b"\n")
        return "".join(json.JSONEncoder().iterencode({**json.loads(line), **change})).encode() + b"\n" + rest

    return change_of


def described(**change: Any) -> Callable[[bytes], bytes]:
    return changed_line(dictionaries=[{"source": "", "target": "", "entries": 1, "bytes": 36, **change}])


@pytest.mark.parametrize(
    "damage",
    [
        *(lambda _, content=content: content for content in (b"", b"no json\n", b"{}\n", b"[1]\n", b'{"name": 1}\n')),
        lambda content: content[:-3],
        *(changed_line(name=name) for name in ("\ud800", "a\nb", "a" * 129, ["pets"])),
        *(
            changed_line(created=created)
            for created in ("2026-01-01T00:00:00", "0001-01-01T00:00:00+14:00", "yesterday")
        ),
        *(described(entries=number) for number in (-1, 10**4000)),
        lambda content: re.sub(rb'("entries": ?)[0-9]+', rb"\g<1>1e999", content),
        described(source="e n"),
        changed_line(dictionaries=[{"source": "", "target": "", "entries": 1, "bytes": size} for size in (46, -10)]),
    ],
)
def test_a_damaged_file_is_left_out(
    stored: GlossaryStore, tmp_path: Path, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    (path,) = folder_of(stored, tmp_path).iterdir()
    path.with_name("changed.glossary").write_bytes(damage(path.read_bytes()))
    path.with_name(os.fsdecode(b"\xff.glossary")).write_bytes(path.read_bytes())
    for one in (stored, GlossaryStore(tmp_path / "made" / "glossaries")):
        assert [found.name for found in one.list("")] == ["pets"]
    assert "changed.glossary is left out" in caplog.text
    assert "has a name that cannot be used" in caplog.text


def test_another_process_is_seen(stored: GlossaryStore, tmp_path: Path) -> None:
    other = GlossaryStore(tmp_path / "made" / "glossaries")
    stored.create("", "first", [ANIMALS])
    assert [one.name for one in other.list("")] == ["first"]
    for number in range(20):
        other.create("", f"name {number}", [ANIMALS])
        assert stored.get("", f"name {number}").name == f"name {number}"
        other.delete("", f"name {number}")
        with pytest.raises(GlossaryNotFoundError):
            stored.terms("", f"name {number}", "en", "de")


def test_threads_make_a_name_once(stored: GlossaryStore) -> None:
    refused = []

    def make(number: int) -> None:
        try:
            stored.create("", "pets", [GlossaryEntries(tsv=f"dog\tHund {number}")])
        except InvalidArgumentError as error:
            refused.append(error)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(make, range(8)))
    assert len(refused) == 7
    assert len(stored.list("")) == 1


def folder_of(stored: GlossaryStore, tmp_path: Path) -> Path:
    """The folder of callers without token, in which there is a glossary."""
    stored.create("", "pets", [ANIMALS])
    return tmp_path / "made" / "glossaries" / "shared"


def make_socket(path: Path) -> None:
    folder = os.open(path.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(f"/proc/self/fd/{folder}/{path.name}")  # longer paths are refused
    os.close(folder)


def make_sparse_file(path: Path) -> None:
    described = {"source": "", "target": "", "entries": 1, "bytes": 2**25}
    header = {"name": "holes", "created": "2026-01-01T00:00:00Z", "revision": "1", "dictionaries": [described]}
    line = json.dumps(header).encode() + b"\n"
    path.write_bytes(line)
    os.truncate(path, len(line) + 2**25)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (os.mkfifo, "is not a regular file"),
        (Path.mkdir, "is not a regular file"),
        (make_socket, "is not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "is a link"),
        (lambda path: path.symlink_to(path), "is a link"),
        (lambda path: path.symlink_to("nowhere"), "is a link"),
        (make_sparse_file, "is sparse"),
    ],
)
def test_what_is_no_file_is_left_out(
    stored: GlossaryStore,
    tmp_path: Path,
    make: Callable[[Path], None],
    problem: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    make(folder_of(stored, tmp_path) / "x.glossary")
    for one in (stored, GlossaryStore(tmp_path / "made" / "glossaries")):
        assert [found.name for found in one.list("")] == ["pets"]
        one.create("", f"after {id(one)}", [ANIMALS])
        one.delete("", f"after {id(one)}")
    assert f"x.glossary is left out: {problem}" in caplog.text


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-3],
        lambda content: content.replace(b"Hund", b"\xff\xff\xff\xff"),
        lambda content: content.replace(b"\t", b" "),
        lambda _: b"[" * 100_000,
    ],
)
def test_entries_that_are_damaged_under_a_running_server(
    stored: GlossaryStore, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    (path,) = folder_of(stored, tmp_path).iterdir()
    os.utime(path.parent, (1, 1))  # so that the store keeps what it knows of the folder
    assert len(stored.list("")) == 1
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(GlossaryNotFoundError, match="'pets' was deleted, replaced or damaged"):
        stored.terms("", "pets", "en", "de")
    path.unlink()
    os.mkfifo(path)
    os.utime(path.parent, (1, 1))
    with pytest.raises(GlossaryNotFoundError, match="'pets' was deleted, replaced or damaged"):
        stored.entries("", "pets")
    with pytest.raises(GlossaryNotFoundError, match="'pets' was deleted, replaced or damaged"):
        stored.update("", "pets", dictionaries=[ANIMALS])


def test_a_folder_that_is_deleted_or_a_link(stored: GlossaryStore, tmp_path: Path) -> None:
    folder = folder_of(stored, tmp_path)
    (tmp_path / "elsewhere").mkdir()
    shutil.rmtree(folder)
    makers: tuple[Callable[[Path], object], ...] = (
        lambda path: path.symlink_to(tmp_path / "elsewhere"),
        Path.touch,
        os.mkfifo,
    )
    for make in makers:
        make(folder)
        with pytest.raises(NotADirectoryError):
            stored.create("", "other", [ANIMALS])
        with pytest.raises(NotADirectoryError):
            stored.list("")
        folder.unlink()
    assert not [*(tmp_path / "elsewhere").iterdir()]
    assert stored.list("") == []
    shutil.rmtree(folder.parent)
    for call in (lambda: stored.list(""), lambda: stored.create("", "other", [ANIMALS])):
        with pytest.raises(FileNotFoundError):
            call()
    folder.parent.mkdir()
    assert stored.create("", "other", [ANIMALS]) in stored.list("")


def test_a_process_without_free_files_forgets_no_glossary(
    stored: GlossaryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder_of(stored, tmp_path)
    opened = os.open

    def refuse(path: Any, *arguments: Any, **others: Any) -> int:
        if str(path).endswith(".glossary"):
            raise OSError(24, "Too many open files")
        return opened(path, *arguments, **others)

    other = GlossaryStore(tmp_path / "made" / "glossaries")
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        other.list("")
    monkeypatch.undo()
    assert [one.name for one in other.list("")] == ["pets"]
