"""Recurrent units in native operators against NumPy, in one thread and in several."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.models.native_operators import AS_LEVELS, levels, levels_of_inputs, needs_library, run

pytestmark = needs_library

NORM = {"sum": np.float32, "norm": np.float32}
SIZES = [(1, 3, 5), (2, 8, 16), (7, 20, 37), (90, 130, 256)]
"""Rows, depth, width; the last ones for several threads."""
NONE_BIASED, ALL_BIASED, LAST_BIASED = range(3)


def operands(rows: int, depth: int, width: int, *, quantized: bool, biased: int) -> dict[str, Any]:
    """Inputs and matrices of candidate and forget gate."""
    random = np.random.default_rng(5)
    inputs: dict[str, Any] = {"x": random.normal(size=(rows, 1, depth)).astype(np.float32)}
    if quantized:
        inputs = {"levels": random.integers(0, 256, (rows, 1, depth), np.uint8), **levels_of_inputs()}
    for part in range(2):
        weights = random.normal(size=(depth, width)).astype(np.float32)
        inputs[f"weights{part}"] = random.integers(-127, 128, (depth, width), np.int8) if quantized else weights
        if quantized:
            inputs[f"weight_scales{part}"] = random.uniform(0.001, 0.01, width).astype(np.float32)
        has_bias = biased == ALL_BIASED or (biased == LAST_BIASED and part == 1)
        inputs[f"bias{part}"] = random.normal(size=width).astype(np.float32) if has_bias else None
    return inputs


def cells(rows: int, width: int) -> dict[str, NDArray[Any]]:
    """Residual, a state with more rows, and their parents."""
    random = np.random.default_rng(6)
    return {
        "added": random.normal(size=(rows, 1, width)).astype(np.float32),
        "state": random.normal(size=(rows + 3, width)).astype(np.float32),
        "parents": random.integers(0, rows + 3, rows),
    }


@pytest.mark.parametrize("biased", [NONE_BIASED, ALL_BIASED, LAST_BIASED], ids=["no bias", "biases", "gate's bias"])
@pytest.mark.parametrize("quantized", [False, True], ids=["float", "int8"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_unit_is_its_products_state_and_norm(sizes: tuple[int, int, int], quantized: bool, biased: int) -> None:
    rows, _, width = sizes
    given, others = operands(*sizes, quantized=quantized, biased=biased), cells(rows, width)
    norm = {name: np.random.default_rng(7).normal(size=width).astype(np.float32) for name in ("weight", "bias")}
    prefix = "" if quantized else "Float"
    settings: dict[str, Any] = {"transposed": 0, "activation": 0}
    shared = [name for name in given if name[-1] not in "01"]
    products = []
    for part in (0, 1):
        own = {name.rstrip("01") + "0": given[name] for name in given if name.endswith(str(part))}
        has_bias = int(own["bias0"] is not None)
        inputs = {**{name: given[name] for name in shared}, **own}
        products += run(f"{prefix}Product", inputs, {"y": np.float32}, biased=has_bias, **settings)
    candidate, forget = (each.reshape(rows, width).astype(np.float64) for each in products)
    share = 1 / (1 + np.exp(-forget))
    cell = share * others["state"][others["parents"]] + (1 - share) * candidate
    unit = f"{prefix}SsruAddNorm"
    settings |= {"biased": biased, "epsilon": 1e-3}
    total, normal, following = run(unit, {**given, **others, **norm}, {**NORM, "next": np.float32}, **settings)
    np.testing.assert_allclose(following, cell, rtol=2e-6, atol=2e-6 * float(np.abs(candidate).max()))
    relu = np.maximum(following, 0)[:, None]
    expected = run("AddNorm", {"x": others["added"], "y": relu, **norm}, NORM, epsilon=1e-3)
    np.testing.assert_array_equal(total, expected[0])
    np.testing.assert_array_equal(normal, expected[1])
    for wanted in (NORM, dict.fromkeys(NORM)):
        outputs = {**wanted, "quantized": np.uint8, "next": np.float32}
        *_, rounded, again = run(f"{unit}Quantized", {**given, **others, **norm, **AS_LEVELS}, outputs, **settings)
        np.testing.assert_array_equal(rounded, levels(normal, 0.02, 128))
        np.testing.assert_array_equal(again, following)


def test_gates_far_from_zero_keep_or_replace_the_state() -> None:
    """Forget gates of any size give shares from 0 to 1; NaN stays in its place."""
    forget = np.array([[-1e30, -90.0, 90.0, 1e30, 0.0, np.nan, np.inf, -np.inf]], np.float32)
    width = forget.shape[1]
    one, zero = np.ones((1, width), np.float32), np.zeros(width, np.float32)
    inputs = {"x": np.ones((1, 1), np.float32), "weights0": 3 * one, "bias0": None, "weights1": forget, "bias1": None}
    inputs |= {"added": one, "state": one, "parents": np.zeros(1, np.int64), "weight": one[0], "bias": zero}
    settings = {"transposed": 0, "activation": 0, "biased": NONE_BIASED, "epsilon": 1e-3}
    *_, following = run("FloatSsruAddNorm", inputs, {**NORM, "next": np.float32}, **settings)
    np.testing.assert_allclose(following, [[3, 3, 1, 1, 2, np.nan, 1, 3]], rtol=1e-6)
