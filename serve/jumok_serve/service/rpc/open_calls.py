"""Counts of open calls, in all and by caller."""

import asyncio
from collections import Counter
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from jumok_proto.errors import OverloadedError
from jumok_serve.engine.admission import RETRY_AFTER_S

Task: TypeAlias = asyncio.Task[Any]

UNREAD_S = 30.0
"""Time for a client to take a response, in seconds, when too many responses wait for their clients."""
MAX_DROPPED = 16
"""Calls whose responses are given up at a time."""


class _Unsent(NamedTuple):
    """A call whose response is being sent."""

    caller: str
    since: float


class OpenCalls:
    """Open calls of one kind, bounded in all and by caller; used in the event loop only.

    Calls whose response waits for its client count apart: they and the open calls together may be twice as many. A
    client that does not read would else keep any number of responses in memory.

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
        self._unsent: dict[Task, _Unsent] = {}  # in the order of time
        self._unsent_of_caller: Counter[str] = Counter()

    def open(self, caller: str) -> None:
        """Count a call.

        Raises:
            OverloadedError: too many calls are open, or have a response that is not read.
        """
        own = self._of_caller[caller]
        if self._open >= self._most:
            raise self._too_many(self._most, "")
        if own >= self._most_of_caller:
            raise self._too_many(self._most_of_caller, " of this caller")
        if (
            self._open + len(self._unsent) >= 2 * self._most
            or own + self._unsent_of_caller[caller] >= 2 * self._most_of_caller
        ):
            self._drop_unread()
            raise OverloadedError(
                f"too many {self._what} have responses that are not read: read them", retry_after_s=RETRY_AFTER_S
            )
        self._open += 1
        self._of_caller[caller] = own + 1

    def _too_many(self, most: int, of: str) -> OverloadedError:
        return OverloadedError(f"{most} {self._what}{of} are open: no room for another", retry_after_s=RETRY_AFTER_S)

    def close(self, caller: str, sending: Task | None = None) -> None:
        """Uncount a call; its response counts until the task that sends it ends."""
        self._open -= 1
        _uncount(self._of_caller, caller)
        if sending is not None:
            self._unsent[sending] = _Unsent(caller, asyncio.get_running_loop().time())
            self._unsent_of_caller[caller] += 1
            sending.add_done_callback(self._sent)

    def _sent(self, task: Task) -> None:
        _uncount(self._unsent_of_caller, self._unsent.pop(task).caller)

    def _drop_unread(self) -> None:
        """Give up the oldest responses if their clients have had their time."""
        late = asyncio.get_running_loop().time() - UNREAD_S
        for task, unsent in list(islice(self._unsent.items(), MAX_DROPPED)):
            if unsent.since < late:
                task.cancel()


def _uncount(counts: Counter[str], caller: str) -> None:
    counts[caller] -= 1
    if not counts[caller]:
        del counts[caller]
