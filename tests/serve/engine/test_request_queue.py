"""The queue of several callers: order, shares by work, and totals; and deadlines that it cannot meet."""

import heapq
from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jumok_proto.errors import DeadlineExceededError
from jumok_serve.engine.request_queue import (
    CAUTION,
    MAX_CREDIT,
    MAX_TURN,
    QUANTUM,
    REMEMBERED_CALLERS,
    WINDOW_S,
    DrainRate,
    EngineLimits,
    Occupancy,
    RequestQueue,
    Totals,
)
from jumok_serve.engine.scheduler import SchedulingPolicy
from jumok_serve.engine.sentence import Sentence
from jumok_serve.search.plan import SearchPlan
from tests.support.search_cases import make_options

SETTINGS = settings(deadline=None, derandomize=True, database=None, max_examples=40)
SIZES = st.tuples(st.integers(1, 128), st.integers(1, 64), st.booleans())
"""Source tokens, beam size, and constraints on repetition."""


def sentence(caller: str, size: tuple[int, int, bool] = (8, 1, False)) -> Sentence:
    tokens, beam_size, constrained = size
    options = make_options(beam_size=beam_size, max_length=100, no_repeat_ngram_size=3 * constrained)
    return Sentence(source_ids=[5] * tokens, plan=SearchPlan(options, 2), caller=caller)


def drained(queue: RequestQueue) -> list[Sentence]:
    found = []
    while queue:
        first = queue.first
        assert queue.first is first
        found.append(first)
        queue.pop_first()
    return found


@given(sizes=st.lists(SIZES, max_size=40))
@SETTINGS
def test_a_caller_alone_keeps_the_order_of_arrival(sizes: list[tuple[int, int, bool]]) -> None:
    queue = RequestQueue(EngineLimits())
    sentences = [sentence("a", size) for size in sizes]
    queue.extend(sentences)
    assert drained(queue) == sentences


@given(arrivals=st.lists(st.tuples(st.sampled_from("abc"), SIZES), max_size=60))
@SETTINGS
def test_each_caller_keeps_its_order_and_none_is_lost(arrivals: list[tuple[str, tuple[int, int, bool]]]) -> None:
    queue = RequestQueue(EngineLimits())
    sentences = [sentence(caller, size) for caller, size in arrivals]
    queue.extend(sentences)
    assert queue.totals == Totals.of(sentences)
    assert (queue.rows, len(queue)) == (sum(one.rows for one in sentences), len(sentences))
    found = drained(queue)
    for caller in "abc":
        assert [one for one in found if one.caller == caller] == [one for one in sentences if one.caller == caller]
        assert queue.totals_of(caller).work == 0
    assert queue.totals == Totals(0)
    assert (queue.rows, queue.positions) == (0, 0)


def random_sizes(random: Random, number: int) -> list[tuple[int, int, bool]]:
    most = random.choice([1, 5, 64])
    return [(random.randint(1, 128), random.randint(1, most), random.random() < 0.2) for _ in range(number)]


@given(seed=st.integers(0, 2**32), callers=st.integers(2, 6))
@SETTINGS
def test_callers_with_waiting_sentences_get_equal_work(seed: int, callers: int) -> None:
    """At any time the difference is at most `QUANTUM` and one sentence of each (Shreedhar and Varghese, 1996)."""
    queue, random = RequestQueue(EngineLimits()), Random(seed)
    names = [str(number) for number in range(callers)]
    for caller in names:
        queue.extend(sentence(caller, size) for size in random_sizes(random, 60))
    largest = max(one.work for one in queue)
    work = dict.fromkeys(names, 0)
    while all(queue.totals_of(caller).work for caller in names):
        assert max(work.values()) - min(work.values()) <= QUANTUM + 2 * largest
        work[queue.first.caller] += queue.first.work
        queue.pop_first()


@given(seed=st.integers(0, 2**32), rivals=st.integers(1, 12), back=st.booleans())
@SETTINGS
def test_a_small_sentence_waits_at_most_one_round(seed: int, rivals: int, back: bool) -> None:
    """Also if its rivals have just come back, with credit for many turns."""
    queue, random = RequestQueue(EngineLimits()), Random(seed)
    if back:
        queue.extend(sentence(str(caller)) for caller in range(rivals))
        queue.extend(sentence("corpus", (17, 4, False)) for _ in range(200 + 100 * rivals))
        while queue.totals_of("corpus").sentences > 100:
            assert queue.first
            queue.pop_first()
        rivals += 1
    for caller in range(rivals - back):
        queue.extend(sentence(str(caller), size) for size in random_sizes(random, 300 if back else 40))
    for _ in range(random.randint(0, 20)):
        assert queue.first  # moves the round on
        queue.pop_first()
    largest = max(one.work for one in queue)
    small = sentence("new")
    assert small.work <= QUANTUM
    queue.extend([small])
    before = 0
    while queue.first is not small:
        before += queue.first.work
        queue.pop_first()
    assert before <= rivals * (MAX_TURN + largest)


