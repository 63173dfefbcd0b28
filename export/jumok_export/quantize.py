"""int8 graphs: weights per output channel, activations per row or calibrated, so that no row depends on its company.

Both are stored unsigned with a zero point of 128: on processors without VNNI the product of unsigned activations with
signed weights saturates in 16 bits, that of unsigned with unsigned does not, and where there is VNNI both cost as much.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from jumok_export.onnx_graph import Graph

ZERO_POINT = 128
LEVELS = 127
SMALLEST_SCALE = 1e-30
"""Stands in for the scale of a row of zeros."""

EMBEDDING_ROWS = 64
"""A table with fewer rows stays in fp32: there is nothing to save."""


Scales = Mapping[str, float]
"""What one level of the activations is worth that are multiplied with a weight matrix, by the matrix's `weight_key`."""


def quantize_graph(graph: Graph, scales: Scales = MappingProxyType({})) -> Graph:
    """The int8 form of a graph: products with constant weights, and embeddings, in 8 bits; the rest stays fp32.

    A weight matrix has one scale for each output channel (an embedding for each token, so that a tied embedding is
    stored once for both its uses). Activations get the scale that was calibrated for the matrix they are multiplied
    with; where there is none, one for each row, from the row alone.
    """
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    return Graph(_Quantizer(model, scales).run(), graph.inputs, graph.outputs)


@dataclass(frozen=True, kw_only=True)
class Product:
    """A product of an activation with a constant weight matrix, in a graph in fp32.

    Attributes:
        activation: name of what is multiplied, [..., K].
        weight: name of the matrix.
        output: name of the product, [..., N].
        bias: name of what is added to it, [N], or None.
        transposed: whether the matrix is stored as [N, K] rather than [K, N].
    """

    activation: str
    weight: str
    output: str
    bias: str | None
    transposed: bool


class Matrices:
    """The constant matrices in fp32 of a graph, and the products with them.

    Args:
        model: in fp32.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        self.constants = {
            tensor.name: tensor
            for tensor in model.graph.initializer
            if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) == 2
        }
        # A product with a weight that is stored transposed names the transposition, not the weight.
        self.transposed = {
            node.output[0]: node.input[0]
            for node in model.graph.node
            if node.op_type == "Transpose" and node.input[0] in self.constants
        }

    def product(self, node: onnx.NodeProto) -> Product | None:
        """What `node` computes, if it is a product with one of the matrices."""
        if node.op_type == "MatMul" and node.input[1] in self.constants:
            return Product(
                activation=node.input[0], weight=node.input[1], output=node.output[0], bias=None, transposed=False
            )
        if node.op_type == "MatMul" and node.input[1] in self.transposed:
            weight = self.transposed[node.input[1]]
            return Product(activation=node.input[0], weight=weight, output=node.output[0], bias=None, transposed=True)
        if node.op_type == "Gemm" and node.input[1] in self.constants and _is_plain(node):
            return Product(
                activation=node.input[0],
                weight=node.input[1],
                output=node.output[0],
                bias=node.input[2] if len(node.input) > 2 else None,
                transposed=any(attribute.name == "transB" and attribute.i for attribute in node.attribute),
            )
        return None

    def products(self) -> Iterator[Product]:
        """All products with the matrices, in the graph's order."""
        return (product for node in self._model.graph.node if (product := self.product(node)))

    def key(self, product: Product) -> str:
        """The `weight_key` of a product's matrix."""
        weight = numpy_helper.to_array(self.constants[product.weight])
        return weight_key(weight.T if product.transposed else weight)


