"""Work of requests besides decoding: short work on the event loop, long work in threads."""

import asyncio
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import Protocol, TypeVar

from jumok_serve.service.handlers.worker_pool import WorkerPool
from jumok_serve.service.rpc.call import current_caller
from jumok_serve.service.rpc.open_calls import OpenCalls

MAX_INLINE_CHARACTERS = 2048
"""Characters of a request that is tokenized on the event loop: 0.1 ms with SentencePiece, 0.8 ms at worst with BPE."""
CHARACTERS_PER_TEXT = 64
"""Fixed cost of a text in characters: making its search and future takes as long as tokenizing these."""
MAX_INLINE_TOKENS = 2048
"""Most tokens of the translations of a request whose response is made on the event loop: 1 ms."""
MAX_TOKENIZING = 256
"""Requests of a caller that are tokenized or wait for it."""
TOKENIZING_THREADS = 2
MAX_SCORING = 64
"""Requests of a caller whose targets are scored or wait for it."""
SCORING_THREADS = 1
MAX_ATTENTION_REQUESTS = 256
"""Open requests for attention, in any stage; one caller may have half."""
ATTENTION_THREADS = 1


class Cancellable(Protocol):
    """Work for a request."""

    def cancel(self) -> None:
        """Cancel the work."""


Job = TypeVar("Job", bound=Cancellable)
Result = TypeVar("Result")


class RequestWork:
    """Runs work of requests, long work in threads, so that other calls and health checks go on.

    Attributes:
        tokenizing: threads that tokenize.
    """

    def __init__(self) -> None:
        self.tokenizing = WorkerPool("tokenized", threads=TOKENIZING_THREADS, max_jobs=MAX_TOKENIZING)
        self._scoring = WorkerPool("scored", threads=SCORING_THREADS, max_jobs=MAX_SCORING)
        # A thread may still work for a cancelled request, which no longer counts as open.
        self._attention = WorkerPool(
            "attended", threads=ATTENTION_THREADS, max_jobs=MAX_ATTENTION_REQUESTS + ATTENTION_THREADS
        )
        self._attention_requests = OpenCalls(
            "requests for attention", MAX_ATTENTION_REQUESTS, MAX_ATTENTION_REQUESTS // 2
        )

    @contextmanager
    def attention_slot(self, attention: bool) -> Iterator[None]:
        """Count an open request for attention, or refuse it; other requests pass."""
        if not attention:
            yield
            return
        caller = current_caller()
        self._attention_requests.open(caller)
        try:
            yield
        finally:
            self._attention_requests.close(caller)

    async def run(self, work: Callable[[], Result], attention: bool, max_tokens: int = MAX_INLINE_TOKENS + 1) -> Result:
        """Make a response with at most ``max_tokens`` tokens, long ones in a thread."""
        if attention:
            return await asyncio.wrap_future(
                self._attention.submit(partial(copy_context().run, work), current_caller())
            )
        if max_tokens <= MAX_INLINE_TOKENS:
            return work()
        return await asyncio.to_thread(work)

    async def score(self, pieces: Generator[int, None, Result]) -> Result:
        """Score in a thread, one piece after the other."""
        return await asyncio.wrap_future(self._scoring.submit_pieces(pieces, current_caller()))

    async def tokenize(self, start: Callable[[], Job], *texts: Sequence[str], quick: bool = True) -> Job:
        """Start a job that tokenizes texts; long ones, and those that are not quick to split, in a thread."""
        if quick and _is_short(*texts):
            return start()
        job = self.tokenizing.submit(start, current_caller(), _size(*texts))
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:  # has cancelled a queued job, but not a running one
            job.add_done_callback(_cancel_result)
            raise


def _size(*texts: Sequence[str]) -> int:
    """Count the characters of texts, with the fixed cost of each."""
    return sum(CHARACTERS_PER_TEXT + len(text) for group in texts for text in group)


def _is_short(*texts: Sequence[str]) -> bool:
    """True if tokenizing takes little more time than a thread switch."""
    return _size(*texts) <= MAX_INLINE_CHARACTERS


def _cancel_result(job: "Future[Job]") -> None:
    if not job.cancelled() and job.exception() is None:
        job.result().cancel()
