"""The weight products of a decoder graph alone, in each kernel."""

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
        "QLinearMatMul": 3,
        "QGemm": 3,
        "MatMulNBits": 1,
        "Product": 3,
    }
)
"""Operators that multiply with weights, with the index of the weight input."""
IN_FLOATS = ("MatMul", "Gemm", "FusedMatMul", "FusedGemm")
BLOCK = 128
"""Rows of a weight matrix that share a scale in `MatMulNBits`: the fastest of its sizes."""


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
    """The products of a graph with constant matrices, in order."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer if len(tensor.dims) == 2}
    products = []
    for node in model.graph.node:
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        if node.op_type in ("Transpose", "Identity", "Cast") and node.input[0] in shapes:
            rows, columns = shapes[node.input[0]]
            shapes[node.output[0]] = (columns, rows) if node.op_type == "Transpose" else (rows, columns)
        elif node.op_type == "MatMulNBits":
            products.append(WeightProduct(attributes["K"], attributes["N"], quantized=True))
        elif node.op_type in WEIGHT_INPUTS and node.input[WEIGHT_INPUTS[node.op_type]] in shapes:
            shape = shapes[node.input[WEIGHT_INPUTS[node.op_type]]]
            inner, outer = shape[::-1] if attributes.get("transB") else shape
            products.append(WeightProduct(inner, outer, quantized=node.op_type not in IN_FLOATS))
    return products


class _Products:
    """A graph of products, each with its own random weights."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, TensorProto] = {}
        self._inputs: dict[str, tuple[int, int]] = {}  # type and width
        self._widths: list[int] = []  # of the outputs

    def floats(self, *shape: int) -> str:
        return self._constant(self._random.normal(scale=0.02, size=shape).astype(np.float32))

    def bytes(self, *shape: int) -> str:
        return self._constant(self._random.integers(1, 256, shape).astype(np.uint8))

    def signed_bytes(self, *shape: int) -> str:
        """Quantized weights; the largest of some hundreds is three to four times their deviation."""
        values, _ = quantize_weight(self._random.normal(size=shape).astype(np.float32), 1)
        return self._constant(values)

    def scalar(self, value: np.generic) -> str:
        return self._constant(np.array(value), name=f"{value.dtype}.{value}")

    def activation(self, width: int, element: int) -> str:
        """The input [R, width] of all products with this width and type."""
        name = f"activation.{element}.{width}"
        self._inputs[name] = (element, width)
        return name

    def add(self, operator: str, inputs: Sequence[str], *, domain: str = CONTRIBUTED, **attributes: Any) -> str:
        """Add a node; returns its output."""
        output = f"value{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, list(inputs), [output], domain=domain, **attributes))
        return output

    def multiply(
        self, operator: str, inputs: Sequence[str], width: int, *, domain: str = CONTRIBUTED, **attributes: Any
    ) -> None:
        """Add a node that computes a product [R, width]."""
        output = f"product{len(self._widths)}"
        self._widths.append(width)
        self._nodes.append(helper.make_node(operator, list(inputs), [output], domain=domain, **attributes))

    def _constant(self, value: NDArray[Any], name: str = "") -> str:
        name = name or f"constant{len(self._initializers)}"
        self._initializers.setdefault(name, numpy_helper.from_array(value, name))
        return name

    def model(self) -> onnx.ModelProto:
        inputs = [
            helper.make_tensor_value_info(name, element, ["R", width])
            for name, (element, width) in self._inputs.items()
        ]
        outputs = [
            helper.make_tensor_value_info(f"product{number}", TensorProto.FLOAT, ["R", width])
            for number, width in enumerate(self._widths)
        ]
        graph = helper.make_graph(self._nodes, "products", inputs, outputs, list(self._initializers.values()))
        opsets = [
            helper.make_opsetid("", OPSET),
            helper.make_opsetid(CONTRIBUTED, 1),
            helper.make_opsetid(DOMAIN, VERSION),
        ]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


Kernel = Callable[[_Products, WeightProduct], None]
"""Adds one product to a graph."""


def _matmul(products: _Products, shape: WeightProduct) -> None:
    activation = products.activation(shape.inner, TensorProto.FLOAT)
    products.multiply("MatMul", [activation, products.floats(shape.inner, shape.outer)], shape.outer, domain="")


