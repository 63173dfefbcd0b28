"""Scheduling for several callers: short steps, light callers, and nothing lost for a caller alone."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jumok_proto.errors import InvalidArgumentError, OverloadedError, RateLimitedError
from jumok_serve.engine.request_queue import QUANTUM, RESERVE_SHARE, EngineLimits, Occupancy
from jumok_serve.engine.scheduler import (
    MAX_LIGHT_ROWS,
    MAX_SHARED_STEP_WORK,
    MAX_TERM_STEP_WORK,
    SHARED_JOINING_TOKENS,
    SchedulingPolicy,
)
from jumok_serve.engine.sentence import Decoded, Sentence
from jumok_serve.search.options import Sampling
from jumok_serve.search.plan import SearchPlan
from jumok_serve.search.terms import Terms
from jumok_serve.share import LIGHT_WORK, PRESENCE_S
from tests.serve.engine.test_scheduling_policy import NOW, occupied, waiting
from tests.support.search_cases import make_options

SETTINGS = settings(deadline=None, derandomize=True, database=None)


def sentence(
    caller: str, *, tokens: int = 8, beam_size: int = 4, max_length: int = 100, ngrams: int = 0, **more: Any
) -> Sentence:
    options = make_options(beam_size=beam_size, max_length=max_length, no_repeat_ngram_size=ngrams, **more)
    return Sentence(source_ids=[5] * tokens, plan=SearchPlan(options, 2), caller=caller)


def bulk(caller: str, number: int = 200) -> list[Sentence]:
    sentences = [sentence(caller) for _ in range(number)]
    assert sum(one.work for one in sentences) > LIGHT_WORK
    return sentences


def take(policy: SchedulingPolicy, decoding: Sequence[Sentence] = (), *, now: float = NOW) -> list[Sentence]:
    policy.occupy(0, occupied(decoding))
    return policy.take(0, now)


def assert_equal_parts(taken: Sequence[Sentence]) -> None:
    """Check that a batch is full, with the same number of two callers."""
    assert len(taken) == 100
    numbers = Counter(one.caller for one in taken)
    assert abs(numbers["first"] - numbers["second"]) * taken[0].work <= QUANTUM


def test_a_caller_alone_fills_the_batch_and_encodes_ahead() -> None:
    sentences = bulk("bulk")
    policy = waiting(sentences, max_batch_tokens=8 * 400)
    assert take(policy) == sentences[:100]
    assert policy.take_ahead(0, [], NOW)
    assert not any(one.light for one in sentences)


@pytest.mark.parametrize("replicas", [1, 2])
def test_callers_with_much_work_share_full_batches(replicas: int) -> None:
    """With several replicas none of them encodes ahead, as another one could decode these sentences first."""
    policy = waiting(bulk("first"), replicas, max_batch_tokens=replicas * 8 * 400)
    policy.admit(bulk("second"), NOW)
    taken = take(policy)
    assert sum(one.plan.step_work for one in taken) > MAX_SHARED_STEP_WORK
    assert_equal_parts(taken)
    policy.occupy(1 - replicas, occupied(taken))  # of the last replica
    assert bool(policy.take_ahead(0, [], NOW)) == (replicas == 1)


def test_steps_are_short_while_another_caller_is_present() -> None:
    policy = waiting([last := sentence("other")])
    assert take(policy) == [last]
    last.future.cancel()
    sentences = bulk("bulk")
    policy.admit(sentences, NOW + 1)
    first = take(policy, now=NOW + 1)
    assert len(first) == SHARED_JOINING_TOKENS // 8
    decoding = list(first)
    while more := take(policy, decoding, now=NOW + 1):
        decoding += more
    assert sum(one.plan.step_work for one in decoding) <= MAX_SHARED_STEP_WORK
    assert sum(one.plan.step_work for one in decoding) > MAX_SHARED_STEP_WORK * 3 // 4
    assert policy.take_ahead(0, [], NOW + 1) == []
    later = take(policy, decoding, now=NOW + 1 + PRESENCE_S)  # the other has gone
    assert len(later) > MAX_SHARED_STEP_WORK // 4


def test_one_sentence_may_take_more_than_a_short_step() -> None:
    policy = SchedulingPolicy(EngineLimits(), 1)
    sampling = Sampling(temperature=1.0, top_k=0, top_p=0.9, seed=1)
    large = [sentence("large", beam_size=1, num_hypotheses=64, sampling=sampling) for _ in range(2)]
    assert large[0].plan.step_work > MAX_SHARED_STEP_WORK
    policy.admit([sentence("other")], NOW)
    policy.admit(large, NOW)
    taken = take(policy)
    assert [one.caller for one in taken] == ["other", "large"]
    assert taken[0].light
    assert take(policy, large[:1]) == []
    assert take(policy) == large[1:]


def test_one_replica_at_a_time_takes_more_than_a_short_step_beside_other_callers() -> None:
    """The next one may come to any replica, and find both in a long step."""
    policy = SchedulingPolicy(EngineLimits(), 2)
    large = [with_terms("large", 30, 8, 32) for _ in range(3)]
    assert large[0].plan.step_work > MAX_SHARED_STEP_WORK
    policy.admit([sentence("other")], NOW)
    policy.admit(large, NOW)
    assert take(policy)[1:] == large[:1]
    assert policy.take(1, NOW) == []
    policy.occupy(0, Occupancy())
    assert policy.take(1, NOW) == large[1:2]  # the first one has ended
    assert policy.take(0, NOW) == []
    alone = SchedulingPolicy(EngineLimits(), 2)
    alone.admit([with_terms("large", 30, 8, 32) for _ in range(2)], NOW)
    assert [len(alone.take(replica, NOW)) for replica in range(2)] == [1, 1]


def with_terms(caller: str, terms: int, alternatives: int, beam_size: int) -> Sentence:
    found = Terms(tuple(tuple((index, of_term) for of_term in range(alternatives)) for index in range(terms)))
    plan = SearchPlan(make_options(beam_size=beam_size, max_length=100), 2, terms=found)
    return Sentence(source_ids=[5] * 8, plan=plan, caller=caller)


@pytest.mark.parametrize(("terms", "alternatives", "beam_size"), [(30, 8, 64), (30, 1, 64), (15, 1, 32), (3, 8, 8)])
def test_terms_make_no_long_step_although_their_caller_is_alone(terms: int, alternatives: int, beam_size: int) -> None:
    """A caller who comes later would wait for it."""
    policy = SchedulingPolicy(EngineLimits(max_batch_tokens=2**20), 1)
    sentences = [with_terms("terms", terms, alternatives, beam_size) for _ in range(100)]
    each = sentences[0].plan.step_work - beam_size
    together = max(1, MAX_TERM_STEP_WORK // each)
    policy.admit(sentences, NOW)
    taken = take(policy)
    assert taken == sentences[:together]
    assert take(policy, taken) == []
    assert take(policy, taken[1:]) == sentences[together : together + 1]


def test_a_sentence_with_terms_joins_a_large_batch_without() -> None:
    plain, few = [sentence("caller") for _ in range(300)], [with_terms("caller", 3, 8, 8) for _ in range(3)]
    policy = waiting([*plain, *few], max_batch_tokens=2**20)
    decoding: list[Sentence] = []
    while more := take(policy, decoding):
        decoding += more
    assert decoding == [*plain, *few]


def test_one_sentence_with_a_wide_beam_fills_a_short_step() -> None:
    wide = [sentence("wide", beam_size=64) for _ in range(4)]
    policy = waiting(wide)
    policy.admit([light := sentence("other")], NOW)
    assert take(policy) == [light, wide[0]]
    assert take(policy, [light, wide[0]]) == []


def test_sentences_that_are_late_do_not_count_as_work_of_their_caller() -> None:
    """Callers with as many sentences that can be decoded get equal parts of a batch."""
    policy = waiting([gone := sentence("first")], max_batch_tokens=8 * 400)
    gone.future.cancel()
    assert take(policy) == []  # and scans no queue for some time
    late = bulk("first", 100)
    for one in late:
        one.deadline = NOW + 0.01
    policy.admit([*late, *bulk("first")], NOW)
    policy.admit(bulk("second"), NOW)
    taken = take(policy, now=NOW + 0.02)
    assert all(one.future.done() for one in late)
    assert_equal_parts(taken)


def test_a_light_sentence_joins_beside_a_full_batch() -> None:
    sentences = bulk("bulk")
    policy = waiting(sentences, max_batch_tokens=8 * 40)
    decoding = take(policy)
    assert len(decoding) == 10
    policy.admit([light := sentence("light", tokens=60)], NOW)
    assert take(policy, decoding) == [light]
    assert light.lane == (4, True)
    assert policy.load().rows == 44
    policy.admit([next_one := sentence("light")], NOW)
    work = policy.next_work(0, occupied([*decoding[3:], light]), (), NOW, light=True)
    assert [*work.taken, *work.ahead] == [next_one]  # in the turn of light ones the others wait
    assert take(policy, [*decoding[3:], light]) == sentences[10:13]  # and takes no capacity from the others


def test_a_light_sentence_does_not_wait_for_those_encoded_ahead() -> None:
    policy = waiting(bulk("bulk"), max_batch_tokens=8 * 40)
    decoding = take(policy)
    ahead = policy.take_ahead(0, [], NOW)
    assert ahead
    policy.admit([light := sentence("light")], NOW + 1)
    policy.occupy(0, occupied(decoding[1:]), ahead)
    assert policy.take_fitting(0, NOW + 1) == []
    assert policy.take_light(0, NOW + 1) == [light]
    assert policy.take_light(0, NOW + 1) == []
    assert policy.load().rows == 40


def test_light_rows_are_bounded_and_the_rest_take_their_turn() -> None:
    policy = waiting(bulk("bulk"))
    light = [sentence(str(number), tokens=1, max_length=10) for number in range(MAX_LIGHT_ROWS // 4 + 3)]
    policy.admit(light, NOW)
    taken = take(policy)
    assert [one for one in taken if one.light] == light[: MAX_LIGHT_ROWS // 4]
    assert {one.caller for one in taken if not one.light} == {"bulk"}
    later = take(policy, taken)
    later += take(policy, [*taken, *later])
    assert set(light[MAX_LIGHT_ROWS // 4 :]) < set(later)


@given(
    sizes=st.lists(st.tuples(st.integers(20, 40), st.sampled_from([4, 5, 16]), st.booleans()), min_size=2, max_size=4),
    replicas=st.integers(1, 2),
)
@settings(SETTINGS, max_examples=10)
def test_heavy_callers_share_the_work_and_none_starves(sizes: list[tuple[int, int, bool]], replicas: int) -> None:
    """Decode with made-up steps: every caller keeps sentences waiting."""
    policy = SchedulingPolicy(EngineLimits(max_queue_work=2**62, max_request_work=2**62), replicas)
    left: dict[Sentence, int] = {}
    decoding: list[list[Sentence]] = [[] for _ in range(replicas)]
    spent: Counter[str] = Counter()

    def feed() -> None:
        for number, (tokens, beam_size, constrained) in enumerate(sizes):
            while policy.queue.totals_of(str(number)).work < 2**13:
                one = sentence(str(number), tokens=tokens, beam_size=beam_size, ngrams=3 * constrained)
                policy.admit([one], NOW)

    feed()
    largest = max(one.work for one in policy.queue)
    while sum(spent.values()) < 5 * len(sizes) * (largest + QUANTUM):
        feed()
        for replica in range(replicas):
            policy.occupy(replica, occupied(decoding[replica]))
            taken = policy.take(replica, NOW)
            decoding[replica] += taken
            assert decoding[replica]  # work-conserving
            for one in taken:
                left[one] = one.plan.expected_steps(len(one.source_ids))
                spent[one.caller] += one.work
            for one in list(decoding[replica]):
                left[one] -= 1
                if not left[one]:
                    decoding[replica].remove(one)
                    one.future.set_result(Decoded((), 0.0, 0.0, 0.0))
    shares = [spent[str(number)] for number in range(len(sizes))]
    assert min(shares) > 0
    assert max(shares) - min(shares) <= 2 * largest + QUANTUM


def test_a_request_may_take_a_bounded_number_of_row_steps() -> None:
    policy = waiting([sentence("a") for _ in range(10)], max_request_work=4 * 100 * 10)
    with pytest.raises(
        InvalidArgumentError,
        match=r"could take 4400 row steps .* more than the 4000 of a request: send several, or lower beam_size or max_",
    ):
        policy.admit([sentence("a") for _ in range(11)], NOW)
    with pytest.raises(InvalidArgumentError, match="could take 4500 row steps"):
        policy.admit([sentence("a", ngrams=2) for _ in range(9)], NOW)
    assert policy.load().queued_requests == 10


def admit(policy: SchedulingPolicy, caller: str, number: int) -> None:
    for _ in range(number):
        policy.admit([sentence(caller)], NOW)


def test_the_queue_is_bounded_in_work_and_corpora_leave_a_reserve() -> None:
    work = sentence("a").work
    policy = SchedulingPolicy(EngineLimits(max_queue_work=16 * work), 1)
    admit(policy, "a", 12)
    assert not policy.queue.is_full("a", RESERVE_SHARE)
    admit(policy, "a", 1)
    assert policy.queue.is_full("a", RESERVE_SHARE)
    assert not policy.queue.is_full("a")
    assert not policy.queue.is_full("b", RESERVE_SHARE)
    admit(policy, "a", 1)
    assert policy.queue.is_full("a")
    kept = f"at most {16 * work} row steps, and keeps {2 * work} for callers with less: no room for {work} more"
    with pytest.raises(OverloadedError, match=kept):
        admit(policy, "a", 1)
    assert not policy.queue.is_full("b")
    admit(policy, "b", 1)
    assert not policy.queue.is_full("b", RESERVE_SHARE)
    admit(policy, "b", 1)
    assert policy.queue.is_full("b", RESERVE_SHARE)
    assert policy.queue.is_full("b")
    with pytest.raises(OverloadedError, match=f"at most {16 * work} row steps: no room for {work} more"):
        admit(policy, "b", 1)


@pytest.mark.parametrize("bound", ["requests", "tokens", "work"])
def test_a_caller_below_its_share_gets_in_while_others_have_filled_the_queue(bound: str) -> None:
    size = {"requests": 1, "tokens": 8, "work": sentence("a").work}[bound]
    policy = SchedulingPolicy(EngineLimits(**{f"max_queue_{bound}": 64 * size}), 1)
    heavy = [str(number) for number in range(3)]
    while not all(policy.queue.is_full(caller) for caller in heavy):
        for caller in heavy:
            if not policy.queue.is_full(caller):
                admit(policy, caller, 1)
    for caller in heavy:
        with pytest.raises(OverloadedError, match="for callers with less"):
            admit(policy, caller, 2)
    for late in ("x", "y"):
        assert not policy.queue.is_full(late)
        assert not policy.queue.is_full(late, RESERVE_SHARE)
        admit(policy, late, 2)
    assert policy.load().queued_requests > 56


def test_a_process_without_other_callers_and_one_request_fill_the_whole_queue() -> None:
    policy = SchedulingPolicy(EngineLimits(max_queue_requests=16), 1)
    admit(policy, "", 15)
    assert not policy.queue.is_full("")
    admit(policy, "", 1)
    assert policy.queue.is_full("")
    policy = waiting([sentence("a") for _ in range(16)], max_queue_requests=16)
    assert policy.load().queued_requests == 16


def test_a_rate_by_work_refuses_before_anything_waits() -> None:
    work = sentence("a").work
    policy = SchedulingPolicy(EngineLimits(work_per_second=work), 1)
    admit(policy, "a", 1)
    with pytest.raises(RateLimitedError, match="row steps per second"):
        admit(policy, "a", 1)
    admit(policy, "b", 1)
    assert policy.load().queued_requests == 2
    with pytest.raises(RateLimitedError):
        policy.charge("b", 1, NOW)
    policy.charge("b", 1, NOW + 0.5)


def test_the_defaults_admit_documented_requests() -> None:
    policy = SchedulingPolicy(EngineLimits(), 1)
    for beam_size in (4, 5):
        policy.admit([sentence("a", tokens=30, beam_size=beam_size, max_length=512) for _ in range(1024)], NOW)
    SchedulingPolicy(EngineLimits(), 1).admit(
        [sentence("a", tokens=30, max_length=512, ngrams=3) for _ in range(1024)], NOW
    )
    with pytest.raises(InvalidArgumentError, match="row steps"):
        policy.admit([sentence("a", beam_size=64, ngrams=3, max_length=100) for _ in range(2048)], NOW)
