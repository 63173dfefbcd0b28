"""Scheduling decisions: order, shares, bounds and sentences encoded ahead, without a model, lock or clock."""

from collections.abc import Sequence

import pytest

from jumok_serve.engine.request_queue import EngineLimits, Occupancy
from jumok_serve.engine.scheduler import AHEAD_SHARE, MAX_JOINING_TOKENS, SchedulingPolicy
from jumok_serve.engine.sentence import Sentence
from jumok_serve.search.plan import SearchPlan
from tests.support.search_cases import make_options

NOW = 1000.0
"""Monotonic time of all calls."""


def sentence(tokens: int = 8, beam_size: int = 1) -> Sentence:
    return Sentence(source_ids=[5] * tokens, plan=SearchPlan(make_options(beam_size=beam_size), 2, ()))


def occupied(sentences: Sequence[Sentence]) -> Occupancy:
    """Return the occupancy of a replica with these sentences."""
    occupancy = Occupancy()
    for one in sentences:
        occupancy.add(one)
    return occupancy


def waiting(sentences: Sequence[Sentence], replicas: int = 1, **limits: int) -> SchedulingPolicy:
    """Make a policy with waiting sentences."""
    policy = SchedulingPolicy(EngineLimits(**limits), replicas)
    policy.admit(sentences, NOW)
    return policy


def take(policy: SchedulingPolicy, replica: int, decoding: Sequence[Sentence] = ()) -> list[Sentence]:
    """Take sentences for a replica that decodes others."""
    policy.occupy(replica, occupied(decoding))
    return policy.take(replica, NOW)


def take_fitting(
    policy: SchedulingPolicy, replica: int, decoding: Sequence[Sentence], ahead: Sequence[Sentence]
) -> list[Sentence]:
    """Take the sentences encoded ahead that fit beside those decoded."""
    policy.occupy(replica, occupied(decoding), ahead)
    return policy.take_fitting(replica, NOW)


def test_occupancy_counts_rows_times_padded_source_for_each_beam_size() -> None:
    occupancy = occupied([sentence(3, 4), sentence(9, 4), sentence(17, 1)])
    assert (occupancy.sentences, occupancy.rows, occupancy.tokens) == (3, 9, 8 * 16 + 24)
    for more in (sentence(1, 4), sentence(17, 4), sentence(30, 1), sentence(30, 2)):
        assert occupancy.tokens_with(more) == occupied([sentence(9, 4), sentence(3, 4), sentence(17, 1), more]).tokens


@pytest.mark.parametrize(
    ("replicas", "beam_sizes", "expected", "alone"),
    [
        (1, [1] * 5, [5], 1),
        (2, [1] * 64, [32, 32], 1),
        (2, [4] * 3, [1, 2], 1),
        (2, [4] * 6, [3, 3], 16),
        (2, [4, 1, 1, 1, 1], [1, 4], 1),
        (3, [1] * 10, [3, 3, 4], 1),
        (4, [2] * 2, [1, 1, 0, 0], 1),
        (16, [1] * 17, [1] * 15 + [2], 1),
    ],
)
def test_idle_replicas_share_waiting_sentences_evenly_in_order(
    replicas: int, beam_sizes: list[int], expected: list[int], alone: int
) -> None:
    sentences = [sentence(beam_size=beam_size) for beam_size in beam_sizes]
    policy = waiting(sentences, replicas, max_alone_rows=alone)
    taken = [take(policy, replica) or [] for replica in range(sum(number > 0 for number in expected))]
    assert [len(one) for one in taken] == [number for number in expected if number]
    assert [one for part in taken for one in part] == sentences
    load = policy.load()
    assert (load.queued_requests, load.queued_tokens) == (0, 0)
    assert (load.running_sentences, load.rows) == (len(sentences), sum(beam_sizes))


def test_few_rows_go_to_the_working_replica_while_they_fit() -> None:
    sentences = [sentence(beam_size=4) for _ in range(4)]
    policy = waiting(sentences[:1], 2, max_alone_rows=16, max_batch_tokens=8 * 20)
    assert take(policy, 1) == sentences[:1]
    assert policy.runs_alone(1)
    assert not policy.runs_alone(0)
    policy.admit(sentences[1:], NOW)
    assert take(policy, 0) == []
    # Its part of the bound is 10 rows of 8 positions.
    assert take(policy, 1, sentences[:1]) == sentences[1:2]
    assert not policy.runs_alone(1)
    assert take(policy, 0) == sentences[2:]
    assert not policy.runs_alone(0)
    assert not policy.runs_alone(1)


