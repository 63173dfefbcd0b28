"""Counts of open calls, in all and by caller."""

from collections import Counter

from jumok_proto.errors import OverloadedError
from jumok_serve.engine.admission import RETRY_AFTER_S


class OpenCalls:
    """Open calls of one kind, bounded in all and by caller; used in the event loop only.

    Args:
        what: plural of the kind, for errors.
        most: open calls of all callers.
        most_of_caller: open calls of one caller.
    """

    def __init__(self, what: str, most: int, most_of_caller: int) -> None:
        self._what = what
        self._most = most
        self._most_of_caller = most_of_caller
        self._open = 0
        self._of_caller: Counter[str] = Counter()

    def open(self, caller: str) -> None:
        """Count a call.

        Raises:
            OverloadedError: too many calls are open.
        """
        if self._open >= self._most:
            raise self._too_many(self._most, "")
        if self._of_caller[caller] >= self._most_of_caller:
            raise self._too_many(self._most_of_caller, " of this caller")
        self._open += 1
        self._of_caller[caller] += 1

    def _too_many(self, most: int, of: str) -> OverloadedError:
        return OverloadedError(f"{most} {self._what}{of} are open: no room for another", retry_after_s=RETRY_AFTER_S)

    def close(self, caller: str) -> None:
        """Uncount a call."""
        self._open -= 1
        self._of_caller[caller] -= 1
        if not self._of_caller[caller]:
            del self._of_caller[caller]
