"""The part of an aligner that computes the cross-attention of some layers."""

from collections.abc import Sequence
from typing import Any

from jumok_serve.manifest.manifest import TensorSpec
from jumok_serve.runtime.graph_checks.encoded_source import EncodedSource, read_encoded
from jumok_serve.runtime.graph_checks.onnx_model import drop_unread, parse_model

_MASKING = "Mul"
"""Operator that sets the rows after a target's end to 0."""
_LAYER_AXIS = 1


def layers_part(
    content: bytes, output: TensorSpec, layers: Sequence[int], encoded: EncodedSource | None = None
) -> bytes | None:
    """Cut the graph that ends in the attention of some layers out of an aligner.

    An exported Transformer's aligner joins the layers' attention, and masks it: the part has one output for each layer,
    [B, 1, H, T, S], unmasked. It lacks all that the others need: later layers, and attention of other kinds.

    Args:
        content: the aligner, an ONNX model.
        output: the aligner's cross-attention.
        encoded: tensor that becomes an input of the part, which then lacks the encoder; None: none.

    Returns:
        An ONNX model; None if the aligner is built in another way.

    Raises:
        ValueError: the content is no ONNX model.
    """
    model = parse_model(content)
    graph = model.graph
    joined = _joined_layers(graph, output)
    if joined is None:
        return None
    del graph.output[:]
    for layer in layers:
        graph.output.add(name=joined[layer])
    drop_unread(graph)
    if encoded is not None:
        read_encoded(model, encoded)
    part: bytes = model.SerializeToString()
    return part


def _joined_layers(graph: Any, output: TensorSpec) -> Sequence[str] | None:
    """Return the tensor with the attention of each layer, or None."""
    makers = {name: node for node in graph.node for name in node.output}
    last = makers.get(output.name)
    before = [last] if last is None or last.op_type != _MASKING else [makers.get(name) for name in last.input]
    for node in before:
        if node is None or node.op_type != "Concat" or len(node.input) != output.axes[_LAYER_AXIS]:
            continue
        if [attribute.i for attribute in node.attribute if attribute.name == "axis"] == [_LAYER_AXIS]:
            names: Sequence[str] = node.input
            return names
    return None
