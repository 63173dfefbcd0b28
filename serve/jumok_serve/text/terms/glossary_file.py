"""Glossaries as files, and dictionaries by languages."""

import json
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import AwareDatetime, BaseModel, Field

from jumok_proto.errors import GlossaryNotFoundError, InvalidArgumentError
from jumok_proto.glossaries import GlossaryDictionary, StoredGlossary, read_tsv, write_tsv
from jumok_serve.files import RegularFile, UnusableFileError
from jumok_serve.manifest.languages import primary_language, tag_key


def of_pair(dictionary: GlossaryDictionary) -> tuple[str, str]:
    """Return the languages of a dictionary in one spelling."""
    return tag_key(dictionary.source_language), tag_key(dictionary.target_language)


def choose(glossary: StoredGlossary, source_language: str, target_language: str) -> int:
    """Return the number of the dictionary for a pair: equal tags first, then equal languages, then any language.

    A language that is empty fits all dictionaries.

    Raises:
        InvalidArgumentError: no dictionary fits, or several without a language to choose by.
    """
    wanted = (source_language, target_language)
    ranks = [
        (sum(_distance(own, other) for own, other in zip(of_pair(dictionary), wanted, strict=True)), number)
        for number, dictionary in enumerate(glossary.dictionaries)
    ]
    fitting = sorted(rank for rank in ranks if rank[0] < _NONE)
    if not fitting or (not any(wanted) and len(fitting) > 1):
        pairs = ", ".join(
            f"{one.source_language or 'any'} to {one.target_language or 'any'}" for one in glossary.dictionaries
        )
        lacks = f"from {source_language or 'any'} to {target_language or 'any'}" if any(wanted) else "of one pair alone"
        raise InvalidArgumentError(
            f"glossary: {glossary.name!r} has no entries {lacks}; it has {pairs}: choose one", field="glossary"
        )
    return fitting[0][1]


_NONE = 100
"""A distance beyond all others."""


def _distance(own: str, wanted: str) -> int:
    if own == tag_key(wanted) or not wanted:
        return 0
    if not own:
        return 3
    return 1 if primary_language(own) == primary_language(wanted) else _NONE


SUFFIX: Final = ".glossary"
MAX_HEADER_BYTES: Final = 2**20
MAX_GLOSSARY_BYTES: Final = 32 * 2**20
"""Most bytes of the entries of a glossary; an update reads them all."""
MAX_NAME: Final = 128
"""Most characters of a name."""
TAG: Final = "^[A-Za-z0-9_-]{0,64}$"
"""Pattern of the language of a dictionary."""

_Tag = Annotated[str, Field(pattern=TAG)]
_Count = Annotated[int, Field(ge=0, le=MAX_GLOSSARY_BYTES)]


class _Dictionary(BaseModel):
    """Description of a dictionary in the first line of a file."""

    source: _Tag
    target: _Tag
    entries: _Count
    bytes: _Count


class _Header(BaseModel):
    """First line of a file."""

    name: str
    created: AwareDatetime
    revision: str
    dictionaries: list[_Dictionary]


@dataclass(frozen=True, slots=True, kw_only=True)
class GlossaryFile:
    """A file of a glossary, after its first line was read.

    Attributes:
        revision: number that changes with the content.
        sizes: bytes of each dictionary.
    """

    path: Path
    glossary: StoredGlossary
    revision: str
    sizes: tuple[int, ...]

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read the first line of a file.

        Raises:
            UnusableFileError: the file is not that of a glossary.
            OSError: the file cannot be read.
        """
        with RegularFile(path, follow_links=False) as file, file.stream() as stream:
            line = stream.readline(MAX_HEADER_BYTES)
        try:
            header = _Header.model_validate_json(line)
            created = header.created.astimezone(UTC)
        except (ValueError, OverflowError) as error:
            raise UnusableFileError("its first line does not describe a glossary") from error
        if not is_name(header.name) or not is_name(path.stem):
            raise UnusableFileError("the file or the glossary has a name that cannot be used")
        glossary = StoredGlossary(
            id=path.stem,
            name=header.name,
            dictionaries=tuple(
                GlossaryDictionary(source_language=one.source, target_language=one.target, entry_count=one.entries)
                for one in header.dictionaries
            ),
            created=created,
        )
        sizes = tuple(one.bytes for one in header.dictionaries)
        opened = cls(path=path, glossary=glossary, revision=header.revision, sizes=sizes)
        if opened.size > MAX_GLOSSARY_BYTES:
            raise UnusableFileError(f"it has {opened.size} bytes of entries, at most {MAX_GLOSSARY_BYTES} are read")
        if file.size != len(line) + opened.size:
            raise UnusableFileError("it does not have the bytes that its first line says")
        return opened

    @property
    def size(self) -> int:
        """Bytes of the entries."""
        return sum(self.sizes)

    def contents(self) -> list[bytes]:
        """Return the entries of each dictionary.

        Raises:
            GlossaryNotFoundError: the file was deleted, replaced or damaged.
            OSError: the file cannot be read.
        """
        content, ends = self._read(0, self.size), [*accumulate(self.sizes)]
        return [content[end - size : end] for size, end in zip(self.sizes, ends, strict=True)]

    def content(self, number: int) -> bytes:
        """Return the entries of one dictionary; raises as `contents`."""
        return self._read(sum(self.sizes[:number]), self.sizes[number])

    def text(self, number: int) -> str:
        """Return the entries of one dictionary as text; raises as `contents`."""
        try:
            return self.content(number).decode()
        except UnicodeDecodeError as error:
            raise self.lost() from error

    def _read(self, start: int, size: int) -> bytes:
        """Read some bytes after the first line."""
        try:
            with RegularFile(self.path, follow_links=False) as file, file.stream() as stream:
                if _Header.model_validate_json(stream.readline(MAX_HEADER_BYTES)).revision == self.revision:
                    stream.seek(start, os.SEEK_CUR)
                    content = stream.read(size)
                    if len(content) == size:
                        return content
        except (FileNotFoundError, ValueError):
            pass
        raise self.lost()

    def lost(self) -> GlossaryNotFoundError:
        """Make the error of a file whose content is no longer the glossary's."""
        return GlossaryNotFoundError(
            f"the glossary {self.glossary.name!r} was deleted, replaced or damaged: try again, or store it anew"
        )


def is_name(name: str) -> bool:
    """True if a glossary may have a name."""
    return 1 <= len(name) <= MAX_NAME and name.isprintable() and name == name.strip()


def encode(tsv: str) -> bytes:
    """Return the entries of a text in one spelling: without comments, empty lines and needless space."""
    return write_tsv({line.source: line.targets for line in read_tsv(tsv)}).encode()


def pack(glossary: StoredGlossary, contents: Sequence[bytes]) -> bytes:
    """Return the content of a file."""
    header = {
        "name": glossary.name,
        "created": glossary.created.isoformat(),
        "revision": str(uuid.uuid4()),
        "dictionaries": [
            {
                "source": dictionary.source_language,
                "target": dictionary.target_language,
                "entries": dictionary.entry_count,
                "bytes": len(content),
            }
            for dictionary, content in zip(glossary.dictionaries, contents, strict=True)
        ],
    }
    return b"".join([json.dumps(header).encode(), b"\n", *contents])
