"""Graphs whose tensors have wrong sizes get errors from the kernels, and never crash the process."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.models.native_operators import (
    AS_LEVELS,
    CONSTANTS,
    NOT_CONSTANT,
    levels_of_inputs,
    needs_library,
    rounding,
    run,
)

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
def test_constants_that_vary_or_are_empty_are_refused(name: str) -> None:
    """Kernels read scales, zero points, weights and biases once, when a session is made."""
    users = [one for one, (inputs, _, _) in OPERATORS.items() if name in inputs]
    assert users
    for operator in users:
        inputs, outputs, attributes = OPERATORS[operator]
        with pytest.raises(Exception, match=NOT_CONSTANT):
            run(operator, inputs, outputs, CONSTANTS - {name}, **attributes)
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


FIT = "do not fit each other"
PARTS = "weights, scales and biases of a product do not fit each other"
DEPTH = "rows are not as deep as the weights that they are multiplied with"
FACTORS = "factors of rows do not match the rows of a product"
POSITIONS = "position embeddings do not fit the tokens and their embeddings"
GROUPS = "tokens cannot be divided into as many groups"
SLOTS = "does not match the slots of the KV cache"
NORM = "a product does not fit the weights of its norm"


def in_slot(slot: int) -> Arrays:
    places = np.zeros((SENTENCES, BEAMS, 3), np.int64)
    places[1, :, 0] = slot
    return {"places": places}


def entries(*shape: int, value: tuple[int, ...] = (), dtype: Any = np.float32) -> Arrays:
    """Keys and values of these shapes, without places."""
    return {"key": np.zeros(shape, dtype), "value": np.zeros(value or shape, dtype), "places": None}


WRONG_EMBEDDINGS: list[tuple[str, list[Arrays]]] = [
    ("a token id is outside of the vocabulary", [{"tokens": np.full((2, 3), one)} for one in (-1, 9)]),
    ("or a position outside of the table of positions", [{"positions": np.full((2, 3), one)} for one in (-1, 5)]),
    (POSITIONS, [{"places": floats(5, 3)}, {"positions": np.zeros((1, 3), np.int64)}]),
    (GROUPS, [{"grouped": floats(0, 1)}, {"grouped": floats(5, 1)}]),
]
REFUSED: list[tuple[str, str, list[Arrays]]] = [
    (
        "ThreeProducts",
        PARTS,
        [
            {"weights1": np.ones((7, 5), np.int8)},
            {"weights2": np.ones(40, np.int8)},
            {"weight_scales0": floats(1)},
            {"weight_scales2": np.array(0.1, np.float32)},
            {"bias1": floats(4)},
        ],
    ),
    ("ThreeFloatProducts", PARTS, [{"weights1": floats(7, 5)}, {"bias1": floats(4)}]),
    ("Product", PARTS, [{"transposed": 1}]),
    ("Product", DEPTH, [{"levels": np.zeros(shape, np.uint8)} for shape in ((2, 7), (2, 9), (8, 2), ())]),
    ("FloatProduct", DEPTH, [{"x": floats(2, 7)}]),
    ("FloatProduct", "these kernels do not know the activation of a product", [{"activation": 4}]),
    *(
        (
            operator,
            FACTORS,
            [
                {"levels": np.ones((2, 3, 8), np.uint8), "factors": floats(*shape)}
                for shape in ((2, 3), (3, 2, 1), (6, 1), (2, 3, 8), (2, 2, 1), ())
            ],
        )
        for operator in ("Product", "ThreeProducts")
    ),
    ("ProductAddNorm", FACTORS, [{"factors": floats(5)}]),
    ("ProductAddNorm", NORM, [{"weight": floats(4)}, {"bias": floats(4)}]),
    ("ProductAddNorm", "the residual does not match the product", [{"added": floats(4, 5)}]),
    (
        "AddNorm",
        "the inputs of a layer norm do not match",
        [{"y": floats(*shape)} for shape in ((1, 8), (4, 7), (3, 3, 8))],
    ),
    (
        "FloatSsruAddNorm",
        "a parent is outside of the state",
        [{"parents": np.array([0, 1, parent])} for parent in (-1, 4, 2**40)],
    ),
    *(
        (operator, message, changes)
        for operator in ("Int8Embedding", "FloatEmbedding")
        for message, changes in WRONG_EMBEDDINGS
    ),
    ("Int8Embedding", "rows, scales and tokens do not fit each other", [{"scales": floats(8)}]),
    ("Select", "outside of the logits", [{"logit_biases.places": np.array([280]), "logit_biases.values": floats(1)}]),
    ("Select", "different rows", [{"scores": floats(3)}]),
    ("Select", "a row to renormalize is outside", [{"renormalize": np.array([4])}]),
    ("Select", "at least one candidate", [{"candidates": np.array([0])}]),
    ("ListedWeights", "listed tokens do not fit the weights", [{"tokens": np.full(128, one)} for one in (-1, 9)]),
    ("ListedWeights", FIT, [{"weights0": np.ones((9, depth), np.int8)} for depth in (1, 6, 255)]),
    ("Int8Entries", "do not match the number of heads", [{"x": floats(1, 3, 9)}, {"x": floats(1, 3, 5, 4)}]),
    (
        "CrossAttention",
        FIT,
        [
            entries(3, 2, 5, 16),
            entries(3, 5, 16, value=(3, 2, 5, 8)),
            entries(3, 2, 5, 8, value=(3, 5, 16)),
            entries(3, 5, 12),
        ],
    ),
    # Int8 entries need scales and lie by head.
    ("Int8CrossAttention", FIT, [entries(*shape, dtype=np.int8) for shape in ((3, 2, 5, 8), (3, 5, 16), (3, 5, 24))]),
    *((operator, SLOTS, [in_slot(-1), in_slot(3)]) for operator in ("SelfAttention", "CrossAttention")),
    (
        "SelfAttention",
        "the bias does not match the scores",
        [
            {"position_bias": floats(*shape)}
            for shape in ((5,), (2, 1, 1, 5), (1, HEADS + 1, 1, 5), (1, 1, BEAMS + 1, 5), (1, 1, 1, 4))
        ],
    ),
]
"""A part of the message for inputs or attributes that do not fit; it comes before any read out of bounds."""


@pytest.mark.parametrize(("operator", "message", "all_changes"), REFUSED)
def test_what_does_not_fit_is_refused(operator: str, message: str, all_changes: list[Arrays]) -> None:
    inputs, outputs, attributes = OPERATORS[operator]
    for changes in all_changes:
        settings = {name: changes.get(name, value) for name, value in attributes.items()}
        given = inputs | {name: array for name, array in changes.items() if name not in attributes}
        with pytest.raises(Exception, match=message):
            run(operator, given, outputs, **settings)


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
