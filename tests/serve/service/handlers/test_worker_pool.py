"""Worker pool: order, bound, and cancelled or failing jobs; tasks that wait for futures of other threads."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TypeVar
from unittest.mock import Mock

import pytest

from jumok_proto.errors import OverloadedError
from jumok_serve.engine.sentence import Future as EngineFuture
from jumok_serve.interrupts import TURN_S, check
from jumok_serve.service.handlers import worker_pool
from jumok_serve.service.handlers.worker_pool import (
    LARGE,
    MAX_FULL_CALLERS,
    MAX_INLINE_CHARACTERS,
    LoopWakeups,
    Pieces,
    RequestWork,
    WorkerPool,
)
from tests.support.hang import HANG_S

T = TypeVar("T")


class Work:
    """Object that a job refers to."""

    def __call__(self) -> int:
        return 1


@contextmanager
def busy(pool: WorkerPool) -> Iterator[None]:
    """Keep a thread busy, so that other jobs wait."""
    begun, released = threading.Event(), threading.Event()

    def wait() -> bool:
        begun.set()
        return released.wait(HANG_S)

    job = pool.submit(wait)
    assert begun.wait(HANG_S)
    yield
    released.set()
    assert job.result(HANG_S)


def results(jobs: "Iterable[Future[T]]") -> list[T]:
    return [job.result(HANG_S) for job in jobs]


def test_jobs_are_done_in_their_order_and_bounded() -> None:
    pool = WorkerPool("scored", threads=1, max_jobs=3)
    order: list[int] = []
    with busy(pool):
        jobs = [pool.submit(partial(order.append, number)) for number in range(2)]
        with pytest.raises(OverloadedError, match="3 requests wait to be scored") as caught:
            pool.submit(Work())
        assert caught.value.retry_after_s
    results(jobs)
    assert order == [0, 1]
    assert pool.submit(Work()).result(HANG_S) == 1


def test_a_job_is_counted_once_even_before_a_thread_has_taken_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = WorkerPool("scored", threads=1, max_jobs=2)
    begin: list[Callable[[], None]] = []
    with monkeypatch.context() as held:
        held.setattr(ThreadPoolExecutor, "submit", lambda _, run: begin.append(run))
        jobs = [pool.submit(Work()) for _ in range(2)]
        with pytest.raises(OverloadedError):
            pool.submit(Work())
    (run,) = begin
    run()
    assert [job.result(0) for job in jobs] == [1, 1]


def test_a_cancelled_job_leaves_its_room_and_its_memory_at_once() -> None:
    pool = WorkerPool("scored", threads=1, max_jobs=2)
    held = []
    with busy(pool):
        for _ in range(20):
            work = Work()
            held.append(weakref.ref(work))
            job = pool.submit(work)
            assert job.cancel()
            del work, job
        gc.collect()
        assert [one() for one in held] == [None] * 20
        last = pool.submit(Work())
    assert last.result(HANG_S) == 1


def test_all_threads_work() -> None:
    pool = WorkerPool("scored", threads=2, max_jobs=2)
    with busy(pool), busy(pool):
        pass


def test_one_large_job_runs_at_a_time_and_small_ones_beside_it() -> None:
    """Two of them would leave Python's lock to each other, and to no one else."""
    pool = WorkerPool("done", threads=2, max_jobs=100)
    begun, go_on, running, most = threading.Event(), threading.Event(), 0, 0

    def large() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        begun.set()
        assert go_on.wait(HANG_S)
        running -= 1

    jobs = [pool.submit(large, caller, LARGE + 1) for caller in ("a", "b", "b")]
    assert begun.wait(HANG_S)
    after_large = pool.submit(Work(), "b", LARGE)  # jobs of one caller run in order
    assert pool.submit(Work(), "c", LARGE).result(HANG_S) == 1
    assert not after_large.done()
    assert not any(job.done() for job in jobs)
    go_on.set()
    results(jobs)
    assert after_large.result(HANG_S) == 1
    assert most == 1


