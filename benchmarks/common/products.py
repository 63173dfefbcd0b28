"""The weight products of a decoder graph alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import OrtValue

from jumok_export.graphs.graph import OPSET
from jumok_export.graphs.quantize_matrix import quantize_weight
from jumok_export.native.operators import DOMAIN, VERSION
from jumok_serve.native import library

CONTRIBUTED = "com.microsoft"
WEIGHT_INPUTS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "MatMul": 1,
        "Gemm": 1,
        "FusedMatMul": 1,
        "FusedGemm": 1,
        "MatMulInteger": 1,
        "MatMulIntegerToFloat": 1,
        "DynamicQuantizeMatMul": 1,
        "Product": 3,
    }
)
"""Operators that multiply with weights, with the index of the weight input."""
IN_FLOATS = ("MatMul", "Gemm", "FusedMatMul", "FusedGemm")


@dataclass(frozen=True)
class WeightProduct:
    """A product of activations [R, K] with a constant matrix [K, N].

    Attributes:
        inner: K.
        outer: N.
        quantized: True if it is computed in int8.
    """

    inner: int
    outer: int
    quantized: bool


def weight_products(model: onnx.ModelProto) -> list[WeightProduct]:
    """Find the products of a graph with constant matrices, in order."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer if len(tensor.dims) == 2}
    products = []
    for node in model.graph.node:
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        if node.op_type in ("Transpose", "Identity", "Cast") and node.input[0] in shapes:
            rows, columns = shapes[node.input[0]]
            shapes[node.output[0]] = (columns, rows) if node.op_type == "Transpose" else (rows, columns)
        elif node.op_type in WEIGHT_INPUTS and node.input[WEIGHT_INPUTS[node.op_type]] in shapes:
            shape = shapes[node.input[WEIGHT_INPUTS[node.op_type]]]
            inner, outer = shape[::-1] if attributes.get("transB") else shape
            products.append(WeightProduct(inner, outer, quantized=node.op_type not in IN_FLOATS))
    return products


def product_graph(products: Sequence[WeightProduct], *, native: bool) -> onnx.ModelProto:
    """Make a graph of the products alone, each with its own random weights.

    Args:
        products: products of a decoder.
        native: True to compute those in int8 by jumok's kernel, False by ONNX Runtime's.
    """
    random = np.random.default_rng(0)
    constants: dict[str, Any] = {"scale": np.float32(0.03), "centre": np.uint8(128), "zero": np.int8(0)}
    nodes, inputs, outputs = [], {}, []
    for number, product in enumerate(products):
        element = TensorProto.UINT8 if product.quantized else TensorProto.FLOAT
        activation = f"activation.{element}.{product.inner}"
        inputs[activation] = helper.make_tensor_value_info(activation, element, ["R", product.inner])
        weight, scales, output = (f"{name}{number}" for name in ("weight", "scales", "product"))
        outputs.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, ["R", product.outer]))
        values = random.normal(scale=0.02, size=(product.inner, product.outer)).astype(np.float32)
        constants[weight] = values
        if not product.quantized:
            nodes.append(helper.make_node("MatMul", [activation, weight], [output]))
            continue
        constants[weight], _ = quantize_weight(values, 1)
        constants[scales] = np.full(product.outer, 0.02, np.float32)
        if native:
            given = [activation, "scale", "centre", weight, scales, ""]
            node = helper.make_node("Product", given, [output], domain=DOMAIN, transposed=0, biased=0, activation=0)
            nodes.append(node)
        else:
            given = [activation, weight, "scale", scales, "centre", "zero"]
            nodes.append(helper.make_node("MatMulIntegerToFloat", given, [output], domain=CONTRIBUTED))
    initializers = [numpy_helper.from_array(np.array(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "products", list(inputs.values()), outputs, initializers)
    opsets = [helper.make_opsetid(*each) for each in (("", OPSET), (CONTRIBUTED, 1), (DOMAIN, VERSION))]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


class ProductSession:
    """A graph of products, ready to run.

    Args:
        model: a graph of `product_graph`.
        threads: threads of its kernels.
    """

    def __init__(self, model: onnx.ModelProto, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        if (operators := library()) is not None:
            options.register_custom_ops_library(str(operators))
        options.add_session_config_entry("session.force_spinning_stop", "1")  # leaves the cores to the next contender
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def bound(self, rows: int) -> Callable[[], None]:
        """Return a function that computes the products of `rows` rows, over bound inputs and outputs."""
        random = np.random.default_rng(0)
        binding = self._session.io_binding()
        for value in self._session.get_inputs():
            array: NDArray[Any] = random.normal(size=(rows, value.shape[1])).astype(np.float32)
            if value.type == "tensor(uint8)":
                array = random.integers(0, 256, array.shape).astype(np.uint8)
            binding.bind_ortvalue_input(value.name, OrtValue.ortvalue_from_numpy(array))
        for value in self._session.get_outputs():
            place = OrtValue.ortvalue_from_numpy(np.empty((rows, value.shape[1]), np.float32))
            binding.bind_ortvalue_output(value.name, place)
        return lambda: self._session.run_with_iobinding(binding)
