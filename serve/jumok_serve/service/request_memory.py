"""Memory of the requests that are worked on: texts, markup, files, scores and glossaries share one budget."""

import asyncio
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager, nullcontext

from jumok_proto.v1.translation_pb2 import Glossary
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.rpc.byte_budget import ByteBudget
from jumok_serve.service.rpc.call import current_caller

TEXT_BYTES, CHARACTER_BYTES = 1024, 8
"""Memory of a text until its translation is sent, and of each of its characters: a bound, besides tokens that wait."""
TOKEN_BYTES = 24
"""Memory of a token of a response."""
TAG_BYTES = 300
"""Memory of a tag or an entity of a text with markup; a bound."""
SCORED_CHARACTER_BYTES = 32
"""Memory of a character of texts that are scored or aligned: all their tokens are made at once."""
TERM_BYTES, TERM_CHARACTER_BYTES = 512, 100
"""Memory of an entry of a glossary, and of each character of its source term, which may be a word; a bound."""
SMALL = 16 * 1024
"""Memory of a request that never waits: that of a few sentences. The number of calls bounds it."""
WAITING_SHARE = 4
"""Part of the memory (1/4) for requests that may wait for the rest."""


class RequestMemory:
    """Budgets of the memory of requests; a caller may have half of each. Used in the event loop only.

    A request that holds some of `working` waits for no memory, so it ends. Those that hold some of `waiting` may wait
    for `working`.

    Attributes:
        working: memory of requests and items that are worked on.
        waiting: bytes of files that arrive or wait, and glossaries of corpora whose items wait.
    """

    def __init__(self, limits: ServiceLimits) -> None:
        most = limits.max_request_memory
        waiting = max(most // WAITING_SHARE, 2 * limits.max_file_bytes)
        working = max(most - waiting, waiting)
        self.working = ByteBudget(working, working // 2)
        self.waiting = ByteBudget(waiting, waiting // 2)

    async def hold(self, size: int) -> None:
        """Hold the memory of the current call until its response is sent; a large one waits until there is room."""
        task = asyncio.current_task()
        if size <= SMALL or task is None:
            return
        caller, size = current_caller(), min(size, self.working.share)
        await self.working.take(caller, size)
        task.add_done_callback(lambda _: self.working.give_back(caller, size))

    def held_waiting(self, size: int) -> AbstractAsyncContextManager[None]:
        """Hold memory of a request of the current caller that may wait for more."""
        return nullcontext() if size <= SMALL else self.waiting.held(current_caller(), size)


def memory_of_texts(texts: Iterable[str], *, tags: int = 0, character_bytes: int = CHARACTER_BYTES) -> int:
    """Return a bound on the memory of texts in bytes, with that of their tags and entities."""
    return sum(TEXT_BYTES + character_bytes * len(text) for text in texts) + TAG_BYTES * tags


def memory_of_terms(glossary: Glossary) -> int:
    """Return a bound on the memory of a request's own glossary in bytes."""
    return sum(TERM_BYTES + TERM_CHARACTER_BYTES * len(entry.source) for entry in glossary.entries)


def count_tags(texts: Iterable[str]) -> int:
    """Return a bound on the number of tags and entities of texts with markup."""
    return sum(text.count("<") + text.count("&") for text in texts)
