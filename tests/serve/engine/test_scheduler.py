"""The scheduler under threads: waking, waiting and closing, without a model."""

import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from jumok_proto.errors import UnavailableError
from jumok_serve.engine.request_queue import EngineLimits, Occupancy
from jumok_serve.engine.scheduler import Scheduler, SchedulingPolicy
from jumok_serve.engine.sentence import Sentence
from tests.serve.engine.test_scheduling_policy import occupied, sentence
from tests.support.hang import HANG_S


@contextmanager
def closed_at_last(scheduler: Scheduler) -> Iterator[None]:
    """Close the scheduler in the end, so that replicas that a failed test leaves waiting end too."""
    try:
        yield
    finally:
        scheduler.stop(drain=False)


def watch(monkeypatch: pytest.MonkeyPatch, name: str = "take") -> tuple[list[int], threading.Semaphore]:
    """Return the replicas that look for sentences, and a semaphore that counts their looks."""
    looks, looked, take = list[int](), threading.Semaphore(0), getattr(SchedulingPolicy, name)

    def noted(policy: SchedulingPolicy, replica: int, now: float) -> list[Sentence]:
        looks.append(replica)
        looked.release()
        found: list[Sentence] = take(policy, replica, now)
        return found

    monkeypatch.setattr(SchedulingPolicy, name, noted)
    return looks, looked


def take(scheduler: Scheduler, replica: int, decoding: Sequence[Sentence] = ()) -> list[Sentence] | None:
    """Take the sentences that a replica with nothing encoded ahead admits beside those that it decodes."""
    work = scheduler.next_work(replica, occupied(decoding))
    return None if work is None else work.taken


def test_a_sentence_wakes_one_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Scheduler(EngineLimits(max_alone_rows=1), 3)
    looks, looked = watch(monkeypatch)
    only = sentence()
    with ThreadPoolExecutor(3) as replicas, closed_at_last(scheduler):
        taking = [replicas.submit(take, scheduler, number) for number in range(3)]
        for _ in taking:
            assert looked.acquire(timeout=HANG_S)
        scheduler.load()  # takes the lock, so all three are asleep now
        scheduler.submit([only])
        scheduler.stop(drain=True)
        assert sorted(str(one.result(HANG_S)) for one in taking) == sorted(["None", "None", str([only])])
    assert len(looks) == 3 + 3  # none woke to find nothing


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_the_replica_that_worked_last_wakes_first(monkeypatch: pytest.MonkeyPatch, order: tuple[int, ...]) -> None:
    scheduler = Scheduler(EngineLimits(max_alone_rows=1), 3)
    _, looked = watch(monkeypatch)
    with ThreadPoolExecutor(3) as replicas, closed_at_last(scheduler):
        taking = {}
        for number in order:
            taking[number] = replicas.submit(take, scheduler, number)
            assert looked.acquire(timeout=HANG_S)
            scheduler.load()  # takes the lock, so the replica is asleep now
        for number in reversed(order):
            only = sentence()
            scheduler.submit([only])
            assert taking[number].result(HANG_S) == [only]


def test_several_sentences_wake_several_replicas() -> None:
    scheduler = Scheduler(EngineLimits(max_alone_rows=1), 3)
    with ThreadPoolExecutor(3) as replicas, closed_at_last(scheduler):
        taking = [replicas.submit(take, scheduler, number) for number in range(3)]
        sentences = [sentence() for _ in range(9)]
        scheduler.submit(sentences)
        taken = [one.result(HANG_S) or [] for one in taking]
    assert [len(one) for one in taken] == [3, 3, 3]
    assert {id(one) for part in taken for one in part} == set(map(id, sentences))


def test_a_scheduler_is_quiet_while_it_is_open_and_no_sentence_waits() -> None:
    scheduler = Scheduler(EngineLimits(), 1)
    assert scheduler.is_quiet
    scheduler.submit([sentence()])
    assert not scheduler.is_quiet
    take(scheduler, 0)
    assert scheduler.is_quiet
    scheduler.stop(drain=True)
    assert not scheduler.is_quiet


def test_closing_ends_idle_replicas_once_the_queue_is_empty() -> None:
    scheduler = Scheduler(EngineLimits(max_batch_tokens=1, max_alone_rows=1), 2)
    first, second = sentence(), sentence()
    scheduler.submit([first, second])
    assert take(scheduler, 0) == [first]
    with ThreadPoolExecutor(1) as idle:
        waiting = idle.submit(take, scheduler, 1)  # there is no room beside the first
        assert scheduler.stop(drain=True) == []
        with pytest.raises(UnavailableError, match="being stopped"):
            scheduler.submit([sentence()])
        assert take(scheduler, 0, [first]) == []
        taken = take(scheduler, 0)
        other = waiting.result(HANG_S) if taken is None else None
        assert [taken, other].count([second]) == 1
        assert take(scheduler, 0 if taken else 1) is None
        assert waiting.result(HANG_S) in (None, [second])


