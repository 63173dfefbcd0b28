"""How often a caller may call: a token bucket for each."""

import time
from collections.abc import Callable

MAX_CALLERS = 65_536
"""That are remembered: one that has rested is as one that was never seen, and is forgotten first."""


class RateLimiter:
    """Token buckets, as the generic cell rate algorithm keeps them: one number a caller, no refilling.

    (ITU-T Recommendation I.371, annex A: the virtual scheduling algorithm.)

    Args:
        per_second: calls in the long run.
        burst: calls at once after a rest; None: those of one second, at least 1.
        clock: gives seconds that never go back.
    """

    def __init__(
        self, per_second: float, burst: int | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.per_second = per_second
        self._interval_s = 1 / per_second
        self._tolerance_s = ((burst or max(1, int(per_second))) - 1) * self._interval_s
        self._clock = clock
        self._due: dict[str, float] = {}  # when each caller's bucket will be full again

    def take(self, caller: str) -> float:
        """Count a call in, or say how many seconds it comes too early."""
        now = self._clock()
        due = max(self._due.get(caller, now), now)
        early_s = due - now - self._tolerance_s
        if early_s > 1e-9:  # less is rounding
            return early_s
        self._due[caller] = due + self._interval_s
        if len(self._due) > MAX_CALLERS:
            self._forget(now)
        return 0.0

    def _forget(self, now: float) -> None:
        """Forget whose buckets are full, and as many others as it takes, those first who have been here longest."""
        self._due = {caller: due for caller, due in self._due.items() if due > now}
        for caller in list(self._due)[: max(0, len(self._due) - MAX_CALLERS)]:
            del self._due[caller]