WIDE = (17, 64, True)


def take(queue: RequestQueue, caller: str, *, while_waiting: str = "", work: int = 0) -> Counter[str]:
    """Take sentences while a caller has some, or until `caller` has taken so much work; return the work of each."""
    taken: Counter[str] = Counter()
    while queue.totals_of(while_waiting).work if while_waiting else taken[caller] + queue.first.work <= work:
        taken[queue.first.caller] += queue.first.work
        queue.pop_first()
    return taken


@given(absences=st.lists(st.integers(0, MAX_CREDIT), min_size=1, max_size=12), number=st.integers(1, 4))
@SETTINGS
def test_callers_of_wide_requests_get_equal_work_although_they_miss_rounds(absences: list[int], number: int) -> None:
    """None of their sentences waits while the last ones are decoded; others take more meanwhile."""
    queue, work = RequestQueue(EngineLimits()), Counter[str]()
    queue.extend(sentence("corpus", (8, 16, False)) for _ in range(1000))
    queue.extend(sentence("wide", WIDE) for _ in range(number))
    largest = sentence("wide", WIDE).work
    for absence in absences:
        work += take(queue, "corpus", while_waiting="wide")
        assert abs(work["wide"] - work["corpus"]) <= QUANTUM + 2 * largest
        missed = min(absence, max(0, number * largest - QUANTUM))  # more than a request cannot be made up for by one
        work += take(queue, "corpus", work=missed)
        queue.extend(sentence("wide", WIDE) for _ in range(number))


