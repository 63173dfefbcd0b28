"""How an event loop learns what threads have finished: woken once for all of it, not once for each."""

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any


class _Waiting:
    """A task that waits; only the event loop changes it."""

    def __init__(self, arrived: asyncio.Future[Future[Any]], left: int) -> None:
        self.arrived = arrived
        self.left = left

    def see(self, future: Future[Any]) -> None:
        """Let the task go on where nothing is left to wait for."""
        self.left -= 1
        if not self.arrived.done() and (self.left == 0 or future.cancelled() or future.exception() is not None):
            self.arrived.set_result(future)


class Arrivals:
    """Futures that threads complete and tasks of one event loop wait for; made where this runs.

    The engine completes all sentences of a step one after the other. Waking the loop takes a system call, at which a
    thread lets go of Python's lock; so the first of them wakes it, and it finds the others when it comes.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._finished: deque[tuple[_Waiting, Future[Any]]] = deque()
        self._woken = False

    async def wait(self, futures: Sequence[Future[Any]]) -> None:
        """Wait until all are done or one has failed, and raise what that failed with; none is cancelled."""
        if not futures:
            return
        waiting = _Waiting(self._loop.create_future(), len(futures))
        for future in futures:
            future.add_done_callback(partial(self._finish, waiting))
        (await waiting.arrived).result()

    def _finish(self, waiting: _Waiting, future: Future[Any]) -> None:
        """Note a future that is done, in whatever thread that happened."""
        self._finished.append((waiting, future))
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._hand_over)

    def _hand_over(self) -> None:
        """Tell the tasks; what is noted from now on wakes the loop again."""
        self._woken = False
        while self._finished:
            waiting, future = self._finished.popleft()
            waiting.see(future)
