"""int8 graphs: weights per output channel, activations per row or calibrated, so that no row depends on its company.

Weights are signed, activations unsigned: on processors with VNNI, ONNX Runtime's products of these take half the time
of those of unsigned with unsigned (measured: 7.4 against 14.7 ms for 128 rows times [512, 32000] on one core of a
Zen 5, 0.53 against 0.92 ms for one row). Where there is no VNNI they could saturate: `jumok_serve.runtime.sessions`.

Weights have fewer levels than 8 bits could tell apart. Without VNNI native kernels then sum up to six products in 16
bits, where nearly all of them have room (`sets.h`), in two thirds of the time: 110 instead of 73 times 10^9 products a
second on one core of a Zen 3. BLEU of the Transformer of `models/` was no lower: 38.61 greedily and 39.05 with beam
size 4, against 38.45 and 39.21 with 127 levels; of Multi30k's other 1,014 sentences 39.67 and 40.32 against 39.55 and
40.36.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from jumok_export.graphs.graph import Graph, drop_unread, reads

WEIGHT_LEVELS = 72
"""On either side of 0."""
SMALLEST_SCALE = 1e-30
"""Stands in for the scale of a channel of zeros."""

EMBEDDING_ROWS = 64
"""A table with fewer rows stays in fp32: there is nothing to save."""


@dataclass(frozen=True, kw_only=True)
class Levels:
    """How activations lie in 8 bits.

    Attributes:
        zero_point: the level of 0.
        largest: how many levels the largest magnitude is above it.
    """

    zero_point: int
    largest: int

    @property
    def unit(self) -> np.float32:
        """What one level is of the largest magnitude."""
        return np.float32(1 / self.largest)


SIGNED = Levels(zero_point=128, largest=127)
"""Of activations in general."""
RECTIFIED = Levels(zero_point=0, largest=255)
"""Of what a ReLU gives, which needs no levels below 0. Rounding to these is the ReLU, too: what is less becomes 0."""

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
        output: name of the product, [..., N], with what is added to it.
        bias: name of what is added to it, [N], or None.
        transposed: whether the matrix is stored as [N, K] rather than [K, N].
        levels: of the activation.
    """

    activation: str
    weight: str
    output: str
    bias: str | None
    transposed: bool
    levels: Levels


class Matrices:
    """The constant matrices in fp32 of a graph, and what is done with them.

    Args:
        model: in fp32.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        floats = [tensor for tensor in model.graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT]
        self.constants = {tensor.name: tensor for tensor in floats if len(tensor.dims) == 2}
        self._vectors = {tensor.name: tensor.dims[0] for tensor in floats if len(tensor.dims) == 1}
        # A product with a weight that is stored transposed names the transposition, not the weight.
        self._transposed = {
            node.output[0]: node.input[0]
            for node in model.graph.node
            if node.op_type == "Transpose" and node.input[0] in self.constants
        }
        self.rectified = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "Relu"}
        readers: dict[str, list[onnx.NodeProto]] = {value.name: [] for value in model.graph.output}
        seen = set(readers)
        for node in model.graph.node:
            for name in reads(node):
                readers.setdefault(name, []).append(node)
        self._only_readers = {name: each[0] for name, each in readers.items() if len(each) == 1 and name not in seen}

    def product(self, node: onnx.NodeProto) -> Product | None:
        """What `node`, and the addition of a bias behind it, computes, if it is a product with one of the matrices."""
        if node.op_type not in {"MatMul", "Gemm"} or (node.op_type == "Gemm" and not _is_plain(node)):
            return None
        weight = self._transposed.get(node.input[1], node.input[1])
        if weight not in self.constants:
            return None
        transposed = weight != node.input[1]
        if any(attribute.name == "transB" and attribute.i for attribute in node.attribute):
            transposed = not transposed
        channels = self.constants[weight].dims[0 if transposed else 1]
        output, bias = node.output[0], None
        if len(node.input) > 2 and node.input[2]:
            bias = node.input[2]
            if self._vectors.get(bias) != channels:
                return None
        elif (adding := self._only_readers.get(output)) is not None and adding.op_type == "Add":
            other = adding.input[0] if adding.input[1] == output else adding.input[1]
            if self._vectors.get(other) == channels:
                output, bias = adding.output[0], other
        return Product(
            activation=node.input[0],
            weight=weight,
            output=output,
            bias=bias,
            transposed=transposed,
            levels=RECTIFIED if node.input[0] in self.rectified else SIGNED,
        )

    def products(self) -> Iterator[Product]:
        """All products with the matrices, in the graph's order."""
        return (product for node in self._model.graph.node if (product := self.product(node)))

    def embedding(self, node: onnx.NodeProto) -> str | None:
        """The table that `node` looks rows up in, if that is one of the matrices and worth the trouble."""
        table = self.constants.get(node.input[0]) if node.op_type == "Gather" else None
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
        return None if table is None or axis != 0 or table.dims[0] < EMBEDDING_ROWS else table.name

    def key(self, product: Product) -> str:
        """The `weight_key` of a product's matrix."""
        weight = numpy_helper.to_array(self.constants[product.weight])
        return weight_key(weight.T if product.transposed else weight)


