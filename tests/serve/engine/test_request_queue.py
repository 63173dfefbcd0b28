"""The queue of several callers: order, shares by work, and totals."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jumok_serve.engine.request_queue import MAX_CREDIT, QUANTUM, REMEMBERED_CALLERS, RequestQueue, Totals
from jumok_serve.engine.sentence import Sentence
from jumok_serve.search import SearchPlan
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
    queue = RequestQueue()
    sentences = [sentence("a", size) for size in sizes]
    queue.extend(sentences)
    assert drained(queue) == sentences


@given(arrivals=st.lists(st.tuples(st.sampled_from("abc"), SIZES), max_size=60))
@SETTINGS
def test_each_caller_keeps_its_order_and_none_is_lost(arrivals: list[tuple[str, tuple[int, int, bool]]]) -> None:
    queue = RequestQueue()
    sentences = [sentence(caller, size) for caller, size in arrivals]
    queue.extend(sentences)
    assert queue.totals == Totals.of(sentences)
    assert (queue.rows, len(queue)) == (sum(one.rows for one in sentences), len(sentences))
    found = drained(queue)
    for caller in "abc":
        assert [one for one in found if one.caller == caller] == [one for one in sentences if one.caller == caller]
        assert queue.work_of(caller) == 0
    assert queue.totals == Totals(0)
    assert (queue.rows, queue.positions) == (0, 0)


def random_sizes(random: Random, number: int) -> list[tuple[int, int, bool]]:
    most = random.choice([1, 5, 64])
    return [(random.randint(1, 128), random.randint(1, most), random.random() < 0.2) for _ in range(number)]


@given(seed=st.integers(0, 2**32), callers=st.integers(2, 6))
@SETTINGS
def test_callers_with_waiting_sentences_get_equal_work(seed: int, callers: int) -> None:
    """At any time the difference is at most one round and one sentence (Shreedhar and Varghese, 1996)."""
    queue, random = RequestQueue(), Random(seed)
    names = [str(number) for number in range(callers)]
    for caller in names:
        queue.extend(sentence(caller, size) for size in random_sizes(random, 60))
    largest = max(one.work for one in queue)
    work = dict.fromkeys(names, 0)
    while all(queue.work_of(caller) for caller in names):
        assert max(work.values()) - min(work.values()) <= QUANTUM + 2 * largest
        work[queue.first.caller] += queue.first.work
        queue.pop_first()


@given(seed=st.integers(0, 2**32), rivals=st.integers(1, 12))
@SETTINGS
def test_a_small_sentence_waits_at_most_one_round(seed: int, rivals: int) -> None:
    queue, random = RequestQueue(), Random(seed)
    for caller in range(rivals):
        queue.extend(sentence(str(caller), size) for size in random_sizes(random, 40))
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
    assert before <= rivals * (QUANTUM + largest)


WIDE = (17, 64, True)


def take(queue: RequestQueue, caller: str, *, while_waiting: str = "", work: int = 0) -> Counter[str]:
    """Take sentences while a caller has some, or until `caller` has taken so much work; return the work of each."""
    taken: Counter[str] = Counter()
    while queue.work_of(while_waiting) if while_waiting else taken[caller] + queue.first.work <= work:
        taken[queue.first.caller] += queue.first.work
        queue.pop_first()
    return taken


@given(absences=st.lists(st.integers(0, MAX_CREDIT), min_size=1, max_size=12), number=st.integers(1, 4))
@SETTINGS
def test_callers_of_wide_requests_get_equal_work_although_they_miss_rounds(absences: list[int], number: int) -> None:
    """None of their sentences waits while the last ones are decoded; others take more meanwhile."""
    queue, work = RequestQueue(), Counter[str]()
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
    """It is forgotten after so many other callers have left."""
    queue, size = RequestQueue(), (8, 16, False)
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


def test_callers_beside_the_rounds_leave_first_and_unread_sentences_stay() -> None:
    queue = RequestQueue()
    light, heavy = [sentence("light") for _ in range(3)], [sentence("heavy") for _ in range(3)]
    queue.extend([*heavy, *light])
    for number, one in enumerate(queue.pop_of(lambda caller: caller == "light")):
        assert one is light[number]
        if number == 1:
            break
    assert [*queue] == [*heavy, *light[1:]]
    assert drained(queue) == [*heavy, *light[1:]]


def test_removed_sentences_leave_the_totals() -> None:
    queue = RequestQueue()
    kept, dropped = sentence("a"), [sentence("a", (9, 2, True)), sentence("b")]
    queue.extend([kept, *dropped])
    queue.remove_if(lambda one: one in dropped)
    assert queue.totals == Totals.of([kept])
    assert queue.work_of("b") == 0
    assert queue.clear() == [kept]
    assert not queue
    assert queue.totals == Totals(0)
