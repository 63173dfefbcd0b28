"""How an event loop learns what threads have finished: woken once for all of it, not once for each."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from jumok_serve.engine.future import Future


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
        self._told: deque[Callable[[], object]] = deque()
        self._woken = False

    async def wait(self, futures: Sequence[Future[Any]]) -> None:
        """Wait until all are done or one has failed, and raise what that failed with; none is cancelled."""
        if not futures:
            return
        waiting = _Waiting(self._loop.create_future(), len(futures))
        for future in futures:
            future.add_done_callback(lambda done: self.tell(partial(waiting.see, done)))
        (await waiting.arrived).result()

    def tell(self, callback: Callable[[], object]) -> None:
        """Have the event loop call something soon; may be called from any thread."""
        self._told.append(callback)
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._hand_over)

    def _hand_over(self) -> None:
        """Tell the tasks; what is noted from now on wakes the loop again."""
        self._woken = False
        while self._told:
            self._told.popleft()()
