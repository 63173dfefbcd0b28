"""fp64 arithmetic operator by operator equals a model in fp64."""

import copy
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from jumok_export.parallel import concurrently
from jumok_export.verification import exact
from jumok_export.verification.exact import ExactArithmetic
from jumok_export.verification.samples import Samples
from jumok_export.verification.sides import StepInputs, TorchSide
from tests.support.models.random_models import FAMILIES, RandomModel, random_model


@pytest.fixture
def fp64_by_default() -> Iterator[None]:
    """Make constants of a model in fp64 that it does not hold itself fp64 too."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def in_double(case: RandomModel) -> TorchSide:
    return TorchSide(copy.deepcopy(case.model).double())


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_the_model_in_fp64(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "WIDENED_AT_ONCE", 500)  # matrices in parts too
    case = random_model(family, 2.0)
    samples = Samples(case.bounds, TorchSide(case.model))
    rounded = 0.0
    for pair in samples.pairs():
        found = TorchSide(case.model, ExactArithmetic()).score(pair)
        expected = in_double(case).score(pair)
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
        rounded = max(rounded, float(np.abs(TorchSide(case.model).score(pair) - expected).max()))
    assert rounded > 1e-8


@pytest.mark.parametrize("family", ["transformer-post", "gru", "own-gru", "m2m100", "t5-gated-and-untied"])
def test_a_step_continues_in_fp64(family: str, fp64_by_default: None) -> None:
    case = random_model(family)
    side, expected = TorchSide(case.model, ExactArithmetic()), in_double(case)
    assert {value.dtype for value in side.empty_state().values()} == {np.dtype(np.float64)}
    source = np.array([[5, 6, 7, 2]]), np.array([4])
    memory, first = side.encode(*source)
    state = {**side.empty_state(), **first}
    other_memory, other_first = expected.encode(*source)
    other_state = {**expected.empty_state(), **other_first}
    for position in range(3):
        row = np.array([position + 4]), np.array([position]), np.array([0]), source[1]
        logits, state = side.step(StepInputs(*row, memory, state))
        others, other_state = expected.step(StepInputs(*row, other_memory, other_state))
        np.testing.assert_allclose(logits, others, rtol=1e-10, atol=1e-10)


def test_threads_in_fp32_and_in_fp64_take_turns() -> None:
    case = random_model("m2m100", 2.0)
    (pair, *_) = Samples(case.bounds, TorchSide(case.model)).pairs()

    def score(fp64: bool) -> np.ndarray:
        return TorchSide(case.model, ExactArithmetic() if fp64 else None).score(pair)

    alone = {fp64: score(fp64) for fp64 in (False, True)}
    turns = [False, True] * 20
    for fp64, scores in zip(turns, concurrently(score, turns), strict=True):
        np.testing.assert_array_equal(scores, alone[fp64], strict=True)
    assert torch.get_default_dtype() == torch.float32