@pytest.mark.parametrize(
    ("absence", "others", "credit"),
    [
        (0, 0, QUANTUM),
        (MAX_CREDIT // 2, 0, MAX_CREDIT // 2),
        (9 * MAX_CREDIT, 0, MAX_CREDIT),
        (9 * MAX_CREDIT, REMEMBERED_CALLERS - 1, MAX_CREDIT),
        (9 * MAX_CREDIT, REMEMBERED_CALLERS, QUANTUM),
    ],
)
def test_the_work_that_a_caller_makes_up_for_is_bounded(absence: int, others: int, credit: int) -> None:
    """The queue forgets it once `REMEMBERED_CALLERS` others have left."""
    queue, size = RequestQueue(EngineLimits()), (8, 16, False)
    queue.extend(sentence("corpus", size) for _ in range(1000))
    queue.extend([sentence("back", size)])
    take(queue, "corpus", while_waiting="back")
    take(queue, "corpus", work=absence)
    queue.extend(passing := [sentence(str(number)) for number in range(others)])
    gone = set(passing)
    queue.remove_if(lambda one: one in gone)
    queue.extend(sentence("back", size) for _ in range(300))
    work = take(queue, "corpus", while_waiting="back")
    assert abs(work["back"] - work["corpus"] - (credit - QUANTUM)) <= 2 * QUANTUM


@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_caller_misses_its_share_of_the_work_of_those_that_waited_meanwhile(late: int) -> None:
    """Others that arrive later do not make its share smaller."""
    queue, size = RequestQueue(EngineLimits()), (8, 16, False)
    queue.extend([sentence("back", size)])
    corpora = [[sentence(caller, size) for _ in range(300)] for caller in ("corpus", "second", "third")]
    for one in corpora[: 3 - late]:
        queue.extend(one)
    take(queue, "corpus", while_waiting="back")
    take(queue, "corpus", work=5 * QUANTUM)
    for one in corpora[3 - late :]:
        queue.extend(one)
    queue.extend(sentence("back", size) for _ in range(100))
    work = take(queue, "corpus", while_waiting="back")
    assert abs(work["back"] - work["corpus"] - 4 * QUANTUM) <= 3 * QUANTUM // 2


@pytest.mark.parametrize(
    ("callers", "number", "rows"), [(1, 4, 128), (2, 2, 320), (2, 4, 320), (4, 2, 320), (8, 4, 1280), (16, 2, 1280)]
)
def test_callers_of_wide_requests_get_the_work_of_a_corpus(callers: int, number: int, rows: int) -> None:
    """Each sends its next request once the last is decoded; batches have `rows` rows, and a corpus always waits."""
    queue, work = RequestQueue(EngineLimits()), Counter[str]()
    plans = {size: SearchPlan(make_options(beam_size=size, max_length=100, num_hypotheses=1), 2) for size in (4, 64)}
    decoding: list[tuple[int, int, Sentence]] = []  # end and number
    unfinished, step, taken = Counter[str](), 0, 0

    def arrive(caller: str, beam_size: int, sentences: int) -> None:
        unfinished[caller] += sentences
        queue.extend(Sentence(source_ids=[5] * 17, plan=plans[beam_size], caller=caller) for _ in range(sentences))

    for index in range(callers):
        arrive(f"wide {index}", 64, number)
    while step < 2500:
        if queue.totals_of("corpus").sentences < 400:
            arrive("corpus", 4, 400)
        while sum(one.rows for _, _, one in decoding) + queue.first.rows <= rows:
            first = queue.first
            queue.pop_first()
            work[first.caller] += first.work
            taken += 1
            heapq.heappush(decoding, (step + first.plan.expected_steps(17), taken, first))
        step, _, ended = heapq.heappop(decoding)
        unfinished[ended.caller] -= 1
        if not unfinished[ended.caller]:
            arrive(ended.caller, 64, number)
    of_one = (work.total() - work["corpus"]) / callers
    assert 0.75 <= work["corpus"] / of_one <= 1.33


def test_sentences_that_are_dropped_or_leave_beside_the_rounds_take_no_credit_and_give_none() -> None:
    """After many of them, callers still get equal work, and one that was absent has missed nothing."""
    queue, size = RequestQueue(EngineLimits()), (17, 4, False)
    queue.extend([sentence("absent", size)])
    queue.extend(sentence(caller, size) for caller in ("a", "b") for _ in range(400))
    take(queue, "a", while_waiting="absent")
    dropped = 0
    while queue.first.caller == "a":
        queue.drop_first()
        dropped += 1
        if dropped == 100:
            break
    assert dropped == 100  # more than a turn: none of them was charged
    for number, _ in enumerate(queue.pop_of(lambda caller: caller == "b")):
        if number == 100:
            break
    queue.extend(sentence("absent", size) for _ in range(100))
    work = take(queue, "a", while_waiting="absent")
    assert max(work.values()) - min(work.values()) <= 2 * QUANTUM


def test_a_caller_that_leaves_beside_the_rounds_comes_back_with_its_credit() -> None:
    queue, size = RequestQueue(EngineLimits()), (17, 4, False)
    queue.extend([sentence("light", size), *(sentence("corpus", size) for _ in range(300))])
    assert [one.caller for one in queue.pop_of(lambda caller: caller == "light")] == ["light"]
    take(queue, "corpus", work=4 * QUANTUM)
    queue.extend(sentence("light", size) for _ in range(100))
    work = take(queue, "corpus", while_waiting="light")
    assert 0 <= work["light"] - work["corpus"] - 4 * QUANTUM <= QUANTUM


def test_callers_beside_the_rounds_leave_first_and_unread_sentences_stay() -> None:
    queue = RequestQueue(EngineLimits())
    light, heavy = [sentence("light") for _ in range(3)], [sentence("heavy") for _ in range(3)]
    queue.extend([*heavy, *light])
    for number, one in enumerate(queue.pop_of(lambda caller: caller == "light")):
        assert one is light[number]
        if number == 1:
            break
    assert [*queue] == [*heavy, *light[1:]]
    assert drained(queue) == [*heavy, *light[1:]]


def test_removed_sentences_leave_the_totals() -> None:
    queue = RequestQueue(EngineLimits())
    kept, dropped = sentence("a"), [sentence("a", (9, 2, True)), sentence("b")]
    queue.extend([kept, *dropped])
    queue.remove_if(lambda one: one in dropped)
    assert queue.totals == Totals.of([kept])
    assert queue.totals_of("b").work == 0
    assert queue.clear() == [kept]
    assert not queue
    assert queue.totals == Totals(0)


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


def due(deadline: float | None = None) -> Sentence:
    one = sentence("", (10, 1, False))
    one.deadline = deadline
    return one


def drain(policy: SchedulingPolicy, sentences: int) -> float:
    """Take a sentence every tenth of a second, each alone; return the time after."""
    for number in range(sentences):
        policy.occupy(0, Occupancy())
        assert len(policy.take(0, 0.1 * number)) == 1
    return 0.1 * sentences


def test_a_queue_refuses_deadlines_that_it_cannot_meet() -> None:
    policy = SchedulingPolicy(EngineLimits(max_batch_tokens=16), 1)  # fits one sentence of 10 tokens
    policy.admit([due() for _ in range(100)], 0.0)
    now = drain(policy, 11)
    # 89 wait, 890 tokens, at 100 a second: 8.9 s at this speed, and a little more than 2 s at four times of it.
    with pytest.raises(
        DeadlineExceededError, match=r"the queue takes 2\.\d s at least, and the deadline passes in 1\.0 s"
    ):
        policy.admit([due(), due(now + 1.0)], now)
    assert policy.load().queued_requests == 89
    policy.admit([due(now + 2.5)], now)
    policy.admit([due()], now)
    with pytest.raises(DeadlineExceededError, match="had passed"):
        policy.admit([due(now - 0.5)], now)


def test_an_empty_queue_refuses_only_passed_deadlines() -> None:
    policy = SchedulingPolicy(EngineLimits(max_batch_tokens=16), 1)
    policy.admit([due() for _ in range(20)], 0.0)
    now = drain(policy, 20)
    policy.admit([due(now + 0.001)], now)
    assert policy.load().queued_requests == 1
    with pytest.raises(DeadlineExceededError, match="had passed"):
        policy.admit([due(now)], now)
