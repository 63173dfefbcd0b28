"""A corpus run for threads: one thread reads texts, one calls the server."""

import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice

from jumok._corpus.state import Corpus
from jumok._results import TextResult
from jumok._transport.corpus_call import CorpusCall
from jumok_proto.errors import JumokError
from jumok_proto.v1.translation_pb2 import TranslateCorpusRequest

END_S = 1.0
"""Longest wait for the end of a call, which usually takes milliseconds."""


class CorpusRun:
    """Moves texts through a server; the state is a ``Corpus``, changed under one lock.

    Args:
        corpus: state.
        texts: texts; those before ``start`` are skipped.
        start: index of the first text.
        open_call: calls the server at an index of the client's list with an iterator of requests; raises JumokError.
        is_open: returns True until the client is closed.
    """

    def __init__(
        self,
        corpus: Corpus,
        texts: Iterable[str],
        start: int,
        open_call: Callable[[int, Iterator[TranslateCorpusRequest]], CorpusCall],
        is_open: Callable[[], bool],
    ) -> None:
        self._corpus = corpus
        self._texts = texts
        self._start = start
        self._open_call = open_call
        self._is_open = is_open
        self._changed = threading.Condition()
        self._closed = False
        self._call: CorpusCall | None = None
        self._number = 0  # of the current call

    def results(self) -> Generator[TextResult, None, None]:
        """Yield the results in order; reading starts with the first request for a result."""
        # Daemons, because a thread that waits for a text must not keep the program from ending.
        reading, running = (
            threading.Thread(target=target, name=f"translate-iter{target.__name__}", daemon=True)
            for target in (self._read, self._run)
        )
        reading.start()
        running.start()
        try:
            while (result := self._next()) is not None:
                yield result
        finally:
            with self._changed:
                self._closed = True
                call, answered = self._call, self._corpus.all_answered
                self._changed.notify_all()
            own = threading.current_thread() is running  # garbage collection can run this in any thread
            if answered and not own:  # the call ends by itself
                running.join(END_S)
            if call is not None:
                call.cancel()
            if not own:
                running.join(END_S)

    def _next(self) -> TextResult | None:
        corpus = self._corpus
        with self._changed:
            while not corpus.has_result:
                self._changed.wait(corpus.remaining_s(time.monotonic()))
                corpus.check_time(time.monotonic())
            self._changed.notify_all()  # the window has room, or the run is over
            return corpus.take_result()

    def _read(self) -> None:
        corpus = self._corpus
        try:
            texts = islice(self._texts, self._start, None)
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or corpus.has_room)
                    if self._closed:
                        return
                try:
                    text = next(texts)
                except StopIteration:
                    break
                with self._changed:
                    corpus.add(text, time.monotonic())
                    self._changed.notify_all()
        except BaseException as error:
            self._end(error)
        else:
            self._end(None)

    def _end(self, error: BaseException | None) -> None:
        with self._changed:
            self._corpus.end(error)
            self._changed.notify_all()

    def _run(self) -> None:
        corpus = self._corpus
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or corpus.needs_call or corpus.all_answered)
                if self._closed or corpus.all_answered:
                    return
                corpus.begin_call(time.monotonic())
                number = self._number
            error: JumokError | None = None
            try:
                call = self._open_call(corpus.endpoint, self._requests(number))
                with self._changed:
                    self._call = call
                    if self._closed:
                        call.cancel()
                for response in call:
                    with self._changed:
                        corpus.receive(response, time.monotonic())
                        self._changed.notify_all()
            except JumokError as failed:
                error = failed
                if not self._is_open():
                    with self._changed:
                        corpus.failure = failed
            except BaseException as failed:  # a closed client or a bug, raised by the iteration
                with self._changed:
                    corpus.failure = failed
            with self._changed:
                self._number += 1  # ends the requests of the call
                self._call = None
                delay_s = corpus.call_ended(error, time.monotonic())
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._closed or corpus.failure is not None, delay_s)

    def _requests(self, number: int) -> Iterator[TranslateCorpusRequest]:
        """Yield the requests of one call; gRPC reads them in its own thread."""
        corpus = self._corpus
        with self._changed:
            request = corpus.take(first=True)
        while True:
            yield request
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._number != number or corpus.can_send)
                if self._closed or self._number != number or corpus.all_sent:
                    return
                request = corpus.take(first=False)
