"""Searches against Hugging Face's `generate`: every hypothesis and every score, over random models and options."""

from collections.abc import Sequence

import numpy as np
import pytest

from jumok_serve.search.search import FinishedHypothesis
from tests.support.reference_search import drive
from tests.support.search_cases import Case, constrained, random_case

pytest.importorskip("transformers", reason="the oracle is Hugging Face's generate")

from tests.support.generate_oracle import Generated, GivenModel


def assert_equal(found: Sequence[FinishedHypothesis], expected: Sequence[Generated], case: Case) -> None:
    """The same tokens, and scores within 1e-4 + 1e-5 * |sum|."""
    assert [_tokens(h, case) for h in found] == [_tokens(h, case) for h in expected], case
    for ours, theirs in zip(found, expected, strict=True):
        tolerance = 1e-4 + 1e-5 * abs(theirs.total)
        length_power = len(theirs.token_ids) ** case.options.length_penalty
        assert ours.score * length_power == pytest.approx(theirs.total, abs=tolerance), case
        assert ours.score == pytest.approx(theirs.score, abs=tolerance), case
        np.testing.assert_allclose(ours.token_scores, theirs.token_scores, rtol=1e-5, atol=1e-4)


def _tokens(hypothesis: FinishedHypothesis | Generated, case: Case) -> tuple[int, ...]:
    """The tokens, but for a last one that beams were free to choose among several of one score."""
    options, tokens = case.options, hypothesis.token_ids
    tied = options.beam_size > 1 and len(options.forced_last_tokens) > 1 and len(tokens) == options.max_length
    return tokens[:-1] if tied else tokens


@pytest.mark.parametrize("seed", range(8))
def test_equals_generate(seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    for number in range(50):
        case = random_case(rng, least_tokens=16)
        if number % 5:
            case = constrained(rng, case)
        expected = GivenModel(case.step).hypotheses(case.options, case.prefix)
        assert_equal(drive(case.search(), case.step), expected, case)
