"""Admission: refuse sentences that do not fit or would be too late."""

from collections.abc import Sequence

from jumok_proto.errors import DeadlineExceededError, InvalidArgumentError, OverloadedError
from jumok_serve.engine.limits import EngineLimits
from jumok_serve.engine.request_queue import RequestQueue, Totals
from jumok_serve.engine.sentence import Sentence
from jumok_serve.search import HISTORY_WORK

RETRY_AFTER_S = 1.0
"""Seconds that a refused caller should wait."""

MIN_FREE_SHARE = 32
"""Requests are read only while this part (1/32) of the queue is free. Under an overload of small requests the last
places are free most of the time, and too few for the next request."""

RESERVE_SHARE = 8
"""Callers with more than an equal share of the queue leave this part (1/8) to the others. Their corpora leave as much
to their single calls, because corpora can wait."""

WORK_PER_POSITION = 4
"""Estimated work of a sentence of 8 source tokens for each of its positions; longer ones have less."""

WINDOW_S = 1.0
"""Seconds over which the drain rate is measured: long enough that the intake of one batch does not look like speed."""

CAUTION = 4.0
"""The queue may drain this many times faster than ever measured: waiting work may be shorter, or be cancelled."""


class DrainRate:
    """Fastest rate at which the queue has drained under constant load.

    Work is counted in row steps.

    Args:
        at_once: work that may leave the queue in one moment.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._fastest = 0.0  # work a second
        self._window_start: float | None = None  # None while no text waits
        self._left = 0

    def record(self, work: int, now: float, *, waiting: bool) -> None:
        """Record work that left the queue at `now`, and if any waits."""
        if self._window_start is None:
            self._window_start, self._left = now, 0
        else:
            self._left += work
            elapsed = now - self._window_start
            if elapsed >= WINDOW_S:
                self._fastest = max(self._fastest, self._left / elapsed)
                self._window_start, self._left = now, 0
        if not waiting:
            self._window_start = None

    def min_wait_s(self, work: int) -> float:
        """Return the minimum seconds until `work` leaves the queue; 0 if unmeasured."""
        if not self._fastest:
            return 0.0
        return max(0, work - self._at_once) / (self._fastest * CAUTION)


class AdmissionPolicy:
    """Decides if sentences may wait in the queue."""

    def __init__(self, limits: EngineLimits) -> None:
        self._limits = limits
        self.drain_rate = DrainRate(WORK_PER_POSITION * limits.max_batch_tokens)

    def is_full(self, queue: RequestQueue, caller: str, free_share: int = MIN_FREE_SHARE) -> bool:
        """True if the queue is full for a caller; for one over its share, if less than 1 / `free_share` is free."""
        callers = queue.callers_with(caller)
        for present, own, bound in zip(queue.totals, queue.totals_of(caller), self._bounds, strict=True):
            most = _most(bound, own, callers, caller)
            free = bound // (MIN_FREE_SHARE if most == bound else free_share)
            if present + max(1, free) > most:
                return True
        return False

    @property
    def _bounds(self) -> Totals:
        limits = self._limits
        return Totals(limits.max_queue_requests, limits.max_queue_tokens, limits.max_queue_bytes, limits.max_queue_work)

    def check_work(self, most: int) -> None:
        """Refuse a request that could keep the engine too long.

        Args:
            most: row steps that all its sentences together may take.

        Raises:
            InvalidArgumentError: more than a request may take.
        """
        if most > self._limits.max_request_work:
            raise InvalidArgumentError(
                f"the request could take {most} row steps (sentences times rows times max_length; "
                f"{1 + HISTORY_WORK} times as many with constraints on repetition), more than the "
                f"{self._limits.max_request_work} of a request: send several, or lower beam_size or max_length",
                field="contents",
            )

    def check_room(self, queue: RequestQueue, more: Totals, caller: str) -> None:
        """Check that sentences of a caller, their source tokens and their memory fit into the queue.

        Raises:
            InvalidArgumentError: they do not fit into an empty queue.
            OverloadedError: they do not fit now.
        """
        units = ("sentences", "tokens", "bytes", "row steps")
        callers, waiting = queue.callers_with(caller), queue.totals_of(caller)
        for what, present, own, added, bound in zip(units, queue.totals, waiting, more, self._bounds, strict=True):
            if added > bound:
                raise InvalidArgumentError(
                    f"a request takes at most {bound} {what} here, got {added}: send several", field="contents"
                )
            most = _most(bound, own + added, callers, caller)
            if present and present + added > most:
                kept = "" if most == bound else f", and keeps {bound - most} for callers with less"
                raise OverloadedError(
                    f"the queue holds {present} of at most {bound} {what}{kept}: no room for {added} more",
                    retry_after_s=RETRY_AFTER_S,
                )

    def check_deadlines(self, queue: RequestQueue, sentences: Sequence[Sentence], now: float) -> None:
        """Refuse sentences that miss their deadline even at the fastest drain.

        Raises:
            DeadlineExceededError: one sentence cannot.
        """
        deadline = min((one.deadline for one in sentences if one.deadline is not None), default=None)
        if deadline is None:
            return
        left_s = deadline - now
        if left_s <= 0:
            raise DeadlineExceededError("the deadline had passed when the request arrived")
        # Work of other callers may leave later.
        wait_s = self.drain_rate.min_wait_s(max(queue.work_of(sentence.caller) for sentence in sentences))
        if left_s < wait_s:
            raise DeadlineExceededError(
                f"the queue takes {wait_s:.1f} s at least, and the deadline passes in {left_s:.1f} s: give more "
                "time, or come back later"
            )


def _most(bound: int, own: int, callers: int, caller: str) -> int:
    """Return the part of a bound that the queue may fill with a caller's sentences.

    Args:
        own: amount that the caller has then.
        callers: callers with waiting sentences, this one included; another may come.
        caller: key of the caller; empty in a process without others.
    """
    within_share = own * (callers + 1) <= bound
    return bound if within_share or not caller else bound - bound // RESERVE_SHARE
