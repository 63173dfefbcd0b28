"""Logits of listed tokens in native operators against NumPy: products with their weights, and added biases."""

from typing import Any

import numpy as np
import pytest

from tests.support.models.native_operators import levels_of_inputs, needs_library, run

pytestmark = needs_library

WIDTH = 128
VOCABULARY = 300


@pytest.mark.parametrize("blocks", [1, 3, 9])
@pytest.mark.parametrize("depth", [4, 60, 256])
@pytest.mark.parametrize(("sentences", "beams"), [(1, 1), (1, 5), (3, 4), (100, 2), (0, 1)])
def test_logits_are_exact(blocks: int, depth: int, sentences: int, beams: int) -> None:
    """A token may be listed several times; rows of a sentence get its biases, maybe -inf."""
    random = np.random.default_rng(8)
    weights = random.integers(-127, 128, (VOCABULARY, depth), np.int8)
    weights[:9] = 127
    tokens = random.integers(0, VOCABULARY, blocks * WIDTH)
    tokens[:9] = np.arange(9)
    rows = random.integers(0, 256, (sentences * beams, depth), np.uint8)
    rows[::3] = 255
    scales = random.uniform(0.001, 0.01, (blocks, 1, WIDTH)).astype(np.float32)
    biases = random.normal(size=(sentences, blocks * WIDTH)).astype(np.float32)
    biases[:, ::3] = -np.inf
    outputs = {"packed": np.int8, "sums": np.int32}
    packed, sums = run("ListedWeights", {"weights0": weights, "tokens": tokens}, outputs, columns=WIDTH)
    assert packed.shape == (blocks, depth, WIDTH)
    np.testing.assert_array_equal(sums, weights[tokens].sum(axis=1, dtype=np.int64))
    for zero_point in (0, 1, 128, 255):
        exact = (rows.astype(np.int64) - zero_point) @ weights[tokens].T.astype(np.int64)
        expected = exact.astype(np.float32) * (scales.ravel() * np.float32(0.02)) + np.repeat(biases, beams, axis=0)
        inputs: dict[str, Any] = {
            "levels": rows,
            **levels_of_inputs(zero_point),
            **{"packed": packed, "scales": scales, "sums": sums, "biases": biases},
        }
        (found,) = run("ListedProduct", inputs, {"logits": np.float32})
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("blocks", "columns"), [(1, 128), (3, 7), (40, 128)])
@pytest.mark.parametrize(("sentences", "beams"), [(1, 1), (3, 4), (20, 2)])
def test_logits_of_listed_tokens(blocks: int, columns: int, sentences: int, beams: int) -> None:
    """Rows of a sentence get its biases; blocks of columns follow each other."""
    random = np.random.default_rng(8)
    products = random.normal(size=(blocks, sentences * beams, columns)).astype(np.float32)
    biases = random.normal(size=(sentences, blocks * columns)).astype(np.float32)
    biases[:, ::3] = -np.inf
    (found,) = run("ListedLogits", {"products": products, "biases": biases}, {"logits": np.float32})
    by_row = products.transpose(1, 0, 2).reshape(sentences * beams, -1)
    np.testing.assert_array_equal(found, by_row + np.repeat(biases, beams, axis=0))
