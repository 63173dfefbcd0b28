"""Products with int8 weights against NumPy's integers, and with packed floats, in one thread and in several."""

import math
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from jumok_serve.native import library
from tests.support.models.native_operators import levels, levels_of_inputs, model_of, needs_library, rounding, run

pytestmark = needs_library

SHAPES = [
    (0, 8, 8),
    (1, 1, 1),
    (2, 3, 5),
    (3, 7, 63),
    (4, 64, 64),
    (5, 65, 65),
    (6, 30, 17),
    (7, 129, 100),
    (13, 32, 200),
    (100, 66, 130),
    (200, 97, 70),
    (1, 512, 300),
    (200, 256, 512),
]
"""Rows, depth, columns: some in one block of rows, some in several, the last ones for several threads."""
ACTIVATIONS = (
    lambda x: x,
    lambda x: x / (1 + np.exp(-x)),
    lambda x: x * (1 + np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2))) / 2,
    lambda x: np.maximum(x, 0),
)
"""Identity, SiLU, GELU and ReLU, by the operators' numbers."""
LINEAR, SILU, GELU, RELU = range(4)
NAMES = ["linear", "silu", "gelu", "relu"]

KINDS = FLOAT, INT8, WITH_FACTORS = "float", "int8", "int8 with factors"


def prefix_of(kind: str) -> str:
    """How names of operators for a kind begin."""
    return "Float" if kind == FLOAT else ""


def inputs_of(
    shape: tuple[int, ...],
    *,
    kind: str = INT8,
    zero_point: int = 128,
    transposed: bool = False,
    biased: bool = True,
    parts: int = 1,
) -> dict[str, Any]:
    """Inputs of some products of shape (..., depth, columns), each with more columns than the one before."""
    *rows, depth, columns = shape
    random = np.random.default_rng(12 if kind == FLOAT else 8)
    inputs: dict[str, Any] = {}
    if kind == FLOAT:
        inputs["numbers"] = random.normal(size=(*rows, depth)).astype(np.float32)
    else:
        inputs["levels"] = random.integers(0, 256, (*rows, depth), np.uint8)
        inputs |= levels_of_inputs(zero_point)
    for part in range(parts):
        own = columns + 29 * part
        size = (own, depth) if transposed else (depth, own)
        if kind == FLOAT:
            inputs[f"weights{part}"] = random.normal(size=size).astype(np.float32)
        else:
            inputs[f"weights{part}"] = random.integers(-127, 128, size, np.int8)
            inputs[f"weight_scales{part}"] = random.uniform(0.001, 0.01, own).astype(np.float32)
        inputs[f"bias{part}"] = random.normal(size=own).astype(np.float32) if biased else None
    if kind == WITH_FACTORS:
        inputs["factors"] = factors_of(inputs)
    return inputs


def products(operator: str, inputs: Mapping[str, Any], **settings: int) -> list[NDArray[Any]]:
    """Outputs of an operator; by default weights are [depth, columns], without activation."""
    chosen = {"transposed": 0, "biased": int(inputs["bias0"] is not None), "activation": LINEAR, **settings}
    dtype = np.uint8 if operator.endswith("Quantized") else np.float32
    outputs = {f"output{part}": dtype for part in range(3 if operator.startswith("Three") else 1)}
    return run(operator, inputs, outputs, **chosen)


def scaled_product(inputs: Mapping[str, Any], factors: NDArray[np.float32]) -> NDArray[np.float32]:
    """A product without bias, then factors of rows and the bias in NumPy; each step rounds to float32."""
    (product,) = products("Product", {**inputs, "bias0": None})
    scaled: NDArray[np.float32] = product * factors
    return scaled if inputs["bias0"] is None else scaled + inputs["bias0"]


def factors_of(inputs: Mapping[str, Any]) -> NDArray[np.float32]:
    """Factors of the rows; the first is 0, as that of a row of zeros."""
    factors = np.random.default_rng(5).uniform(0.1, 9, (*inputs["levels"].shape[:-1], 1)).astype(np.float32)
    factors[:1] = 0
    return factors


def sums(inputs: Mapping[str, Any], *, transposed: bool = False) -> NDArray[np.int64]:
    """The integer sums before scaling."""
    weights = inputs["weights0"].astype(np.int64)
    centred: NDArray[np.int64] = inputs["levels"].astype(np.int64) - int(inputs["levels_zero_point"])
    found: NDArray[np.int64] = centred @ (weights.T if transposed else weights)
    return found


