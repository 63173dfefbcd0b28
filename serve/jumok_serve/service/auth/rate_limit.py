"""Rate limiting: one token bucket for each caller."""

import time
from collections.abc import Callable

MAX_CALLERS = 65_536
"""Callers that are remembered; full buckets are dropped first, as they equal new ones."""


class RateLimiter:
    """Token buckets by caller, by the generic cell rate algorithm.

    (ITU-T Recommendation I.371, annex A: the virtual scheduling algorithm.)

    Args:
        per_second: sustained rate of calls.
        burst: calls at once after a pause; None: calls of one second, at least 1.
        clock: monotonic clock, in seconds.
    """

    def __init__(
        self, per_second: float, burst: int | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.per_second = per_second
        self._interval_s = 1 / per_second
        self._tolerance_s = ((burst or max(1, int(per_second))) - 1) * self._interval_s
        self._clock = clock
        self._full_at: dict[str, float] = {}  # when each caller's bucket will be full again

    def take(self, caller: str) -> float:
        """Count a call and return 0, or seconds until one is allowed."""
        now = self._clock()
        full_at = max(self._full_at.get(caller, now), now)
        wait_s = full_at - now - self._tolerance_s
        if wait_s > 1e-9:  # less is rounding
            return wait_s
        self._full_at[caller] = full_at + self._interval_s
        if len(self._full_at) > MAX_CALLERS:
            self._evict(now)
        return 0.0

    def _evict(self, now: float) -> None:
        """Drop full buckets, and the oldest of the others beyond MAX_CALLERS."""
        self._full_at = {caller: full_at for caller, full_at in self._full_at.items() if full_at > now}
        for caller in list(self._full_at)[: max(0, len(self._full_at) - MAX_CALLERS)]:
            del self._full_at[caller]
