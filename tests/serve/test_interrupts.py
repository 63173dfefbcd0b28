"""Long work in threads: pauses for a moment, and rests if it had to wait for others."""

import threading
import time
from types import SimpleNamespace

import pytest

from jumok_proto.errors import DeadlineExceededError
from jumok_serve import interrupts
from jumok_serve.interrupts import MAX_REST_S, PART_S, REST, SHORT_TEXTS, TURN_S, WAITED, check, interruptible
from tests.support.hang import HANG_S


class Clock:
    """Time that passes as a thread works, waits or rests."""

    def __init__(self) -> None:
        self.worked = self.waited = 0.0
        self.rests: list[float] = []

    def monotonic(self) -> float:
        return self.worked + self.waited + sum(self.rests)

    def thread_time(self) -> float:
        return self.worked


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    times = SimpleNamespace(monotonic=clock.monotonic, thread_time=clock.thread_time, sleep=clock.rests.append)
    monkeypatch.setattr(interrupts, "time", times)
    return clock


def test_work_that_waited_for_others_rests(clock: Clock) -> None:
    with interruptible(lambda: False):
        for _ in range(3):
            clock.worked += 2 * PART_S
            clock.waited += 2 * PART_S * WAITED * 1.1
            check(None, "work was done")
    assert clock.rests == pytest.approx([REST * 2 * PART_S] * 3)


def test_no_rest_is_long_however_long_the_part_was(clock: Clock) -> None:
    with interruptible(lambda: False):
        clock.worked, clock.waited = 5.0, 5.0
        check(None, "work was done")
    assert clock.rests == [MAX_REST_S]


def test_work_that_others_do_not_hold_up_goes_on_after_a_moment(clock: Clock) -> None:
    with interruptible(lambda: False):
        for _ in range(100):
            clock.worked += 2 * PART_S
            clock.waited += 2 * PART_S * WAITED * 0.9
            check(None, "work was done")
    assert clock.rests == [TURN_S] * 100


def test_a_rest_follows_parts_that_are_large_enough_together(clock: Clock) -> None:
    with interruptible(lambda: False):
        for _ in range(4):
            clock.worked += PART_S / 4
            clock.waited += PART_S
            check(None, "work was done")
    assert clock.rests == pytest.approx([REST * PART_S])


def test_work_of_no_thread_never_rests(clock: Clock) -> None:
    clock.worked, clock.waited = 1.0, 1.0
    check(2.5, "work was done")
    assert clock.rests == []
    with pytest.raises(DeadlineExceededError, match="the deadline passed while work was done"):
        check(1.5, "work was done")


def long_work(ended: threading.Event) -> threading.Thread:
    def work() -> None:
        with interruptible(lambda: False):
            began = time.thread_time()
            while time.thread_time() < began + 2 * PART_S:
                pass
            check(None, "work was done")
        ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_long_work_pauses_while_short_texts_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "MAX_REST_S", HANG_S)
    monkeypatch.setattr(interrupts, "REST", 0.0)
    ended = threading.Event()
    SHORT_TEXTS.begin()
    SHORT_TEXTS.begin()
    try:
        thread = long_work(ended)
        SHORT_TEXTS.end()
        assert not ended.wait(0.1)
    finally:
        SHORT_TEXTS.end()
    thread.join(HANG_S)
    assert ended.is_set()


def test_short_texts_without_end_do_not_stop_long_work() -> None:
    ended = threading.Event()
    SHORT_TEXTS.begin()
    try:
        long_work(ended).join(HANG_S)
        assert ended.is_set()
    finally:
        SHORT_TEXTS.end()
