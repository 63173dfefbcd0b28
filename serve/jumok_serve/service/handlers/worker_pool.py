"""Work of requests besides decoding, in threads that callers share by work, and waits of the event loop for both."""

import asyncio
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from jumok_proto.errors import OverloadedError, RateLimitedError
from jumok_serve.engine import sentence
from jumok_serve.interrupts import TURN_S, interruptible
from jumok_serve.service.rpc.call import current_caller
from jumok_serve.share import RETRY_AFTER_S, OpenCalls

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


class LoopWakeups:
    """Callbacks from other threads into the event loop of construction.

    The engine completes all sentences of a step one after the other. Waking the loop takes a system call, which
    releases the GIL. So only the first callback wakes the loop, and the loop runs all that have arrived by then.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._callbacks: deque[Callable[[], object]] = deque()
        self._woken = False

    async def wait(self, futures: Sequence[sentence.Future[Any]]) -> None:
        """Wait for all futures or the first failure, which is raised.

        No future is cancelled.
        """
        if not futures:
            return
        ready: asyncio.Future[sentence.Future[Any]] = self._loop.create_future()
        pending = len(futures)

        def ended(future: sentence.Future[Any]) -> None:
            nonlocal pending
            pending -= 1
            if not ready.done() and (pending == 0 or future.cancelled() or future.exception() is not None):
                ready.set_result(future)

        for future in futures:
            future.add_done_callback(lambda done: self.call_soon(partial(ended, done)))
        (await ready).result()

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


Pieces: TypeAlias = Generator[int, None, Result]
"""A job in pieces: yields the work of each piece before it is done, and returns the result."""

MAX_INLINE_CHARACTERS = 2048
"""Characters of a request that is tokenized on the event loop: 0.1 ms with SentencePiece, 0.8 ms at worst with BPE."""
CHARACTERS_PER_TEXT = 64
"""Fixed cost of a text in characters: making its search and future takes as long as tokenizing these."""
MAX_INLINE_TOKENS = 2048
"""Most tokens of the translations of a request whose response is made on the event loop: 1 ms."""
LARGE = 2**16
"""Work of a job that holds Python's lock for tens of milliseconds: for tokenizing, characters."""
MAX_TOKENIZING = 256
"""Requests of a caller that are tokenized or wait for it."""
TOKENIZING_THREADS = 2
MAX_SCORING = 64
"""Requests of a caller whose targets are scored or wait for it."""
SCORING_THREADS = 1
MAX_ATTENTION_REQUESTS = 256
"""Open requests for attention, in any stage; one caller may have half."""
ATTENTION_THREADS = 1
MAX_FULL_CALLERS = 4
"""The bound on all jobs, as a multiple of the bound on those of one caller."""


class _Rest(NamedTuple):
    """The rest of a job.

    Attributes:
        cost: work of the next piece; 0 before the job has begun.
        is_large: true for a job that holds Python's lock for long.
    """

    pieces: Pieces[Any]
    cost: int = 0
    is_large: bool = False


@dataclass(slots=True, eq=False)
class _Line:
    """Jobs of a caller in their order, and the work that threads have taken of them."""

    jobs: "OrderedDict[Future[Any], _Rest]" = field(default_factory=OrderedDict)
    taken: int = 0


class WorkerPool:
    """Threads that run jobs; cancelled jobs leave the queue.

    Jobs of one caller run in order. Among several callers, the one with the least work so far is next; a caller that
    comes back begins where the others are (start-time fair queueing, Goyal, Vin and Cheng, 1996). A thread does one
    piece of a job at a time, and one thread at most a job of `LARGE`: two would leave Python's lock to each other.

    Args:
        action: past participle of the action, for errors and names of threads.
        max_jobs: bound on the queued and running jobs of a caller. Beyond `MAX_FULL_CALLERS` times of it for all, only
            callers with less than an equal share may add jobs.
    """

    def __init__(self, action: str, *, threads: int, max_jobs: int) -> None:
        self._action = action
        self._max_jobs = max_jobs
        self._max_running = threads
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=action)
        self._lock = threading.Lock()
        self._lines: dict[str, _Line] = {}  # of callers with unfinished jobs
        self._running = 0
        self._large_runs = False
        self._unfinished: dict[str, int] = {}

    def submit(self, work: Callable[[], Result], caller: str = "", cost: int = 1) -> "Future[Result]":
        """Start or queue a job of one piece.

        Args:
            caller: key of the caller.
            cost: work of the job, in any unit.

        Raises:
            OverloadedError: too many jobs, of this caller or of all.
        """
        return self.submit_pieces(_whole(work, cost), caller, is_large=cost > LARGE)

    def submit_pieces(self, pieces: Pieces[Result], caller: str = "", *, is_large: bool = False) -> "Future[Result]":
        """Start or queue a job; raises as `submit`."""
        job: Future[Result] = Future()
        with self._lock:
            mine, all_jobs = self._unfinished.get(caller, 0), sum(self._unfinished.values())
            most = MAX_FULL_CALLERS * self._max_jobs
            share = most // (len(self._unfinished) + (not mine))
            if mine >= self._max_jobs or (all_jobs >= most and mine >= share):
                raise OverloadedError(
                    f"{mine if mine >= self._max_jobs else all_jobs} requests wait to be {self._action}",
                    retry_after_s=RETRY_AFTER_S,
                )
            self._unfinished[caller] = mine + 1
            if caller not in self._lines:
                self._lines[caller] = _Line(taken=min((line.taken for line in self._lines.values()), default=0))
            self._lines[caller].jobs[job] = _Rest(pieces, is_large=is_large)
            if self._running < self._max_running:
                self._running += 1
                self._threads.submit(self._run)
        job.add_done_callback(lambda job: self._forget(job, caller))
        return job

    async def finish(self, pieces: Pieces[Result]) -> Result:
        """Do a job of the current caller; no piece begins after the call was cancelled. Raises as `submit`."""
        left = threading.Event()
        job = self.submit_pieces(_until(pieces, left.is_set), current_caller())
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            left.set()
            raise

    def _run(self) -> None:
        while True:
            with self._lock:
                waiting = [
                    line
                    for line in self._lines.values()
                    if line.jobs and not (self._large_runs and next(iter(line.jobs.values())).is_large)
                ]
                if not waiting:
                    self._running -= 1
                    return
                line = min(waiting, key=lambda line: line.taken)
                job, rest = line.jobs.popitem(last=False)
                line.taken += rest.cost
                self._large_runs |= rest.is_large
            if job.running() or job.set_running_or_notify_cancel():
                self._do_piece(line, job, rest)
            with self._lock:
                self._large_runs &= not rest.is_large
            del job, rest  # free them while the thread waits

    def _do_piece(self, line: _Line, job: "Future[Any]", rest: _Rest) -> None:
        """Do a piece, and put the rest of the job before the caller's others."""
        try:
            cost = next(rest.pieces)
        except StopIteration as end:
            job.set_result(end.value)
        except BaseException as error:
            job.set_exception(error)
        else:
            time.sleep(TURN_S)
            with self._lock:
                line.jobs[job] = rest._replace(cost=cost)
                line.jobs.move_to_end(job, last=False)
        finally:
            del job, rest  # an error's traceback holds this frame

    def _forget(self, job: "Future[Any]", caller: str) -> None:
        with self._lock:
            self._lines[caller].jobs.pop(job, None)
            self._unfinished[caller] -= 1
            if not self._unfinished[caller]:
                del self._unfinished[caller], self._lines[caller]