def test_callers_take_turns_by_work() -> None:
    pool = WorkerPool("scored", threads=1, max_jobs=100)
    order: list[str] = []
    with busy(pool):
        callers = [("large", 10)] * 4 + [("small", 1)] * 20 + [("late", 5)]
        jobs = [pool.submit(partial(order.append, caller), caller, cost) for caller, cost in callers]
    results(jobs)
    assert order[:3] == ["large", "small", "late"]
    assert order.index("large", 1) > 10  # after ten small ones of the same work
    assert [order.count(caller) for caller in ("large", "small", "late")] == [4, 20, 1]


def test_a_caller_at_its_bound_leaves_room_for_others() -> None:
    pool = WorkerPool("scored", threads=1, max_jobs=2)
    with busy(pool):
        jobs = [pool.submit(Work(), "greedy") for _ in range(2)]
        with pytest.raises(OverloadedError, match="2 requests wait to be scored"):
            pool.submit(Work(), "greedy")
        jobs += [pool.submit(Work(), str(number)) for number in range(2 * MAX_FULL_CALLERS - 3)]
        with pytest.raises(OverloadedError, match=f"{2 * MAX_FULL_CALLERS} requests wait to be scored"):
            pool.submit(Work(), "0")  # more than an equal share
        assert jobs[0].cancel()
        jobs[0] = pool.submit(Work(), "0")
    assert results(jobs) == [1] * len(jobs)


def test_a_caller_that_comes_back_has_no_credit_for_its_absence() -> None:
    pool = WorkerPool("scored", threads=1, max_jobs=100)
    for _ in range(5):
        pool.submit(Work(), "steady", 10).result(HANG_S)
    order: list[str] = []
    with busy(pool):
        callers = ("steady", "steady", "back", "back")
        jobs = [pool.submit(partial(order.append, caller), caller, 10) for caller in callers]
    results(jobs)
    assert order == ["steady", "back", "steady", "back"]


def test_a_caller_without_jobs_gets_in_while_others_have_filled_the_pool() -> None:
    pool = WorkerPool("scored", threads=1, max_jobs=8)
    with busy(pool):
        jobs = [pool.submit(Work(), str(number % MAX_FULL_CALLERS)) for number in range(8 * MAX_FULL_CALLERS - 1)]
        for caller in range(MAX_FULL_CALLERS):
            with pytest.raises(OverloadedError):
                pool.submit(Work(), str(caller))
        share = 8 * MAX_FULL_CALLERS // (MAX_FULL_CALLERS + 2)  # with the caller that keeps the thread busy
        jobs += [pool.submit(Work(), "late") for _ in range(share)]
        with pytest.raises(OverloadedError, match="requests wait to be scored"):
            pool.submit(Work(), "late")
    assert results(jobs) == [1] * len(jobs)


def test_a_job_in_pieces_lets_others_pass_between_two_pieces() -> None:
    pool = WorkerPool("scored", threads=1, max_jobs=100)
    order: list[str] = []

    def pieces(name: str, cost: int, number: int) -> Pieces[str]:
        for _ in range(number):
            yield cost
            order.append(name)
        return name

    with busy(pool):
        jobs = [
            pool.submit_pieces(pieces("large", 10, 6), "large"),
            pool.submit_pieces(pieces("next", 10, 1), "large"),
            pool.submit_pieces(pieces("small", 5, 4), "small"),
            pool.submit_pieces(pieces("none", 1, 0), "small"),
        ]
    assert results(jobs) == ["large", "next", "small", "none"]
    assert order == ["large", "small", "small", "large", "small", "small", *["large"] * 4, "next"]


def test_a_job_that_fails_ends_alone() -> None:
    """As a whole, or between two pieces."""
    pool = WorkerPool("scored", threads=1, max_jobs=100)

    def pieces() -> Pieces[int]:
        yield 1
        raise ValueError("no")

    for failing in (pool.submit(Mock(side_effect=ValueError("no")), "a"), pool.submit_pieces(pieces(), "a")):
        other = pool.submit(Work(), "a")
        with pytest.raises(ValueError, match="no"):
            failing.result(HANG_S)
        assert other.result(HANG_S) == 1