@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_are_exact(shape: tuple[int, ...], transposed: bool) -> None:
    """With scale 1 outputs equal the sums; the largest values and weights do not saturate."""
    for zero_point in (0, 128, 255):
        inputs = inputs_of(shape, zero_point=zero_point, transposed=transposed, biased=False)
        inputs["levels"][1::2] = 255
        by_column = inputs["weights0"] if transposed else inputs["weights0"].T
        for column, weight in enumerate((127, -127, -128)):
            by_column[column::5] = weight
        ones = {"levels_scale": np.array(1, np.float32), "weight_scales0": np.ones(len(by_column), np.float32)}
        (found,) = products("Product", {**inputs, **ones}, transposed=int(transposed))
        np.testing.assert_array_equal(found, sums(inputs, transposed=transposed).astype(np.float32))


@pytest.mark.parametrize("columns", [40, 5])
@pytest.mark.parametrize("rows", [*range(1, 8), 100])
@pytest.mark.parametrize("large", [0, 1, 9, 20], ids="{} groups have large weights".format)
@pytest.mark.parametrize("small_ones", [(32, 33, -20), (21, 24, -14)], ids=["in twos", "in threes"])
def test_sums_of_small_weights_are_exact(small_ones: tuple[int, int, int], large: int, rows: int, columns: int) -> None:
    """Without VNNI four or six products are added in 16 bits, to 32,640 at most; some weights exceed that by 1."""
    random = np.random.default_rng(3)
    inputs = inputs_of((rows, 99, columns), biased=False)
    small = random.choice(small_ones, (99, columns), p=[0.94, 0.01, 0.05])
    small[:, ::2] *= -1
    groups = random.permutation(25)[:large]
    inside = np.isin(np.arange(99) // 4, groups)
    inputs["weights0"] = np.where(inside[:, None], random.integers(-127, 128, small.shape), small).astype(np.int8)
    worst = inputs["weights0"][:, random.integers(columns, size=rows)].T
    inputs["levels"] = np.where(worst > 0, 255, random.integers(0, 2, worst.shape)).astype(np.uint8)
    inputs["levels"][rows // 2] = np.where(worst[rows // 2] < 0, 255, 0)
    ones = {"levels_scale": np.array(1, np.float32), "weight_scales0": np.ones(columns, np.float32)}
    (found,) = products("Product", {**inputs, **ones})
    np.testing.assert_array_equal(found, sums(inputs).astype(np.float32))


def test_weights_in_another_order_give_other_sums() -> None:
    """Large weights at a depth between two small ones and after both: small ones are packed as sets."""
    inputs = inputs_of((3, 12, 16), biased=False, parts=3)
    small, large = np.arange(4 * 16).reshape(4, 16) // 2, np.full((4, 16), 127)
    for part, depths in enumerate(((small, large, 1 - small), (small, 1 - small, large), (small, large, small))):
        inputs[f"weights{part}"] = np.concatenate(depths).astype(np.int8)
        inputs[f"weight_scales{part}"] = np.ones(16, np.float32)
    common = {name: array for name, array in inputs.items() if name.startswith("levels")}
    for part, found in enumerate(products("ThreeProducts", {**inputs, "levels_scale": np.array(1, np.float32)})):
        expected = sums({**common, "weights0": inputs[f"weights{part}"]})
        np.testing.assert_array_equal(found, expected.astype(np.float32))


@pytest.mark.parametrize("biased", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("activation", [LINEAR, SILU, GELU, RELU], ids=NAMES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scales_biases_activations_and_quantized_values(shape: tuple[int, ...], activation: int, biased: bool) -> None:
    inputs = inputs_of(shape, biased=biased)
    scaled = sums(inputs) * (inputs["weight_scales0"] * np.float64(inputs["levels_scale"]))
    expected = ACTIVATIONS[activation](scaled + inputs["bias0"] if biased else scaled)
    (found,) = products("Product", inputs, activation=activation)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=5e-6)
    zero_point = 100 if biased else 0
    (in_levels,) = products("ProductQuantized", {**inputs, **rounding(0.03, zero_point)}, activation=activation)
    np.testing.assert_array_equal(in_levels, levels(found, 0.03, zero_point))


@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize("activation", [LINEAR, SILU, GELU, RELU], ids=NAMES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_of_floats(shape: tuple[int, ...], activation: int, transposed: bool) -> None:
    for biased in (False, True):
        inputs = inputs_of(shape, kind=FLOAT, transposed=transposed, biased=biased)
        weights = inputs["weights0"].astype(np.float64)
        expected = inputs["numbers"] @ (weights.T if transposed else weights)
        expected = ACTIVATIONS[activation](expected + inputs["bias0"] if biased else expected)
        (found,) = products("FloatProduct", inputs, activation=activation, transposed=int(transposed))
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("activation", [LINEAR, SILU, GELU, RELU], ids=NAMES)
def test_nan_is_kept(activation: int) -> None:
    """In whole panels of columns and in partial ones, so that the engine can fail the sentence."""
    inputs = inputs_of((7, 9, 70), kind=FLOAT)
    inputs["numbers"][3, 4] = np.nan
    (found,) = products("FloatProduct", inputs, activation=activation)
    np.testing.assert_array_equal(np.isnan(found), np.arange(7)[:, None].repeat(70, axis=1) == 3)


@pytest.mark.parametrize("scale", [1e-3, 0.03, 1, 1e6])
@pytest.mark.parametrize("activation", [SILU, GELU], ids=["silu", "gelu"])
def test_activations_of_numbers_small_and_large(activation: int, scale: float) -> None:
    inputs = inputs_of((256, 1, 1), biased=False)
    inputs |= {"levels": np.arange(256, dtype=np.uint8)[:, None], "weights0": np.ones((1, 1), np.int8)}
    inputs |= {"levels_scale": np.array(scale, np.float32), "weight_scales0": np.ones(1, np.float32)}
    (found,) = products("Product", inputs, activation=activation)
    with np.errstate(over="ignore"):
        expected = ACTIVATIONS[activation](np.arange(-128, 128)[:, None] * np.float64(np.float32(scale)))
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize("biased", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("shape", [(1, 40, 64), (5, 65, 65), (200, 130, 33)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_three_products_are_three_times_one(kind: str, shape: tuple[int, ...], biased: bool, transposed: bool) -> None:
    inputs = inputs_of(shape, kind=kind, biased=biased, transposed=transposed, parts=3)
    factors = {"factors": inputs.pop("factors")} if kind == WITH_FACTORS else {}
    prefix, turned = prefix_of(kind), int(transposed)
    shared = {name: array for name, array in inputs.items() if not name[-1].isdigit()}
    for part, found in enumerate(products(f"Three{prefix}Products", {**inputs, **factors}, transposed=turned)):
        own = {f"{name[:-1]}0": array for name, array in inputs.items() if name.endswith(str(part))}
        (alone,) = products(f"{prefix}Product", {**shared, **own, **factors}, transposed=turned)
        np.testing.assert_array_equal(found, alone)


@pytest.mark.parametrize("activation", [LINEAR, SILU, GELU, RELU], ids=NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_do_not_depend_on_the_batch(kind: str, activation: int) -> None:
    """A row gives the same bits alone and among many others, for all shapes of the row axes."""
    inputs = inputs_of((200, 97, 70), kind=kind)
    by_row: list[str] = [name for name in ("numbers", "levels", "factors") if name in inputs]
    operator = f"{prefix_of(kind)}Product"
    (together,) = products(operator, inputs, activation=activation)
    firsts = (0, 7, 60, 95, 96, 120, 150, 193)
    for rows in (*(slice(first, first + count) for count, first in enumerate(firsts, 1)), slice(40, 140)):
        some: dict[str, Any] = {name: inputs[name][rows] for name in by_row}
        (found,) = products(operator, {**inputs, **some}, activation=activation)
        np.testing.assert_array_equal(found, together[rows])
    one = {name: inputs[name][9] for name in by_row}
    np.testing.assert_array_equal(products(operator, {**inputs, **one}, activation=activation)[0], together[9])
    for axes in ((10, 20), (4, 25, 2)):
        spread = {name: inputs[name].reshape(*axes, -1) for name in by_row}
        (found,) = products(operator, {**inputs, **spread}, activation=activation)
        np.testing.assert_array_equal(found, together.reshape(*axes, -1))


@pytest.mark.parametrize("biased", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("shape", [*SHAPES, (3, 5, 65, 70)], ids=str)
def test_factors_of_rows_multiply_before_the_bias(shape: tuple[int, ...], biased: bool) -> None:
    """Bit for bit as in operators of their own: nothing is fused with an addition; activations follow."""
    inputs = inputs_of(shape, biased=biased)
    factors = factors_of(inputs)
    expected = scaled_product(inputs, factors)
    with_factors = {**inputs, "factors": factors}
    (found,) = products("Product", with_factors)
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))
    (relu,) = products("Product", with_factors, activation=RELU)
    np.testing.assert_array_equal(relu, np.maximum(expected, 0))
    for activation in (SILU, GELU):
        (found,) = products("Product", with_factors, activation=activation)
        np.testing.assert_allclose(found, ACTIVATIONS[activation](expected.astype(np.float64)), rtol=2e-6, atol=5e-6)
    (quantized,) = products("ProductQuantized", {**inputs, **rounding(0.5, 100), "factors": factors})
    np.testing.assert_array_equal(quantized, levels(expected, 0.5, 100))
    (without,) = products("Product", {**inputs, "factors": None})
    np.testing.assert_array_equal(without, products("Product", inputs)[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 30, 17), (7, 64, 64), (3, 5, 65, 70), (200, 256, 512)])
def test_a_product_and_its_norm_are_the_same_in_one_operator(shape: tuple[int, ...], kind: str) -> None:
    """Bit for bit, also without the outputs that no node reads."""
    random = np.random.default_rng(11)
    inputs, width, operator = inputs_of(shape, kind=kind), shape[-1], f"{prefix_of(kind)}Product"
    (product,) = products(operator, inputs)
    added = random.normal(size=product.shape).astype(np.float32)
    norm = {name: random.normal(size=width).astype(np.float32) for name in ("weight", "bias")}
    floats = {"sum": np.float32, "norm": np.float32}
    expected = run("AddNorm", {"x": added, "y": product, **norm}, floats, epsilon=1e-3)
    settings = {"transposed": 0, "biased": 1, "activation": LINEAR, "epsilon": 1e-3}
    factors = {"factors": inputs.pop("factors")} if kind == WITH_FACTORS else {}
    together = {**inputs, "added": added, **norm}
    for found, one in zip(
        run(f"{operator}AddNorm", {**together, **factors}, floats, **settings), expected, strict=True
    ):
        np.testing.assert_array_equal(found, one)
    for name, one in zip(floats, expected, strict=True):
        only = {"sum": None, "norm": None, name: np.float32}
        (alone,) = run(f"{operator}AddNorm", {**together, **factors}, only, **settings)
        np.testing.assert_array_equal(alone, one)
    rounded = {**together, **rounding(0.03, 100), **factors}
    for wanted in (floats, floats | {"sum": None}, floats | {"norm": None}, {"sum": None, "norm": None}):
        *_, found = run(f"{operator}AddNormQuantized", rounded, {**wanted, "quantized": np.uint8}, **settings)
        np.testing.assert_array_equal(found, levels(expected[1], 0.03, 100))


MEMORY = """
import sys
from pathlib import Path
import onnxruntime

def resident(*names):
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * sum(int(lines[name].split()[0]) for name in names)

sessions, before = [], 0
for path in sys.argv[2:]:
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(sys.argv[1])
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that from here on
    sessions.append(onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]))
    now = resident("RssAnon", "RssFile")
    print(now - before, resident("VmHWM") - before)
    before = now
"""
"""A program that prints the growth of memory with each session and while it was opened, in bytes.

The first one's growth includes shared memory.
"""


@pytest.mark.skipif(sys.platform != "linux", reason="others do not say how much memory a process takes")
@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
def test_weights_are_kept_once(tmp_path: Path, transposed: bool) -> None:
    """The file's copy is freed, and a second session uses the weights of the first.

    Of transposed weights, a part of the file is in memory at a time.
    """
    depth, columns = 4800, 8192
    for name, size in (("small", 8), ("large", depth)):
        weights = np.ones((columns, size) if transposed else (size, columns), np.int8)
        inputs = inputs_of((1, 8, columns), biased=False) | {"weights0": weights}
        model = model_of("Product", inputs, {"output": np.float32}, transposed=int(transposed), biased=0, activation=0)
        onnx.save(model, tmp_path / f"{name}.onnx", save_as_external_data=True, location=f"{name}.bin")
    paths = [str(tmp_path / f"{name}.onnx") for name in ("small", "large", "large")]
    command = [sys.executable, "-c", MEMORY, str(library()), *paths]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    _, (first, first_peak), (second, second_peak) = (map(int, line.split()) for line in printed.splitlines())
    size = depth * columns
    assert 0.9 * size < first < 1.5 * size
    assert second < 0.5 * size
    assert first_peak < (1.7 if transposed else 2.5) * size
    assert second_peak < (0.7 if transposed else 1.5) * size
