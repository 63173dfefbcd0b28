"""Worker pool: order, bound, and cancelled or failing jobs."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from types import SimpleNamespace

import pytest

from jumok_proto.errors import OverloadedError
from jumok_serve.interrupts import TURN_S, check
from jumok_serve.service.handlers import worker_pool
from jumok_serve.service.handlers.worker_pool import (
    LARGE,
    MAX_FULL_CALLERS,
    MAX_INLINE_CHARACTERS,
    Pieces,
    RequestWork,
    WorkerPool,
)
from tests.support.hang import HANG_S


class Work:
    """Object that a job refers to."""

    def __call__(self) -> int:
        return 1


def busy(pool: WorkerPool) -> tuple[threading.Event, "Future[bool]"]:
    """Keep a thread busy until the event is set."""
    begun, released = threading.Event(), threading.Event()

    def wait() -> bool:
        begun.set()
        return released.wait(HANG_S)

    job = pool.submit(wait)
    assert begun.wait(HANG_S)
    return released, job


def test_jobs_are_done_in_their_order_and_bounded() -> None:
    pool = WorkerPool("scored", threads=1, max_jobs=3)
    released, first = busy(pool)
    order: list[int] = []
    jobs = [pool.submit(lambda number=number: order.append(number)) for number in range(2)]  # type: ignore[misc]
    with pytest.raises(OverloadedError, match="3 requests wait to be scored") as caught:
        pool.submit(Work())
    assert caught.value.retry_after_s
    released.set()
    assert first.result(HANG_S)
    for job in jobs:
        job.result(HANG_S)
    assert order == [0, 1]
    assert pool.submit(Work()).result(HANG_S) == 1


def test_a_job_is_counted_once_even_before_a_thread_has_taken_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = WorkerPool("scored", threads=1, max_jobs=2)
    begin: list[Callable[[], None]] = []
    with monkeypatch.context() as held:
        held.setattr(pool._threads, "submit", begin.append)
        jobs = [pool.submit(Work()) for _ in range(2)]
        with pytest.raises(OverloadedError):
            pool.submit(Work())
    (run,) = begin
    run()
    assert [job.result(0) for job in jobs] == [1, 1]


def test_a_cancelled_job_leaves_its_room_and_its_memory_at_once() -> None:
    pool = WorkerPool("scored", threads=1, max_jobs=2)
    released, first = busy(pool)
    held = []
    for _ in range(20):
        work = Work()
        held.append(weakref.ref(work))
        job = pool.submit(work)
        assert job.cancel()
        del work, job
    gc.collect()
    assert [one() for one in held] == [None] * 20
    last = pool.submit(Work())
    released.set()
    assert (first.result(HANG_S), last.result(HANG_S)) == (True, 1)


def test_a_job_that_fails_tells_who_waits_and_the_thread_goes_on() -> None:
    pool = WorkerPool("scored", threads=1, max_jobs=2)

    def fail() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        pool.submit(fail).result(HANG_S)
    assert pool.submit(Work()).result(HANG_S) == 1


def test_all_threads_work() -> None:
    pool = WorkerPool("scored", threads=2, max_jobs=2)
    (one_released, one), (other_released, other) = busy(pool), busy(pool)
    one_released.set()
    other_released.set()
    assert one.result(HANG_S)
    assert other.result(HANG_S)


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
    for job in jobs:
        job.result(HANG_S)
    assert after_large.result(HANG_S) == 1
    assert most == 1


def test_callers_take_turns_by_work() -> None:
    pool = WorkerPool("scored", threads=1, max_jobs=100)
    released, first = busy(pool)
    order: list[str] = []

    def job(caller: str, cost: int) -> "Future[None]":
        return pool.submit(lambda: order.append(caller), caller, cost)

    jobs = [job("large", 10) for _ in range(4)] + [job("small", 1) for _ in range(20)] + [job("late", 5)]
    released.set()
    assert first.result(HANG_S)
    for one in jobs:
        one.result(HANG_S)
    assert order[:3] == ["large", "small", "late"]
    assert order.index("large", 1) > 10  # after ten small ones of the same work
    assert [order.count(caller) for caller in ("large", "small", "late")] == [4, 20, 1]


def test_a_caller_at_its_bound_leaves_room_for_others() -> None:
    pool = WorkerPool("scored", threads=1, max_jobs=2)
    released, first = busy(pool)
    jobs = [pool.submit(Work(), "greedy") for _ in range(2)]
    with pytest.raises(OverloadedError, match="2 requests wait to be scored"):
        pool.submit(Work(), "greedy")
    jobs += [pool.submit(Work(), str(number)) for number in range(2 * MAX_FULL_CALLERS - 3)]
    with pytest.raises(OverloadedError, match=f"{2 * MAX_FULL_CALLERS} requests wait to be scored"):
        pool.submit(Work(), "0")  # more than an equal share
    assert jobs[0].cancel()
    jobs[0] = pool.submit(Work(), "0")
    released.set()
    assert first.result(HANG_S)
    assert [job.result(HANG_S) for job in jobs] == [1] * len(jobs)


def test_a_caller_that_comes_back_has_no_credit_for_its_absence() -> None:
    pool = WorkerPool("scored", threads=1, max_jobs=100)
    for _ in range(5):
        pool.submit(Work(), "steady", 10).result(HANG_S)
    released, first = busy(pool)
    order: list[str] = []
    jobs = [
        pool.submit(lambda caller=caller: order.append(caller), caller, 10)  # type: ignore[misc]
        for caller in ("steady", "steady", "back", "back")
    ]
    released.set()
    assert first.result(HANG_S)
    for one in jobs:
        one.result(HANG_S)
    assert order == ["steady", "back", "steady", "back"]


def test_a_caller_without_jobs_gets_in_while_others_have_filled_the_pool() -> None:
    pool = WorkerPool("scored", threads=1, max_jobs=8)
    released, first = busy(pool)
    jobs = [pool.submit(Work(), str(number % MAX_FULL_CALLERS)) for number in range(8 * MAX_FULL_CALLERS - 1)]
    for caller in range(MAX_FULL_CALLERS):
        with pytest.raises(OverloadedError):
            pool.submit(Work(), str(caller))
    share = 8 * MAX_FULL_CALLERS // (MAX_FULL_CALLERS + 2)  # with the caller that keeps the thread busy
    jobs += [pool.submit(Work(), "late") for _ in range(share)]
    with pytest.raises(OverloadedError, match="requests wait to be scored"):
        pool.submit(Work(), "late")
    released.set()
    assert first.result(HANG_S)
    assert [job.result(HANG_S) for job in jobs] == [1] * len(jobs)


def test_a_job_in_pieces_lets_others_pass_between_two_pieces() -> None:
    pool = WorkerPool("scored", threads=1, max_jobs=100)
    released, first = busy(pool)
    order: list[str] = []

    def pieces(name: str, cost: int, number: int) -> Pieces[str]:
        for _ in range(number):
            yield cost
            order.append(name)
        return name

    jobs = [
        pool.submit_pieces(pieces("large", 10, 6), "large"),
        pool.submit_pieces(pieces("next", 10, 1), "large"),
        pool.submit_pieces(pieces("small", 5, 4), "small"),
        pool.submit_pieces(pieces("none", 1, 0), "small"),
    ]
    released.set()
    assert first.result(HANG_S)
    assert [job.result(HANG_S) for job in jobs] == ["large", "next", "small", "none"]
    assert order == ["large", "small", "small", "large", "small", "small", *["large"] * 4, "next"]


def test_a_job_that_fails_between_two_pieces_ends_alone() -> None:
    pool = WorkerPool("scored", threads=1, max_jobs=100)

    def pieces() -> Pieces[int]:
        yield 1
        raise ValueError("no")

    job, other = pool.submit_pieces(pieces(), "a"), pool.submit(Work(), "a")
    with pytest.raises(ValueError, match="no"):
        job.result(HANG_S)
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
