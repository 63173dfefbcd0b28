"""Who makes and who reads what in a graph, for rules that put one operator in place of several."""

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
"""Operators that give as many rows as they are given."""


class Found:
    """What is known of a graph: who makes what, and who reads it."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.inputs = {value.name for value in graph.input}
        self.outputs = {value.name for value in graph.output}
        self.readers: dict[str, list[NodeProto]] = {}
        self.of_rows = set(_OF_ROWS)
        """Names of what has a vector for each row."""
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self._axes = {value.name: list(value.type.tensor_type.shape.dim) for value in graph.input}
        self._makers = {name: node for node in graph.node for name in node.output}
        for node in graph.node:
            for name in reads(node):
                self.readers.setdefault(name, []).append(node)
            if node.op_type in _ROW_BY_ROW and not self.of_rows.isdisjoint(node.input):
                self.of_rows.update(node.output)

    def maker(self, name: str, operator: str) -> NodeProto | None:
        """The node that makes a tensor, if it is this operator."""
        node = self._makers.get(name)
        return node if node is not None and node.op_type == operator else None

    def only_reader(self, name: str) -> NodeProto | None:
        """The one node that reads a tensor that is no output of the graph."""
        readers = self.readers.get(name, [])
        return readers[0] if len(readers) == 1 and name not in self.outputs else None

    def constant(self, name: str) -> NDArray[Any] | None:
        """The value of a small constant; None for what is computed, or lies in a file of weights."""
        tensor = self.constants.get(name)
        if tensor is None or tensor.data_location == TensorProto.EXTERNAL:
            return None
        return numpy_helper.to_array(tensor)

    def read_besides(self, name: str, reader: NodeProto) -> bool:
        """Whether anybody but a node reads a tensor."""
        return name in self.outputs or any(each is not reader for each in self.readers[name])

    def in_heads(self, key: str, value: str) -> bool:
        """Whether keys and values are inputs of the graph of one shape, split into heads."""
        return len(self._axes.get(key, ())) == 4 and self._axes[key] == self._axes.get(value)

    def unsqueezed(self, name: str) -> str | None:
        """What a tensor is with an axis more."""
        node = self.maker(name, "Unsqueeze")
        return None if node is None else node.input[0]

    def rounding(self, name: str) -> NodeProto | None:
        """The first node that rounds a tensor to 8 bits by a constant scale."""
        for node in self.readers.get(name, []):
            if node.op_type == "QuantizeLinear" and len(node.input) == 3:
                scale, zero_point = (self.constant(each) for each in node.input[1:])
                if scale is not None and zero_point is not None and scale.ndim == 0 and zero_point.dtype == np.uint8:
                    return node
        return None


def attributes(node: NodeProto) -> dict[str, Any]:
    """A node's attributes as Python has them."""
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
