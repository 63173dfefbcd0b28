"""Native logits of listed tokens, and their weights in the order in which kernels read them."""

from collections.abc import Sequence

from onnx import NodeProto, TensorProto

from jumok_export.graphs.graph import Graph, declare, drop_unread
from jumok_export.graphs.matching import Found, attributes
from jumok_export.graphs.shortlist_decoder import SCALE, WEIGHT
from jumok_export.native.operators import DOMAIN, VERSION, native
from jumok_serve.bundle.shortlist import WIDTH_STEP
from jumok_serve.manifest.manifest import TensorSpec
from jumok_serve.runtime.graphs import SATURATES
from jumok_serve.runtime.step_selection import BIAS

SUMS = "projection.sums"
"""Sums of the listed tokens' int8 weights, [U], for the zero point's share of a product."""
_PRODUCT = "ListedProduct"
_CHUNK = 4
"""Weights of a token that kernels read together."""


def listed_logits(specs: Sequence[TensorSpec], found: Found, node: NodeProto) -> NodeProto | None:
    """Replace the reordering of a shortlist's products and the addition of its biases.

    The product is included if its activations have one constant scale: rows' own scales are multiplied after it.

    Args:
        specs: inputs of the decoder.
    """
    added = found.maker(node.input[0], "Add") if node.op_type == "Reshape" else None
    if added is None:
        return None
    by_sentence, biases = found.maker(added.input[0], "Reshape"), found.unsqueezed(added.input[1])
    by_row = found.maker(by_sentence.input[0], "Reshape") if by_sentence is not None else None
    turned = found.maker(by_row.input[0], "Transpose") if by_row is not None else None
    if turned is None or attributes(turned).get("perm") != [1, 0, 2] or biases != BIAS or BIAS not in found.inputs:
        return None
    quantized = _quantized(found, turned.input[0])
    if quantized and any(spec.name == WEIGHT and _in_chunks(spec) for spec in specs):
        return native(_PRODUCT, [*quantized, WEIGHT, SCALE, SUMS, BIAS], [node.output[0]])
    return native("ListedLogits", [turned.input[0], BIAS], [node.output[0]])


def _quantized(found: Found, name: str) -> list[str]:
    """Activation, scale and zero point of the product with a shortlist's weights; empty if it is none."""
    choice = found.maker(name, "If")
    for branch in choice.attribute if choice is not None else ():
        for node in branch.g.node:
            if node.op_type == "MatMulIntegerToFloat" and node.input[1] == WEIGHT:
                activation, _, scale, _, zero_point = node.input[:5]
                constants = found.constant(scale), found.constant(zero_point)
                if all(constant is not None and constant.ndim == 0 for constant in constants):
                    return [activation, scale, zero_point]
    return []


def _in_chunks(weight: TensorSpec) -> bool:
    _, depth, width = weight.axes
    return isinstance(depth, int) and depth % _CHUNK == 0 and width == WIDTH_STEP


def with_sums(decoder: Graph) -> Graph:
    """Declare the inputs of a decoder: with a native product of listed weights it reads their sums.

    Such a product never saturates.
    """
    inputs = decoder.inputs
    if any(node.op_type == _PRODUCT for node in decoder.model.graph.node):
        inputs = tuple(spec for spec in inputs if spec.name != SATURATES)
        inputs = (*inputs, TensorSpec(name=SUMS, dtype="int32", axes=("U",)))
    return declare(decoder.model, inputs, decoder.outputs)


def native_projection(projection: Graph, decoder: Graph) -> Graph | None:
    """Make the graph that gathers weights for a native decoder; None if that takes the plain graph's."""
    if not any(spec.name == SUMS for spec in decoder.inputs):
        return None
    model = projection.copy_model()
    found = Found(model.graph)
    turned = found.maker(WEIGHT, "Transpose")
    in_blocks = found.maker(turned.input[0], "Reshape") if turned is not None else None
    chosen = found.maker(in_blocks.input[0], "Gather") if in_blocks is not None else None
    if turned is None or chosen is None or found.constants[chosen.input[0]].data_type != TensorProto.INT8:
        raise ValueError("the weights of listed tokens are not gathered from an int8 matrix")
    packed = native("ListedWeights", chosen.input, [WEIGHT, SUMS], columns=WIDTH_STEP)
    nodes = [packed if node is turned else node for node in model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.opset_import.add(domain=DOMAIN, version=VERSION)
    outputs = (*projection.outputs, TensorSpec(name=SUMS, dtype="int32", axes=("U",)))
    declared = declare(model, projection.inputs, outputs)
    drop_unread(model.graph)
    return declared
