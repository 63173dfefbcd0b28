"""Weight matrices of fp32 graphs: the search for them, and what identifies one."""

import hashlib
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from jumok_export.graphs.graph import Graph, reads
from jumok_export.graphs.quantize_matrix import parts
from jumok_export.graphs.weights import values

EMBEDDING_ROWS = 64
"""Embeddings with fewer rows stay in fp32: they save nothing."""


@dataclass(frozen=True, kw_only=True)
class QuantizedRange:
    """The range of quantized activations.

    Attributes:
        zero_point: quantized value of 0.
        largest: quantized value of the largest magnitude, counted from the zero point.
    """

    zero_point: int
    largest: int

    @property
    def unit(self) -> np.float32:
        """The scale if the largest magnitude is 1."""
        return np.float32(1 / self.largest)


SIGNED = QuantizedRange(zero_point=128, largest=127)
"""Range of activations in general."""
RECTIFIED = QuantizedRange(zero_point=0, largest=255)
"""Range of ReLU outputs, which are never negative. Rounding to it replaces the ReLU."""


@dataclass(frozen=True, kw_only=True)
class Product:
    """A product of an activation with a constant matrix, in fp32.

    Attributes:
        activation: name of the activation, [..., K].
        output: name of the product, its bias added, [..., N].
        bias: name of the bias, [N], or None.
        transposed: True if the matrix is stored as [N, K] instead of [K, N].
    """

    activation: str
    weight: str
    output: str
    bias: str | None
    transposed: bool
    activation_range: QuantizedRange


class Matrices:
    """The constant fp32 matrices of a graph, with the nodes that use them.

    Args:
        signed: True to give ReLU outputs the range of activations in general.
    """

    def __init__(self, model: onnx.ModelProto, *, signed: bool = False) -> None:
        self._model = model
        floats = [tensor for tensor in model.graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT]
        self.constants = {tensor.name: tensor for tensor in floats if len(tensor.dims) == 2}
        self.vectors = {tensor.name: tensor for tensor in floats if len(tensor.dims) == 1}
        # The input of a product may be the output of a Transpose node, whose input is the weight.
        self._transposed = {
            node.output[0]: node.input[0]
            for node in model.graph.node
            if node.op_type == "Transpose" and node.input[0] in self.constants
        }
        relus = [] if signed else [node for node in model.graph.node if node.op_type == "Relu"]
        self.rectified = {node.output[0]: node.input[0] for node in relus}
        readers: dict[str, list[onnx.NodeProto]] = {value.name: [] for value in model.graph.output}
        outputs = set(readers)
        for node in model.graph.node:
            for name in reads(node):
                readers.setdefault(name, []).append(node)
        self._only_readers = {
            name: nodes[0] for name, nodes in readers.items() if len(nodes) == 1 and name not in outputs
        }

    def product(self, node: onnx.NodeProto) -> Product | None:
        """The product of a node with a matrix, and its bias, or None."""
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
            if not self._fits(bias, channels):
                return None
        elif (adding := self._only_readers.get(output)) is not None and adding.op_type == "Add":
            other = adding.input[0] if adding.input[1] == output else adding.input[1]
            if self._fits(other, channels):
                output, bias = adding.output[0], other
        return Product(
            activation=node.input[0],
            weight=weight,
            output=output,
            bias=bias,
            transposed=transposed,
            activation_range=RECTIFIED if node.input[0] in self.rectified else SIGNED,
        )

    def products(self) -> Iterator[Product]:
        """All products with the matrices, in the graph's order."""
        return (product for node in self._model.graph.node if (product := self.product(node)))

    def embedding(self, node: onnx.NodeProto) -> str | None:
        """The matrix of a node's row look-up, if large enough to quantize."""
        table = self.constants.get(node.input[0]) if node.op_type == "Gather" else None
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
        return None if table is None or axis != 0 or table.dims[0] < EMBEDDING_ROWS else table.name

    def _fits(self, bias: str, channels: int) -> bool:
        return bias in self.vectors and self.vectors[bias].dims[0] == channels

    def key(self, product: Product) -> str:
        """The `weight_key` of a product's matrix."""
        weight = values(self.constants[product.weight])
        return weight_key(weight.T if product.transposed else weight)


def quantized_matrices(graph: Graph) -> list[NDArray[np.float32]]:
    """The fp32 matrices that the graph's int8 form holds in 8 bits."""
    matrices = Matrices(graph.model)
    names = {product.weight for product in matrices.products()}
    names.update(table for node in graph.model.graph.node if (table := matrices.embedding(node)) is not None)
    return [values(tensor) for name, tensor in matrices.constants.items() if name in names]


def rectified_keys(graphs: Iterable[Graph]) -> Set[str]:
    """The keys of all matrices that fp32 graphs multiply with ReLU outputs."""
    every = (Matrices(graph.model) for graph in graphs)
    return {
        matrices.key(product)
        for matrices in every
        for product in matrices.products()
        if product.activation_range is RECTIFIED
    }


def weight_key(weight: NDArray[np.float32]) -> str:
    """Return a key of a matrix [K, N] by all of its content, since names differ among the graphs of a model.

    Values are hashed in the order of [N, K], in which linear layers and weights files have them: a copy in another
    order takes longer than the hash.
    """
    stored, digest = weight.T, hashlib.sha256(repr(weight.shape).encode())
    for part in parts(stored.shape, 0):
        digest.update(np.ascontiguousarray(stored[part]).data)
    return digest.hexdigest()


def _is_plain(node: onnx.NodeProto) -> bool:
    """True if a Gemm is a product plus bias, as in linear layers."""
    return all(
        (attribute.name == "transB")
        or (attribute.name in ("alpha", "beta") and attribute.f == 1)
        or (attribute.name == "transA" and attribute.i == 0)
        for attribute in node.attribute
    )
