"""Graphs whose tensors have wrong sizes get errors from the kernels, and never crash the process."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.models.native_operators import AS_LEVELS, CONSTANTS, needs_library, rounding, run

pytestmark = needs_library

Arrays = dict[str, Any]
HEADS, WIDTH, ENTRIES, SENTENCES, BEAMS = 2, 8, 5, 3, 2
NO_LIST = {
    f"{stage}_{kind}.{part}": np.zeros(0, dtype)
    for stage in ("logit", "log_prob")
    for kind in ("factors", "biases")
    for part, dtype in (("places", np.int64), ("values", np.float32))
}


def floats(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(6).normal(size=shape).astype(np.float32)


def matrix(*, quantized: bool, parts: int = 1) -> Arrays:
    """Rows [3, 8] and matrices [8, 5] of a product."""
    inputs: Arrays = {"levels": np.ones((3, 8), np.uint8), **levels_of_inputs()} if quantized else {"x": floats(3, 8)}
    for part in range(parts):
        inputs[f"weights{part}"] = np.ones((8, 5), np.int8) if quantized else floats(8, 5)
        if quantized:
            inputs[f"weight_scales{part}"] = np.full(5, 0.01, np.float32)
        inputs[f"bias{part}"] = floats(5)
    return inputs


def levels_of_inputs() -> Arrays:
    return {"levels_scale": np.array(0.02, np.float32), "levels_zero_point": np.array(128, np.uint8)}


def norm(width: int) -> Arrays:
    return {"weight": floats(width), "bias": floats(width)}


def unit() -> Arrays:
    """Residual, state, parents and norm of a recurrent unit with 3 rows."""
    return {"added": floats(3, 5), "state": floats(4, 5), "parents": np.arange(3), **norm(5)}


def self_attention(dtype: Any, *, quantized: bool) -> Arrays:
    stride = WIDTH + (4 if dtype is np.int8 else 0)
    cache = np.zeros((SENTENCES, HEADS, ENTRIES, stride), dtype)
    places = np.zeros((SENTENCES, BEAMS, 3), np.int64)
    places[..., 0] = np.arange(SENTENCES)[:, None]
    row = (SENTENCES, BEAMS, HEADS * WIDTH)
    return {
        **{name: floats(*row) for name in ("query", "new_key", "new_value")},
        **{"key": cache, "value": cache.copy(), "places": places},
        "visible": np.ones((SENTENCES, BEAMS, ENTRIES), np.bool_),
        "position_bias": floats(1, HEADS, BEAMS, ENTRIES),
        **(AS_LEVELS if quantized else {}),
    }


def cross_attention(dtype: Any, *, quantized: bool) -> Arrays:
    inputs = self_attention(dtype, quantized=quantized)
    lengths = {"lengths": np.full(SENTENCES, ENTRIES)}
    kept = {name: inputs[name] for name in ("query", "key", "value")} | lengths
    return kept | (AS_LEVELS if quantized else {}) | {"places": inputs["places"]}


PRODUCT = {"transposed": 0, "biased": 1, "activation": 0}
ATTENTION = {"num_heads": HEADS, "scale": 0.3}
NORM_OUTPUTS = {"sum": np.float32, "norm": np.float32}
OPERATORS: dict[str, tuple[Arrays, Arrays, Arrays]] = {
    "Product": (matrix(quantized=True), {"y": np.float32}, PRODUCT),
    "ProductQuantized": (matrix(quantized=True) | AS_LEVELS | {"factors": floats(3, 1)}, {"y": np.uint8}, PRODUCT),
    "ThreeProducts": (matrix(quantized=True, parts=3), dict.fromkeys("abc", np.float32), PRODUCT),
    "ProductAddNorm": (
        matrix(quantized=True) | {"added": floats(3, 5), **norm(5), "factors": floats(3, 1)},
        NORM_OUTPUTS,
        PRODUCT | {"epsilon": 1e-5},
    ),
    "QuantizeRows": (
        {"x": floats(2, 3, 20), **rounding(1 / 127, 128)},
        {"levels": np.uint8, "largest": np.float32},
        {"rectified": 0},
    ),
    "FloatProduct": (matrix(quantized=False), {"y": np.float32}, PRODUCT),
    "ThreeFloatProducts": (matrix(quantized=False, parts=3), dict.fromkeys("abc", np.float32), PRODUCT),
    "FloatProductAddNormQuantized": (
        matrix(quantized=False) | {"added": floats(3, 5), **norm(5), **AS_LEVELS},
        NORM_OUTPUTS | {"quantized": np.uint8},
        PRODUCT | {"epsilon": 1e-5},
    ),
    **{
        f"{'' if quantized else 'Float'}SsruAddNorm{'Quantized' * quantized}": (
            matrix(quantized=quantized, parts=2) | unit() | (AS_LEVELS if quantized else {}),
            NORM_OUTPUTS | ({"quantized": np.uint8} if quantized else {}) | {"next": np.float32},
            PRODUCT | {"epsilon": 1e-5},
        )
        for quantized in (False, True)
    },
    "ListedLogits": ({"products": floats(2, 6, 8), "biases": floats(3, 16)}, {"logits": np.float32}, {}),
    "ListedWeights": (
        {"weights0": np.ones((9, 8), np.int8), "tokens": np.zeros(128, np.int64)},
        {"packed": np.int8, "sums": np.int32},
        {"columns": 128},
    ),
    "ListedProduct": (
        {
            "levels": np.ones((6, 8), np.uint8),
            **levels_of_inputs(),
            **{"packed": np.ones((2, 8, 128), np.int8), "scales": floats(2, 1, 128)},
            **{"sums": np.zeros(256, np.int32), "biases": floats(3, 256)},
        },
        {"logits": np.float32},
        {},
    ),
    "AddNorm": ({"x": floats(2, 3, 8), "y": floats(2, 3, 8), **norm(8)}, NORM_OUTPUTS, {"epsilon": 1e-5}),
    "AddNormQuantized": (
        {"x": floats(2, 3, 8), "y": floats(4, 8), **norm(8), **AS_LEVELS},
        NORM_OUTPUTS | {"quantized": np.uint8},
        {"epsilon": 1e-5},
    ),
    **{
        f"{'Int8' if in_int8 else 'Float'}Embedding{'Quantized' * quantized}": (
            ({"table": np.ones((9, 4), np.int8), "scales": floats(9)} if in_int8 else {"table": floats(9, 4)})
            | {"tokens": np.arange(6).reshape(2, 3)}
            | {"places": floats(5, 4), "positions": np.zeros((2, 3), np.int64), "grouped": floats(2, 1)}
            | (AS_LEVELS if quantized else {}),
            {"y": np.float32, **({"quantized": np.uint8} if quantized else {})},
            {"factor": 2.0},
        )
        for in_int8 in (False, True)
        for quantized in (False, True)
    },
    "FloatEntries": ({"x": floats(2, 3, HEADS * WIDTH)}, {"y": np.float32}, {"num_heads": HEADS}),
    "Int8Entries": ({"x": floats(2, HEADS, 3, WIDTH)}, {"y": np.int8}, {"num_heads": HEADS}),
    "Select": (
        {"logits": floats(4, 70), "scores": floats(4), "candidates": np.array([3]), **NO_LIST}
        | {"renormalize": np.zeros(0, np.int64)},
        {"tokens": np.int64, "totals": np.float32},
        {},
    ),
    **{
        f"{prefix}{kind}{'Quantized' * quantized}": (
            inputs(dtype, quantized=quantized),
            {"output": np.uint8 if quantized else np.float32, **({"k": dtype, "v": dtype} if kind[0] == "S" else {})},
            ATTENTION,
        )
        for prefix, dtype in (("", np.float32), ("Half", np.float16), ("Int8", np.int8))
        for kind, inputs in (("SelfAttention", self_attention), ("CrossAttention", cross_attention))
        for quantized in (False, True)
    },
}
"""Inputs, outputs and attributes of each operator; all of them fit."""


def of_other_sizes(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """The array with another number of axes, and with fewer, more and no elements along each axis."""
    yield np.zeros(0, array.dtype)
    yield np.zeros((), array.dtype)
    yield array[None]
    yield np.zeros((1, 1, 1, 1, 1), array.dtype)
    for axis, size in enumerate(array.shape):
        for other in {0, 1, max(0, size - 1), size + 1, 1000} - {size}:
            yield np.zeros((*array.shape[:axis], other, *array.shape[axis + 1 :]), array.dtype)
    if array.ndim > 1:
        yield np.zeros((2**40, *array.shape[1:-1], 0), array.dtype)


@pytest.mark.parametrize("operator", OPERATORS)
def test_wrong_sizes_are_errors_or_harmless(operator: str) -> None:
    """Each input in turn has other sizes; outputs that are computed all the same are complete."""
    inputs, outputs, attributes = OPERATORS[operator]
    run(operator, inputs, outputs, **attributes)
    refused = 0
    for name, array in inputs.items():
        for wrong in of_other_sizes(array):
            try:
                found = run(operator, {**inputs, name: wrong}, outputs, **attributes)
            except Exception as error:
                refused += "Error" in str(error) or "Fail" in str(error) or "INVALID" in str(error)
            else:
                assert len(found) == len(outputs)
    assert refused >= len(inputs)


@pytest.mark.parametrize("name", sorted(CONSTANTS))
def test_empty_constants_are_refused(name: str) -> None:
    """No kernel is made of scales, zero points, weights or biases without values."""
    users = [one for one, (inputs, _, _) in OPERATORS.items() if name in inputs]
    assert users
    for operator in users:
        inputs, outputs, attributes = OPERATORS[operator]
        for empty in (np.zeros(0, inputs[name].dtype), np.zeros((0, 3), inputs[name].dtype)):
            with pytest.raises(Exception, match=r"scale|fit each other|norm"):
                run(operator, {**inputs, name: empty}, outputs, **attributes)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("quantized", [False, True])
def test_a_matrix_without_rows_or_columns_is_refused(axis: int, quantized: bool) -> None:
    """Depth 0 would divide by zero."""
    operator = "Product" if quantized else "FloatProduct"
    inputs, outputs, attributes = OPERATORS[operator]
    shape = [8, 5]
    shape[axis] = 0
    fitting = {"weights0": np.zeros(shape, inputs["weights0"].dtype), "bias0": np.zeros(shape[1], np.float32)}
    if quantized:
        fitting["weight_scales0"] = np.zeros(shape[1], np.float32)
    rows = next(iter(inputs))
    with pytest.raises(Exception, match="do not fit each other"):
        run(operator, {**inputs, rows: inputs[rows][:, : shape[0]], **fitting}, outputs, **attributes)


@pytest.mark.parametrize("scale", [0.0, -1.0, np.inf, np.nan])
def test_scales_that_quantize_nothing_are_refused(scale: float) -> None:
    """With scale 0 a kernel would write floats into memory for bytes."""
    quantizing = [one for one in OPERATORS if one.endswith("Quantized")]
    for operator in quantizing:
        inputs, outputs, attributes = OPERATORS[operator]
        with pytest.raises(Exception, match="a scale must be positive and finite"):
            run(operator, {**inputs, **rounding(scale, 3)}, outputs, **attributes)


@pytest.mark.parametrize("operator", OPERATORS)
def test_missing_inputs_and_outputs_are_errors(operator: str) -> None:
    """A node that names no tensor for a required input or output is refused, at the latest when it runs."""
    inputs, outputs, attributes = OPERATORS[operator]
    optional = {"places", "position_bias"} if "Attention" in operator else {"sum", "norm"}
    if "SelfAttention" in operator:
        optional = {"position_bias"}
    if "Embedding" in operator:
        optional = {"grouped"}
    for name in inputs.keys() - optional - {"bias0", "bias1", "bias2", "factors"}:
        with pytest.raises(Exception, match=r"\S"):
            run(operator, {**inputs, name: None}, outputs, **attributes)
    for name in outputs.keys() - optional:
        if len(outputs) > 1:
            with pytest.raises(Exception, match=r"\S"):
                run(operator, inputs, {**outputs, name: None}, **attributes)


def test_visibility_counts_one_bit_of_each_byte() -> None:
    """A graph's constants may hold any byte; each of them is one entry."""
    inputs, outputs, attributes = OPERATORS["SelfAttention"]
    seen = inputs["visible"]
    odd = np.full(seen.shape, 255, np.uint8).view(np.bool_)
    expected = run("SelfAttention", inputs, outputs, **attributes)
    constants = CONSTANTS | {"visible"}
    for found, one in zip(
        run("SelfAttention", {**inputs, "visible": odd}, outputs, constants, **attributes), expected, strict=True
    ):
        np.testing.assert_array_equal(found, one)


