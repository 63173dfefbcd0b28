"""A native operator in a session of its own, and what more than one of their tests expects."""

import shutil
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnxruntime import OrtValue

from jumok_serve.native import library

needs_library = pytest.mark.skipif(library() is None, reason="no kernels of these sources, or an old processor")

COMPILER = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
"""The C++ compiler of this machine, if there is one."""

CONSTANTS = frozenset({
    *("scale", "zero_point", "weight", "bias"),
    *("levels_scale", "levels_zero_point"),
    *(f"{part}{index}" for part in ("weights", "weight_scales", "bias") for index in range(3)),
})  # fmt: skip
"""Inputs whose values have to be known when a session is made."""


def levels_of_inputs(zero_point: int = 128) -> dict[str, Any]:
    """Scale and zero point of quantized inputs."""
    return {"levels_scale": np.array(0.02, np.float32), "levels_zero_point": np.array(zero_point, np.uint8)}


NOT_CONSTANT = "weights, scales, zero points and biases have to be constant"


def run(
    operator: str,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    constants: Set[str] = CONSTANTS,
    /,
    **attributes: Any,
) -> list[Any]:
    """Run an operator with two threads; outputs named None are omitted."""
    model = model_of(operator, inputs, outputs, constants, **attributes)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.register_custom_ops_library(str(library()))
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    values = {
        value.name: OrtValue.ortvalue_from_numpy(np.ascontiguousarray(inputs[value.name]))
        for value in model.graph.input
    }
    asked = [value.name for value in model.graph.output]
    return [value.numpy() for value in session.run_with_ort_values(asked, values)]


def model_of(
    operator: str,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    constants: Set[str] = CONSTANTS,
    /,
    **attributes: Any,
) -> onnx.ModelProto:
    """One node in a graph of its own, with those inputs inside that are constants."""
    node = helper.make_node(
        operator,
        [name if array is not None else "" for name, array in inputs.items()],
        [name if dtype is not None else "" for name, dtype in outputs.items()],
        domain="jumok",
        **attributes,
    )
    given = {name: array for name, array in inputs.items() if array is not None}
    asked = {name: dtype for name, dtype in outputs.items() if dtype is not None}
    graph = helper.make_graph(
        [node],
        operator,
        [_described(name, array.dtype, array.shape) for name, array in given.items() if name not in constants],
        [_described(name, np.dtype(dtype), None) for name, dtype in asked.items()],
        [numpy_helper.from_array(array, name) for name, array in given.items() if name in constants],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("jumok", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _described(name: str, dtype: np.dtype[Any], shape: Sequence[int] | None) -> Any:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)


def rounding(scale: float, zero_point: int) -> dict[str, NDArray[Any]]:
    """The last inputs of operators that give levels."""
    return {"scale": np.array(scale, np.float32), "zero_point": np.array(zero_point, np.uint8)}


def levels(numbers: NDArray[Any], scale: float, zero_point: int) -> NDArray[np.uint8]:
    """Quantize as QuantizeLinear does, but by multiplication."""
    share = np.float32(1) / np.float32(scale)
    found: NDArray[np.uint8] = np.clip(np.rint(numbers * share) + zero_point, 0, 255).astype(np.uint8)
    return found


AS_LEVELS = rounding(0.02, 128)
