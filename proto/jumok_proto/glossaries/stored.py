"""Stored glossaries as results, and their conversion."""

from dataclasses import dataclass
from datetime import UTC, datetime

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


def stored_to_proto(glossary: StoredGlossary) -> glossary_pb2.StoredGlossary:
    """Make the message of a glossary."""
    message = glossary_pb2.StoredGlossary(id=glossary.id, name=glossary.name)
    for dictionary in glossary.dictionaries:
        message.dictionaries.add(
            source_language_code=dictionary.source_language,
            target_language_code=dictionary.target_language,
            entry_count=dictionary.entry_count,
        )
    message.create_time.FromDatetime(glossary.created)
    return message


def stored_from_proto(message: glossary_pb2.StoredGlossary) -> StoredGlossary:
    """Read the description of a glossary."""
    return StoredGlossary(
        id=message.id,
        name=message.name,
        dictionaries=tuple(
            GlossaryDictionary(
                source_language=dictionary.source_language_code,
                target_language=dictionary.target_language_code,
                entry_count=dictionary.entry_count,
            )
            for dictionary in message.dictionaries
        ),
        created=message.create_time.ToDatetime(UTC),
    )


def entries_to_proto(entries: GlossaryEntries) -> glossary_pb2.GlossaryEntries:
    """Make the message of entries."""
    return glossary_pb2.GlossaryEntries(
        tsv=entries.tsv,
        source_language_code=entries.source_language,
        target_language_code=entries.target_language,
    )


def entries_from_proto(message: glossary_pb2.GlossaryEntries) -> GlossaryEntries:
    """Read entries."""
    return GlossaryEntries(
        tsv=message.tsv, source_language=message.source_language_code, target_language=message.target_language_code
    )
