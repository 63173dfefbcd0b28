"""Producers and readers of a graph's tensors, for fusion rules."""

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from jumok_export.graphs.graph import reads

_OF_ROWS = ("token_ids", "positions", "source_ids")
_ROW_BY_ROW = frozenset({
    *("Add", "Sub", "Mul", "Div", "MatMul", "Gemm", "MatMulIntegerToFloat", "MultiHeadAttention"),
    *("LayerNormalization", "QuantizeLinear", "Gather", "GatherND", "Unsqueeze", "Cast", "Relu", "Gelu", "Sigmoid"),
})  # fmt: skip
"""Operators whose outputs have as many rows as their inputs."""


class Found:
    """Index of a graph: producers, readers, constants."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.inputs = {value.name for value in graph.input}
        self.outputs = {value.name for value in graph.output}
        self.readers: dict[str, list[NodeProto]] = {}
        self.of_rows = set(_OF_ROWS)
        """Names of tensors whose first axis is the rows, or the sentences in an encoder."""
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self._axes = {value.name: list(value.type.tensor_type.shape.dim) for value in graph.input}
        self._makers = {name: node for node in graph.node for name in node.output}
        for node in graph.node:
            for name in reads(node):
                self.readers.setdefault(name, []).append(node)
            by_beams = node.op_type == "Reshape" and node.input[0] in _OF_ROWS  # rows as sentences and their beams
            if by_beams or (node.op_type in _ROW_BY_ROW and not self.of_rows.isdisjoint(node.input)):
                self.of_rows.update(node.output)

    def maker(self, name: str, operator: str) -> NodeProto | None:
        """The node that computes a tensor, if it is this operator."""
        node = self._makers.get(name)
        return node if node is not None and node.op_type == operator else None

    def only_reader(self, name: str) -> NodeProto | None:
        """The only node that reads a tensor; None if there are more, or if it is a graph output."""
        readers = self.readers.get(name, [])
        return readers[0] if len(readers) == 1 and name not in self.outputs else None

    def constant(self, name: str) -> NDArray[Any] | None:
        """The value of a small constant in the graph itself, or None."""
        tensor = self.constants.get(name)
        if tensor is None or tensor.data_location == TensorProto.EXTERNAL:
            return None
        return numpy_helper.to_array(tensor)

    def read_besides(self, name: str, reader: NodeProto) -> bool:
        """True if another node than `reader` reads a tensor, or it is an output."""
        return name in self.outputs or any(each is not reader for each in self.readers[name])

    def in_heads(self, key: str, value: str) -> bool:
        """True if keys and values are graph inputs split into heads.

        Both have the same shape.
        """
        return len(self._axes.get(key, ())) == 4 and self._axes[key] == self._axes.get(value)

    def unsqueezed(self, name: str) -> str | None:
        """The tensor before an `Unsqueeze`, or None."""
        node = self.maker(name, "Unsqueeze")
        return None if node is None else node.input[0]

    def rounding(self, name: str) -> NodeProto | None:
        """The first node that quantizes a tensor to uint8 with one constant scale, or None."""
        for node in self.readers.get(name, []):
            if node.op_type == "QuantizeLinear" and len(node.input) == 3:
                scale, zero_point = (self.constant(each) for each in node.input[1:])
                if scale is not None and zero_point is not None and scale.ndim == 0 and zero_point.dtype == np.uint8:
                    return node
        return None


def attributes(node: NodeProto) -> dict[str, Any]:
    """A node's attributes as Python values."""
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
