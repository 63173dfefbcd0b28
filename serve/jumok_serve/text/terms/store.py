"""Store of glossaries, and those that it has loaded."""

import logging
import os
import re
import stat
import threading
import time
import uuid
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from datetime import UTC, datetime
from errno import EMFILE, ENFILE, ENOMEM, ENOTDIR
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote
from weakref import WeakValueDictionary

from cachetools import LRUCache

from jumok_proto.errors import GlossaryNotFoundError, InvalidArgumentError, OverloadedError, printable
from jumok_proto.glossaries import GlossaryDictionary, GlossaryEntries, StoredGlossary
from jumok_serve.files import UnusableFileError
from jumok_serve.text.terms.glossary import PREFIX, Glossary
from jumok_serve.text.terms.glossary_file import (
    MAX_GLOSSARY_BYTES,
    MAX_NAME,
    SUFFIX,
    TAG,
    GlossaryFile,
    choose,
    encode,
    is_name,
    of_pair,
    pack,
)

MAX_KEPT_BYTES: Final = 32 * 2**20
"""Memory of the glossaries that are kept after their last use; a single larger one is kept too."""
MAX_LOADED_BYTES: Final = 128 * 2**20
"""Memory of all glossaries from which a further one is refused; one owner may have half."""
RETRY_AFTER_S: Final = 1.0


class Key(NamedTuple):
    """A dictionary of a stored glossary."""

    owner: str
    revision: str
    number: int


class LoadedGlossaries:
    """Glossaries that calls use, and the last ones that were used. Any thread may call the methods."""

    def __init__(self) -> None:
        self._reading = threading.Lock()  # held while a glossary is read: one at a time takes the memory for it
        self._lock = threading.Lock()
        self._known: WeakValueDictionary[Key, Glossary] = WeakValueDictionary()
        self._kept: LRUCache[Key, Glossary] = LRUCache(
            MAX_KEPT_BYTES, getsizeof=lambda glossary: min(glossary.num_bytes, MAX_KEPT_BYTES)
        )

    def get(self, key: Key, read: Callable[[], Glossary]) -> Glossary:
        """Return a glossary; read once, however many calls wait for it.

        Raises:
            OverloadedError: the glossaries in use leave no memory for another; errors of ``read``.
        """
        found = self._find(key)
        if found is not None:
            return found
        with self._reading:
            found = self._find(key)
            if found is None:
                self._check_room(key.owner)
                found = read()
                self._keep(key, found)
        return found

    def retain(self, owner: str, revisions: Set[str]) -> None:
        """Drop the kept glossaries of an owner that have no such revision; calls that use them keep them."""
        with self._lock:
            for key in [key for key in self._kept if key.owner == owner and key.revision not in revisions]:
                del self._kept[key]

    def _find(self, key: Key) -> Glossary | None:
        found = self._known.get(key)
        if found is not None:
            self._keep(key, found)
        return found

    def _keep(self, key: Key, glossary: Glossary) -> None:
        with self._lock:
            self._known[key] = self._kept[key] = glossary

    def _check_room(self, owner: str) -> None:
        with self._lock:
            if not self._has_room(owner):
                self._kept.clear()  # those in use stay known
            if self._has_room(owner):
                return
        raise OverloadedError(
            "the stored glossaries that calls use leave no memory for another: wait for their end",
            retry_after_s=RETRY_AFTER_S,
        )

    def _has_room(self, owner: str) -> bool:
        sizes = [(key.owner == owner, one.num_bytes) for key, one in self._known.items()]
        own = sum(size for is_own, size in sizes if is_own)
        return own < MAX_LOADED_BYTES // 2 and sum(size for _, size in sizes) < MAX_LOADED_BYTES


logger = logging.getLogger(__name__)