BIASES: dict[str, Callable[[], NDArray[Any]]] = {
    "axes": lambda: floats(ENTRIES),
    "sentences": lambda: floats(2, 1, 1, ENTRIES),
    "heads": lambda: floats(1, HEADS + 1, 1, ENTRIES),
    "beams": lambda: floats(1, 1, BEAMS + 1, ENTRIES),
    "entries": lambda: floats(1, 1, 1, ENTRIES - 1),
}


@pytest.mark.parametrize("wrong", BIASES)
def test_a_bias_of_other_scores_is_refused(wrong: str) -> None:
    inputs, outputs, attributes = OPERATORS["SelfAttention"]
    with pytest.raises(Exception, match="the bias does not match the scores"):
        run("SelfAttention", {**inputs, "position_bias": BIASES[wrong]()}, outputs, **attributes)


@pytest.mark.parametrize("count", [3, 300])
@pytest.mark.parametrize("candidates", [1, 40, 200])
def test_constraints_without_numbers_leave_rows_without_numbers(count: int, candidates: int) -> None:
    """NaN among the constraints of log-probabilities never makes the selection read beyond its candidates."""
    logits = floats(2, 4000)
    places = np.arange(0, 10 * count, 10)
    lists = NO_LIST | {
        "log_prob_biases.places": places,
        "log_prob_biases.values": np.full(count, np.nan, np.float32),
        "log_prob_factors.places": places + 1,
        "log_prob_factors.values": np.zeros(count, np.float32),
    }
    inputs = {"logits": logits, "scores": floats(2), "candidates": np.array([candidates]), **lists}
    inputs["renormalize"] = np.zeros(0, np.int64)
    tokens, totals = run("Select", inputs, {"tokens": np.int64, "totals": np.float32})
    assert ((tokens >= 0) & (tokens < logits.shape[1])).all()
    assert np.isfinite(totals[1]).all()
