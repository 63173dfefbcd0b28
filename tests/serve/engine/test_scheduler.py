"""The queue that replicas share: order, shares, bounds, waking and closing, without a model."""

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from jumok_serve import UnavailableError
from jumok_serve.engine.batch import Sentence
from jumok_serve.engine.limits import EngineLimits
from jumok_serve.engine.occupancy import Occupancy
from jumok_serve.engine.scheduler import AHEAD_SHARE, MAX_JOINING_TOKENS, SentenceQueue
from jumok_serve.search import make_search
from tests.serve.engine.test_engine import PATIENCE_S
from tests.support.search_cases import make_options


def sentence(tokens: int = 8, beam_size: int = 1) -> Sentence:
    return Sentence(source_ids=[5] * tokens, search=make_search(make_options(beam_size=beam_size), 2, ()))


def occupied(sentences: Sequence[Sentence]) -> Occupancy:
    """What a replica with these sentences decodes."""
    occupancy = Occupancy()
    for one in sentences:
        occupancy.add(one)
    return occupancy


def test_the_cost_is_rows_times_padded_source_of_each_beam_size() -> None:
    occupancy = occupied([sentence(3, 4), sentence(9, 4), sentence(17, 1)])
    assert (occupancy.sentences, occupancy.rows, occupancy.tokens) == (3, 9, 8 * 16 + 24)
    for more in (sentence(1, 4), sentence(17, 4), sentence(30, 1), sentence(30, 2)):
        assert occupancy.tokens_with(more) == occupied([sentence(9, 4), sentence(3, 4), sentence(17, 1), more]).tokens


@pytest.mark.parametrize(
    ("replicas", "beam_sizes", "expected"),
    [
        (1, [1] * 5, [5]),
        (2, [1] * 64, [32, 32]),
        (2, [4] * 3, [1, 2]),
        (2, [4, 1, 1, 1, 1], [1, 4]),
        (3, [1] * 10, [3, 3, 4]),
        (4, [2] * 2, [1, 1, 0, 0]),
        (16, [1] * 17, [1] * 15 + [2]),
    ],
)
def test_idle_replicas_divide_what_waits_evenly_and_in_order(
    replicas: int, beam_sizes: list[int], expected: list[int]
) -> None:
    queue = SentenceQueue(EngineLimits(max_alone_rows=1), replicas)
    sentences = [sentence(beam_size=beam_size) for beam_size in beam_sizes]
    queue.add(sentences)
    taken = [queue.take(replica, Occupancy()) or [] for replica in range(sum(number > 0 for number in expected))]
    assert [len(one) for one in taken] == [number for number in expected if number]
    assert [one for part in taken for one in part] == sentences
    load = queue.load()
    assert (load.queued_requests, load.queued_tokens) == (0, 0)
    assert (load.running_sentences, load.rows) == (len(sentences), sum(beam_sizes))


def test_few_rows_go_to_the_replica_that_works_as_far_as_it_has_room() -> None:
    queue = SentenceQueue(EngineLimits(max_alone_rows=16, max_batch_tokens=8 * 20), 2)
    sentences = [sentence(beam_size=4) for _ in range(4)]
    queue.add(sentences[:1])
    assert queue.take(1, Occupancy()) == sentences[:1]
    assert queue.alone(1)
    assert not queue.alone(0)
    queue.add(sentences[1:])
    idle = Occupancy()
    assert queue._take(idle) == []
    # Its part of the bound is 10 rows of 8 positions.
    working = occupied(sentences[:1])
    assert queue.take(1, working) == sentences[1:2]
    assert not queue.alone(1)
    assert queue.take(0, idle) == sentences[2:]
    assert not queue.alone(0)
    assert not queue.alone(1)


def test_many_rows_are_divided() -> None:
    queue = SentenceQueue(EngineLimits(max_alone_rows=16), 2)
    queue.add([sentence(beam_size=4) for _ in range(6)])
    assert [len(queue.take(replica, Occupancy()) or []) for replica in (0, 1)] == [3, 3]