def test_closing_without_draining_returns_waiting_sentences_and_stops_replicas() -> None:
    scheduler = Scheduler(EngineLimits(max_batch_tokens=1, max_alone_rows=1), 2)
    first, *others = sentences = [sentence() for _ in range(4)]
    scheduler.submit(sentences)
    assert take(scheduler, 0) == [first]
    with ThreadPoolExecutor(1) as idle:
        waiting = idle.submit(take, scheduler, 1)
        assert scheduler.stop(drain=False) == others
        assert waiting.result(HANG_S) is None
    with pytest.raises(UnavailableError, match="was stopped"):
        take(scheduler, 0, [first])
    assert take(scheduler, 0) is None
    assert (scheduler.load().queued_requests, scheduler.load().rows) == (0, 0)


@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_every_sentence_is_taken_once_in_order_and_within_bounds(replicas: int) -> None:
    bound = 160
    scheduler = Scheduler(EngineLimits(max_batch_tokens=bound, max_alone_rows=1), replicas)
    order: list[Sentence] = []
    decoded: list[list[Sentence]] = [[] for _ in range(replicas)]
    together = threading.Lock()
    over: list[int] = []
    counts: list[int] = []

    def decode(number: int) -> None:
        generator = random.Random(number)
        mine = decoded[number]
        ahead: list[Sentence] = []
        while True:
            work = scheduler.next_work(number, occupied(mine), ahead)
            if work is None:
                return
            taken = [*work.ready, *work.taken]
            ahead = [*ahead[len(work.ready) :], *work.ahead]
            counts.append(len(work.ahead))
            with together:
                mine.extend(taken)
                # The scheduler has already counted what others take meanwhile; this sum has not.
                tokens, parts = sum(occupied(part).tokens for part in decoded), list(map(len, decoded))
                if tokens > bound and sum(parts) > 1:
                    over.append(tokens)
                order.extend(taken)
                mine[:] = [one for one in mine if generator.random() < 0.5]

    sentences = []
    with ThreadPoolExecutor(replicas) as threads:
        running = [threads.submit(decode, number) for number in range(replicas)]
        generator = random.Random(9)
        for _ in range(60):
            some = [
                sentence(generator.choice([3, 8, 20, 50, 200]), generator.choice([1, 2, 4]))
                for _ in range(generator.randint(1, 8))
            ]
            sentences += some
            scheduler.submit(some)
        scheduler.stop(drain=True)
        for one in running:
            one.result(HANG_S)
    assert {id(one) for one in order} == {id(one) for one in sentences}
    assert len(order) == len(sentences)
    assert not over
    assert any(counts) or replicas > 1  # several replicas may leave none waiting
    if replicas == 1:
        assert order == sentences


@pytest.mark.parametrize("drain", [True, False])
def test_sentences_encoded_ahead_wait_for_other_replicas_or_the_end(drain: bool) -> None:
    scheduler = Scheduler(EngineLimits(max_batch_tokens=32, max_alone_rows=1), 2)
    long, ahead = sentence(32), [sentence(), sentence()]
    scheduler.submit([long])
    assert take(scheduler, 0) == [long]
    with ThreadPoolExecutor(2) as idle:
        waiting = idle.submit(scheduler.next_work, 1, Occupancy(), ahead)
        if not drain:
            assert scheduler.stop(drain=False) == []
            with pytest.raises(UnavailableError, match="was stopped"):
                waiting.result(HANG_S)
            return
        assert take(scheduler, 0, [long]) == []
        other = idle.submit(take, scheduler, 0)  # the long one is done, and none waits
        work = waiting.result(HANG_S)
        assert work is not None
        assert work.ready == ahead
        assert scheduler.stop(drain=True) == []
        assert other.result(HANG_S) is None


def test_idle_replicas_without_capacity_do_not_wake_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Scheduler(EngineLimits(max_batch_tokens=48, max_alone_rows=1), 3)
    long, waiting = sentence(48), sentence()
    scheduler.submit([long])
    assert take(scheduler, 0) == [long]
    scheduler.submit([waiting])
    looks, _ = watch(monkeypatch)
    with ThreadPoolExecutor(2) as idle:
        others = [idle.submit(take, scheduler, number) for number in (1, 2)]
        for _ in range(100_000):
            scheduler.load()
        assert scheduler.stop(drain=False) == [waiting]
        assert [other.result(HANG_S) for other in others] == [None, None]
    assert len(looks) <= 8


def test_replicas_with_sentences_encoded_ahead_do_not_wake_each_other_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = Scheduler(EngineLimits(max_batch_tokens=48, max_alone_rows=1), 3)
    long = sentence(48)
    scheduler.submit([long])
    assert scheduler.next_work(0, Occupancy()) is not None
    looks, _ = watch(monkeypatch, "take_fitting")
    with ThreadPoolExecutor(2) as idle:
        others = [idle.submit(scheduler.next_work, number, Occupancy(), [sentence()]) for number in (1, 2)]
        scheduler.stop(drain=True)
        for _ in range(100_000):
            scheduler.load()
        assert len(looks) <= 8
        scheduler.stop(drain=False)
        for other in others:
            with pytest.raises(UnavailableError, match="was stopped"):
                other.result(HANG_S)
