"""Rows that are quantized with a scale each, against the operators of ONNX Runtime."""

from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.support.models.native_operators import needs_library, rounding, run

pytestmark = needs_library

UNITS = {0: rounding(1 / 127, 128), 1: rounding(1 / 255, 0)}
"""Scale and zero point by `rectified`, as in int8 graphs."""
SHAPES = [(0, 8), (1, 1), (3, 7), (5, 16), (2, 3, 65), (40, 1024)]
SPREADS = (1e-30, 1.0, 1e30)


def quantized(x: NDArray[np.float32], rectified: int) -> list[NDArray[Any]]:
    outputs = {"levels": np.uint8, "largest": np.float32}
    found: list[NDArray[Any]] = run("QuantizeRows", {"x": x, **UNITS[rectified]}, outputs, rectified=rectified)
    return found


def expected(x: NDArray[np.float32], rectified: int) -> list[NDArray[Any]]:
    """Levels and largest magnitudes by the nodes of a plain int8 graph."""
    most = ("ReduceMax", ["x", "last"], "most") if rectified else ("Abs", ["x"], "most")
    largest = ("Relu", ["most"], "largest") if rectified else ("ReduceMax", ["most", "last"], "largest")
    rest = ("Div", ["x", "largest"], "shares"), ("QuantizeLinear", ["shares", "scale", "zero_point"], "levels")
    nodes = [helper.make_node(name, inputs, [output]) for name, inputs, output in (most, largest, *rest)]
    constants = {"last": np.array([-1]), **UNITS[rectified]}
    graph = helper.make_graph(
        nodes,
        "rows",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [
            helper.make_tensor_value_info(name, dtype, None)
            for name, dtype in (("levels", TensorProto.UINT8), ("largest", TensorProto.FLOAT))
        ],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found: list[NDArray[Any]] = session.run(None, {"x": x})
    return found


@pytest.mark.parametrize("rectified", [0, 1])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_levels_and_scales_have_the_bits_of_separate_operators(shape: tuple[int, ...], rectified: int) -> None:
    """Quotients in the middle between two levels, too: they are rounded to even ones."""
    random = np.random.default_rng(7)
    halves = (random.integers(-254, 255, shape) / 2).astype(np.float32)
    halves[..., :1] = 127
    rows: list[NDArray[np.float32]] = [halves]
    rows += [random.normal(scale=spread, size=shape).astype(np.float32) for spread in SPREADS]
    for x in rows:
        for found, one in zip(quantized(x, rectified), expected(x, rectified), strict=True):
            # Older versions of ONNX Runtime give the maxima of no rows the width of a row.
            np.testing.assert_array_equal(found, one[..., : found.shape[-1]])


@pytest.mark.parametrize("rectified", [0, 1])
def test_rows_of_zeros_have_scale_0(rectified: int) -> None:
    """With the levels that the division gives; a product multiplies them by 0."""
    x = np.zeros((3, 20), np.float32)
    x[1] = np.arange(20)
    for found, one in zip(quantized(x, rectified), expected(x, rectified), strict=True):
        np.testing.assert_array_equal(found, one)
    assert quantized(x, rectified)[1].tolist() == [[0], [19], [0]]


@pytest.mark.parametrize("rectified", [0, 1])
@pytest.mark.parametrize("place", [0, 15, 16, 36])
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf])
def test_scales_of_rows_with_nan_or_infinity(value: float, place: int, rectified: int) -> None:
    x = np.random.default_rng(1).normal(size=(2, 37)).astype(np.float32)
    x[1, place] = value
    _, largest = quantized(x, rectified)
    assert np.isfinite(largest[0])
    np.testing.assert_array_equal(largest[1], np.float32(np.abs(value)))


def test_rows_do_not_depend_on_the_batch() -> None:
    x = np.random.default_rng(2).normal(size=(70, 300)).astype(np.float32)
    together = quantized(x, 0)
    for row in (0, 33, 69):
        for alone, one in zip(quantized(x[row : row + 1], 0), together, strict=True):
            np.testing.assert_array_equal(alone[0], one[row])
