"""Quantization of one matrix: matrices that come in 8 bits keep their values."""

import numpy as np
import pytest
from numpy.typing import NDArray

from jumok_export.graphs.quantize_matrix import MAX_GIVEN_WEIGHT, MAX_WEIGHT, quantize_weight


def values(seed: int = 0) -> NDArray[np.int8]:
    random = np.random.default_rng(seed)
    made = random.integers(-MAX_GIVEN_WEIGHT, MAX_GIVEN_WEIGHT + 1, (96, 40)).astype(np.int8)
    made[5], made[:, 7] = 0, 0
    made[0, 0] = MAX_GIVEN_WEIGHT
    return made


@pytest.mark.parametrize("channels", [0, 1])
@pytest.mark.parametrize("factor", [1.0, 0.25])
def test_a_matrix_of_one_scale_keeps_its_values(channels: int, factor: float) -> None:
    given = values()
    weight = given.astype(np.float32) * np.float32(1 / np.float32(517.3)) * np.float32(factor)
    found, scales = quantize_weight(weight, channels)
    np.testing.assert_array_equal(found, given)
    np.testing.assert_allclose(scales, factor / 517.3, rtol=1e-6)


@pytest.mark.parametrize("channels", [0, 1])
def test_a_matrix_of_a_scale_for_each_channel_keeps_its_values(channels: int) -> None:
    given = values()
    ends = np.full(given.shape[channels], MAX_GIVEN_WEIGHT, np.int8)
    if channels == 0:
        given[:, 1] = ends
    else:
        given[1] = ends
    scales = np.random.default_rng(1).uniform(0.001, 0.1, len(ends)).astype(np.float32)
    weight = given.astype(np.float32) * np.expand_dims(scales, 1 - channels)
    found, others = quantize_weight(weight, channels)
    np.testing.assert_array_equal(found, given)
    np.testing.assert_allclose(others, scales, rtol=1e-6)


@pytest.mark.parametrize("channels", [0, 1])
def test_one_value_beside_the_grid_makes_other_scales(channels: int) -> None:
    weight = values().astype(np.float32)
    weight[3, 3] = 0.4
    found, scales = quantize_weight(weight, channels)
    assert np.abs(found).max() == MAX_WEIGHT
    assert np.abs(found * np.expand_dims(scales, 1 - channels) - weight).max() <= scales.max() / 2 * 1.001
