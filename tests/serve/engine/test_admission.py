"""Admission: deadlines that the queue cannot meet are refused at once, and no others."""

import pytest

from jumok_proto.errors import DeadlineExceededError
from jumok_serve.engine.request_queue import CAUTION, WINDOW_S, DrainRate, EngineLimits, Occupancy
from jumok_serve.engine.scheduler import SchedulingPolicy
from jumok_serve.engine.sentence import Sentence
from jumok_serve.search import SearchPlan
from tests.support.search_cases import make_options


@pytest.mark.parametrize(
    "records",
    [
        [(0, True), (WINDOW_S / 2, True)],
        [(0, True), (0.9 * WINDOW_S, False), (5 * WINDOW_S, True), (5.5 * WINDOW_S, True)],  # an empty queue between
    ],
)
def test_the_drain_rate_is_unknown_before_a_full_window(records: list[tuple[float, bool]]) -> None:
    rate = DrainRate(at_once=0)
    assert rate.min_wait_s(10**9) == 0
    for now, waiting in records:
        rate.record(1000, now, waiting=waiting)
    assert rate.min_wait_s(10**9) == 0


def test_the_fastest_window_counts_and_caution_divides() -> None:
    rate = DrainRate(at_once=100)
    rate.record(0, 0.0, waiting=True)
    for second, work in ((1, 400), (2, 50), (3, 300)):
        rate.record(work, second * WINDOW_S, waiting=True)
    fastest = 400 / WINDOW_S
    assert rate.min_wait_s(100) == 0  # one batch may take this work at once
    assert rate.min_wait_s(100 + 1600) == pytest.approx(1600 / fastest / CAUTION)


def sentence(deadline: float | None = None) -> Sentence:
    return Sentence(source_ids=[5] * 10, plan=SearchPlan(make_options(beam_size=1), 2, ()), deadline=deadline)


def drain(policy: SchedulingPolicy, sentences: int) -> float:
    """Take a sentence every tenth of a second, each alone; return the time after."""
    for number in range(sentences):
        policy.occupy(0, Occupancy())
        assert len(policy.take(0, 0.1 * number)) == 1
    return 0.1 * sentences


def test_a_queue_refuses_deadlines_that_it_cannot_meet() -> None:
    policy = SchedulingPolicy(EngineLimits(max_batch_tokens=16), 1)  # fits one sentence of 10 tokens
    policy.admit([sentence() for _ in range(100)], 0.0)
    now = drain(policy, 11)
    # 89 wait, 890 tokens, at 100 a second: 8.9 s at this speed, and a little more than 2 s at four times of it.
    with pytest.raises(
        DeadlineExceededError, match=r"the queue takes 2\.\d s at least, and the deadline passes in 1\.0 s"
    ):
        policy.admit([sentence(), sentence(now + 1.0)], now)
    assert policy.load().queued_requests == 89
    policy.admit([sentence(now + 2.5)], now)
    policy.admit([sentence()], now)
    with pytest.raises(DeadlineExceededError, match="had passed"):
        policy.admit([sentence(now - 0.5)], now)


def test_an_empty_queue_refuses_only_passed_deadlines() -> None:
    policy = SchedulingPolicy(EngineLimits(max_batch_tokens=16), 1)
    policy.admit([sentence() for _ in range(20)], 0.0)
    now = drain(policy, 20)
    policy.admit([sentence(now + 0.001)], now)
    assert policy.load().queued_requests == 1
    with pytest.raises(DeadlineExceededError, match="had passed"):
        policy.admit([sentence(now)], now)
