"""Greedy and beam search against brute force, a naive reference, hand-worked tables, and its own invariants."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from jumok_proto.options import OPTIONS, EarlyStopping
from jumok_proto.results import FinishReason
from jumok_serve.search.options import SearchOptions
from jumok_serve.search.plan import SearchPlan
from jumok_serve.search.search import FinishedHypothesis
from jumok_serve.search.step_arrays import best_continuations, best_of_each_row
from tests.support.reference_search import (
    START,
    Scores,
    StepFunction,
    drive,
    given_model,
    log_softmax,
    reference_search,
    toy_model,
)
from tests.support.search_cases import EARLY_STOPPING, constrained, make_options, random_case


def brute_force(step: StepFunction, options: SearchOptions) -> list[tuple[float, tuple[int, ...]]]:
    """All sequences that may be written, with their normalised scores, best first."""
    complete: list[tuple[float, tuple[int, ...]]] = []

    def extend(tokens: tuple[int, ...], total: float) -> None:
        for token, log_prob in enumerate(log_softmax(step((START, *tokens)))):
            longer, longer_total = (*tokens, token), total + float(log_prob)
            if token in options.suppress_tokens or (token in options.eos_ids and len(tokens) < options.min_length):
                continue
            if token in options.eos_ids or len(longer) == options.max_length:
                complete.append((longer_total / len(longer) ** options.length_penalty, longer))
            else:
                extend(longer, longer_total)

    extend((), 0.0)
    return sorted(complete, reverse=True)


def assert_same(ours: list[FinishedHypothesis], expected: list[FinishedHypothesis]) -> None:
    assert [h.token_ids for h in ours] == [h.token_ids for h in expected]
    assert [h.finish_reason for h in ours] == [h.finish_reason for h in expected]
    for mine, theirs in zip(ours, expected, strict=True):
        assert mine.score == pytest.approx(theirs.score, rel=1e-9, abs=1e-12)
        assert mine.token_scores == pytest.approx(theirs.token_scores, rel=1e-9, abs=1e-9)


# --- brute force ---


@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize(
    ("vocab_size", "max_length", "eos_ids", "suppress_tokens", "min_length"),
    [
        (4, 4, (1,), (), 0),
        (4, 4, (1,), (), 2),
        (3, 5, (1,), (), 0),
        (5, 4, (1, 4), (), 0),
        (5, 4, (1, 4), (2,), 1),
        (3, 4, (), (), 0),
    ],
)
def test_exhaustive_beam_finds_the_n_best_of_all_sequences(
    vocab_size: int,
    max_length: int,
    eos_ids: tuple[int, ...],
    suppress_tokens: tuple[int, ...],
    min_length: int,
    length_penalty: float,
) -> None:
    # "never" does not cut a search short while a longer hypothesis could win, and 64 beams hold every prefix.
    options = make_options(
        beam_size=64,
        length_penalty=length_penalty,
        early_stopping="never",
        min_length=min_length,
        max_length=max_length,
        eos_ids=eos_ids,
        suppress_tokens=suppress_tokens,
    )
    for seed, order in itertools.product(range(4), (1, 2)):
        step = toy_model(np.random.default_rng(seed), vocab_size, order)
        expected = brute_force(step, options)[: options.num_hypotheses]
        found = drive(SearchPlan(options, START).begin(), step)
        assert [h.token_ids for h in found] == [tokens for _, tokens in expected]
        assert [h.score for h in found] == pytest.approx([score for score, _ in expected], rel=1e-9)


@pytest.mark.parametrize("early_stopping", EARLY_STOPPING)
def test_a_list_that_never_fills_up_holds_all_sequences(early_stopping: EarlyStopping) -> None:
    # 63 sequences of at most 5 tokens exist, so that a list of 64 stays open whatever early_stopping says.
    options = make_options(beam_size=64, early_stopping=early_stopping, max_length=5)
    for seed in range(4):
        step = toy_model(np.random.default_rng(seed), 3, 2)
        expected = brute_force(step, options)
        found = drive(SearchPlan(options, START).begin(), step)
        assert len(expected) == 63
        assert [h.token_ids for h in found] == [tokens for _, tokens in expected]
        assert [h.score for h in found] == pytest.approx([score for score, _ in expected], rel=1e-9)


def test_greedy_equals_brute_force_where_only_one_token_matters() -> None:
    # With max_length 1 greedy search is exhaustive.
    for seed in range(20):
        step = toy_model(np.random.default_rng(seed), 6, 1)
        options = make_options(max_length=1)
        (best,) = drive(SearchPlan(options, START).begin(), step)
        score, tokens = brute_force(step, options)[0]
        assert best.token_ids == tokens
        assert best.score == pytest.approx(score)


# --- the naive reference ---


@pytest.mark.parametrize("seed", range(12))
def test_equals_the_naive_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(60):
        case = random_case(rng)
        assert_same(drive(case.search(), case.step), reference_search(case.step, case.options, START))


@pytest.mark.parametrize("seed", range(12))
def test_equals_the_naive_reference_under_constraints(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(40):
        case = constrained(rng, random_case(rng, least_tokens=6))
        expected = reference_search(case.step, case.options, START, case.prefix)
        assert_same(drive(case.search(), case.step), expected)


@pytest.mark.parametrize("early_stopping", EARLY_STOPPING)
@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
def test_ties_go_to_the_lower_row_and_then_to_the_lower_token(
    early_stopping: EarlyStopping, length_penalty: float
) -> None:
    # All rows have the same few probabilities, whose rounded logarithms add up exactly: continuations tie all the time.
    for seed in range(40):
        rng = np.random.default_rng(seed)
        table = rng.permuted(np.tile([1.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0], (7, 1)), axis=1)

        def step(prefix: tuple[int, ...], table: Scores = table) -> Scores:
            return np.asarray(table[prefix[-1]])

        for beam_size in (2, 3, 5):
            options = make_options(
                beam_size=beam_size, early_stopping=early_stopping, length_penalty=length_penalty, max_length=6
            )
            assert_same(drive(SearchPlan(options, START).begin(), step), reference_search(step, options, START))


@pytest.mark.parametrize("seed", range(3))
def test_more_candidates_than_asked_for_change_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(40):
        case = constrained(rng, random_case(rng, least_tokens=6))
        assert drive(case.search(), case.step, extra_candidates=30) == drive(case.search(), case.step)


@pytest.mark.parametrize("seed", range(3))
def test_continuations_of_many_sentences_are_sorted_by_score_row_and_token(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for sentences, beam_size, candidates in itertools.product((1, 5), (1, 2, 4), (1, 3, 6)):
        # So few different scores that many are equal; of a row's equal candidates the lower token comes first.
        scores = rng.choice([0.0, -1.0, -2.5, -np.inf, np.nan], (sentences * beam_size, candidates)).astype(np.float32)
        tokens = rng.integers(0, 9, scores.shape)
        by_row = np.lexsort((tokens, -scores))
        tokens, scores = np.take_along_axis(tokens, by_row, axis=1), np.take_along_axis(scores, by_row, axis=1)
        best = best_continuations(tokens, scores, beam_size, 7)
        firsts = best_of_each_row(tokens, scores, beam_size)
        for sentence in range(sentences):
            rows = slice(sentence * beam_size, (sentence + 1) * beam_size)
            every = [
                (score, row, token)
                for row in range(beam_size)
                for score, token in zip(scores[rows][row].tolist(), tokens[rows][row].tolist(), strict=True)
            ]
            every.sort(key=lambda one: (math.isnan(one[0]), 0.0 if math.isnan(one[0]) else -one[0], *one[1:]))
            expected_scores, expected_rows, expected_tokens = zip(*every[:7], strict=True)
            assert best.tokens[sentence].tolist() == [*expected_tokens]
            assert best.rows[sentence].tolist() == [*expected_rows]
            np.testing.assert_array_equal(best.scores[sentence], expected_scores)
            assert firsts.tokens[sentence].tolist() == tokens[rows, 0].tolist()
            assert firsts.rows[sentence].tolist() == [*range(beam_size)]
            np.testing.assert_array_equal(firsts.scores[sentence], scores[rows, 0])


# --- hand-worked tables; tokens are 0 = start, never written, 1 = EOS, 2 and 3 ---

# A beam of two writes 2 and EOS first; then 22 and 2-EOS; the list of two is full: EOS .4, 2-EOS .15; 22 stands at .3.
# One step later 22-EOS comes to .27.
LATER_IS_BETTER = given_model(
    {(0,): (1e-12, 0.4, 0.5, 0.1), (): (1e-12, 0.3, 0.6, 0.1), (2, 2): (1e-12, 0.9, 0.05, 0.05)}
)

# After two steps the list is full: 2-EOS at log(.4) / 2 = -.458, EOS at log(.4) = -.916. What runs, 22, stands at
# log(.075) / 2 = -1.295, so that the default gives up; yet over ten tokens log(.075) / 10 = -.259 is in reach.
LONGER_IS_BETTER = given_model(
    {
        (0,): (1e-12, 0.4, 0.5, 0.1),
        (0, 2): (1e-12, 0.8, 0.15, 0.05),
        (2, 2): (1e-12, 0.01, 0.98, 0.01),
        (): (1e-12, 0.3, 0.35, 0.35),
    }
)

# With a penalty below 0 a sum is multiplied by the length. After two steps: EOS at log(.11) = -2.21 and 2-EOS at
# 2 log(.048) = -6.07; 22 stands at 2 log(.72) = -.66, and 22-EOS comes to 3 log(.698) = -1.08. What 22 would stand at
# after thirty tokens, -9.86, says nothing.
SHORTER_IS_BETTER = given_model(
    {
        (0,): (1e-12, 0.11, 0.8, 0.09),
        (0, 2): (1e-12, 0.06, 0.9, 0.04),
        (2, 2): (1e-12, 0.97, 0.02, 0.01),
        (): (1e-12, 0.3, 0.35, 0.35),
    }
)


@pytest.mark.parametrize(
    ("step", "length_penalty", "early_stopping", "expected"),
    [
        (LATER_IS_BETTER, 0.0, True, [((1,), 0.4), ((2, 1), 0.15)]),
        (LATER_IS_BETTER, 0.0, False, [((1,), 0.4), ((2, 2, 1), 0.27)]),
        (LATER_IS_BETTER, 0.0, "never", [((1,), 0.4), ((2, 2, 1), 0.27)]),
        (LONGER_IS_BETTER, 1.0, True, [((2, 1), 0.4)]),
        (LONGER_IS_BETTER, 1.0, False, [((2, 1), 0.4)]),
        (LONGER_IS_BETTER, 1.0, "never", [((2,) * 10, 0.075 * 0.98**8)]),
        (SHORTER_IS_BETTER, -1.0, True, [((1,), 0.11)]),
        (SHORTER_IS_BETTER, -1.0, False, [((2, 2, 1), 0.8 * 0.9 * 0.97)]),
        (SHORTER_IS_BETTER, -1.0, "never", [((2, 2, 1), 0.8 * 0.9 * 0.97)]),
    ],
)
def test_early_stopping_decides_which_hypotheses_are_waited_for(
    step: StepFunction,
    length_penalty: float,
    early_stopping: EarlyStopping,
    expected: list[tuple[tuple[int, ...], float]],
) -> None:
    """True ends with the first full list; "never" considers scores up to the maximum length if length pays."""
    max_length = 30 if length_penalty < 0 else 10
    options = make_options(
        beam_size=2, length_penalty=length_penalty, early_stopping=early_stopping, max_length=max_length
    )
    for found, (tokens, probability) in zip(drive(SearchPlan(options, START).begin(), step), expected, strict=False):
        assert found.token_ids == tokens
        assert found.score == pytest.approx(math.log(probability) / len(tokens) ** length_penalty)
        assert found.finish_reason is (FinishReason.EOS if tokens[-1] == 1 else FinishReason.LENGTH)


def test_only_ends_among_the_first_k_count() -> None:
    # EOS is third of three: with two beams it may not end, with three it may.
    step = given_model({(): (1e-12, 0.2, 0.45, 0.35)})
    two, three = make_options(beam_size=2, max_length=2), make_options(beam_size=3, max_length=2)
    assert all(h.finish_reason is FinishReason.LENGTH for h in drive(SearchPlan(two, START).begin(), step))
    assert any(h.token_ids == (1,) for h in drive(SearchPlan(replace(three, length_penalty=0.0), START).begin(), step))


def test_suppression_renormalizes_greedy_scores_but_not_beam_scores() -> None:
    step = given_model({(): (0.1, 0.5, 0.3, 0.1)})
    greedy = make_options(max_length=2, min_length=2)
    (best,) = drive(SearchPlan(greedy, START).begin(), step)
    assert best.token_ids == (2, 2)
    assert best.token_scores == pytest.approx([math.log(0.3 / 0.5)] * 2)
    best, _ = drive(SearchPlan(make_options(beam_size=2, max_length=2, min_length=2), START).begin(), step)
    assert best.token_ids == (2, 2)
    assert best.token_scores == pytest.approx([math.log(0.3)] * 2)


# --- invariants ---


def test_first_step_feeds_the_start_token_with_one_row_alive() -> None:
    search = SearchPlan(make_options(beam_size=3), START + 5).begin()
    assert (search.beam_size, search.position, search.finished) == (3, 0, False)
    assert (search.tokens, search.parents) == ([5, 5, 5], [0, 0, 0])
    assert search.scores[0] == 0.0
    assert all(score <= -1e9 for score in search.scores[1:])


def test_rows_without_a_continuation_stay_dead() -> None:
    # Only token 2 can be written, so that two of three rows never come to life; the last token may also be EOS.
    options = make_options(beam_size=3, suppress_tokens=(0, 3), min_length=3, max_length=5, length_penalty=0.0)
    step = given_model({(): (0.25, 0.25, 0.25, 0.25)})
    found = drive(SearchPlan(options, START).begin(), step)
    assert [h.token_ids for h in found] == [(2, 2, 2, 1), (2, 2, 2, 2, 1), (2, 2, 2, 2, 2)]
    assert_same(found, reference_search(step, options, START))


@pytest.mark.parametrize("beam_size", [1, 2, 4])
@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 1.0])
def test_nothing_left_to_write_ends_by_length(beam_size: int, length_penalty: float) -> None:
    step = given_model({(): (0.25, 0.25, 0.25, 0.25)})
    options = make_options(beam_size=beam_size, length_penalty=length_penalty, eos_ids=(), suppress_tokens=(0, 1, 2, 3))
    search = SearchPlan(options, START).begin()
    (empty,) = drive(search, step)
    assert empty == FinishedHypothesis(token_ids=(), token_scores=(), score=0.0, finish_reason=FinishReason.LENGTH)
    assert search.finished


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_model_that_stops_giving_probabilities_ends_by_length(beam_size: int) -> None:
    def step(prefix: tuple[int, ...]) -> Scores:
        return np.full(4, np.nan) if len(prefix) > 2 else np.log(np.array([0.1, 0.1, 0.5, 0.3]))

    found = drive(SearchPlan(make_options(beam_size=beam_size, num_hypotheses=1, min_length=8), START).begin(), step)
    assert [h.token_ids for h in found] == [(2, 2)]
    assert found[0].finish_reason is FinishReason.LENGTH
    assert math.isfinite(found[0].score)


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("length_penalty", [OPTIONS["length_penalty"].least, OPTIONS["length_penalty"].most])
def test_the_ends_of_the_length_penalty_give_finite_scores(beam_size: int, length_penalty: float) -> None:
    options = make_options(beam_size=beam_size, length_penalty=length_penalty, early_stopping="never")
    found = drive(SearchPlan(options, START).begin(), toy_model(np.random.default_rng(0), 6, 1))
    assert found
    assert all(math.isfinite(hypothesis.score) for hypothesis in found)


@pytest.mark.parametrize("beam_size", [1, 2])
def test_misuse_is_refused(beam_size: int) -> None:
    search = SearchPlan(make_options(beam_size=beam_size, max_length=1), START).begin()
    with pytest.raises(RuntimeError, match="has not finished"):
        search.hypotheses()
    search.advance([2, 3, 4], [-1.0, -2.0, -3.0], [0, 0, 0])
    assert search.finished
    with pytest.raises(RuntimeError, match="cannot advance"):
        search.advance([2, 3, 4], [-1.0, -2.0, -3.0], [0, 0, 0])
