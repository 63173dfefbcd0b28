"""Rate limiting: one token bucket for each caller."""

MAX_CALLERS = 65_536
"""Callers that are remembered; full buckets are dropped first, as they equal new ones."""


class RateLimiter:
    """Token buckets by caller, by the generic cell rate algorithm.

    (ITU-T Recommendation I.371, annex A: the virtual scheduling algorithm.) Times are in seconds of any one clock.

    Args:
        per_second: sustained rate, in calls or another unit.
        burst: units at once after a pause; None: those of one second, at least 1.
    """

    def __init__(self, per_second: float, burst: int | None = None) -> None:
        self.per_second = per_second
        self._burst = burst or max(1, int(per_second))
        self._full_at: dict[str, float] = {}  # when each caller's bucket will be full again

    def take(self, caller: str, now: float, units: int = 1) -> float:
        """Take units and return 0, or return seconds until that is allowed.

        More units than the burst need a full bucket, and leave a debt.
        """
        full_at = max(self._full_at.get(caller, now), now)
        wait_s = full_at - now - (self._burst - min(units, self._burst)) / self.per_second
        if wait_s > 1e-9:  # less is rounding
            return wait_s
        self._full_at[caller] = full_at + units / self.per_second
        if len(self._full_at) > MAX_CALLERS:
            self._evict(now)
        return 0.0

    def give_back(self, caller: str, units: int) -> None:
        """Give units back that were not used, or take more if they are negative."""
        if caller in self._full_at:  # else the bucket is full, or forgotten
            self._full_at[caller] -= units / self.per_second

    def _evict(self, now: float) -> None:
        """Drop full buckets, and the oldest of the others beyond MAX_CALLERS."""
        self._full_at = {caller: full_at for caller, full_at in self._full_at.items() if full_at > now}
        for caller in list(self._full_at)[: max(0, len(self._full_at) - MAX_CALLERS)]:
            del self._full_at[caller]
