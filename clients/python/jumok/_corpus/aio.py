"""A corpus run for asyncio: one task reads texts, one calls the server."""

import time
from collections.abc import AsyncGenerator, AsyncIterable, Iterable

from jumok._concurrency import AsyncBackground, AsyncCondition, AsyncFailure, async_each
from jumok._corpus.state import Corpus
from jumok._responses import TextResult
from jumok._transport.aio import AsyncConnection, AsyncCorpusCall
from jumok_proto.errors import JumokError
from jumok_proto.v1.translation_pb2 import TranslateCorpusRequest

END_S = 1.0
"""Longest wait for the end of a call, which usually takes milliseconds. gRPC tells the end of a cancelled call later,
when its event loop may be closed, and the next event loop would log that as an error."""


class AsyncCorpusRun:
    """Moves texts through a server; the state is a ``Corpus``, changed under one lock where threads share it.

    Args:
        corpus: state.
        texts: texts; those before ``start`` are skipped.
        start: index of the first text.
        connection: calls the servers.
    """

    def __init__(
        self,
        corpus: Corpus,
        texts: Iterable[str] | AsyncIterable[str],
        start: int,
        connection: AsyncConnection,
    ) -> None:
        self._corpus = corpus
        self._texts = texts
        self._start = start
        self._connection = connection
        self._changed = AsyncCondition()
        self._closed = False
        self._call: AsyncCorpusCall | None = None
        self._number = 0  # of the current call

    async def results(self) -> AsyncGenerator[TextResult, None]:
        """Yield the results in order; reading starts with the first request for a result."""
        corpus = self._corpus
        reading, running = AsyncBackground(self._read), AsyncBackground(self._run)
        try:
            while (result := await self._next()) is not None:
                yield result
        finally:
            with self._changed:
                self._closed = True
                call, answered = self._call, corpus.all_answered and corpus.failure is None
                self._changed.notify_all()
            try:
                await running.end(END_S if answered else 0.0)  # the call of an answered corpus ends by itself
            finally:  # also if the caller is cancelled once more
                if call is not None:
                    call.cancel()
                try:
                    await running.end(END_S)
                finally:
                    await reading.end(0.0)

    async def _next(self) -> TextResult | None:
        corpus = self._corpus
        with self._changed:
            while not corpus.has_result:
                await self._changed.wait(corpus.remaining_s(time.monotonic()))
                corpus.check_time(time.monotonic())
            self._changed.notify_all()  # the window has room, or the run is over
            return corpus.take_result()

    async def _read(self) -> None:
        corpus, skipped = self._corpus, 0
        error: BaseException | None = None
        try:
            async for text in async_each(self._texts):
                if skipped < self._start:
                    skipped += 1
                    continue
                with self._changed:
                    corpus.add(text, time.monotonic())
                    self._changed.notify_all()
                    await self._changed.wait_for(lambda: self._closed or corpus.has_room)
                    if self._closed:
                        return
        except AsyncFailure as failed:
            error = failed
        with self._changed:
            corpus.end(error)
            self._changed.notify_all()

    async def _run(self) -> None:
        corpus = self._corpus
        while True:
            with self._changed:
                await self._changed.wait_for(lambda: self._closed or corpus.needs_call or corpus.all_answered)
                if self._closed or corpus.all_answered:
                    return
                corpus.begin_call(time.monotonic())
            error: JumokError | None = None
            try:
                call = self._connection.open_corpus(corpus.attempts.endpoint, self._requests(self._number))
                with self._changed:
                    self._call = call
                    if self._closed:
                        call.cancel()
                async for response in call:
                    with self._changed:
                        corpus.receive(response, time.monotonic())
                        self._changed.notify_all()
            except JumokError as failed:
                error = failed
                if self._connection.is_closed():
                    with self._changed:
                        corpus.failure = failed
            except AsyncFailure as failed:  # a closed client or a bug, raised by the iteration
                with self._changed:
                    corpus.failure = failed
            with self._changed:
                self._number += 1  # ends the requests of the call
                self._call = None
                delay_s = corpus.call_ended(error, time.monotonic())
                self._changed.notify_all()
                await self._changed.wait_for(lambda: self._closed or corpus.all_answered, delay_s)

    async def _requests(self, number: int) -> AsyncGenerator[TranslateCorpusRequest, None]:
        """Yield the requests of one call; gRPC reads them beside the run."""
        corpus = self._corpus
        with self._changed:
            request = corpus.take(first=True)
        while True:
            yield request
            with self._changed:
                await self._changed.wait_for(lambda: self._closed or self._number != number or corpus.can_send)
                if self._closed or self._number != number or corpus.all_sent:
                    return
                request = corpus.take(first=False)