def test_nobody_is_alone_while_others_are_about_to_take_who_waits() -> None:
    queue = SentenceQueue(EngineLimits(max_alone_rows=16), 3)
    sentences = [sentence(beam_size=4) for _ in range(6)]
    queue.add(sentences)
    assert queue.take(0, Occupancy()) == sentences[:2]
    assert not queue.alone(0)
    queue.step_aside(1)
    assert not queue.alone(0)
    queue.step_aside(2)
    assert queue.alone(0)


def test_few_who_wait_for_the_replica_that_works_leave_it_alone() -> None:
    queue = SentenceQueue(EngineLimits(max_alone_rows=4), 2)
    sentences = [sentence(MAX_JOINING_TOKENS // 2) for _ in range(4)]
    queue.add(sentences[:1])
    assert queue.take(0, Occupancy()) == sentences[:1]
    queue.add(sentences[1:])
    assert queue.take(0, occupied(sentences[:1])) == sentences[1:3]
    assert queue.load().queued_requests == 1
    assert queue.alone(0)


def test_a_replica_that_has_more_than_its_share_leaves_what_comes_to_the_others() -> None:
    queue = SentenceQueue(EngineLimits(max_alone_rows=1), 2)
    queue.add([sentence() for _ in range(10)])
    mine = queue.take(0, Occupancy())
    theirs = queue.take(1, Occupancy())
    assert mine is not None
    assert theirs is not None
    queue.add([sentence(), sentence()])
    assert queue.take(1, occupied(theirs[:1])) != []  # of 5 and 1
    assert queue.take(0, occupied(mine)) == []
    assert queue.load().queued_requests == 0


def test_each_replica_has_its_part_of_the_budget() -> None:
    queue = SentenceQueue(EngineLimits(max_batch_tokens=100, max_alone_rows=1), 2)
    sentences = [sentence(8) for _ in range(20)]
    queue.add(sentences)
    mine = queue.take(0, Occupancy())
    theirs = queue.take(1, Occupancy())
    assert (mine, theirs) == (sentences[:6], sentences[6:12])
    assert queue.take(0, occupied(sentences[:4])) == sentences[12:14]


def test_each_replica_has_its_part_of_the_rows() -> None:
    queue = SentenceQueue(EngineLimits(max_batch_rows=10, max_alone_rows=1), 2)
    sentences = [sentence(beam_size=2) for _ in range(6)]
    wide = sentence(beam_size=12)
    queue.add([*sentences, wide])
    assert queue.take(0, Occupancy()) == sentences[:2]  # 5 rows a replica
    assert queue.take(1, Occupancy()) == sentences[2:4]
    assert queue.take(0, occupied(sentences[:1])) == [sentences[4]]
    assert queue.take(0, Occupancy()) == [sentences[5]]
    assert queue.take(0, occupied([sentences[5]])) == []  # more than the whole waits for all others
    assert queue.take(1, occupied(sentences[2:4])) == []


@pytest.mark.parametrize(
    "limits",
    [EngineLimits(max_batch_rows=16, max_alone_rows=1), EngineLimits(max_batch_tokens=16 * 8, max_alone_rows=1)],
    ids=["rows", "tokens"],
)
def test_while_more_wait_than_there_is_room_for_a_replica_takes_several_or_none(limits: EngineLimits) -> None:
    queue = SentenceQueue(limits, 1)
    sentences = [sentence() for _ in range(21)]
    queue.add(sentences)
    assert queue.take(0, Occupancy()) == sentences[:16]
    assert queue.take(0, occupied(sentences[3:16])) == []
    assert queue.take(0, occupied(sentences[4:16])) == sentences[16:20]
    # The last one that waits has no company to wait for.
    assert queue.take(0, occupied(sentences[5:20])) == sentences[20:]


def test_few_rows_that_the_busier_replica_leaves_waiting_go_to_the_idle_one() -> None:
    queue = SentenceQueue(EngineLimits(max_batch_rows=32), 2)
    sentences = [sentence() for _ in range(17)]
    busy = occupied(sentences[:15])
    queue._occupied[1] = busy
    queue.add(sentences[15:])
    assert queue._take(busy) == []
    assert queue.take(0, Occupancy()) == sentences[15:16]
    assert queue._take(busy) == sentences[16:]


def test_what_is_over_its_part_is_alone_there_and_what_is_over_the_whole_waits_for_all_others() -> None:
    queue = SentenceQueue(EngineLimits(max_batch_tokens=100, max_alone_rows=1), 2)
    long, short, huge, last = sentence(60), sentence(8), sentence(200), sentence(8)
    queue.add([long, short, huge, last])
    assert queue.take(0, Occupancy()) == [long]
    assert queue.take(1, Occupancy()) == [short]
    assert queue.take(0, occupied([long])) == []
    assert queue.take(1, occupied([short])) == []  # nobody passes the one that waits for the whole
    with ThreadPoolExecutor(1) as idle:
        waiting = idle.submit(queue.take, 0, Occupancy())  # its long one is done; there is still another short one
        assert queue.take(1, occupied([short])) == []
        assert queue.close(drain=False) == [huge, last]
        assert waiting.result(PATIENCE_S) is None


def test_whoever_comes_wakes_one_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = SentenceQueue(EngineLimits(max_alone_rows=1), 3)
    asleep = threading.Semaphore(0)
    waits = []

    def wait(sleep: Callable[[], Any] = queue._changed.wait) -> Any:
        waits.append(threading.get_ident())
        asleep.release()
        return sleep()

    monkeypatch.setattr(queue._changed, "wait", wait)
    only = sentence()
    with ThreadPoolExecutor(3) as replicas:
        taking = [replicas.submit(queue.take, number, Occupancy()) for number in range(3)]
        for _ in taking:
            assert asleep.acquire(timeout=PATIENCE_S)
        with queue._changed:  # all three are asleep now
            pass
        queue.add([only])
        queue.close(drain=True)
        assert sorted(str(one.result(PATIENCE_S)) for one in taking) == sorted(["None", "None", str([only])])
    assert len(waits) == 3  # nobody woke to find nothing


def test_several_who_come_wake_as_many_replicas() -> None:
    queue = SentenceQueue(EngineLimits(max_alone_rows=1), 3)
    with ThreadPoolExecutor(3) as replicas:
        taking = [replicas.submit(queue.take, number, Occupancy()) for number in range(3)]
        sentences = [sentence() for _ in range(9)]
        queue.add(sentences)
        taken = [one.result(PATIENCE_S) or [] for one in taking]
    assert [len(one) for one in taken] == [3, 3, 3]
    assert {id(one) for part in taken for one in part} == set(map(id, sentences))


def test_closing_ends_the_idle_once_nothing_waits() -> None:
    queue = SentenceQueue(EngineLimits(max_batch_tokens=1, max_alone_rows=1), 2)
    first, second = sentence(), sentence()
    queue.add([first, second])
    assert queue.take(0, Occupancy()) == [first]
    with ThreadPoolExecutor(1) as idle:
        waiting = idle.submit(queue.take, 1, Occupancy())  # there is no room beside the first
        assert queue.close(drain=True) == []
        with pytest.raises(UnavailableError, match="being stopped"):
            queue.add([sentence()])
        assert queue.take(0, occupied([first])) == []
        taken = queue.take(0, Occupancy())
        other = waiting.result(PATIENCE_S) if taken is None else None
        assert [taken, other].count([second]) == 1
        assert queue.take(0 if taken else 1, Occupancy()) is None
        assert waiting.result(PATIENCE_S) in (None, [second])


def test_closing_without_draining_gives_back_who_waits_and_stops_who_decodes() -> None:
    queue = SentenceQueue(EngineLimits(max_batch_tokens=1, max_alone_rows=1), 2)
    first, *others = sentences = [sentence() for _ in range(4)]
    queue.add(sentences)
    assert queue.take(0, Occupancy()) == [first]
    with ThreadPoolExecutor(1) as idle:
        waiting = idle.submit(queue.take, 1, Occupancy())
        assert queue.close(drain=False) == others
        assert waiting.result(PATIENCE_S) is None
    with pytest.raises(UnavailableError, match="was stopped"):
        queue.take(0, occupied([first]))
    assert queue.take(0, Occupancy()) is None
    assert (queue.load().queued_requests, queue.load().rows) == (0, 0)


@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_everybody_is_taken_once_in_order_and_within_the_budget(replicas: int) -> None:
    bound = 160
    queue = SentenceQueue(EngineLimits(max_batch_tokens=bound, max_alone_rows=1), replicas)
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
            occupancy = occupied(mine)
            taken: list[Sentence] | None
            if ahead:
                taken = queue.fitting(number, occupancy, ahead)
                ahead = ahead[len(taken) :]
            else:
                taken = queue.take(number, occupancy)
                if taken:
                    ahead = queue.take_ahead(number, taken)
                    counts.append(len(ahead))
            if taken is None:
                return
            with together:
                mine.extend(taken)
                # A moment after it was taken: what others take meanwhile is counted in by the queue, not here.
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
            queue.add(some)
        queue.close(drain=True)
        for one in running:
            one.result(PATIENCE_S)
    assert {id(one) for one in order} == {id(one) for one in sentences}
    assert len(order) == len(sentences)
    assert not over
    assert any(counts) or replicas > 1  # several may be so fast that nobody waits
    if replicas == 1:
        assert order == sentences


def test_who_decodes_is_held_up_for_few_tokens_at_a_time_and_who_does_not_takes_all() -> None:
    queue = SentenceQueue(EngineLimits(max_batch_tokens=10**6), 1)
    sentences = [sentence(100) for _ in range(12)] + [sentence(2 * MAX_JOINING_TOKENS) for _ in range(2)]
    queue.add(sentences)
    assert queue.take(0, occupied([sentence()])) == sentences[: MAX_JOINING_TOKENS // 100]
    assert queue.take(0, occupied([sentence()])) == sentences[5:10]
    assert queue.take(0, occupied([sentence()])) == sentences[10:12]
    assert queue.take(0, occupied([sentence()])) == sentences[12:13]
    queue.add(sentences)
    assert queue.take(0, Occupancy()) == [*sentences[13:], *sentences]


def test_a_part_of_those_who_wait_is_encoded_ahead_and_joins_as_there_is_room() -> None:
    queue = SentenceQueue(EngineLimits(max_batch_tokens=2 * 8 * 8, max_alone_rows=1), 2)
    sentences = [sentence() for _ in range(16 + 16 * AHEAD_SHARE)]
    queue.add(sentences)
    assert queue.take(0, Occupancy()) == sentences[:8]
    assert queue.take_ahead(0, sentences[:8]) == []  # the other replica has room
    assert queue.take(1, Occupancy()) == sentences[8:16]
    ahead = queue.take_ahead(1, sentences[8:16])
    assert ahead == sentences[16:24]  # half of a share: there are two replicas
    load = queue.load()
    assert (load.queued_requests, load.queued_tokens) == (len(sentences) - 16, 8 * (len(sentences) - 16))
    assert queue.fitting(1, occupied(sentences[8:16]), ahead) == []
    assert queue.fitting(1, occupied(sentences[10:16]), ahead) == ahead[:2]
    assert queue.load().queued_requests == len(sentences) - 18
    assert queue.take(0, Occupancy()) == sentences[24:32]
    assert queue.fitting(1, Occupancy(), ahead[2:]) == ahead[2:]


def test_nobody_is_encoded_ahead_who_is_over_what_there_is_room_for() -> None:
    queue = SentenceQueue(EngineLimits(max_batch_tokens=8 * 8, max_alone_rows=1), 1)
    sentences = [sentence() for _ in range(12)]
    sentences[9:10] = [sentence(8 * 8 + 1)]
    queue.add(sentences)
    assert queue.take_ahead(0, []) == []  # a replica has room for the first
    assert queue.take(0, Occupancy()) == sentences[:8]
    assert sentences[8].future.cancel()
    assert queue.take_ahead(0, sentences[:8]) == []  # of the first two, one has left and one is over a replica's part
    assert queue.load().queued_requests == 3
    queue.add([sentence(), sentence()])
    queue._waiting.drop(lambda one: len(one.source_ids) > 8)
    assert queue.take_ahead(0, [sentence(MAX_JOINING_TOKENS - 7)]) == []
    assert queue.take_ahead(0, [sentence(MAX_JOINING_TOKENS - 8)]) == sentences[10:11]


@pytest.mark.parametrize("decoding", [True, False])
def test_who_was_encoded_ahead_keeps_its_room_and_others_go_elsewhere(decoding: bool) -> None:
    queue = SentenceQueue(EngineLimits(max_batch_tokens=96), 2)
    first, long, *small = sentence(), sentence(48), *[sentence() for _ in range(12)]
    queue.add([first, long, *small])
    queue._occupied[1] = occupied([sentence(40)])  # until it looks again
    assert queue.take(0, Occupancy()) == [first]
    ahead = queue.take_ahead(0, [first])
    assert ahead == [long]
    if decoding:  # the replica that is busier takes no others before those it has encoded
        assert queue.fitting(0, occupied([first]), ahead) == []
        assert queue.take(1, Occupancy()) == small[:6]
    else:
        queue._occupied[0] = Occupancy()
        assert len(queue.take(1, Occupancy()) or []) <= (96 - 48) // 8


def test_who_waits_is_looked_at_while_some_are_encoded_ahead() -> None:
    queue = SentenceQueue(EngineLimits(max_batch_tokens=16), 1)
    first, *others = [sentence() for _ in range(12)]
    queue.add([first, *others])
    assert queue.take(0, Occupancy()) == [first, others[0]]
    ahead = queue.take_ahead(0, [first])
    assert ahead == others[1:3]
    for one in others[3:]:
        one.future.cancel()
    assert queue.fitting(0, occupied([first, others[0]]), ahead) == []
    assert queue.load().queued_requests == len(ahead)


def test_who_was_encoded_ahead_waits_for_other_replicas_or_the_end() -> None:
    queue = SentenceQueue(EngineLimits(max_batch_tokens=32, max_alone_rows=1), 2)
    long, ahead = sentence(32), [sentence(), sentence()]
    queue.add([long])
    assert queue.take(0, Occupancy()) == [long]
    with ThreadPoolExecutor(2) as idle:
        waiting = idle.submit(queue.fitting, 1, Occupancy(), ahead)
        assert queue.take(0, occupied([long])) == []
        other = idle.submit(queue.take, 0, Occupancy())  # the long one is done, and nobody waits
        assert waiting.result(PATIENCE_S) == ahead
        assert queue.close(drain=True) == []
        assert other.result(PATIENCE_S) is None
        queue = SentenceQueue(EngineLimits(max_batch_tokens=32, max_alone_rows=1), 2)
        queue.add([long])
        assert queue.take(0, Occupancy()) == [long]
        waiting = idle.submit(queue.fitting, 1, Occupancy(), ahead)
        assert queue.close(drain=False) == []
        with pytest.raises(UnavailableError, match="was stopped"):
            waiting.result(PATIENCE_S)


def test_idle_replicas_without_room_do_not_wake_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = SentenceQueue(EngineLimits(max_batch_tokens=48, max_alone_rows=1), 3)
    long, waiting = sentence(48), sentence()
    looks: list[int] = []
    take = SentenceQueue._take

    def noted(self: SentenceQueue, occupancy: Occupancy) -> list[Sentence]:
        looks.append(occupancy.rows)
        return take(self, occupancy)

    queue.add([long])
    assert queue.take(0, Occupancy()) == [long]
    queue.add([waiting])
    monkeypatch.setattr(SentenceQueue, "_take", noted)
    with ThreadPoolExecutor(2) as idle:
        others = [idle.submit(queue.take, number, Occupancy()) for number in (1, 2)]
        for _ in range(100_000):
            queue.load()
        assert queue.close(drain=False) == [waiting]
        assert [other.result(PATIENCE_S) for other in others] == [None, None]
    assert len(looks) <= 8
