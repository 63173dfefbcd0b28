"""A corpus run for asyncio: one task reads texts, one calls the server."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable

from jumok._corpus.state import Corpus
from jumok._results import TextResult
from jumok._transport.corpus_call import AsyncCorpusCall
from jumok_proto.errors import JumokError
from jumok_proto.v1.translation_pb2 import TranslateCorpusRequest

ENDS_WITHIN_S = 1.0
"""Time for the call to end after the last result. gRPC tells the end of a cancelled call later, when its event loop may
be closed, and the next event loop would log that as an error."""


class AsyncCorpusRun:
    """Moves texts through a server; the state is a ``Corpus``.

    Args:
        corpus: state.
        texts: texts; those before ``start`` are skipped.
        start: index of the first text.
        open_call: calls the server of a number with an iterator of requests; raises JumokError.
        is_open: returns True until the client is closed.
    """

    def __init__(
        self,
        corpus: Corpus,
        texts: Iterable[str] | AsyncIterable[str],
        start: int,
        open_call: Callable[[int, AsyncIterator[TranslateCorpusRequest]], AsyncCorpusCall],
        is_open: Callable[[], bool],
    ) -> None:
        self._corpus = corpus
        self._texts = texts
        self._start = start
        self._open_call = open_call
        self._is_open = is_open
        self._waiting: set[asyncio.Future[None]] = set()
        self._number = 0  # of the current call

    async def results(self) -> AsyncGenerator[TextResult, None]:
        """Yield the results in order; reading starts with the first request for a result."""
        corpus = self._corpus
        tasks = [asyncio.ensure_future(self._read()), asyncio.ensure_future(self._run())]
        try:
            while True:
                while not corpus.has_result:
                    await self._change(corpus.remaining_s(time.monotonic()))
                    corpus.check_time(time.monotonic())
                result = corpus.take_result()
                self._notify()  # the window has room, or the run is over
                if result is None:
                    await asyncio.wait(tasks, timeout=ENDS_WITHIN_S)
                    return
                yield result
        finally:
            self._number += 1
            self._notify()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _notify(self) -> None:
        """Wake all tasks that wait for a change."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    async def _change(self, timeout_s: float | None = None) -> None:
        """Wait for a change, or until the timeout."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            await asyncio.wait({waiting}, timeout=timeout_s)
        finally:
            self._waiting.discard(waiting)

    async def _read(self) -> None:
        corpus, error = self._corpus, None
        skipped = 0
        try:
            async for text in _each(self._texts):
                if skipped < self._start:
                    skipped += 1
                    continue
                corpus.add(text, time.monotonic())
                self._notify()
                while not corpus.has_room:
                    await self._change()
        except Exception as failed:
            error = failed
        corpus.end(error)
        self._notify()

    async def _run(self) -> None:
        corpus = self._corpus
        while True:
            while not (corpus.needs_call or corpus.all_answered):
                await self._change()
            if corpus.all_answered:
                return
            corpus.begin_call(time.monotonic())
            error: JumokError | None = None
            try:
                async for response in self._open_call(corpus.endpoint, self._requests(self._number)):
                    corpus.receive(response, time.monotonic())
                    self._notify()
            except JumokError as failed:
                error = failed
                if not self._is_open():
                    corpus.failure = failed
            except Exception as failed:
                corpus.failure = failed
            self._number += 1  # ends the requests of the call
            delay_s = corpus.call_ended(error, time.monotonic())
            self._notify()
            if corpus.failure is None and delay_s > 0 and not corpus.all_answered:
                await asyncio.sleep(delay_s)

    async def _requests(self, number: int) -> AsyncGenerator[TranslateCorpusRequest, None]:
        """Yield the requests of one call; gRPC reads them in its own task."""
        corpus = self._corpus
        yield corpus.take(first=True)
        while True:
            while self._number == number and not corpus.can_send:
                await self._change()
            if self._number != number or corpus.all_sent:
                return
            yield corpus.take(first=False)


async def _each(texts: Iterable[str] | AsyncIterable[str]) -> AsyncGenerator[str, None]:
    """Iterate over either kind of iterable, letting other tasks run between."""
    if isinstance(texts, AsyncIterable):
        async for text in texts:
            yield text
        return
    for text in texts:
        yield text
        await asyncio.sleep(0)
