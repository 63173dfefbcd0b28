"""Worker pool: order, bound, and cancelled or failing jobs."""

import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from jumok_proto.errors import OverloadedError
from jumok_serve.service.handlers.worker_pool import WorkerPool


class Work:
    """Object that a job refers to."""

    def __call__(self) -> int:
        return 1


def busy(pool: WorkerPool) -> tuple[threading.Event, "Future[bool]"]:
    """Keep a thread busy until the event is set."""
    begun, released = threading.Event(), threading.Event()

    def wait() -> bool:
        begun.set()
        return released.wait(30)

    job = pool.submit(wait)
    assert begun.wait(30)
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
    assert first.result(30)
    for job in jobs:
        job.result(30)
    assert order == [0, 1]
    assert pool.submit(Work()).result(30) == 1


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
    assert (first.result(30), last.result(30)) == (True, 1)


def test_a_job_that_fails_tells_who_waits_and_the_thread_goes_on() -> None:
    pool = WorkerPool("scored", threads=1, max_jobs=2)

    def fail() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        pool.submit(fail).result(30)
    assert pool.submit(Work()).result(30) == 1


def test_all_threads_work() -> None:
    pool = WorkerPool("scored", threads=2, max_jobs=2)
    (one_released, one), (other_released, other) = busy(pool), busy(pool)
    one_released.set()
    other_released.set()
    assert one.result(30)
    assert other.result(30)