class _Quantizer:
    def __init__(self, model: onnx.ModelProto, scales: Scales) -> None:
        self.model = model
        self.scales = scales
        self.matrices = Matrices(model)
        self.floats = self.matrices.constants
        self.nodes: list[onnx.NodeProto] = []
        self.added: dict[str, onnx.TensorProto] = {}
        self.quantized_inputs: dict[tuple[str, float | None], tuple[str, str]] = {}

    def run(self) -> onnx.ModelProto:
        graph = self.model.graph
        for node in graph.node:
            product = self.matrices.product(node)
            if product is not None:
                self._product(product)
            elif node.op_type == "Gather" and self._is_embedding(node):
                self._embedding(node)
            else:
                self.nodes.append(node)
        self._drop_unused_transpositions()
        kept = {name for node in self.nodes for name in node.input}
        initializers = [tensor for tensor in graph.initializer if tensor.name in kept] + list(self.added.values())
        nodes = list(self.nodes)
        del graph.node[:]
        del graph.initializer[:]
        graph.node.extend(nodes)
        graph.initializer.extend(initializers)
        self.model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        return self.model

    def _drop_unused_transpositions(self) -> None:
        used = {name for node in self.nodes for name in node.input}
        transposed = self.matrices.transposed
        self.nodes = [node for node in self.nodes if node.output[0] in used or node.output[0] not in transposed]

    def _is_embedding(self, node: onnx.NodeProto) -> bool:
        table = self.floats.get(node.input[0])
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
        return table is not None and axis == 0 and table.dims[0] >= EMBEDDING_ROWS

    def _product(self, product: Product) -> None:
        stored, weight_scale = self._quantize_weight(product.weight, channels=0 if product.transposed else 1)
        if product.transposed:
            if f"{stored}.transposed" not in {name for node in self.nodes for name in node.output}:
                self._add("Transpose", [stored], f"{stored}.transposed", perm=[1, 0])  # folded when a session is made
            stored = f"{stored}.transposed"
        zero_point = self._constant("zero_point", np.array(ZERO_POINT, np.uint8))
        calibrated = self.scales.get(self.matrices.key(product)) if self.scales else None
        if calibrated is not None:
            quantized, scale = self._quantize_by_constant(product.activation, calibrated)
            bias = [] if product.bias is None else [product.bias]
            inputs = [quantized, stored, scale, weight_scale, zero_point, zero_point, *bias]
            self._add("MatMulIntegerToFloat", inputs, product.output, domain="com.microsoft")
            return
        width = self.floats[product.weight].dims[1 if product.transposed else 0]
        quantized, scale = self._quantize_rows(product.activation, width)
        one = self._constant("one", np.array(1, np.float32))
        raw = f"{product.output}.unscaled"
        inputs = [quantized, stored, one, weight_scale, zero_point, zero_point]
        self._add("MatMulIntegerToFloat", inputs, raw, domain="com.microsoft")
        if product.bias is None:
            self._add("Mul", [raw, scale], product.output)
        else:
            self._add("Mul", [raw, scale], f"{product.output}.product")
            self._add("Add", [f"{product.output}.product", product.bias], product.output)

    def _embedding(self, node: onnx.NodeProto) -> None:
        """Rows of the 8-bit table, each times its token's scale."""
        stored, scale = self._quantize_weight(node.input[0], channels=0)
        output, ids = node.output[0], node.input[1]
        self._add("Gather", [stored, ids], f"{output}.stored", axis=0)
        self._add("Gather", [scale, ids], f"{output}.scale", axis=0)
        self._add("Cast", [f"{output}.stored"], f"{output}.float", to=onnx.TensorProto.FLOAT)
        centre = self._constant("centre", np.array(ZERO_POINT, np.float32))
        self._add("Sub", [f"{output}.float", centre], f"{output}.centred")
        last = self._constant("last_axis", np.array([-1]))
        self._add("Unsqueeze", [f"{output}.scale", last], f"{output}.scales")
        self._add("Mul", [f"{output}.centred", f"{output}.scales"], output)

    def _quantize_by_constant(self, name: str, scale: float) -> tuple[str, str]:
        """The tensor in 8 bits by a calibrated scale, and that scale; once however many products use it."""
        if (name, scale) not in self.quantized_inputs:
            q = f"{name}.int8.calibrated{len(self.quantized_inputs)}"
            constant = self._constant(f"scale{len(self.quantized_inputs)}", np.array(scale, np.float32))
            zero_point = self._constant("zero_point", np.array(ZERO_POINT, np.uint8))
            self._add("QuantizeLinear", [name, constant, zero_point], q)
            self.quantized_inputs[name, scale] = (q, constant)
        return self.quantized_inputs[name, scale]

    def _quantize_rows(self, name: str, width: int) -> tuple[str, str]:
        """The tensor [..., width] in 8 bits and its scale for each row, [..., 1]; once however many products use it."""
        if (name, None) in self.quantized_inputs:
            return self.quantized_inputs[name, None]
        q = f"{name}.int8"
        self._add("Abs", [name], f"{q}.absolute")
        last = self._constant("last_axis", np.array([-1]))
        self._add("ReduceMax", [f"{q}.absolute", last], f"{q}.largest", keepdims=1)
        smallest = self._constant("smallest", np.array(SMALLEST_SCALE * LEVELS, np.float32))
        self._add("Max", [f"{q}.largest", smallest], f"{q}.positive")
        levels = self._constant("one_level", np.array(1 / LEVELS, np.float32))
        self._add("Mul", [f"{q}.positive", levels], f"{q}.scale")  # [..., 1]
        self._add("Reshape", [f"{q}.scale", last], f"{q}.row_scale")  # [rows]
        self._add("Reshape", [name, self._constant(f"rows_of_{width}", np.array([-1, width]))], f"{q}.rows")
        self._add("Shape", [f"{q}.row_scale"], f"{q}.count")
        self.nodes.append(
            helper.make_node(
                "ConstantOfShape",
                [f"{q}.count"],
                [f"{q}.zero_points"],
                value=helper.make_tensor("value", onnx.TensorProto.UINT8, [1], [ZERO_POINT]),
            )
        )
        self._add("QuantizeLinear", [f"{q}.rows", f"{q}.row_scale", f"{q}.zero_points"], f"{q}.quantized", axis=0)
        self._add("Shape", [name], f"{q}.shape")
        self._add("Reshape", [f"{q}.quantized", f"{q}.shape"], q)
        self.quantized_inputs[name, None] = (q, f"{q}.scale")
        return self.quantized_inputs[name, None]

    def _quantize_weight(self, name: str, *, channels: int) -> tuple[str, str]:
        """Names of the 8-bit form of a weight matrix and of its scales along the axis `channels`."""
        stored, scale = f"{name}.int8.{channels}", f"{name}.scale.{channels}"
        if stored not in self.added:
            weight = numpy_helper.to_array(self.floats[name])
            values, scales = quantize_weight(weight, channels)
            self.added[stored] = numpy_helper.from_array(values, stored)
            self.added[scale] = numpy_helper.from_array(scales, scale)
        return stored, scale

    def _constant(self, name: str, value: NDArray[np.generic]) -> str:
        name = f"int8.{name}"
        self.added.setdefault(name, numpy_helper.from_array(value, name))
        return name

    def _add(self, operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> None:
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))


