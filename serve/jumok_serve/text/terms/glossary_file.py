"""Files of stored glossaries: a line of JSON, then the entries of each dictionary."""

import json
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Final, Self

from jumok_proto.errors import GlossaryNotFoundError
from jumok_proto.glossaries.stored import GlossaryDictionary, StoredGlossary
from jumok_proto.glossaries.tsv import read_tsv, write_tsv

SUFFIX: Final = ".glossary"
MAX_HEADER_BYTES: Final = 2**20


class UnusableGlossaryError(ValueError):
    """A file is not that of a glossary; the message continues its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GlossaryFile:
    """A file of a glossary, after its first line was read.

    Attributes:
        revision: number that changes with the content.
        sizes: bytes of each dictionary.
        start: bytes before the first of them.
    """

    path: Path
    glossary: StoredGlossary
    revision: str
    sizes: tuple[int, ...]
    start: int

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read the first line of a file.

        Raises:
            UnusableGlossaryError: the file is not that of a glossary.
            OSError: the file cannot be read.
        """
        with path.open("rb") as stream:
            line = stream.readline(MAX_HEADER_BYTES)
        try:
            header = json.loads(line)
            glossary = StoredGlossary(
                id=path.stem,
                name=str(header["name"]),
                dictionaries=tuple(
                    GlossaryDictionary(
                        source_language=str(one["source"]),
                        target_language=str(one["target"]),
                        entry_count=int(one["entries"]),
                    )
                    for one in header["dictionaries"]
                ),
                created=datetime.fromisoformat(header["created"]),
            )
            sizes = tuple(int(one["bytes"]) for one in header["dictionaries"])
            file = cls(path=path, glossary=glossary, revision=str(header["revision"]), sizes=sizes, start=len(line))
        except (ValueError, ArithmeticError, LookupError, TypeError, RecursionError) as error:
            raise UnusableGlossaryError("its first line does not describe a glossary") from error
        if path.stat().st_size != len(line) + file.size:
            raise UnusableGlossaryError("it does not have the bytes that its first line says")
        return file

    @property
    def size(self) -> int:
        """Bytes of the entries."""
        return sum(self.sizes)

    def contents(self) -> list[bytes]:
        """Return the entries of each dictionary.

        Raises:
            GlossaryNotFoundError: the file was deleted or replaced.
        """
        with self._opened() as stream:
            return [stream.read(size) for size in self.sizes]

    def content(self, number: int) -> bytes:
        """Return the entries of one dictionary; raises as `contents`."""
        with self._opened() as stream:
            stream.seek(sum(self.sizes[:number]), os.SEEK_CUR)
            return stream.read(self.sizes[number])

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        """Open the file after its first line."""
        with suppress(FileNotFoundError), self.path.open("rb") as stream:
            line = stream.readline(MAX_HEADER_BYTES)
            if json.loads(line).get("revision") == self.revision:
                yield stream
                return
        raise GlossaryNotFoundError(f"the glossary {self.glossary.name!r} was deleted or replaced: try again")


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
