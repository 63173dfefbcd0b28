"""A future of few parts: an engine completes thousands a second, and several look at each."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Generic, TypeVar

T = TypeVar("T")

logger = logging.getLogger(__name__)

_CHANGING = threading.Lock()
"""Held for moments, by whoever changes any of them. Nothing is made or called meanwhile: to collect garbage may close
what gives up a future."""


class Future(Generic[T]):
    """What will come of something, or why nothing does; calls may come from any thread.

    To its users it is like one of ``concurrent.futures`` that never begins to run, but that what comes too late is not
    taken; functions for those do not take it. They have a lock and a condition each, which take up room that is read
    and written whenever anybody looks.
    """

    __slots__ = ("_callbacks", "_cancelled", "_done", "_error", "_result", "_told")

    def __init__(self) -> None:
        self._done = self._cancelled = False
        self._result: T | None = None
        self._error: BaseException | None = None
        self._callbacks: tuple[Callable[[Future[T]], object], ...] = ()
        self._told: tuple[Callable[[], object], ...] = ()  # of a cancellation

    def done(self) -> bool:
        """Whether it has a result or an error, or was cancelled."""
        return self._done

    def cancelled(self) -> bool:
        """Whether it was given up."""
        return self._cancelled

    def cancel(self) -> bool:
        """Gives it up, unless it has a result or an error; whether it is given up."""
        self._settle(None, None, True)
        return self._cancelled

    def set_result(self, result: T) -> bool:
        """Completes it, unless it is done; whether it was not."""
        return self._settle(result, None, False)

    def set_exception(self, error: BaseException) -> bool:
        """Says why there is no result, unless it is done; whether it was not."""
        return self._settle(None, error, False)

    def _settle(self, result: T | None, error: BaseException | None, cancelled: bool) -> bool:
        with _CHANGING:
            if self._done:
                return False
            self._result, self._error, self._cancelled = result, error, cancelled
            self._done = True
            callbacks, self._callbacks = self._callbacks, ()
        for tell in self._told if cancelled else ():
            tell()
        for callback in callbacks:
            self._call(callback)
        return True

    def add_done_callback(self, callback: Callable[["Future[T]"], object]) -> None:
        """Has it called with this once it is done, by the thread that does it; at once where it is done."""
        while not self._done:
            before = self._callbacks
            after = (*before, callback)
            with _CHANGING:
                if self._callbacks is before and not self._done:
                    self._callbacks = after
                    return
        self._call(callback)

    def _call(self, callback: Callable[["Future[T]"], object]) -> None:
        try:
            callback(self)
        except Exception:  # it is no business of whoever completes this
            logger.exception("who waited for a future failed when it was done")

    def tell_cancelled(self, tell: Callable[[], object]) -> None:
        """Has something called when it is cancelled, before any callback, or at once where it was.

        Where somebody cancels it meanwhile, it may be called twice. It must not fail, or keep who cancels. Of several
        threads that call this for one future, each comes after the other.
        """
        self._told += (tell,)
        if self._cancelled:
            tell()

    def result(self, timeout: float | None = None) -> T:
        """What came of it; waits so many seconds, or for ever.

        Raises:
            TimeoutError: nothing has in that time.
            CancelledError: of ``concurrent.futures``, it was given up.
            BaseException: why nothing did.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._result  # type: ignore[return-value]  # it has one where there is no error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Why nothing came of it, or None; waits and raises as `result` does."""
        if not self._done:
            over = threading.Event()
            self.add_done_callback(lambda _: over.set())
            if not over.wait(timeout):
                raise TimeoutError(f"it was not done in {timeout} s")
        if self._cancelled:
            raise CancelledError
        return self._error