def test_a_replica_is_not_alone_while_others_will_take_waiting_sentences() -> None:
    sentences = [sentence(beam_size=4) for _ in range(6)]
    policy = waiting(sentences, 3, max_alone_rows=16)
    assert take(policy, 0) == sentences[:2]
    assert not policy.runs_alone(0)
    policy.set_aside(1)
    assert not policy.runs_alone(0)
    policy.set_aside(2)
    assert policy.runs_alone(0)


def test_a_replica_is_alone_if_few_sentences_wait_for_it() -> None:
    sentences = [sentence(MAX_JOINING_TOKENS // 2) for _ in range(4)]
    policy = waiting(sentences[:1], 2, max_alone_rows=4)
    assert take(policy, 0) == sentences[:1]
    policy.admit(sentences[1:], NOW)
    assert take(policy, 0, sentences[:1]) == sentences[1:3]
    assert policy.load().queued_requests == 1
    assert policy.runs_alone(0)


def test_a_replica_over_its_share_leaves_new_sentences_to_others() -> None:
    policy = waiting([sentence() for _ in range(10)], 2, max_alone_rows=1)
    mine = take(policy, 0)
    theirs = take(policy, 1)
    assert mine is not None
    assert theirs is not None
    policy.admit([sentence(), sentence()], NOW)
    assert take(policy, 1, theirs[:1]) != []  # of 5 and 1
    assert take(policy, 0, mine) == []
    assert policy.load().queued_requests == 0


def test_each_replica_has_an_equal_part_of_the_tokens() -> None:
    sentences = [sentence(8) for _ in range(20)]
    policy = waiting(sentences, 2, max_batch_tokens=100, max_alone_rows=1)
    mine = take(policy, 0)
    theirs = take(policy, 1)
    assert (mine, theirs) == (sentences[:6], sentences[6:12])
    assert take(policy, 0, sentences[:4]) == sentences[12:14]


def test_each_replica_has_an_equal_part_of_the_rows() -> None:
    sentences = [sentence(beam_size=2) for _ in range(6)]
    wide = sentence(beam_size=12)
    policy = waiting([*sentences, wide], 2, max_batch_rows=10, max_alone_rows=1)
    assert take(policy, 0) == sentences[:2]  # 5 rows per replica
    assert take(policy, 1) == sentences[2:4]
    assert take(policy, 0, sentences[:1]) == [sentences[4]]
    assert take(policy, 0) == [sentences[5]]
    assert take(policy, 0, [sentences[5]]) == []  # more than the whole waits for all others
    assert take(policy, 1, sentences[2:4]) == []


@pytest.mark.parametrize(
    "limits",
    [EngineLimits(max_batch_rows=16, max_alone_rows=1), EngineLimits(max_batch_tokens=16 * 8, max_alone_rows=1)],
    ids=["rows", "tokens"],
)
def test_a_replica_takes_several_or_none_while_more_wait_than_fit(limits: EngineLimits) -> None:
    policy = SchedulingPolicy(limits, 1)
    sentences = [sentence() for _ in range(21)]
    policy.admit(sentences, NOW)
    assert take(policy, 0) == sentences[:16]
    assert take(policy, 0, sentences[3:16]) == []
    assert take(policy, 0, sentences[4:16]) == sentences[16:20]
    # The last one waits for no others.
    assert take(policy, 0, sentences[5:20]) == sentences[20:]


def test_few_rows_that_the_busier_replica_leaves_go_to_the_idle_one() -> None:
    policy = SchedulingPolicy(EngineLimits(max_batch_rows=32), 2)
    sentences = [sentence() for _ in range(17)]
    policy.occupy(1, occupied(sentences[:15]))
    policy.admit(sentences[15:], NOW)
    assert policy.take(1, NOW) == []
    assert take(policy, 0) == sentences[15:16]
    assert policy.take(1, NOW) == sentences[16:]


def test_a_sentence_over_its_part_runs_alone_and_one_over_the_whole_waits_for_all_others() -> None:
    long, short, huge, last = sentence(60), sentence(8), sentence(200), sentence(8)
    policy = waiting([long, short, huge, last], 2, max_batch_tokens=100, max_alone_rows=1)
    assert take(policy, 0) == [long]
    assert take(policy, 1) == [short]
    assert take(policy, 0, [long]) == []
    assert take(policy, 1, [short]) == []  # none overtakes the sentence that waits for the whole
    assert take(policy, 0) == []  # its long sentence is done, but another replica still decodes
    assert take(policy, 1) == [huge]  # no replica decodes any more


def test_a_decoding_replica_takes_few_tokens_at_a_time_and_an_idle_one_all() -> None:
    sentences = [sentence(100) for _ in range(12)] + [sentence(2 * MAX_JOINING_TOKENS) for _ in range(2)]
    policy = waiting(sentences, max_batch_tokens=10**6)
    assert take(policy, 0, [sentence()]) == sentences[: MAX_JOINING_TOKENS // 100]
    assert take(policy, 0, [sentence()]) == sentences[5:10]
    assert take(policy, 0, [sentence()]) == sentences[10:12]
    assert take(policy, 0, [sentence()]) == sentences[12:13]
    policy.admit(sentences, NOW)
    assert take(policy, 0) == [*sentences[13:], *sentences]


def test_a_share_of_the_queue_is_encoded_ahead_and_joins_as_it_fits() -> None:
    sentences = [sentence() for _ in range(16 + 16 * AHEAD_SHARE)]
    policy = waiting(sentences, 2, max_batch_tokens=2 * 8 * 8, max_alone_rows=1)
    assert take(policy, 0) == sentences[:8]
    assert policy.take_ahead(0, sentences[:8], NOW) == []  # the other replica has room
    assert take(policy, 1) == sentences[8:16]
    ahead = policy.take_ahead(1, sentences[8:16], NOW)
    assert ahead == sentences[16:24]  # half of a share: there are two replicas
    load = policy.load()
    assert (load.queued_requests, load.queued_tokens) == (len(sentences) - 16, 8 * (len(sentences) - 16))
    assert take_fitting(policy, 1, sentences[8:16], ahead) == []
    assert take_fitting(policy, 1, sentences[10:16], ahead) == ahead[:2]
    assert policy.load().queued_requests == len(sentences) - 18
    assert take(policy, 0) == sentences[24:32]
    assert take_fitting(policy, 1, [], ahead[2:]) == ahead[2:]


def test_sentences_over_a_replicas_part_are_not_encoded_ahead() -> None:
    sentences = [sentence() for _ in range(12)]
    sentences[9:10] = [sentence(8 * 8 + 1)]
    policy = waiting(sentences, max_batch_tokens=8 * 8, max_alone_rows=1)
    assert policy.take_ahead(0, [], NOW) == []  # a replica has room for the first
    assert take(policy, 0) == sentences[:8]
    assert sentences[8].future.cancel()
    assert policy.take_ahead(0, sentences[:8], NOW) == []  # one left, one is over its part
    assert policy.load().queued_requests == 3
    policy.admit([sentence(), sentence()], NOW)
    policy.queue.remove_if(lambda one: len(one.source_ids) > 8)
    assert policy.take_ahead(0, [sentence(MAX_JOINING_TOKENS - 7)], NOW) == []
    assert policy.take_ahead(0, [sentence(MAX_JOINING_TOKENS - 8)], NOW) == sentences[10:11]


@pytest.mark.parametrize("decoding", [True, False])
def test_a_sentence_encoded_ahead_keeps_its_capacity_and_others_go_elsewhere(decoding: bool) -> None:
    first, long, *small = sentence(), sentence(48), *[sentence() for _ in range(12)]
    policy = waiting([first, long, *small], 2, max_batch_tokens=96)
    policy.occupy(1, occupied([sentence(40)]))
    assert take(policy, 0) == [first]
    ahead = policy.take_ahead(0, [first], NOW)
    assert ahead == [long]
    if decoding:  # the replica that is busier takes no others before those it has encoded
        assert take_fitting(policy, 0, [first], ahead) == []
        assert take(policy, 1) == small[:6]
    else:
        policy.occupy(0, Occupancy(), ahead)
        assert len(take(policy, 1) or []) <= (96 - 48) // 8


def test_cancelled_sentences_leave_the_queue_while_others_are_encoded_ahead() -> None:
    first, *others = [sentence() for _ in range(12)]
    policy = waiting([first, *others], max_batch_tokens=16)
    assert take(policy, 0) == [first, others[0]]
    ahead = policy.take_ahead(0, [first], NOW)
    assert ahead == others[1:3]
    for one in others[3:]:
        one.future.cancel()
    assert take_fitting(policy, 0, [first, others[0]], ahead) == []
    assert policy.load().queued_requests == len(ahead)
