"""Threads with a bound on what waits for them: order, the bound, and jobs that are cancelled or fail."""

import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from jumok_proto.errors import OverloadedError
from jumok_serve.service.handlers.worker_pool import Workers


class Work:
    """Something that a job holds on to."""

    def __call__(self) -> int:
        return 1


def busy(workers: Workers) -> tuple[threading.Event, "Future[bool]"]:
    """Keep a thread busy until the event is set."""
    begun, released = threading.Event(), threading.Event()

    def wait() -> bool:
        begun.set()
        return released.wait(30)

    job = workers.start(wait)
    assert begun.wait(30)
    return released, job


def test_jobs_are_done_in_their_order_and_bounded() -> None:
    workers = Workers("scored", threads=1, most=3)
    released, first = busy(workers)
    order: list[int] = []
    jobs = [workers.start(lambda number=number: order.append(number)) for number in range(2)]  # type: ignore[misc]
    with pytest.raises(OverloadedError, match="3 requests wait to be scored") as caught:
        workers.start(Work())
    assert caught.value.retry_after_s
    released.set()
    assert first.result(30)
    for job in jobs:
        job.result(30)
    assert order == [0, 1]
    assert workers.start(Work()).result(30) == 1


def test_a_job_is_counted_once_even_before_a_thread_has_taken_it(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers("scored", threads=1, most=2)
    begin: list[Callable[[], None]] = []
    with monkeypatch.context() as held:
        held.setattr(workers._threads, "submit", begin.append)
        jobs = [workers.start(Work()) for _ in range(2)]
        with pytest.raises(OverloadedError):
            workers.start(Work())
    (run,) = begin
    run()
    assert [job.result(0) for job in jobs] == [1, 1]


def test_a_cancelled_job_leaves_its_room_and_its_memory_at_once() -> None:
    workers = Workers("scored", threads=1, most=2)
    released, first = busy(workers)
    held = []
    for _ in range(20):
        work = Work()
        held.append(weakref.ref(work))
        job = workers.start(work)
        assert job.cancel()
        del work, job
    gc.collect()
    assert [one() for one in held] == [None] * 20
    last = workers.start(Work())
    released.set()
    assert (first.result(30), last.result(30)) == (True, 1)


def test_a_job_that_fails_tells_who_waits_and_the_thread_goes_on() -> None:
    workers = Workers("scored", threads=1, most=2)

    def fail() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        workers.start(fail).result(30)
    assert workers.start(Work()).result(30) == 1


def test_all_threads_work() -> None:
    workers = Workers("scored", threads=2, most=2)
    (one_released, one), (other_released, other) = busy(workers), busy(workers)
    one_released.set()
    other_released.set()
    assert one.result(30)
    assert other.result(30)