def quantized_weights(graph: Graph) -> list[NDArray[np.float32]]:
    """The matrices of a graph in fp32 that its int8 form holds in 8 bits."""
    quantized = {tensor.name for tensor in quantize_graph(graph).model.graph.initializer}
    return [
        numpy_helper.to_array(tensor)
        for tensor in graph.model.graph.initializer
        if any(f"{tensor.name}.int8.{axis}" in quantized for axis in (0, 1))
    ]


def weight_key(weight: NDArray[np.float32]) -> str:
    """A name for a weight matrix [K, N], whatever its graph calls it: graphs of one model share no other names."""
    digest = hashlib.sha256(np.ascontiguousarray(weight).tobytes())
    digest.update(repr(weight.shape).encode())
    return digest.hexdigest()


def quantize_weight(weight: NDArray[np.float32], channels: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """A weight matrix in 8 bits around 128, symmetric, with one scale for each index of the axis `channels`.

    Returns:
        Values 1 .. 255 of the matrix's shape, and scales [channels]; weight is about (value - 128) * scale.
    """
    largest = np.abs(weight).max(axis=1 - channels)
    scales = np.maximum(largest / LEVELS, SMALLEST_SCALE).astype(np.float32)
    values = np.rint(weight / np.expand_dims(scales, 1 - channels)) + ZERO_POINT
    return values.astype(np.uint8), scales


def _is_plain(node: onnx.NodeProto) -> bool:
    """Whether a Gemm is a plain product plus bias, as linear layers are exported."""
    return all(
        (attribute.name == "transB")
        or (attribute.name in ("alpha", "beta") and attribute.f == 1)
        or (attribute.name == "transA" and attribute.i == 0)
        for attribute in node.attribute
    )
