"""Whether those may have left who waited for sentences, so that nobody looks at all of these for nothing."""

import math
from collections.abc import Iterable
from typing import Any, Protocol

from jumok_serve.engine.future import Future


class Awaited(Protocol):
    """What somebody waits for, until a time in `time.monotonic()` seconds or for ever."""

    future: Future[Any]
    deadline: float | None


class Departures:
    """Takes note of cancellations, and of the first deadline.

    Futures keep this alive; it keeps nothing else alive, so they do not keep batches or queues.
    """

    def __init__(self) -> None:
        self._cancelled = False
        self._first_deadline = math.inf

    def watch(self, awaited: Iterable[Awaited]) -> None:
        """Takes note of those who wait for these as well."""
        for one in awaited:
            one.future.tell_cancelled(self._note)
            if one.deadline is not None:
                self._first_deadline = min(self._first_deadline, one.deadline)

    def possible(self, now: float) -> bool:
        """Whether one was cancelled since the last look, or the first deadline has passed."""
        return self._cancelled or now > self._first_deadline

    def look(self, awaited: Iterable[Awaited], now: float) -> None:
        """Begins anew, before a look at all that are watched: who leaves from here on is not missed the next time."""
        self._cancelled = False
        deadlines = (one.deadline for one in awaited if one.deadline is not None and one.deadline >= now)
        self._first_deadline = min(deadlines, default=math.inf)

    def _note(self) -> None:
        self._cancelled = True