MAX_GLOSSARIES: Final = 1000
"""Most glossaries of an owner."""
MAX_BYTES: Final = 256 * 2**20
"""Most bytes of the entries of an owner."""
MAX_DICTIONARIES: Final = 5000
"""Most dictionaries of an owner: their descriptions are in memory, and in the first lines of files."""
_PASSING: Final = (EMFILE, ENFILE, ENOMEM)
"""Errors that say nothing of a file: another try may succeed."""
SETTLED_NS: Final = 100_000_000
"""Age of a folder's last change from which its time tells a later change; clocks of file systems tick in steps."""


class _Index(NamedTuple):
    """Glossaries of an owner by id, and the time of the folder's last change."""

    changed_ns: int
    files: dict[str, GlossaryFile]


class GlossaryStore:
    """Glossaries in a folder; a change replaces one file.

    Several processes may share the folder. Any thread may call the methods, which read and write files.

    An owner is the name of a token; empty without tokens. If the folder cannot be used, as on a full disk, all methods
    raise OSError, and a change leaves nothing behind.

    Args:
        folder: the folder; made if it does not exist.

    Raises:
        OSError: the folder cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._lock = threading.Lock()
        self._indexes: dict[str, _Index] = {}
        self._loaded = LoadedGlossaries()

    def create(self, owner: str, name: str, dictionaries: Sequence[GlossaryEntries]) -> StoredGlossary:
        """Store a glossary, without empty dictionaries; returns the one of the name if its entries are equal.

        Raises:
            InvalidArgumentError: the name is used or unusable, entries are unusable, or the owner has too many.
        """
        _check_name(name)
        parts = [part for part in zip(*_checked(dictionaries), strict=True) if part[0].entry_count]
        if not parts:
            raise InvalidArgumentError("a glossary needs entries: give a dictionary with some", field="dictionaries")
        described, contents = map(list, zip(*parts, strict=True))
        now = datetime.now(UTC)  # noqa: TID251 - a date
        glossary = StoredGlossary(id=str(uuid.uuid4()), name=name, dictionaries=tuple(described), created=now)
        with self._lock:
            files = self._files(owner)
            known = _named(files, name)
            if known is not None:
                if known.glossary.dictionaries == glossary.dictionaries and known.contents() == contents:
                    return known.glossary
                raise _name_is_used(name)
            if len(files) >= MAX_GLOSSARIES:
                raise InvalidArgumentError(
                    f"at most {MAX_GLOSSARIES} glossaries can be stored: delete some", field="name"
                )
            self._write(owner, glossary, contents, files)
        return glossary

    def update(
        self, owner: str, glossary: str, *, name: str = "", dictionaries: Sequence[GlossaryEntries] = ()
    ) -> StoredGlossary:
        """Replace a glossary's name, or its dictionaries of these languages; without entries they are deleted.

        Raises:
            GlossaryNotFoundError: the owner has no such glossary.
            InvalidArgumentError: as of `create`, or no dictionary would be left.
        """
        described, contents = _checked(dictionaries)
        with self._lock:
            files = self._files(owner)
            file = self._find(files, glossary)
            if name and name != file.glossary.name:
                _check_name(name)
                if _named(files, name) is not None:
                    raise _name_is_used(name)
            known = zip(file.glossary.dictionaries, file.contents(), strict=True)
            parts = {of_pair(part[0]): part for part in known}
            for part in zip(described, contents, strict=True):
                parts.pop(of_pair(part[0]), None)
                if part[0].entry_count:
                    parts[of_pair(part[0])] = part
            if not parts:
                raise InvalidArgumentError(
                    "a glossary needs entries, and none would be left: delete it instead", field="dictionaries"
                )
            described, contents = map(list, zip(*parts.values(), strict=True))
            changed = replace(file.glossary, name=name or file.glossary.name, dictionaries=tuple(described))
            self._write(owner, changed, contents, files)
        return changed

    def list(self, owner: str) -> Sequence[StoredGlossary]:
        """Return the glossaries of an owner, sorted by name."""
        with self._lock:
            files = self._files(owner)
        return sorted((file.glossary for file in files.values()), key=lambda one: (one.name, one.id))

    def get(self, owner: str, glossary: str) -> StoredGlossary:
        """Describe a glossary, which its id or name gives.

        Raises:
            GlossaryNotFoundError: the owner has no such glossary.
        """
        with self._lock:
            return self._find(self._files(owner), glossary).glossary

    def entries(
        self, owner: str, glossary: str, source_language: str = "", target_language: str = ""
    ) -> GlossaryEntries:
        """Return the entries of a dictionary; without languages, of the only one.

        Raises:
            GlossaryNotFoundError: the owner has no such glossary.
            InvalidArgumentError: the glossary has no such dictionary.
        """
        with self._lock:
            file = self._find(self._files(owner), glossary)
            number = choose(file.glossary, source_language, target_language)
            dictionary = file.glossary.dictionaries[number]
            return GlossaryEntries(
                tsv=file.text(number),
                source_language=dictionary.source_language,
                target_language=dictionary.target_language,
            )

    def delete(self, owner: str, glossary: str) -> StoredGlossary:
        """Delete a glossary.

        Raises:
            GlossaryNotFoundError: the owner has no such glossary.
        """
        with self._lock:
            files = self._files(owner)
            file = self._find(files, glossary)
            file.path.unlink(missing_ok=True)
            self._indexes.pop(owner, None)
            self._loaded.retain(owner, {one.revision for one in files.values() if one is not file})
        return file.glossary

    def terms(self, owner: str, glossary: str, source_language: str, target_language: str) -> Glossary:
        """Return the terms of a glossary for a pair of languages; calls share them, and the last ones are kept.

        Raises:
            GlossaryNotFoundError: the owner has no such glossary.
            InvalidArgumentError: the glossary has no entries for these languages.
            OverloadedError: the glossaries in use leave no memory for another.
        """
        with self._lock:
            file = self._find(self._files(owner), glossary)
        number = choose(file.glossary, source_language, target_language)
        key = Key(owner, file.revision, number)

        def read() -> Glossary:
            try:
                return Glossary.from_tsv(file.text(number))
            except InvalidArgumentError as error:  # the file was edited
                raise file.lost() from error

        return self._loaded.get(key, read)

    def _write(
        self, owner: str, glossary: StoredGlossary, contents: Sequence[bytes], files: dict[str, GlossaryFile]
    ) -> None:
        others = [file for file in files.values() if file.glossary.id != glossary.id]
        own = sum(map(len, contents))
        size = sum(file.size for file in others) + own
        count = sum(len(file.glossary.dictionaries) for file in others) + len(contents)
        for whose, number, most, unit, remedy in (
            ("a glossary", own, MAX_GLOSSARY_BYTES, "bytes of entries", "make several"),
            ("all glossaries", count, MAX_DICTIONARIES, "dictionaries", "delete some"),
            ("all glossaries", size, MAX_BYTES, "bytes of entries", "delete some"),
        ):
            if number > most:
                raise InvalidArgumentError(
                    f"{whose} may have {most} {unit}, and would have {number}: {remedy}", field="dictionaries"
                )
        folder = self._folder_of(owner)
        folder.mkdir(exist_ok=True)
        written = folder / f".{uuid.uuid4()}"
        try:
            with written.open("xb") as stream:
                stream.write(pack(glossary, contents))
                stream.flush()
                os.fsync(stream.fileno())
            written.replace(folder / f"{glossary.id}{SUFFIX}")
        finally:
            written.unlink(missing_ok=True)
            self._indexes.pop(owner, None)
        self._loaded.retain(owner, {file.revision for file in others})

    def _files(self, owner: str) -> dict[str, GlossaryFile]:
        """Return the glossaries of an owner by id; reads their first lines if the folder has changed."""
        folder = self._folder_of(owner)
        try:
            state = folder.lstat()
        except FileNotFoundError:
            self._folder.stat()  # raises if all glossaries are gone
            return {}
        if not stat.S_ISDIR(state.st_mode):
            raise NotADirectoryError(ENOTDIR, "a folder of glossaries is a link, or none", str(folder))
        changed_ns = state.st_mtime_ns
        index = self._indexes.get(owner)
        if index is None or index.changed_ns != changed_ns:
            settled = time.time_ns() - changed_ns > SETTLED_NS  # noqa: TID251 - a date of the file system
            index = _Index(changed_ns, _read_folder(folder))
            self._loaded.retain(owner, {file.revision for file in index.files.values()})
            self._indexes.pop(owner, None)
            if settled:
                self._indexes[owner] = index
        return index.files

    def _find(self, files: dict[str, GlossaryFile], glossary: str) -> GlossaryFile:
        found = files.get(glossary) or _named(files, glossary)
        if found is None:
            raise GlossaryNotFoundError.of(glossary, sorted(file.glossary.name for file in files.values()))
        return found

    def _folder_of(self, owner: str) -> Path:
        return self._folder / (f"token-{quote(owner, safe='')}" if owner else "shared")


def _read_folder(folder: Path) -> dict[str, GlossaryFile]:
    files = dict[str, GlossaryFile]()
    for path in folder.iterdir():
        if path.suffix != SUFFIX:
            continue
        try:
            file = GlossaryFile.open(path)
        except FileNotFoundError:  # deleted meanwhile
            continue
        except (OSError, UnusableFileError) as error:
            if isinstance(error, OSError) and error.errno in _PASSING:
                raise
            shown = printable(str(path))
            logger.warning("glossary %s is left out: %s; restore the file, or delete it", shown, error)
            continue
        files[file.glossary.id] = file
    return files


def _named(files: dict[str, GlossaryFile], name: str) -> GlossaryFile | None:
    """Return the oldest glossary of a name; two processes may have made one each."""
    found = [file for file in files.values() if file.glossary.name == name]
    return min(found, key=lambda file: (file.glossary.created, file.glossary.id), default=None)


def _checked(dictionaries: Sequence[GlossaryEntries]) -> tuple[list[GlossaryDictionary], list[bytes]]:
    """Describe dictionaries, and return their entries in one spelling."""
    described, contents, pairs = list[GlossaryDictionary](), list[bytes](), set[tuple[str, str]]()
    for index, entries in enumerate(dictionaries):
        field = f"dictionaries[{index}]"
        _check_tag(entries.source_language, f"{field}.source_language_code")
        _check_tag(entries.target_language, f"{field}.target_language_code")
        try:
            count = len(Glossary.from_tsv(entries.tsv))
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"{field}.tsv: {str(error).removeprefix(PREFIX)}", field=f"{field}.tsv"
            ) from error
        dictionary = GlossaryDictionary(
            source_language=entries.source_language, target_language=entries.target_language, entry_count=count
        )
        if of_pair(dictionary) in pairs:
            raise InvalidArgumentError(
                f"{field}: an earlier dictionary has these languages; put all entries into one", field=field
            )
        pairs.add(of_pair(dictionary))
        described.append(dictionary)
        contents.append(encode(entries.tsv))
    return described, contents


def _check_name(name: str) -> None:
    if not is_name(name):
        raise InvalidArgumentError(
            f"name: needs 1 to {MAX_NAME} printable characters without space at its ends, got {name[:MAX_NAME]!r}",
            field="name",
        )


def _check_tag(tag: str, field: str) -> None:
    if re.fullmatch(TAG, tag) is None:
        raise InvalidArgumentError(
            f"{field}: must be a language tag of at most 64 letters, digits, - and _, got {tag[:64]!r}: mend it, or "
            "leave it out for any language",
            field=field,
        )


def _name_is_used(name: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"name: a glossary {name!r} is stored already: replace or delete it, or choose another name", field="name"
    )
