"""Search with terms against brute force, a plain dynamic beam allocation, and its own invariants."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from jumok_serve.search.options import SearchOptions
from jumok_serve.search.plan import SearchPlan
from jumok_serve.search.search import FinishedHypothesis
from jumok_serve.search.term_search import divide
from jumok_serve.search.terms import Terms, options_with_terms, reachable_terms, read_terms
from tests.serve.search.test_terms import random_terms
from tests.support.files import THOROUGH
from tests.support.reference_search import START, StepFunction, drive, toy_model
from tests.support.reference_terms import all_hypotheses, contains_all, missing_terms, reference_term_search
from tests.support.search_cases import EARLY_STOPPING, constrained, make_options, random_case


def search(
    step: StepFunction, options: SearchOptions, terms: Terms, prefix: Sequence[int] = ()
) -> list[FinishedHypothesis]:
    return drive(SearchPlan(options_with_terms(options, terms), START, prefix, (), terms).begin(), step)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
@pytest.mark.parametrize(("vocabulary", "max_length"), [(4, 4), (3, 5), (5, 4)])
def test_an_exhaustive_beam_finds_the_best_of_all_sequences_with_the_terms(
    vocabulary: int, max_length: int, length_penalty: float
) -> None:
    options = make_options(
        beam_size=64, num_hypotheses=4, length_penalty=length_penalty, early_stopping="never", max_length=max_length
    )
    checked = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        step, terms = toy_model(rng, vocabulary, 1), random_terms(rng, vocabulary=vocabulary, most=2)
        complete = {
            tokens: (rank, score)
            for rank, tokens, score in all_hypotheses(step, options, terms)
            if not missing_terms(tokens[:-1] if tokens[-1] == 1 else tokens, terms)
        }
        if not complete:
            continue
        checked += 1
        best = sorted((rank for rank, _ in complete.values()), reverse=True)[:4]  # some hypotheses tie
        found = search(step, options, terms)
        assert [complete[one.token_ids][0] for one in found] == pytest.approx(best, rel=1e-9, abs=1e-12)
        assert [one.score for one in found] == pytest.approx([complete[one.token_ids][1] for one in found], rel=1e-9)
    assert checked >= 8


@pytest.mark.parametrize("seed", range(6))
def test_equals_plain_dynamic_beam_allocation(seed: int) -> None:
    """Over random models, options, processors, prefixes and terms."""
    rng = np.random.default_rng(seed)
    compared = 0
    while compared < (25 if THOROUGH else 12):
        case = random_case(rng, least_tokens=6)
        if rng.random() < 0.5:
            case = constrained(rng, case)
        options = replace(case.options, forced_first_token=None, forced_last_tokens=())
        if options.renormalize:
            options = replace(options, repetition_penalty=1.0)
        terms = random_terms(rng, vocabulary=6)
        wide = options_with_terms(options, terms)
        if any(not group for group in reachable_terms(terms, wide, case.prefix).alternatives):
            continue
        terms = reachable_terms(terms, wide, case.prefix)
        found = search(case.step, options, terms, case.prefix)
        expected = reference_term_search(case.step, wide, terms, case.prefix)
        if not expected:  # processors leave no way to all terms
            assert not any(contains_all(one, terms, case.prefix) for one in found)
            continue
        compared += 1
        assert [one.token_ids for one in found] == [tokens for tokens, _ in expected]
        assert [one.score for one in found] == pytest.approx([score for _, score in expected], rel=1e-9)


@pytest.mark.parametrize("beam_size", [1, 2, 3, 5])
def test_every_term_in_reach_appears(beam_size: int) -> None:
    """However unlikely it is, and however many terms there are."""
    rng = np.random.default_rng(beam_size)
    exact = 0
    for _ in range(150 if THOROUGH else 60):
        step = toy_model(rng, 12, 1, spread=float(rng.choice([1.0, 6.0])), positions=32)
        terms = random_terms(rng, vocabulary=12, most=6)
        terms = replace(terms, joins=bytes([0] * 8 + [1] * 4))
        alternatives = tuple(
            tuple((one[0] % 6 + 2, *one[1:]) for one in group) for group in terms.alternatives
        )  # terms begin with a word
        terms = replace(terms, alternatives=alternatives)
        needed = sum(min(map(len, group)) for group in alternatives)
        max_length = needed + int(rng.choice([0, 1, 8]))
        exact += max_length == needed
        options = make_options(
            beam_size=beam_size, num_hypotheses=1, max_length=max_length, early_stopping=EARLY_STOPPING[rng.integers(3)]
        )
        (best,) = search(step, options, terms)
        assert contains_all(best, terms), (terms, best)
        assert best.terms == tuple(read_terms(best.token_ids, terms))
        assert None not in best.terms
    assert exact > (20 if THOROUGH else 8)


def test_a_term_out_of_reach_is_reported_and_the_others_appear() -> None:
    rng = np.random.default_rng(4)
    terms = Terms((((5, 6),), ((7, 8, 9),), ((4,),)))
    (best,) = search(toy_model(rng, 12, 1), make_options(max_length=4), terms)
    assert [span is None for span in best.terms] == [False, True, False]


def test_a_dead_end_gives_the_hypothesis_with_the_fewest_missing_terms() -> None:
    """Each of two terms can be written, but only one of them: both need the token 5, once."""
    rng = np.random.default_rng(4)
    terms = Terms((((5, 6),), ((5, 7),)))
    for beam_size in (1, 4):
        options = make_options(beam_size=beam_size, num_hypotheses=1, max_length=8, no_repeat_ngram_size=1)
        (best,) = search(toy_model(rng, 12, 1), options, terms)
        assert [span is None for span in best.terms].count(True) == 1
        assert len(set(best.token_ids)) == len(best.token_ids)


def test_terms_in_the_target_prefix_count() -> None:
    rng = np.random.default_rng(4)
    step, terms = toy_model(rng, 12, 1), Terms((((5, 6),), ((7,),)))
    (best,) = search(step, make_options(max_length=6), terms, (3, 5, 6))
    assert best.terms[0] == (1, 3)
    assert best.terms[1] is not None
    assert best.terms[1].first >= 3


def test_the_number_of_candidates_is_enough() -> None:
    """More candidates than the search asks for change nothing."""
    rng = np.random.default_rng(9)
    for _ in range(150):
        case, terms = random_case(rng, least_tokens=8), random_terms(rng, vocabulary=8)
        options = options_with_terms(case.options, terms)
        few, many = (
            drive(SearchPlan(options, START, (), (), terms).begin(), case.step, extra_candidates=extra)
            for extra in (0, 9)
        )
        assert few == many


@pytest.mark.parametrize(
    ("places", "wanted", "expected"),
    [
        (4, [9, 9], [2, 2]),
        (5, [9, 9], [2, 3]),
        (4, [9, 9, 9], [1, 1, 2]),
        (4, [9, 1], [3, 1]),
        (4, [9, 0, 1], [3, 0, 1]),
        (4, [1, 0, 1], [1, 0, 1]),
        (2, [9, 9, 9, 9], [0, 0, 1, 1]),
        (8, [9, 9, 1], [3, 4, 1]),
        (3, [], []),
    ],
)
def test_division_of_a_beam(places: int, wanted: list[int], expected: list[int]) -> None:
    assert divide(places, wanted) == expected
