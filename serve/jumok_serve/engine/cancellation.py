"""Detect possible cancellations and passed deadlines without scanning all sentences."""

import math
from collections.abc import Iterable

from jumok_serve.engine.sentence import Sentence


class CancellationWatch:
    """Notes cancellations, and the first deadline.

    Futures keep this object alive. It keeps nothing else alive, so futures keep neither batches nor queues.
    """

    def __init__(self) -> None:
        self._cancelled = False
        self._first_deadline = math.inf

    def watch(self, sentences: Iterable[Sentence]) -> None:
        """Watch more sentences."""
        for one in sentences:
            one.future.add_cancel_callback(self._note)
            if one.deadline is not None:
                self._first_deadline = min(self._first_deadline, one.deadline)

    def triggered(self, now: float) -> bool:
        """True after a cancellation since `reset`, or after the first deadline."""
        return self._cancelled or now > self._first_deadline

    def reset(self, sentences: Iterable[Sentence], now: float) -> None:
        """Reset before a scan of all work; later cancellations trigger again."""
        self._cancelled = False
        deadlines = (one.deadline for one in sentences if one.deadline is not None and one.deadline >= now)
        self._first_deadline = min(deadlines, default=math.inf)

    def _note(self) -> None:
        self._cancelled = True
