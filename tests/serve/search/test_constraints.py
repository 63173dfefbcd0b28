"""Constraints of a search against tables worked by hand: what they say at every step, and what comes of it."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from jumok_proto.results import FinishReason
from jumok_serve.search.constraints import NO_CONSTRAINTS, ConstraintRules, Constraints, concatenate_constraints
from jumok_serve.search.plan import SearchPlan
from tests.support.reference_search import START, drive, given_model
from tests.support.search_cases import make_options

FORBIDDEN = -math.inf


def rules(prefix: tuple[int, ...] = (), *, rows: int = 1, **options: Any) -> ConstraintRules:
    return ConstraintRules(make_options(**options), 1 + len(prefix), rows)


def factors(constraints: Constraints) -> list[tuple[int, int, float]]:
    places, values = constraints.factors.places.tolist(), constraints.factors.values.tolist()
    return [(row, token, value) for (row, token), value in zip(places, values, strict=True)]


def forbidden(constraints: Constraints) -> set[tuple[int, int]]:
    assert set(constraints.biases.values.tolist()) <= {FORBIDDEN}
    return {(row, token) for row, token in constraints.biases.places.tolist()}


def at(made: ConstraintRules, *histories: tuple[int, ...]) -> Constraints:
    return made.at(len(histories[0]), histories)


def test_default_options_constrain_nothing() -> None:
    made = rules()
    assert not made.need_history
    assert made.at(1, ()) is NO_CONSTRAINTS
    assert made.forced(1) is None


def test_suppressed_tokens_are_forbidden_in_every_row_and_made_once() -> None:
    made = rules(rows=2, suppress_tokens=(4, 3))
    assert forbidden(made.at(1, ())) == {(0, 3), (0, 4), (1, 3), (1, 4)}
    assert made.at(7, ()) is made.at(3, ())


def test_an_end_is_forbidden_until_the_minimum_length_of_new_tokens() -> None:
    made = rules((8, 9), eos_ids=(1, 2), min_length=2)
    assert forbidden(made.at(3, ())) == forbidden(made.at(4, ())) == {(0, 1), (0, 2)}
    assert made.at(5, ()) is NO_CONSTRAINTS


@pytest.mark.parametrize(
    ("prefix", "forced_first", "begin"), [((), None, 1), ((), 5, 2), ((8,), None, 2), ((8, 9), None, 3), ((8, 9), 5, 3)]
)
def test_begin_suppression_applies_to_the_first_free_token(
    prefix: tuple[int, ...], forced_first: int | None, begin: int
) -> None:
    made = rules(prefix, forced_first_token=forced_first, begin_suppress_tokens=(6, 7))
    for length in range(1 + len(prefix), 6):
        assert forbidden(made.at(length, ())) == ({(0, 6), (0, 7)} if length == begin else set())


# What has been written, size of the n-grams, and the tokens that would complete one for the second time.
NGRAMS: list[tuple[tuple[int, ...], int, set[int]]] = [
    ((0, 4, 4), 1, {0, 4}),
    ((0, 4, 5, 4), 2, {5}),
    ((0, 4, 5, 4, 6, 4), 2, {5, 6}),
    ((0, 4, 4), 2, {4}),
    ((0, 4, 5, 6), 2, set()),
    ((0, 4, 5, 6, 4, 5), 3, {6}),
    ((0, 4, 5, 6, 4), 3, set()),
    ((0, 4), 3, set()),
    ((0,), 1, {0}),
    ((0, 4, 0), 2, {4}),  # the start token is a token like any other
    ((4, 4, 4), 3, {4}),
]


@pytest.mark.parametrize(("history", "size", "expected"), NGRAMS)
def test_no_ngram_twice(history: tuple[int, ...], size: int, expected: set[int]) -> None:
    assert forbidden(at(rules(no_repeat_ngram_size=size), history)) == {(0, token) for token in expected}


@pytest.mark.parametrize(
    ("history", "expected"),
    [((0,), {9}), ((0, 4), {9, 5}), ((0, 4, 5), {9}), ((0, 6, 4), {9, 5, 7}), ((6, 4), {9, 5, 7}), ((4,), {9, 5})],
)
def test_bad_words_are_not_completed(history: tuple[int, ...], expected: set[int]) -> None:
    # 1 is EOS: a bad word that is nothing but EOS says nothing, as with generate; at the end of another it does.
    made = rules(bad_words=((9,), (1,), (4, 5), (6, 4, 7), (3, 3, 1)))
    assert forbidden(at(made, history)) == {(0, token) for token in expected}
    assert forbidden(at(made, (*history, 3, 3))) == {(0, 9), (0, 1)}


def test_every_token_that_has_occurred_is_penalised_once() -> None:
    made = rules(rows=2, repetition_penalty=1.5)
    penalised = [(0, 0), (0, 4), (0, 5), (1, 0), (1, 6)]
    assert factors(at(made, (0, 4, 5, 4), (0, 6, 6, 6))) == [(*place, 1.5) for place in penalised]


def test_constraints_from_the_history_are_added_to_the_others() -> None:
    made = rules(rows=2, suppress_tokens=(3,), no_repeat_ngram_size=2, min_length=8)
    assert forbidden(at(made, (0, 4, 5, 4), (0, 6, 7, 8))) == {(0, 3), (1, 3), (0, 1), (1, 1), (0, 5)}


def test_forced_tokens() -> None:
    made = rules(forced_first_token=5, forced_last_tokens=(7, 6), suppress_tokens=(6,), max_length=4)
    assert [made.forced(length) for length in range(1, 5)] == [(5,), None, None, (7,)]
    assert rules(forced_first_token=5, forced_last_tokens=(7, 6), max_length=1).forced(1) == (6, 7)
    assert rules((9,), forced_last_tokens=(7,), max_length=2).forced(3) == (7,)
    # Where nothing but what begins may be forced, nothing is left.
    assert rules(forced_last_tokens=(7,), begin_suppress_tokens=(7,), max_length=1).forced(1) == ()


@pytest.mark.parametrize("prefix", [(), (8,), (8, 9, 10)])
@pytest.mark.parametrize("max_length", [1, 2, 5, 9])
def test_constraints_stay_until_the_next_change(prefix: tuple[int, ...], max_length: int) -> None:
    options: dict[str, Any] = {
        "min_length": min(3, max_length),
        "begin_suppress_tokens": (6, 7),
        "forced_first_token": 5,
        "forced_last_tokens": (7, 4),
        "suppress_tokens": (3,),
    }
    for asked in itertools.chain.from_iterable(itertools.combinations(options, count) for count in range(6)):
        made = rules(prefix, max_length=max_length, **{name: options[name] for name in asked})
        change = first = 1 + len(prefix)
        for length in range(first, first + max_length):
            if length == change:
                change = made.next_change(length)
                assert change > length
            else:
                assert made.forced(length) == made.forced(length - 1)
                assert made.at(length, ()) is made.at(length - 1, ())


def test_constraints_from_the_history_may_change_with_every_token() -> None:
    made = rules((8,), no_repeat_ngram_size=2)
    assert [made.next_change(length) for length in range(2, 9)] == [*range(3, 10)]


def test_constraints_of_several_searches_are_concatenated_by_first_row() -> None:
    made = rules(rows=2, suppress_tokens=(4,), repetition_penalty=2.0)
    one = at(made, (0, 5), (0, 6))
    both = concatenate_constraints([(0, one), (2, NO_CONSTRAINTS), (4, one)])
    assert forbidden(both) == {(0, 4), (1, 4), (4, 4), (5, 4)}
    assert [place[:2] for place in factors(both)] == [(0, 0), (0, 5), (1, 0), (1, 6), (4, 0), (4, 5), (5, 0), (5, 6)]
    assert forbidden(one) == {(0, 4), (1, 4)}
    assert concatenate_constraints([(0, NO_CONSTRAINTS)]) is NO_CONSTRAINTS
    assert concatenate_constraints([]) is NO_CONSTRAINTS


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_prefix_is_fed_and_counts_only_for_constraints(beam_size: int) -> None:
    step = given_model({(2, 3): (1e-12, 0.1, 0.6, 0.3), (): (1e-12, 0.4, 0.3, 0.3)})
    options = make_options(beam_size=beam_size, num_hypotheses=1, max_length=1, min_length=1)
    search = SearchPlan(options, START, (2, 3)).begin()
    fed = []
    for _ in range(2):
        fed.append((search.tokens[0], search.parents[0]))
        assert search.constraints is NO_CONSTRAINTS
        assert search.num_candidates == 1
        search.advance([1] * beam_size, [0.0] * beam_size, [*range(beam_size)])
    assert fed == [(START, 0), (2, 0)]
    (best,) = drive(SearchPlan(options, START, (2, 3)).begin(), step)
    assert best.token_ids == (2,)
    assert best.score == pytest.approx(math.log(0.6 / 0.9 if beam_size == 1 else 0.6))


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_forced_first_token_has_score_0_and_counts(beam_size: int) -> None:
    step = given_model({(0, 3): (1e-12, 0.7, 0.2, 0.1), (): (1e-12, 0.4, 0.5, 0.1)})
    options = make_options(beam_size=beam_size, num_hypotheses=1, forced_first_token=3)
    (best,) = drive(SearchPlan(options, START).begin(), step)
    assert best.token_ids == (3, 1)
    assert best.token_scores == pytest.approx((0.0, math.log(0.7)))
    assert best.score == pytest.approx(math.log(0.7) / 2)


@pytest.mark.parametrize(("renormalize", "score"), [(False, 0.0), (True, -math.log(2))])
def test_several_forced_last_tokens_are_equally_likely(renormalize: bool, score: float) -> None:
    step = given_model({(): (1e-12, 1e-12, 0.9, 0.1)})
    options = make_options(
        beam_size=2, max_length=2, forced_last_tokens=(3, 1), renormalize=renormalize, length_penalty=0.0
    )
    found = drive(SearchPlan(options, START).begin(), step)
    assert [h.token_ids for h in found] == [(2, 1), (2, 3)]
    assert [h.finish_reason for h in found] == [FinishReason.EOS, FinishReason.LENGTH]
    assert [h.score for h in found] == pytest.approx([math.log(0.9) + score] * 2)
    (greedy,) = drive(SearchPlan(make_options(max_length=2, forced_last_tokens=(3, 1)), START).begin(), step)
    assert greedy.token_ids == (2, 1)
    assert greedy.token_scores[1] == pytest.approx(-math.log(2))


def test_repetition_penalty_multiplies_below_0_and_divides_above() -> None:
    # Logits of a greedy search may have either sign: 2 falls from 4 to 2, and 3 from -1 to -2.
    def step(prefix: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.array([-9.0, -9.0, 4.0, -1.0, 1.9]) if prefix[-1] != 4 else np.array([-9.0, 3.0, 4.0, -1.0, 1.9])

    options = make_options(max_length=4, repetition_penalty=2.0)
    (best,) = drive(SearchPlan(options, START).begin(), step)
    assert best.token_ids == (2, 2, 2, 2)
    (best,) = drive(SearchPlan(make_options(max_length=4, repetition_penalty=2.2), START).begin(), step)
    assert best.token_ids == (2, 4, 1)