def _gemm(products: _Products, shape: WeightProduct) -> None:
    activation = products.activation(shape.inner, TensorProto.FLOAT)
    inputs = [activation, products.floats(shape.outer, shape.inner)]
    products.multiply("Gemm", inputs, shape.outer, domain="", transB=1)


def _unsigned(products: _Products, shape: WeightProduct) -> None:
    activation = products.activation(shape.inner, TensorProto.UINT8)
    _integers(products, shape, activation, products.bytes(shape.inner, shape.outer), np.uint8(128))


def _signed(products: _Products, shape: WeightProduct) -> None:
    activation = products.activation(shape.inner, TensorProto.UINT8)
    _integers(products, shape, activation, products.signed_bytes(shape.inner, shape.outer), np.int8(0))


def _quantized(products: _Products, shape: WeightProduct) -> None:
    activation = products.activation(shape.inner, TensorProto.FLOAT)
    scale, zero_point = products.scalar(np.float32(0.03)), products.scalar(np.uint8(128))
    quantized = products.add("QuantizeLinear", [activation, scale, zero_point], domain="")
    _integers(products, shape, quantized, products.bytes(shape.inner, shape.outer), np.uint8(128))


def _integers(
    products: _Products, shape: WeightProduct, activation: str, weight: str, weight_zero_point: np.generic
) -> None:
    scale, zero_point = products.scalar(np.float32(0.03)), products.scalar(np.uint8(128))
    inputs = [activation, weight, scale, products.floats(shape.outer), zero_point, products.scalar(weight_zero_point)]
    products.multiply("MatMulIntegerToFloat", inputs, shape.outer)


def _dynamic(products: _Products, shape: WeightProduct) -> None:
    activation = products.activation(shape.inner, TensorProto.FLOAT)
    weight, scale = products.signed_bytes(shape.inner, shape.outer), products.floats(shape.outer)
    products.multiply("DynamicQuantizeMatMul", [activation, weight, scale], shape.outer)


def _blocks(products: _Products, shape: WeightProduct) -> None:
    activation = products.activation(shape.inner, TensorProto.FLOAT)
    blocks = -(-shape.inner // BLOCK)
    inputs = [activation, products.bytes(shape.outer, blocks, BLOCK), products.floats(shape.outer, blocks)]
    products.multiply(
        "MatMulNBits",
        inputs,
        shape.outer,
        K=shape.inner,
        N=shape.outer,
        bits=8,
        block_size=BLOCK,
        accuracy_level=4,
    )


def _native(products: _Products, shape: WeightProduct) -> None:
    activation = products.activation(shape.inner, TensorProto.UINT8)
    scale, zero_point = products.scalar(np.float32(0.03)), products.scalar(np.uint8(128))
    weight = products.signed_bytes(shape.inner, shape.outer)
    inputs = [activation, scale, zero_point, weight, products.floats(shape.outer), ""]
    settings = {"transposed": 0, "biased": 0, "activation": 0}
    products.multiply("Product", inputs, shape.outer, domain=DOMAIN, **settings)


IN_FP32: Final[Mapping[str, Kernel]] = MappingProxyType({"MatMul": _matmul, "Gemm": _gemm})
IN_INT8: Final[Mapping[str, Kernel]] = MappingProxyType(
    {
        "MatMulIntegerToFloat u8u8": _unsigned,
        "MatMulIntegerToFloat u8s8": _signed,
        "QuantizeLinear + MatMulIntegerToFloat": _quantized,
        "DynamicQuantizeMatMul": _dynamic,
        "MatMulNBits": _blocks,
    }
)


NATIVE = "Product"
"""jumok's own int8 kernel."""


def product_graphs(products: Sequence[WeightProduct]) -> dict[str, onnx.ModelProto]:
    """A graph of the products by kernel; fp32 products are in every graph."""
    kernels = IN_INT8 if any(product.quantized for product in products) else IN_FP32
    if kernels is IN_INT8 and library() is not None:
        kernels = {**kernels, NATIVE: _native}
    graphs = {}
    for name, kernel in kernels.items():
        graph = _Products()
        for product in products:
            (kernel if product.quantized or kernels is IN_FP32 else _matmul)(graph, product)
        graphs[name] = graph.model()
    return graphs


class ProductSession:
    """A graph of products, ready to run.

    Args:
        model: a graph of `product_graphs`.
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
        """A function that computes the products of `rows` rows, over bound inputs and outputs."""
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
