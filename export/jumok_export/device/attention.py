"""Attention in ONNX's own operators: ONNX Runtime's fused operator needs other layouts on CUDA."""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

from jumok_export.graphs.graph import Graph

_FUSED = "MultiHeadAttention"
_HEADS_FIRST = "ScatterND"
"""Keys and values from state buffers are split into heads already."""


def with_plain_attention(graph: Graph) -> Graph:
    """Replace fused attention by products and softmax.

    On CUDA the fused operator copies keys and values that are split into heads, the whole cache at every step. It takes
    lengths only in some modes.
    """
    model = graph.copy_model()
    plain = _Plain({spec.name for spec in graph.inputs if len(spec.axes) == 4})
    nodes = list(model.graph.node)
    del model.graph.node[:]
    for node in nodes:
        model.graph.node.extend(plain.nodes_for(node))
    model.graph.initializer.extend(plain.constants.values())
    return Graph(model, graph.inputs, graph.outputs)


class _Plain:
    """Rewrites nodes, one after another.

    Args:
        in_heads: names of keys and values [B, heads, T, D]; others are [B, T, heads * D].
    """

    def __init__(self, in_heads: set[str]) -> None:
        self._in_heads = in_heads
        self._masks: dict[tuple[str, str], str] = {}  # by lengths and kind of keys
        self.constants: dict[str, onnx.TensorProto] = {}

    def nodes_for(self, node: NodeProto) -> Sequence[NodeProto]:
        """The nodes that replace a node: itself, unless it is fused attention."""
        if node.op_type == _HEADS_FIRST:
            self._in_heads.update(node.output)
        return self._attention(node) if node.op_type == _FUSED else [node]

    def _attention(self, node: NodeProto) -> list[NodeProto]:
        query, key, value, _, lengths, bias = [*node.input, *[""] * (6 - len(node.input))]
        settings = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        heads, scale = settings["num_heads"], float(settings["scale"])
        out, make = node.output[0], helper.make_node
        split = self._constant(f"split.{heads}", np.array([0, 0, heads, -1]))  # 0 keeps a size
        nodes = [
            make("Reshape", [query, split], [f"{out}.queries.split"]),
            make("Transpose", [f"{out}.queries.split"], [f"{out}.queries"], perm=[0, 2, 1, 3]),
        ]
        if key in self._in_heads:
            nodes.append(make("Transpose", [key], [f"{out}.keys"], perm=[0, 1, 3, 2]))
            values = value
        else:
            values = f"{out}.values"
            nodes += [
                make("Reshape", [key, split], [f"{out}.keys.split"]),
                make("Transpose", [f"{out}.keys.split"], [f"{out}.keys"], perm=[0, 2, 3, 1]),
                make("Reshape", [value, split], [f"{values}.split"]),
                make("Transpose", [f"{values}.split"], [values], perm=[0, 2, 1, 3]),
            ]
        scores = f"{out}.products"
        nodes.append(make("MatMul", [f"{out}.queries", f"{out}.keys"], [scores]))
        if scale != 1.0:
            factor = self._constant(f"scale.{scale!r}", np.array(scale, np.float32))
            nodes.append(make("Mul", [scores, factor], [f"{out}.scaled"]))
            scores = f"{out}.scaled"
        if lengths:
            mask, made = self._mask(lengths, key)
            nodes += [*made, make("Add", [scores, mask], [f"{out}.within"])]
            scores = f"{out}.within"
        if bias:
            nodes.append(make("Add", [scores, bias], [f"{out}.biased"]))
            scores = f"{out}.biased"
        merged = self._constant("merged", np.array([0, 0, -1]))
        return [
            *nodes,
            make("Softmax", [scores], [f"{out}.weights"], axis=-1),
            make("MatMul", [f"{out}.weights", values], [f"{out}.in_heads"]),
            make("Transpose", [f"{out}.in_heads"], [f"{out}.in_order"], perm=[0, 2, 1, 3]),
            make("Reshape", [f"{out}.in_order", merged], [out]),
        ]

    def _mask(self, lengths: str, key: str) -> tuple[str, list[NodeProto]]:
        """The additive mask [B, 1, 1, T] of keys beyond a sentence's length [B].

        All layers of a graph share it: they have equally many keys.
        """
        kind = "in_heads" if key in self._in_heads else "side_by_side"
        mask = f"{lengths}.mask.{kind}"
        if (lengths, kind) in self._masks:
            return mask, []
        self._masks[lengths, kind] = mask
        axis, make = 2 if kind == "in_heads" else 1, helper.make_node
        first, one = (self._constant(f"number.{number}", np.array(number, np.int32)) for number in (0, 1))
        return mask, [
            make("Shape", [key], [f"{mask}.size"], start=axis, end=axis + 1),
            make("Squeeze", [f"{mask}.size"], [f"{mask}.most"]),
            make("Cast", [f"{mask}.most"], [f"{mask}.limit"], to=onnx.TensorProto.INT32),
            make("Range", [first, f"{mask}.limit", one], [f"{mask}.places"]),
            make("Unsqueeze", [lengths, self._constant("by_sentence", np.array([1, 2, 3]))], [f"{mask}.lengths"]),
            make("Less", [f"{mask}.places", f"{mask}.lengths"], [f"{mask}.seen"]),
            make(
                "Where",
                [
                    f"{mask}.seen",
                    self._constant("seen", np.array(0, np.float32)),
                    self._constant("unseen", np.array(np.finfo(np.float32).min)),
                ],
                [mask],
            ),
        ]

    def _constant(self, name: str, value: np.ndarray) -> str:
        name = f"attention.{name}"
        self.constants.setdefault(name, numpy_helper.from_array(value, name))
        return name
