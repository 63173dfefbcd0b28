"""How long a caller waits for an answer."""

import time
from concurrent.futures import CancelledError

from jumok_proto.errors import DeadlineExceededError, InvalidArgumentError

LONGEST_TIMEOUT_S = 1e9
"""Longer ones, such as integers beyond every float, mean the same."""


def deadline_after(timeout_s: float | None) -> float | None:
    """The moment that lies so many seconds ahead, in ``time.monotonic()`` seconds; None stays None.

    Raises:
        InvalidArgumentError: ``timeout_s`` is no number of seconds above 0.
    """
    if timeout_s is None:
        return None
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s > 0:
        raise InvalidArgumentError(
            f"timeout_s must be a number of seconds above 0, got {timeout_s!r}", field="timeout_s"
        )
    return time.monotonic() + min(timeout_s, LONGEST_TIMEOUT_S)


class Patience:
    """How long somebody waits for work that is done in parts.

    Args:
        deadline: in ``time.monotonic()`` seconds; None: for ever.
    """

    def __init__(self, deadline: float | None) -> None:
        self._deadline = deadline
        self._cancelled = False

    def cancel(self) -> None:
        """Nobody waits any more; may be called from another thread."""
        self._cancelled = True

    def check(self, doing: str) -> None:
        """Raise DeadlineExceededError, or CancelledError of ``concurrent.futures``, where nobody waits any more."""
        if self._cancelled:
            raise CancelledError
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise DeadlineExceededError(f"the deadline passed while {doing}")