async def test_no_piece_begins_after_the_caller_has_left() -> None:
    pool = WorkerPool("scored", threads=1, max_jobs=100)
    begun, go_on = threading.Event(), threading.Event()
    done: list[int] = []
    closed = threading.Event()

    def pieces() -> Pieces[int]:
        try:
            for number in range(1000):
                yield 1
                done.append(number)
                begun.set()
                assert go_on.wait(HANG_S)
        finally:
            closed.set()
        return 1

    task = asyncio.ensure_future(pool.finish(pieces()))
    await asyncio.to_thread(begun.wait, HANG_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()
    assert closed.wait(HANG_S)
    assert done == [0]
    assert pool.submit(Work()).result(HANG_S) == 1


@pytest.mark.parametrize(
    "run",
    [
        lambda work: RequestWork().tokenize(work, ["a" * (MAX_INLINE_CHARACTERS + 1)]),
        lambda work: RequestWork().run(work, attention=True),
        lambda work: RequestWork().run(work, attention=False),
    ],
)
async def test_work_ends_at_its_next_check_after_the_caller_has_left(
    run: Callable[[Callable[[], "FakeJob"]], Coroutine[None, None, "FakeJob"]],
) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def start() -> FakeJob:
        try:
            check(None, "this was tested")  # the caller is there
            begun.set()
            assert go_on.wait(HANG_S)
            check(None, "this was tested")
            raise AssertionError("the work goes on")
        except CancelledError:
            ended.set()
            raise

    task = asyncio.ensure_future(run(start))
    await asyncio.to_thread(begun.wait, HANG_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()  # before the loop waits for its threads
    assert ended.wait(HANG_S)
    check(None, "this was tested")  # the work of others goes on


class FakeJob:
    """Work for a request."""

    def cancel(self) -> None:
        """Cancel the work."""


def test_a_thread_pauses_between_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else pieces that release Python's lock for moments, as NumPy does, keep it from all others."""
    pauses: list[float] = []
    monkeypatch.setattr(worker_pool, "time", SimpleNamespace(sleep=pauses.append))

    def pieces() -> Pieces[int]:
        for _ in range(3):
            yield 1
        return 1

    assert WorkerPool("done", threads=1, max_jobs=1).submit_pieces(pieces(), "one").result(HANG_S)
    assert pauses == [TURN_S] * 3


def futures(count: int) -> list[EngineFuture[int]]:
    return [EngineFuture() for _ in range(count)]


def complete(several: list[EngineFuture[int]]) -> None:
    for future in several:
        future.set_result(1)


async def test_who_waits_for_several_goes_on_when_all_are_done() -> None:
    wakeups, several = LoopWakeups(), futures(3)
    waiting = asyncio.ensure_future(wakeups.wait(several))
    await asyncio.sleep(0)
    complete(several[1:])
    others = futures(1)
    complete(others)
    await wakeups.wait(others)  # what was completed before has been seen now
    assert not waiting.done()
    complete(several[:1])
    await waiting


async def test_nothing_is_waited_for_at_once() -> None:
    await LoopWakeups().wait([])


async def test_the_first_failure_is_raised_and_leaves_the_others() -> None:
    wakeups, several = LoopWakeups(), futures(3)
    several[1].set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await wakeups.wait(several)
    assert not several[0].done()
    complete([several[0], several[2]])
    await wakeups.wait([several[0]])


async def test_a_task_that_is_cancelled_waits_no_longer_and_leaves_its_futures() -> None:
    wakeups, several = LoopWakeups(), futures(2)
    waiting = asyncio.ensure_future(wakeups.wait(several))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not any(future.cancelled() for future in several)
    complete(several)
    await wakeups.wait(several)


async def test_what_a_thread_completes_at_a_time_wakes_the_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    calls: list[Callable[..., object]] = []
    wake = loop.call_soon_threadsafe

    def count(callback: Callable[..., object], *args: object) -> asyncio.Handle:
        calls.append(callback)
        return wake(callback, *args)

    monkeypatch.setattr(loop, "call_soon_threadsafe", count)
    wakeups = LoopWakeups()
    for _ in range(2):
        several = futures(50)
        tasks = [asyncio.ensure_future(wakeups.wait([future])) for future in several]
        await asyncio.sleep(0)
        calls.clear()
        thread = threading.Thread(target=complete, args=(several,))
        thread.start()
        thread.join()  # the loop looks at nothing before all are done
        await asyncio.gather(*tasks)
        assert len(calls) == 1
