"""Deadlines of callers."""

import time
from concurrent.futures import CancelledError

from jumok_proto.errors import InvalidArgumentError
from jumok_serve.interrupts import check

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

    Args:
        at: time in ``time.monotonic()`` seconds; None: no deadline.
    """

    def __init__(self, at: float | None) -> None:
        self._at = at
        self._cancelled = False

    def cancel(self) -> None:
        """Cancel the work; may be called from another thread."""
        self._cancelled = True

    def of_part(self) -> "Deadline":
        """Return the deadline of a part of the work, which is cancelled by itself."""
        return Deadline(self._at)

    def check(self, doing: str) -> None:
        """Raise if the work was cancelled or is late.

        `doing` names the present part of the work in the message.

        Raises:
            CancelledError: of ``concurrent.futures``, the work was cancelled.
            DeadlineExceededError: the deadline has passed.
        """
        if self._cancelled:
            raise CancelledError
        check(self._at, doing)
