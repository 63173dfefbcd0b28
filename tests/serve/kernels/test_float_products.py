"""Products of floats with packed weights against NumPy, in one thread and in several."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.serve.kernels.test_products import ACTIVATIONS, GELU, LINEAR, NAMES, RELU, SHAPES, SILU
from tests.support.models.native_operators import CONSTANTS, needs_library, run

pytestmark = needs_library


def inputs_of(
    shape: tuple[int, ...], *, transposed: bool = False, biased: bool = True, parts: int = 1
) -> dict[str, Any]:
    """Inputs of some products of shape (..., depth, columns), each with more columns than the one before."""
    *rows, depth, columns = shape
    random = np.random.default_rng(12)
    inputs: dict[str, Any] = {"numbers": random.normal(size=(*rows, depth)).astype(np.float32)}
    for part in range(parts):
        own = columns + 29 * part
        weights = random.normal(size=(own, depth) if transposed else (depth, own)).astype(np.float32)
        bias = random.normal(size=own).astype(np.float32) if biased else None
        inputs |= {f"weights{part}": weights, f"bias{part}": bias}
    return inputs


def products(operator: str, inputs: dict[str, Any], **settings: int) -> list[NDArray[Any]]:
    """Outputs of an operator; by default weights are [depth, columns], without activation."""
    chosen = {"transposed": 0, "biased": int(inputs["bias0"] is not None), "activation": LINEAR, **settings}
    outputs = {f"output{part}": np.float32 for part in range(3 if operator.startswith("Three") else 1)}
    return run(operator, inputs, outputs, **chosen)


@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize("activation", [LINEAR, SILU, GELU, RELU], ids=NAMES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products(shape: tuple[int, ...], activation: int, transposed: bool) -> None:
    for biased in (False, True):
        inputs = inputs_of(shape, transposed=transposed, biased=biased)
        weights = inputs["weights0"].astype(np.float64)
        expected = inputs["numbers"] @ (weights.T if transposed else weights)
        expected = ACTIVATIONS[activation](expected + inputs["bias0"] if biased else expected)
        (found,) = products("FloatProduct", inputs, activation=activation, transposed=int(transposed))
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


def test_three_products_are_three_times_one() -> None:
    for shape in ((1, 40, 64), (5, 65, 65), (200, 130, 33)):
        inputs = inputs_of(shape, parts=3)
        for part, found in enumerate(products("ThreeFloatProducts", inputs)):
            own = {f"{name}0": inputs[f"{name}{part}"] for name in ("weights", "bias")}
            (alone,) = products("FloatProduct", {"numbers": inputs["numbers"], **own})
            np.testing.assert_array_equal(found, alone)


@pytest.mark.parametrize("activation", [LINEAR, SILU, GELU, RELU], ids=NAMES)
def test_rows_do_not_depend_on_the_batch(activation: int) -> None:
    """A row gives the same bits alone and among many others, for all shapes of the row axes."""
    inputs = inputs_of((200, 97, 70))
    (together,) = products("FloatProduct", inputs, activation=activation)
    firsts = (0, 7, 60, 95, 96, 120, 150, 193)
    for rows in (*(slice(first, first + count) for count, first in enumerate(firsts, 1)), slice(40, 140)):
        (some,) = products("FloatProduct", {**inputs, "numbers": inputs["numbers"][rows]}, activation=activation)
        np.testing.assert_array_equal(some, together[rows])
    spread = {**inputs, "numbers": inputs["numbers"].reshape(4, 25, 2, -1)}
    (found,) = products("FloatProduct", spread, activation=activation)
    np.testing.assert_array_equal(found, together.reshape(4, 25, 2, -1))


@pytest.mark.parametrize("activation", [LINEAR, SILU, GELU, RELU], ids=NAMES)
def test_nan_is_kept(activation: int) -> None:
    """In whole panels of columns and in partial ones, so that the engine can fail the sentence."""
    inputs = inputs_of((7, 9, 70))
    inputs["numbers"][3, 4] = np.nan
    (found,) = products("FloatProduct", inputs, activation=activation)
    np.testing.assert_array_equal(np.isnan(found), np.arange(7)[:, None].repeat(70, axis=1) == 3)


@pytest.mark.parametrize("shape", [(1, 30, 17), (7, 64, 64), (200, 256, 512)])
def test_a_product_and_its_norm_are_the_same_in_one_operator(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(13)
    inputs, width = inputs_of(shape), shape[-1]
    (product,) = products("FloatProduct", inputs)
    added = random.normal(size=product.shape).astype(np.float32)
    norm = {name: random.normal(size=width).astype(np.float32) for name in ("weight", "bias")}
    floats = {"sum": np.float32, "norm": np.float32}
    expected = run("AddNorm", {"x": added, "y": product, **norm}, floats, epsilon=1e-3)
    settings = {"transposed": 0, "biased": 1, "activation": LINEAR, "epsilon": 1e-3}
    for found, one in zip(
        run("FloatProductAddNorm", {**inputs, "added": added, **norm}, floats, **settings), expected, strict=True
    ):
        np.testing.assert_array_equal(found, one)


def test_weights_that_vary_or_do_not_fit_are_refused() -> None:
    inputs = inputs_of((2, 8, 12), parts=3)
    settings = {"transposed": 0, "biased": 1, "activation": LINEAR}
    outputs = {f"output{part}": np.float32 for part in range(3)}
    for name in ("weights1", "bias2"):
        with pytest.raises(Exception, match="weights, scales, zero points and biases have to be constant"):
            run("ThreeFloatProducts", inputs, outputs, CONSTANTS - {name}, **settings)
    for name, array in (("weights1", inputs["weights1"][:7]), ("bias1", inputs["bias1"][1:])):
        with pytest.raises(Exception, match="weights, scales and biases of a product do not fit each other"):
            products("ThreeFloatProducts", {**inputs, name: array})
    with pytest.raises(Exception, match="these kernels do not know the activation of a product"):
        products("FloatProduct", inputs_of((2, 8, 12)), activation=RELU + 1)
    with pytest.raises(Exception, match="rows are not as deep as the weights that they are multiplied with"):
        products("FloatProduct", {**inputs_of((2, 8, 12)), "numbers": np.zeros((2, 7), np.float32)})