class _Quantizer:
    def __init__(self, model: onnx.ModelProto, scales: Scales) -> None:
        self.model = model
        self.scales = scales
        self.matrices = Matrices(model)
        self.nodes: list[onnx.NodeProto] = []
        self.added: dict[str, onnx.TensorProto] = {}
        self.quantized_inputs: dict[tuple[str, float | None], tuple[str, str]] = {}

    def run(self) -> onnx.ModelProto:
        graph = self.model.graph
        computed = set()  # what an operator of the original graph computes that a product computes as well
        for node in graph.node:
            product = self.matrices.product(node)
            if product is not None:
                self._product(product)
                computed.add(product.output)
            elif (table := self.matrices.embedding(node)) is not None:
                self._embedding(node, table)
            elif node.output[0] not in computed:
                self.nodes.append(node)
        del graph.node[:]
        graph.node.extend(self.nodes)
        graph.initializer.extend(self.added.values())
        drop_unread(graph)
        if all(opset.domain != "com.microsoft" for opset in self.model.opset_import):
            self.model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        return self.model

    def _product(self, product: Product) -> None:
        output, zero_point = product.output, self._zero_point(product.levels)
        # Each product has a weight and a zero point of its own: ONNX Runtime's conversion to unsigned weights, for
        # processors without VNNI, refuses shared ones. In the weights' file what is equal is stored once.
        stored, weight_scale = self._quantize_weight(
            product.weight, f"{output}.weight", channels=0 if product.transposed else 1
        )
        if product.transposed:
            self._add("Transpose", [stored], f"{stored}.transposed", perm=[1, 0])  # folded when a session is made
            stored = f"{stored}.transposed"
        weight_zero_point = self._constant(f"{output}.weight_zero_point", np.array(0, np.int8))
        calibrated = self.scales.get(self.matrices.key(product)) if self.scales else None
        if calibrated is not None:
            quantized, scale = self._quantize_by_constant(product, calibrated)
            bias = [] if product.bias is None else [product.bias]
            inputs = [quantized, stored, scale, weight_scale, zero_point, weight_zero_point, *bias]
            self._add("MatMulIntegerToFloat", inputs, output, domain="com.microsoft")
            return
        quantized, largest = self._quantize_rows(product)
        inputs = [quantized, stored, self._unit(product.levels), weight_scale, zero_point, weight_zero_point]
        self._add("MatMulIntegerToFloat", inputs, f"{output}.shares", domain="com.microsoft")
        if product.bias is None:
            self._add("Mul", [f"{output}.shares", largest], output)
        else:
            self._add("Mul", [f"{output}.shares", largest], f"{output}.product")
            self._add("Add", [f"{output}.product", product.bias], output)

    def _embedding(self, node: onnx.NodeProto, table: str) -> None:
        """Rows of the 8-bit table, each times its token's scale."""
        output, ids = node.output[0], node.input[1]
        stored, scale = self._quantize_weight(table, f"{table}.rows", channels=0)
        last = self._constant("last_axis", np.array([-1]))
        self._add("Unsqueeze", [scale, last], f"{output}.scales")  # [V, 1], folded when a session is made
        self._add("Gather", [stored, ids], f"{output}.stored", axis=0)
        self._add("Gather", [f"{output}.scales", ids], f"{output}.scale", axis=0)
        self._add("Cast", [f"{output}.stored"], f"{output}.levels", to=onnx.TensorProto.FLOAT)
        self._add("Mul", [f"{output}.levels", f"{output}.scale"], output)

    def _quantize_by_constant(self, product: Product, scale: float) -> tuple[str, str]:
        """A product's activation in 8 bits by a calibrated scale, and that scale; once however many use it."""
        name = product.activation
        if (name, scale) not in self.quantized_inputs:
            q = f"{name}.int8.calibrated{len(self.quantized_inputs)}"
            constant = self._constant(f"scale{len(self.quantized_inputs)}", np.array(scale, np.float32))
            source = self.matrices.rectified.get(name, name)
            self._add("QuantizeLinear", [source, constant, self._zero_point(product.levels)], q)
            self.quantized_inputs[name, scale] = (q, constant)
        return self.quantized_inputs[name, scale]

    def _quantize_rows(self, product: Product) -> tuple[str, str]:
        """A product's activation in 8 bits, as shares of the largest magnitude of its row, and that, [..., 1].

        Once however many use it. What becomes of a row of zeros, divided by 0, is any level; it is multiplied by 0.
        """
        name = product.activation
        if (name, None) not in self.quantized_inputs:
            q, last = f"{name}.int8", self._constant("last_axis", np.array([-1]))
            source = self.matrices.rectified.get(name, name)
            if source != name:
                self._add("ReduceMax", [source, last], f"{q}.most", keepdims=1)
                self._add("Relu", [f"{q}.most"], f"{q}.largest")
            else:
                self._add("Abs", [name], f"{q}.magnitude")
                self._add("ReduceMax", [f"{q}.magnitude", last], f"{q}.largest", keepdims=1)
            self._add("Div", [source, f"{q}.largest"], f"{q}.shares")
            inputs = [f"{q}.shares", self._unit(product.levels), self._zero_point(product.levels)]
            self._add("QuantizeLinear", inputs, q)
            self.quantized_inputs[name, None] = (q, f"{q}.largest")
        return self.quantized_inputs[name, None]

    def _quantize_weight(self, name: str, stored: str, *, channels: int) -> tuple[str, str]:
        """Adds the 8-bit form of a weight matrix, and its scales along the axis `channels`; returns their names."""
        scale = f"{name}.scale.{channels}"
        values, scales = quantize_weight(numpy_helper.to_array(self.matrices.constants[name]), channels)
        self.added[stored] = numpy_helper.from_array(values, stored)
        self.added[scale] = numpy_helper.from_array(scales, scale)
        return stored, scale

    def _zero_point(self, levels: Levels) -> str:
        return self._constant(f"zero_point.{levels.zero_point}", np.array(levels.zero_point, np.uint8))

    def _unit(self, levels: Levels) -> str:
        return self._constant(f"unit.{levels.largest}", np.array(levels.unit))

    def _constant(self, name: str, value: NDArray[np.generic]) -> str:
        name = f"int8.{name}"
        self.added.setdefault(name, numpy_helper.from_array(value, name))
        return name

    def _add(self, operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> None:
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))


