"""GlossaryService: keeps the glossaries of callers."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from jumok_proto.errors import GlossariesUnavailableError
from jumok_proto.glossaries import (
    GlossaryEntries,
    StoredGlossary,
    entries_from_proto,
    entries_to_proto,
    stored_to_proto,
)
from jumok_proto.v1.glossary_pb2 import (
    CreateGlossaryRequest,
    CreateGlossaryResponse,
    DeleteGlossaryRequest,
    DeleteGlossaryResponse,
    GetGlossaryEntriesRequest,
    GetGlossaryEntriesResponse,
    GetGlossaryRequest,
    GetGlossaryResponse,
    ListGlossariesRequest,
    ListGlossariesResponse,
    UpdateGlossaryRequest,
    UpdateGlossaryResponse,
)
from jumok_proto.v1.glossary_pb2 import GlossaryEntries as ProtoEntries
from jumok_serve.service.rpc.call import Call, current_owner
from jumok_serve.service.rpc.request_reader import check_request
from jumok_serve.text.terms.glossary import Glossary
from jumok_serve.text.terms.store import GlossaryStore

logger = logging.getLogger(__name__)

MAX_READING = 4
"""Glossaries whose entries are read at once: each takes some times 4 MiB, until its response counts as unread."""

Result = TypeVar("Result")


class GlossaryService:
    """Keeps the glossaries of callers in a store; work with files runs in threads.

    Args:
        store: the store; None: all methods raise GlossariesUnavailableError.
    """

    def __init__(self, store: GlossaryStore | None) -> None:
        self._store = store
        self._reading = asyncio.Semaphore(MAX_READING)
        self._changes = ThreadPoolExecutor(1, "glossaries")  # one at a time takes the memory for the check

    async def CreateGlossary(self, request: CreateGlossaryRequest, call: Call) -> CreateGlossaryResponse:  # noqa: N802
        """Store a glossary."""
        check_request(request)
        created = await self._change(
            request.dictionaries, lambda store, owner, entries: store.create(owner, request.name, entries)
        )
        return CreateGlossaryResponse(glossary=stored_to_proto(created))

    async def ListGlossaries(self, request: ListGlossariesRequest, call: Call) -> ListGlossariesResponse:  # noqa: N802
        """List the caller's glossaries."""
        check_request(request)
        return ListGlossariesResponse(
            glossaries=map(stored_to_proto, await _in_thread(self._store, GlossaryStore.list))
        )

    async def GetGlossary(self, request: GetGlossaryRequest, call: Call) -> GetGlossaryResponse:  # noqa: N802
        """Describe a glossary."""
        check_request(request)
        found = await _in_thread(self._store, lambda store, owner: store.get(owner, request.glossary))
        return GetGlossaryResponse(glossary=stored_to_proto(found))

    async def GetGlossaryEntries(  # noqa: N802
        self, request: GetGlossaryEntriesRequest, call: Call
    ) -> GetGlossaryEntriesResponse:
        """Return the entries of a glossary."""
        check_request(request)
        languages = (request.source_language_code, request.target_language_code)
        await self._reading.acquire()
        reading = asyncio.ensure_future(
            _in_thread(self._store, lambda store, owner: store.entries(owner, request.glossary, *languages))
        )
        try:
            return GetGlossaryEntriesResponse(entries=entries_to_proto(await asyncio.shield(reading)))
        finally:  # the thread of a cancelled call goes on
            if reading.done():
                self._reading.release()
            else:
                reading.add_done_callback(self._read)

    def _read(self, reading: "asyncio.Future[GlossaryEntries]") -> None:
        """Let the next call read, after one whose caller has left."""
        self._reading.release()
        if not reading.cancelled():
            reading.exception()  # looked at, so that it is not logged

    async def UpdateGlossary(self, request: UpdateGlossaryRequest, call: Call) -> UpdateGlossaryResponse:  # noqa: N802
        """Replace entries of a glossary, or its name."""
        check_request(request)
        changed = await self._change(
            request.dictionaries,
            lambda store, owner, entries: store.update(
                owner, request.glossary, name=request.name, dictionaries=entries
            ),
        )
        return UpdateGlossaryResponse(glossary=stored_to_proto(changed))

    async def DeleteGlossary(self, request: DeleteGlossaryRequest, call: Call) -> DeleteGlossaryResponse:  # noqa: N802
        """Delete a glossary."""
        check_request(request)
        deleted = await _in_thread(self._store, lambda store, owner: store.delete(owner, request.glossary))
        return DeleteGlossaryResponse(glossary=stored_to_proto(deleted))

    async def _change(
        self,
        dictionaries: Iterable[ProtoEntries],
        change: Callable[[GlossaryStore, str, list[GlossaryEntries]], StoredGlossary],
    ) -> StoredGlossary:
        """Change a glossary after those before it, also if their calls have ended meanwhile."""

        def read_and_change(store: GlossaryStore, owner: str) -> StoredGlossary:
            return change(store, owner, [entries_from_proto(one) for one in dictionaries])

        return await _in_thread(self._store, read_and_change, self._changes)


async def stored_terms(store: GlossaryStore | None, name: str, source: str, target: str) -> Glossary:
    """Return a stored glossary of the current call's owner, by id or name, for a pair of languages.

    Raises:
        GlossaryNotFoundError: the caller has no such glossary.
        InvalidArgumentError: the glossary has no entries for the languages.
        GlossariesUnavailableError: the server keeps no glossaries, or cannot use their folder.
    """
    return await _in_thread(store, lambda known, owner: known.terms(owner, name, source, target))


async def _in_thread(
    store: GlossaryStore | None, work: Callable[[GlossaryStore, str], Result], threads: Executor | None = None
) -> Result:
    """Work with the glossaries of the current call's owner.

    Failures of the folder become an error that callers see; the log has the path.
    """
    if store is None:
        raise GlossariesUnavailableError.of_server()

    def run() -> Result:
        try:
            return work(store, current_owner())
        except OSError as error:
            logger.error("the folder of glossaries cannot be used: %s", error)
            raise GlossariesUnavailableError.of_folder(error.strerror or str(error)) from error

    return await asyncio.get_running_loop().run_in_executor(threads, copy_context().run, run)
