"""Deadlines that the queue cannot meet are refused at once, and no other."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from jumok_proto.errors import DeadlineExceededError
from jumok_serve.engine import scheduler as queue_module
from jumok_serve.engine.batch import Sentence
from jumok_serve.engine.drain import CAUTION, WINDOW_S, DrainRate
from jumok_serve.engine.limits import EngineLimits
from jumok_serve.engine.occupancy import Occupancy
from jumok_serve.engine.scheduler import SentenceQueue
from jumok_serve.search import make_search
from tests.support.search_cases import make_options


def test_nothing_is_said_before_anything_was_measured() -> None:
    rate = DrainRate(at_once=0)
    assert rate.least_wait_s(10**9) == 0
    rate.leaves(1000, 0.0, waiting=True)
    rate.leaves(1000, WINDOW_S / 2, waiting=True)
    assert rate.least_wait_s(10**9) == 0


def test_the_fastest_window_counts_and_caution_divides() -> None:
    rate = DrainRate(at_once=100)
    rate.leaves(0, 0.0, waiting=True)
    for second, work in ((1, 400), (2, 50), (3, 300)):
        rate.leaves(work, second * WINDOW_S, waiting=True)
    fastest = 400 / WINDOW_S
    assert rate.least_wait_s(100) == 0  # what a batch takes in one go waits for nobody
    assert rate.least_wait_s(100 + 1600) == pytest.approx(1600 / fastest / CAUTION)


def test_what_leaves_while_nobody_waits_is_no_measure() -> None:
    rate = DrainRate(at_once=0)
    rate.leaves(10, 0.0, waiting=True)
    rate.leaves(10, 0.9 * WINDOW_S, waiting=False)
    rate.leaves(10, 5 * WINDOW_S, waiting=True)  # idle until then
    rate.leaves(10, 5.5 * WINDOW_S, waiting=True)
    assert rate.least_wait_s(10**9) == 0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    with monkeypatch.context() as patch:
        patch.setattr(queue_module, "time", SimpleNamespace(monotonic=clock))
        yield clock


def sentence(clock: Clock, *, timeout_s: float | None = None) -> Sentence:
    deadline = None if timeout_s is None else clock() + timeout_s
    return Sentence(source_ids=[5] * 10, search=make_search(make_options(beam_size=1), 2, ()), deadline=deadline)


def test_a_queue_refuses_what_it_cannot_do_in_time(clock: Clock) -> None:
    queue = SentenceQueue(EngineLimits(max_batch_tokens=16), replicas=1)  # room for one sentence of 10 tokens
    queue.add([sentence(clock) for _ in range(100)])
    for _ in range(11):  # a sentence every tenth of a second
        assert queue.take(0, Occupancy()) is not None
        clock.now += 0.1
    # 89 wait, 890 tokens, at 100 a second: 8.9 s at this speed, and a little more than 2 s at four times of it.
    with pytest.raises(
        DeadlineExceededError, match=r"the queue takes 2\.\d s at least, and the deadline passes in 1\.0 s"
    ):
        queue.add([sentence(clock), sentence(clock, timeout_s=1.0)])
    assert queue.load().queued_requests == 89
    queue.add([sentence(clock, timeout_s=2.5)])
    queue.add([sentence(clock)])
    with pytest.raises(DeadlineExceededError, match="had passed"):
        queue.add([sentence(clock, timeout_s=-0.5)])


def test_an_empty_queue_refuses_no_time_that_is_left(clock: Clock) -> None:
    queue = SentenceQueue(EngineLimits(max_batch_tokens=16), replicas=1)
    queue.add([sentence(clock) for _ in range(20)])
    for _ in range(20):
        assert queue.take(0, Occupancy()) is not None
        clock.now += 0.1
    queue.add([sentence(clock, timeout_s=0.001)])
    assert queue.load().queued_requests == 1
    with pytest.raises(DeadlineExceededError, match="had passed"):
        queue.add([sentence(clock, timeout_s=0.0)])
