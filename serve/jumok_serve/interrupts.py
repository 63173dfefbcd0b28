"""Long work in threads: it ends when its deadline passes or its caller leaves, and gives way to shorter work."""

import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TypeVar

from jumok_proto.errors import DeadlineExceededError, InvalidArgumentError

Result = TypeVar("Result")

PART_S: Final = 0.0005
"""Processor time of long work, in seconds, after which it may rest."""
REST: Final = 6.0
"""Rest of long work that others have to wait for, as a multiple of its own processor time.

Others of this process take Python's lock after each call of long work at best, a millisecond each time. Beside four
callers with 3,500 attributes a text, p99 of a short text fell from 200 to 53 ms, with one such job at a time too (two
cores, November 2026).
"""
MAX_REST_S: Final = 0.02
"""Longest rest, in seconds: parts of some work are long, and its deadline and caller are asked for after the rest."""
TURN_S: Final = 0.0001
"""Pause in which a thread that waits for Python's lock gets it, in seconds.

NumPy releases the lock for moments that are too short for others to wake up in, and restarts their wait each time.
1,000 texts whose languages were detected, half a millisecond each, kept the event loop waiting for 0.7 s.
"""
WAITED: Final = 0.25
"""Wait for a core or Python's lock, as a part of the processor time, from which on long work rests."""


class ShortTexts:
    """Engines' threads that decode short texts beside much other work.

    Each step of such a text needs Python's lock a few times. Long work pauses meanwhile, for at most `MAX_REST_S` after
    `PART_S`: where short texts come without end, it still gets a fortieth of a core. Beside four callers with 3,500
    attributes a text, p99 of a short text fell from 89 to 58 ms (XML) and from 113 to 63 ms (HTML, two cores, November
    2026).
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._threads = 0

    def begin(self) -> None:
        """Count one more thread."""
        with self._changed:
            self._threads += 1

    def end(self) -> None:
        """Count one less."""
        with self._changed:
            self._threads -= 1
            if not self._threads:
                self._changed.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Wait until there is none, or some time has passed; True if there is none."""
        if not self._threads:  # without the lock: long work asks often
            return True
        with self._changed:
            return self._changed.wait_for(lambda: not self._threads, timeout_s)


SHORT_TEXTS: Final = ShortTexts()


class _LongWork:
    """The work of a thread in an `interruptible` context."""

    def __init__(self, has_left: Callable[[], bool]) -> None:
        self.has_left = has_left
        self._begin()

    def give_way(self) -> None:
        """Pause while short texts are decoded, and for long if this thread had to wait for others, as they for it."""
        worked_s = time.thread_time() - self._processor_s
        if worked_s < PART_S:
            return
        waited = time.monotonic() - self._began > (1 + WAITED) * worked_s
        time.sleep(min(REST * worked_s, MAX_REST_S) if waited else TURN_S)
        SHORT_TEXTS.wait(MAX_REST_S)
        self._begin()

    def _begin(self) -> None:
        self._began, self._processor_s = time.monotonic(), time.thread_time()


_long_work: ContextVar[_LongWork | None] = ContextVar("long_work", default=None)


@contextmanager
def interruptible(has_left: Callable[[], bool]) -> Iterator[None]:
    """Let `check` ask if the caller has left, and give way, within this context; in threads only."""
    token = _long_work.set(_LongWork(has_left))
    try:
        yield
    finally:
        _long_work.reset(token)


def check(deadline: float | None, doing: str) -> None:
    """Raise if the caller has left or the deadline has passed; long work calls it between its parts.

    Args:
        deadline: moment of ``time.monotonic()``; None: no limit.
        doing: the present part of the work, for the message.

    Raises:
        CancelledError: of ``concurrent.futures``, the caller has left.
        DeadlineExceededError: the deadline has passed.
    """
    work = _long_work.get()
    if work is not None:
        work.give_way()
        if work.has_left():
            raise CancelledError
    if deadline is not None and time.monotonic() > deadline:
        raise DeadlineExceededError(f"the deadline passed while {doing}")


def finished(pieces: Generator[object, None, Result]) -> Result:
    """Do all pieces of some work in this thread, and return its result."""
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            result: Result = end.value
            return result


MAX_TIMEOUT_S = 1e9
"""Longer timeouts, such as integers beyond every float, are cut to it."""


def deadline_after(timeout_s: float | None) -> float | None:
    """Return the time `timeout_s` seconds ahead, in ``time.monotonic()`` seconds; None stays None.

    Raises:
        InvalidArgumentError: ``timeout_s`` is not a number of seconds above 0.
    """
    if timeout_s is None:
        return None
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s > 0:
        raise InvalidArgumentError(
            f"timeout_s must be a number of seconds above 0, got {timeout_s!r}", field="timeout_s"
        )
    return time.monotonic() + min(timeout_s, MAX_TIMEOUT_S)


class Deadline:
    """Deadline of work done in parts, which its caller may also cancel.

    Attributes:
        at: time in ``time.monotonic()`` seconds; None: no deadline.
    """

    def __init__(self, at: float | None) -> None:
        self.at = at
        self._cancelled = False

    def cancel(self) -> None:
        """Cancel the work; may be called from another thread."""
        self._cancelled = True

    def check(self, doing: str) -> None:
        """Raise if the work was cancelled or is late.

        `doing` names the present part of the work in the message.

        Raises:
            CancelledError: of ``concurrent.futures``, the work was cancelled.
            DeadlineExceededError: the deadline has passed.
        """
        if self._cancelled:
            raise CancelledError
        check(self.at, doing)
