"""Stored glossaries of a caller, for programs built on asyncio."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from jumok._requests import glossary_entries
from jumok._responses import read_entries, read_glossary
from jumok._transport.aio import AsyncConnection
from jumok._transport.retry import MIN_TIMEOUT_S
from jumok._validation import check_text
from jumok_proto.errors import GlossaryNotFoundError
from jumok_proto.glossaries import StoredGlossary
from jumok_proto.v1.glossary_pb2 import (
    CreateGlossaryRequest,
    DeleteGlossaryRequest,
    GetGlossaryEntriesRequest,
    GetGlossaryRequest,
    ListGlossariesRequest,
    UpdateGlossaryRequest,
)


class AsyncGlossaries:
    """Glossaries that a server keeps: those of the client's token, or without tokens those of all callers.

    The option ``stored_glossary`` of translations names one. Each method takes the ``timeout_s`` of its call.

        await client.glossaries.create("fleet", {"truck": "Lastwagen"})
        print((await client.translate("A red truck.", stored_glossary="fleet")).text)

    Raises:
        GlossariesUnavailableError: the server keeps no glossaries.
    """

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def create(
        self,
        name: str,
        entries: str | Mapping[str, str | Sequence[str]],
        *,
        source_language: str = "",
        target_language: str = "",
        timeout_s: float | None = None,
    ) -> StoredGlossary:
        """Store a glossary; returns the stored one if it has this name and equal entries.

        Args:
            name: 1 to 128 printable characters.
            entries: target terms by source term, or text: source term, tab, target term in each line.
            source_language: language of the source terms; empty: any.
            target_language: language of the target terms; empty: any.

        Raises:
            InvalidArgumentError: the name is used or unusable, or a line of the entries is unusable.
        """
        request = CreateGlossaryRequest(
            name=check_text("name", name), dictionaries=[glossary_entries(entries, source_language, target_language)]
        )
        response = await self._connection.call(lambda stubs: stubs.glossaries.CreateGlossary, request, timeout_s)
        return read_glossary(response.glossary)

    async def update(
        self,
        glossary: str,
        entries: str | Mapping[str, str | Sequence[str]],
        *,
        source_language: str = "",
        target_language: str = "",
        timeout_s: float | None = None,
    ) -> StoredGlossary:
        """Replace the entries of a glossary for a pair of languages; entries for other pairs, and its id, stay.

        Args:
            glossary: id or name.
            entries: see ``create``; without any, those of the pair are deleted.

        Raises:
            GlossaryNotFoundError: the server does not keep the glossary.
            InvalidArgumentError: a line of the entries is unusable.
        """
        request = UpdateGlossaryRequest(
            glossary=check_text("glossary", glossary),
            dictionaries=[glossary_entries(entries, source_language, target_language)],
        )
        response = await self._connection.call(lambda stubs: stubs.glossaries.UpdateGlossary, request, timeout_s)
        return read_glossary(response.glossary)

    async def list(self, *, timeout_s: float | None = None) -> Sequence[StoredGlossary]:
        """List all glossaries, sorted by name."""
        request = ListGlossariesRequest()
        response = await self._connection.call(lambda stubs: stubs.glossaries.ListGlossaries, request, timeout_s)
        return [read_glossary(glossary) for glossary in response.glossaries]

    async def get(self, glossary: str, *, timeout_s: float | None = None) -> StoredGlossary:
        """Describe a glossary, given by id or name; raise GlossaryNotFoundError if the server does not keep it."""
        request = GetGlossaryRequest(glossary=check_text("glossary", glossary))
        response = await self._connection.call(lambda stubs: stubs.glossaries.GetGlossary, request, timeout_s)
        return read_glossary(response.glossary)

    async def entries(
        self, glossary: str, *, source_language: str = "", target_language: str = "", timeout_s: float | None = None
    ) -> dict[str, tuple[str, ...]]:
        """Return the target terms of a glossary by source term.

        Args:
            glossary: id or name.
            source_language: language of the source terms; both languages may be empty if there is one pair only.
            target_language: language of the target terms.

        Raises:
            GlossaryNotFoundError: the server does not keep the glossary.
            InvalidArgumentError: the glossary has no entries for these languages, or several pairs.
        """
        request = GetGlossaryEntriesRequest(
            glossary=check_text("glossary", glossary),
            source_language_code=check_text("source_language_code", source_language),
            target_language_code=check_text("target_language_code", target_language),
        )
        response = await self._connection.call(lambda stubs: stubs.glossaries.GetGlossaryEntries, request, timeout_s)
        return read_entries(response.entries)

    async def delete(self, glossary: str, *, timeout_s: float | None = None) -> StoredGlossary:
        """Delete a glossary, given by id or name; raise GlossaryNotFoundError if the server does not keep it.

        Of two callers that delete it at once, both may get it.
        """
        until = time.monotonic() + self._connection.servers.timeout_s(timeout_s)
        found = await self.get(glossary, timeout_s=timeout_s)
        request = DeleteGlossaryRequest(glossary=found.id)
        with suppress(GlossaryNotFoundError):  # deleted since, by another caller or by an attempt that lost its answer
            left_s = max(until - time.monotonic(), MIN_TIMEOUT_S)
            await self._connection.call(lambda stubs: stubs.glossaries.DeleteGlossary, request, left_s)
        return found