def quantized_weights(graph: Graph) -> list[NDArray[np.float32]]:
    """The matrices of a graph in fp32 that its int8 form holds in 8 bits."""
    matrices = Matrices(graph.model)
    names = {product.weight for product in matrices.products()}
    names.update(table for node in graph.model.graph.node if (table := matrices.embedding(node)) is not None)
    return [numpy_helper.to_array(tensor) for name, tensor in matrices.constants.items() if name in names]


def rectified_weights(graphs: Iterable[Graph]) -> Set[str]:
    """The keys of all matrices that some of these graphs in fp32 multiply what a ReLU gives with."""
    every = (Matrices(graph.model) for graph in graphs)
    return {
        matrices.key(product) for matrices in every for product in matrices.products() if product.levels is RECTIFIED
    }


def weight_key(weight: NDArray[np.float32]) -> str:
    """A name for a weight matrix [K, N], whatever its graph calls it: graphs of one model share no other names."""
    digest = hashlib.sha256(np.ascontiguousarray(weight).tobytes())
    digest.update(repr(weight.shape).encode())
    return digest.hexdigest()


def quantize_weight(weight: NDArray[np.float32], channels: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """A weight matrix in 8 bits, symmetric, with one scale for each index of the axis `channels`.

    Returns:
        Values of the matrix's shape, up to `WEIGHT_LEVELS` on either side of 0, and scales [channels]; weight is about
        value * scale.
    """
    largest = np.abs(weight).max(axis=1 - channels)
    scales = np.maximum(largest / WEIGHT_LEVELS, SMALLEST_SCALE).astype(np.float32)
    return np.rint(weight / np.expand_dims(scales, 1 - channels)).astype(np.int8), scales


def _is_plain(node: onnx.NodeProto) -> bool:
    """Whether a Gemm is a plain product plus bias, as linear layers are exported."""
    return all(
        (attribute.name == "transB")
        or (attribute.name in ("alpha", "beta") and attribute.f == 1)
        or (attribute.name == "transA" and attribute.i == 0)
        for attribute in node.attribute
    )
