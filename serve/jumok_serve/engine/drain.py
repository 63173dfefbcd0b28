"""How long a queue makes one wait at least, by how fast it has ever emptied."""

WINDOW_S = 1.0
"""Over which speed is measured: long enough that what a batch takes at once does not look like speed."""
CAUTION = 4.0
"""How many times faster than ever before the queue is believed to empty: what waits may be shorter work than what was
measured, or may be given up."""


class DrainRate:
    """Measures while texts wait all the time, and says nothing before.

    Work is source tokens times beam size.

    Args:
        at_once: work that may leave the queue in one moment, without anybody being fast.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._fastest = 0.0  # work a second
        self._since: float | None = None  # when texts began to wait all the time, or the last window ended
        self._left = 0

    def leaves(self, work: int, now: float, *, waiting: bool) -> None:
        """Learn that work left the queue at the monotonic time ``now``, and whether any still waits."""
        if self._since is None:
            self._since, self._left = now, 0
        else:
            self._left += work
            elapsed = now - self._since
            if elapsed >= WINDOW_S:
                self._fastest = max(self._fastest, self._left / elapsed)
                self._since, self._left = now, 0
        if not waiting:
            self._since = None

    def least_wait_s(self, work: int) -> float:
        """Seconds that one waits behind so much work at the very least; 0 where nothing was measured yet."""
        if not self._fastest:
            return 0.0
        return max(0, work - self._at_once) / (self._fastest * CAUTION)
