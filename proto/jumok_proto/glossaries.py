"""Stored glossaries, and their entries as text: source term, tab, target terms in each line."""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple

from google.protobuf.timestamp_pb2 import Timestamp

from jumok_proto.conversion import Conversion, Form, each
from jumok_proto.v1 import glossary_pb2

_SHOWN: Final = 40
"""Characters of a term in a message."""
_MAX_SPLIT: Final = 64
"""Target terms that are told apart: more than a glossary takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GlossaryEntries:
    """Entries of a glossary for a pair of languages, as text."""

    tsv: str
    """Lines with a source term, a tab and target terms with tabs between them."""
    source_language: str = ""
    """Language of the source terms; empty: any."""
    target_language: str = ""
    """Language of the target terms; empty: any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GlossaryDictionary:
    """A part of a glossary for a pair of languages, without its entries."""

    source_language: str
    """Language of the source terms; empty: any."""
    target_language: str
    """Language of the target terms; empty: any."""
    entry_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGlossary:
    """A glossary that a server keeps, without its entries."""

    id: str
    """Id that the server chose; it never changes."""
    name: str
    dictionaries: tuple[GlossaryDictionary, ...]
    """One for each pair of languages."""
    created: datetime


def _timestamp(moment: datetime) -> Timestamp:
    message = Timestamp()
    message.FromDatetime(moment)
    return message


_STORED = Conversion(
    StoredGlossary,
    glossary_pb2.StoredGlossary,
    dictionaries=each(Conversion(GlossaryDictionary, glossary_pb2.GlossaryDictionary)),
    created=Form(_timestamp, lambda message: message.ToDatetime(UTC)),
)
stored_to_proto, stored_from_proto = _STORED.to_proto, _STORED.from_proto
"""Make the message of a stored glossary, and read it."""

_ENTRIES = Conversion(GlossaryEntries, glossary_pb2.GlossaryEntries)
entries_to_proto, entries_from_proto = _ENTRIES.to_proto, _ENTRIES.from_proto
"""Make the message of entries of a glossary, and read it."""


class GlossaryLine(NamedTuple):
    """An entry of a glossary, and the number of its line from 1."""

    number: int
    source: str
    targets: tuple[str, ...]


def read_tsv(text: str) -> Iterator[GlossaryLine]:
    """Read entries: source term, tab, target term; more target terms follow after tabs.

    Empty lines, and lines that begin with #, are left out.

    Raises:
        ValueError: a line has no target term, an empty term, or the source term of another line.
    """
    numbers: dict[str, int] = {}
    for number, line in enumerate(io.StringIO(text.removeprefix("\ufeff"), newline="\n"), start=1):
        if line.startswith("#") or not (line.strip() or "\t" in line):
            continue
        source, *targets = map(str.strip, line.split("\t", _MAX_SPLIT))
        if not targets:
            raise ValueError(f"line {number} needs a source term, a tab and a target term")
        if not source or not all(targets):
            raise ValueError(f"line {number} has an empty term: write it, or leave the line or the tab out")
        first = numbers.setdefault(" ".join(source.split()).casefold(), number)
        if first != number:
            raise ValueError(
                f"line {number} has the source term of line {first}, {_shown(source)}: put all target terms into one "
                "line, with tabs between them"
            )
        yield GlossaryLine(number, source, tuple(dict.fromkeys(targets)))


def write_tsv(entries: Mapping[str, str | Sequence[str]]) -> str:
    """Write entries as text that `read_tsv` reads.

    Raises:
        ValueError: a term has a tab or a line break.
    """
    lines = []
    for source, targets in entries.items():
        terms = [source, *([targets] if isinstance(targets, str) else targets)]
        for term in terms:
            if not isinstance(term, str):
                raise ValueError(f"a term of the entry {_shown(source)} must be a str, got {type(term).__name__}")
            if any(character in term for character in "\t\r\n"):
                raise ValueError(f"the term {_shown(term)} has a tab or a line break")
        comment = " " if source.startswith(("#", "\ufeff")) else ""
        lines.append(comment + "\t".join(terms) + "\n")
    return "".join(lines)


def _shown(term: object) -> str:
    text = str(term)
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
