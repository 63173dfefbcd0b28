"""What differs between the clients: tasks of event loops for the asynchronous one, threads for the other.

`unasync.py` makes the synchronous code of the asynchronous one, with the second of each two forms here: ``Condition``
for ``AsyncCondition``, ``cancellation`` for ``async_cancellation``.
"""

import asyncio
import os
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Generic, Self, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from jumok_proto.errors import CallCancelledError, FailedPreconditionError

Link = TypeVar("Link")
Item = TypeVar("Item")

WAKE_S = 1.0
"""Longest wait of a thread: Ctrl-C that comes just before a wait does not end it."""

AsyncFailure = Exception
Failure = BaseException
"""What background work passes on to its caller; a task itself ends by its cancellation."""


# --- locks, and waiting ---


class AsyncCondition:
    """A condition for the tasks of one event loop; they change at no other time than when they wait, and need no lock.

    Its methods are those of ``threading.Condition``.
    """

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def notify_all(self) -> None:
        """Wake all tasks that wait."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait until ``notify_all``, or for a time."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            await asyncio.wait({waiting}, timeout=timeout_s)
        finally:
            self._waiting.discard(waiting)

    async def wait_for(self, predicate: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Wait until the predicate is true, or for a time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not predicate():
                    await self.wait()


class Condition(threading.Condition):
    """A condition whose waits end after `WAKE_S` at the latest: those who wait look again at what they wait for."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a notification, or for a time."""
        return super().wait(WAKE_S if timeout is None else min(timeout, WAKE_S))


class AsyncEnd:
    """The end of a connection, for tasks of any event loops; its methods are those of ``threading.Event``."""

    def __init__(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        """True after the end."""
        return self._is_set

    def set(self) -> None:
        """End the connection."""
        self._is_set = True

    async def wait(self, timeout_s: float) -> None:
        """Wait for a time; threads wait at most until the end."""
        await asyncio.sleep(timeout_s)


End = threading.Event


class Alarm:
    """Calls a function at a time that was set, in a thread; now and then earlier too."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._lock = threading.Lock()
        self._timer: threading.Timer | asyncio.TimerHandle | None = None
        self._at = 0.0

    def set(self, delay_s: float) -> None:
        """Ring after this time, or before if an earlier time was set."""
        at = time.monotonic() + delay_s
        with self._lock:
            if self._timer is not None:
                if self._at <= at:
                    return
                self._timer.cancel()
            self._timer = None
            self._timer, self._at = self._start(delay_s), at

    def _start(self, delay_s: float) -> threading.Timer | asyncio.TimerHandle:
        timer = threading.Timer(delay_s, self._rings)
        timer.daemon = True
        timer.start()  # may fail, where there are no more threads
        return timer

    def _rings(self) -> None:
        with self._lock:
            self._timer = None
        self._ring()


class AsyncAlarm(Alarm):
    """Calls a function at a time that was set, in the event loop."""

    def _start(self, delay_s: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay_s, self._rings)


# --- background work ---

_tasks: set[asyncio.Task[None]] = set()
"""Tasks that run; the event loop itself does not keep them."""


class AsyncBackground:
    """A task."""

    def __init__(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: object) -> None:
        self._task = asyncio.ensure_future(work(*arguments))
        _tasks.add(self._task)
        self._task.add_done_callback(_tasks.discard)

    async def end(self, timeout_s: float) -> None:
        """Wait until the task ends, and cancel it after this time."""
        try:
            await asyncio.wait({self._task}, timeout=timeout_s)
        finally:
            self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class Background:
    """A daemon thread: one that waits, for a text of its caller or an answer, must not keep the program from ending."""

    def __init__(self, work: Callable[..., None], *arguments: object) -> None:
        self._thread = threading.Thread(target=work, args=arguments, name=work.__qualname__, daemon=True)
        self._thread.start()

    def end(self, timeout_s: float) -> None:
        """Wait until the thread ends, or for this time: threads cannot be cancelled."""
        if self._thread is not threading.current_thread():  # garbage collection can call this in any thread
            self._thread.join(timeout_s)


async def async_each(items: Iterable[Item] | AsyncIterable[Item]) -> AsyncGenerator[Item, None]:
    """Iterate over either kind of iterable, letting other tasks run between."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
        return
    for item in items:
        yield item
        await asyncio.sleep(0)


each = iter


@contextmanager
def async_cancellation(is_ours: Callable[[], bool]) -> Iterator[None]:
    """Raise CallCancelledError if a call was cancelled for a reason of ours, and not with its task."""
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if not is_ours() or task is None or task.cancelling():
            raise
        raise CallCancelledError("the client was closed") from None


def cancellation(_is_ours: Callable[[], bool]) -> nullcontext[None]:
    """Enclose a call; to threads gRPC itself reports its cancellation."""
    return nullcontext()


# --- channels ---

_links: "WeakSet[Links[Any]]" = WeakSet()
_inherited: list[object] = []
_forked_with_tasks = False


class Links(Generic[Link]):
    """The channels of this process, opened at their first use there.

    The threads of a channel are not forked, and calls through an inherited channel would wait forever. So a forked
    process opens channels of its own. Those it inherited are kept, because gRPC cannot close them there.

    Args:
        open_link: opens the channels.
    """

    def __init__(self, open_link: Callable[[], Link]) -> None:
        self._open_link = open_link
        self.forget()
        _links.add(self)

    def forget(self) -> None:
        """Begin without channels."""
        self._lock = threading.Lock()
        self.opened: WeakKeyDictionary[object, Link] = WeakKeyDictionary()

    def get(self) -> Link:
        """Give the channels of the caller, and open them if need be."""
        owner = self._owner()
        link = self.opened.get(owner)
        if link is None:
            with self._lock:
                link = self.opened.get(owner)
                if link is None:
                    link = self.opened[owner] = self._open_link()
        return link

    def take(self) -> Link | None:
        """Give up all channels; returns those of the caller, who closes them."""
        with self._lock:
            opened, self.opened = self.opened, WeakKeyDictionary()
        return opened.get(self._owner()) if opened else None

    def _owner(self) -> object:
        return self


class AsyncLinks(Links[Link]):
    """The channels of each event loop of this process."""

    def _owner(self) -> object:
        """Give the running event loop.

        Raises:
            FailedPreconditionError: channels were open when this process was forked, and gRPC cannot open others.
        """
        if _forked_with_tasks:
            raise FailedPreconditionError(
                "a client of asyncio was open when this process was forked, and gRPC has only one thread for all of "
                "them, in the parent: close such clients before the fork, or use Client here"
            )
        return asyncio.get_running_loop()


def _after_fork() -> None:
    global _forked_with_tasks  # noqa: PLW0603 - of the process
    for links in _links:
        _inherited.extend(links.opened.values())
        _forked_with_tasks |= isinstance(links, AsyncLinks) and bool(links.opened)
        links.forget()


os.register_at_fork(after_in_child=_after_fork)
