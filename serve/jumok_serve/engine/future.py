"""A light future, for thousands of completions per second."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Generic, TypeVar

T = TypeVar("T")

logger = logging.getLogger(__name__)

_LOCK = threading.Lock()
"""Held for moments while any future changes. Nothing is allocated or called meanwhile: garbage collection may close an
object that cancels a future."""


class Future(Generic[T]):
    """A result or error that may still be missing; thread-safe.

    It works like a ``concurrent.futures.Future`` that never starts to run, except that a late result is ignored. The
    library's class has a lock and a condition in each object, which cost memory and time. The library's functions,
    such as ``wait``, do not accept this class.
    """

    __slots__ = ("_callbacks", "_cancel_callbacks", "_cancelled", "_done", "_error", "_result")

    def __init__(self) -> None:
        self._done = self._cancelled = False
        self._result: T | None = None
        self._error: BaseException | None = None
        self._callbacks: tuple[Callable[[Future[T]], object], ...] = ()
        self._cancel_callbacks: tuple[Callable[[], object], ...] = ()

    def done(self) -> bool:
        """True if it has a result or an error, or was cancelled."""
        return self._done

    def cancelled(self) -> bool:
        """True if it was cancelled."""
        return self._cancelled

    def cancel(self) -> bool:
        """Cancel it unless it is done; True if it is cancelled."""
        self._settle(None, None, True)
        return self._cancelled

    def set_result(self, result: T) -> bool:
        """Complete it unless it is done; True if it was not."""
        return self._settle(result, None, False)

    def set_exception(self, error: BaseException) -> bool:
        """Fail it unless it is done; True if it was not."""
        return self._settle(None, error, False)

    def _settle(self, result: T | None, error: BaseException | None, cancelled: bool) -> bool:
        with _LOCK:
            if self._done:
                return False
            self._result, self._error, self._cancelled = result, error, cancelled
            self._done = True
            callbacks, self._callbacks = self._callbacks, ()
            cancel_callbacks, self._cancel_callbacks = self._cancel_callbacks, ()  # they may refer to the future
        for cancel_callback in cancel_callbacks if cancelled else ():
            cancel_callback()
        for callback in callbacks:
            self._call(callback)
        return True

    def add_done_callback(self, callback: Callable[["Future[T]"], object]) -> None:
        """Call `callback` with this future when done; at once if it is.

        The callback runs in the thread that completes the future.
        """
        while not self._done:
            before = self._callbacks
            after = (*before, callback)
            with _LOCK:
                if self._callbacks is before and not self._done:
                    self._callbacks = after
                    return
        self._call(callback)

    def _call(self, callback: Callable[["Future[T]"], object]) -> None:
        try:
            callback(self)
        except Exception:  # must not reach the thread that completes the future
            logger.exception("a callback of a future failed")

    def add_cancel_callback(self, callback: Callable[[], object]) -> None:
        """Call `callback` on cancellation, before done callbacks; at once if cancelled.

        A cancellation at the same time may call it twice. It must neither fail nor block. Callers in several threads
        must take turns.
        """
        self._cancel_callbacks += (callback,)
        if self._done:
            self._cancel_callbacks = ()
            if self._cancelled:
                callback()

    def result(self, timeout: float | None = None) -> T:
        """Return the result; waits at most `timeout` seconds, or without bound.

        Raises:
            TimeoutError: it is not done in time.
            CancelledError: of ``concurrent.futures``, it was cancelled.
            BaseException: the error that it failed with.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._result  # type: ignore[return-value]  # set if there is no error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error, or None; waits and raises as `result` does."""
        if not self._done:
            over = threading.Event()
            self.add_done_callback(lambda _: over.set())
            if not over.wait(timeout):
                raise TimeoutError(f"the result was not ready within {timeout} s")
        if self._cancelled:
            raise CancelledError
        return self._error
