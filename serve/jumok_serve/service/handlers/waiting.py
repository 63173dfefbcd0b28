"""Waits of the event loop: for sentences, and for room in full queues."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from jumok_proto.errors import OverloadedError, RateLimitedError
from jumok_serve.engine.future import Future
from jumok_serve.engine.request_queue import RETRY_AFTER_S

FIRST_RETRY_S = 0.05
"""Wait after a full queue, in seconds; doubles at each retry, up to RETRY_AFTER_S."""

Result = TypeVar("Result")


async def submit_when_there_is_room(submit: Callable[[], Awaitable[Result]]) -> Result:
    """Submit, with retries while the queue is full or the caller too fast."""
    wait_s = FIRST_RETRY_S
    while True:
        try:
            return await submit()
        except (OverloadedError, RateLimitedError) as error:
            fast = error.retry_after_s if isinstance(error, RateLimitedError) else None
            await asyncio.sleep(min(fast or wait_s, RETRY_AFTER_S))
            wait_s = min(2 * wait_s, RETRY_AFTER_S)


class _Waiter:
    """A task that waits for futures; changed by the event loop only."""

    def __init__(self, ready: asyncio.Future[Future[Any]], pending: int) -> None:
        self.ready = ready
        self.pending = pending

    def future_done(self, future: Future[Any]) -> None:
        """Wake the task if all futures are done or one has failed."""
        self.pending -= 1
        if not self.ready.done() and (self.pending == 0 or future.cancelled() or future.exception() is not None):
            self.ready.set_result(future)


class LoopWakeups:
    """Callbacks from other threads into the event loop of construction.

    The engine completes all sentences of a step one after the other. Waking the loop takes a system call, which
    releases the GIL. So only the first callback wakes the loop, and the loop runs all that have arrived by then.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._callbacks: deque[Callable[[], object]] = deque()
        self._woken = False

    async def wait(self, futures: Sequence[Future[Any]]) -> None:
        """Wait for all futures or the first failure, which is raised.

        No future is cancelled.
        """
        if not futures:
            return
        waiter = _Waiter(self._loop.create_future(), len(futures))
        for future in futures:
            future.add_done_callback(lambda done: self.call_soon(partial(waiter.future_done, done)))
        (await waiter.ready).result()

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Run a callback in the event loop soon; safe from any thread."""
        self._callbacks.append(callback)
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._run_callbacks)

    def _run_callbacks(self) -> None:
        self._woken = False  # first, so that later callbacks wake the loop again
        while self._callbacks:
            self._callbacks.popleft()()