def _whole(work: Callable[[], Result], cost: int) -> Pieces[Result]:
    """Make a job of one piece."""
    yield cost
    return work()


def _until(pieces: Pieces[Result], has_left: Callable[[], bool]) -> Pieces[Result]:
    """Do the pieces of a job until its caller leaves."""
    while not has_left():
        try:
            cost = next(pieces)
        except StopIteration as end:
            result: Result = end.value
            return result
        yield cost
    pieces.close()
    raise CancelledError


class Cancellable(Protocol):
    """Work for a request."""

    def cancel(self) -> None:
        """Cancel the work."""


Job = TypeVar("Job", bound=Cancellable)


class RequestWork:
    """Runs work of requests, long work in threads, so that other calls and health checks go on.

    Attributes:
        tokenizing: threads that tokenize, and detect languages.
        scoring: threads that score.
    """

    def __init__(self) -> None:
        self.tokenizing = WorkerPool("tokenized", threads=TOKENIZING_THREADS, max_jobs=MAX_TOKENIZING)
        self.scoring = WorkerPool("scored", threads=SCORING_THREADS, max_jobs=MAX_SCORING)
        # A thread may still work for a cancelled request, which no longer counts as open.
        self._attention = WorkerPool(
            "attended", threads=ATTENTION_THREADS, max_jobs=MAX_ATTENTION_REQUESTS + ATTENTION_THREADS
        )
        self._attention_requests = OpenCalls(
            "requests for attention", MAX_ATTENTION_REQUESTS, MAX_ATTENTION_REQUESTS // 2
        )

    @contextmanager
    def attention_slot(self, attention: bool) -> Iterator[None]:
        """Count an open request for attention, or refuse it; other requests pass."""
        if not attention:
            yield
            return
        caller = current_caller()
        self._attention_requests.open(caller)
        try:
            yield
        finally:
            self._attention_requests.close(caller)

    async def run(self, work: Callable[[], Result], attention: bool, max_tokens: int = MAX_INLINE_TOKENS + 1) -> Result:
        """Make a response with at most ``max_tokens`` tokens, long ones in a thread until the caller leaves."""
        if not attention and max_tokens <= MAX_INLINE_TOKENS:
            return work()
        left = threading.Event()

        def run() -> Result:
            with interruptible(left.is_set):
                return work()

        try:
            if attention:
                return await asyncio.wrap_future(
                    self._attention.submit(partial(copy_context().run, run), current_caller())
                )
            return await asyncio.to_thread(run)
        except asyncio.CancelledError:
            left.set()
            raise

    async def tokenize(
        self, start: Callable[[], Job], *texts: Sequence[str], quick: Callable[[], bool] = lambda: True
    ) -> Job:
        """Start a job that tokenizes texts; long ones, and short ones that are not quick to split, in a thread."""
        if size_of(*texts) <= MAX_INLINE_CHARACTERS and quick():
            return start()
        left = threading.Event()

        def run() -> Job:
            with interruptible(left.is_set):
                return start()

        job = self.tokenizing.submit(run, current_caller(), size_of(*texts))
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:  # has cancelled a queued job, but not a running one
            left.set()
            job.add_done_callback(_cancel_result)
            raise


def size_of(*texts: Sequence[str]) -> int:
    """Count the characters of texts, with the fixed cost of each."""
    return sum(CHARACTERS_PER_TEXT + len(text) for group in texts for text in group)


def _cancel_result(job: "Future[Job]") -> None:
    if not job.cancelled() and job.exception() is None:
        job.result().cancel()
