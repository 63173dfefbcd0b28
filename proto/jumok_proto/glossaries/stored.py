"""Stored glossaries as results, and their conversion."""

from dataclasses import dataclass
from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from jumok_proto.fields import Conversion, Form, each
from jumok_proto.v1 import glossary_pb2


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
