"""Native attention: over the KV cache, over memory, and within a source."""

from collections.abc import Sequence

import numpy as np
from onnx import NodeProto

from jumok_export.graphs.matching import Found, attributes
from jumok_export.native.operators import QUANTIZED, native

UNSEEN = -1e38
"""Masks add less than this to the scores of invisible entries."""


def self_attention(found: Found, node: NodeProto) -> NodeProto | None:
    """Replace self-attention over visible cache entries, including the cache write."""
    inputs = _attention_inputs(node)
    if inputs is None or inputs[4]:
        return None
    query, written_key, written_value, _, _, bias = inputs
    key, value = (_entry(found, name, attributes(node)["num_heads"]) for name in (written_key, written_value))
    position_bias = _position_bias(found, bias)
    if key is None or value is None or position_bias is None or not found.in_heads(key[1], value[1]):
        return None
    read = [query, key[0], value[0], key[1], value[1], "places", "visible", position_bias]
    return _attention(found, node, "SelfAttention", read, [written_key, written_value])


def cross_attention(found: Found, node: NodeProto) -> NodeProto | None:
    """Replace attention over memory, or a source over itself.

    Attention goes up to the source lengths.
    """
    inputs = _attention_inputs(node)
    if inputs is None or inputs[5]:
        return None
    query, key, value, _, lengths, _ = inputs
    cast = found.maker(lengths, "Cast")
    if cast is None or cast.input[0] != "source_lengths":
        return None
    if not found.in_heads(key, value) and not found.of_rows.issuperset((key, value)):
        return None
    return _attention(found, node, "CrossAttention", [query, key, value, "source_lengths"], [])


def _attention_inputs(node: NodeProto) -> list[str] | None:
    """Inputs of a fused attention, "" if absent; None for other nodes.

    They are query, key, value, nothing, lengths and bias.
    """
    if node.op_type != "MultiHeadAttention":
        return None
    inputs = [*node.input, *[""] * (6 - len(node.input))]
    return inputs if len(inputs) == 6 and not inputs[3] and {"num_heads", "scale"} <= attributes(node).keys() else None


def _attention(found: Found, node: NodeProto, operator: str, inputs: list[str], caches: Sequence[str]) -> NodeProto:
    """The native operator for a fused attention, with following quantization.

    The output is quantized if nothing else reads it.
    """
    given, output = attributes(node), node.output[0]
    rounding = found.rounding(output) if found.only_reader(output) else None
    if rounding is not None:
        operator, output = f"{operator}{QUANTIZED}", rounding.output[0]
        inputs = [*inputs, *rounding.input[1:]]
    elif not inputs[-1]:
        inputs = inputs[:-1]
    return native(operator, inputs, [output, *caches], num_heads=given["num_heads"], scale=given["scale"])


def _entry(found: Found, written: str, heads: int) -> tuple[str, str] | None:
    """New keys or values [B, K, W] and old state of an attention.

    Attention must be the only reader of the new state.
    """
    scatter = found.maker(written, "ScatterND")
    if scatter is None or len(found.readers[written]) != 1 or scatter.input[0] not in found.inputs:
        return None
    places, split = found.maker(scatter.input[1], "Add"), found.maker(scatter.input[2], "Reshape")
    if places is None or split is None or found.unsqueezed(places.input[0]) != "places":
        return None
    first = found.constant(places.input[1])  # of every head
    if first is None or not np.array_equal(first, [[0, head, 0] for head in range(heads)]):
        return None
    return split.input[0], scatter.input[0]


def _position_bias(found: Found, bias: str) -> str | None:
    """The bias besides the visibility mask, or "".

    None if there is no such mask.
    """
    if _masks(found, bias):
        return ""
    both = found.maker(bias, "Add")
    for mask, other in (both.input, reversed(both.input)) if both is not None else ():
        turned = found.maker(other, "Transpose")
        if _masks(found, mask) and turned is not None and len(attributes(turned).get("perm", ())) == 4:
            return other
    return None


def _masks(found: Found, bias: str) -> bool:
    """True if a bias is 0 for visible entries, lowest for others."""
    where = found.maker(bias, "Where")
    if where is None or found.unsqueezed(where.input[0]) != "visible":
        return False
    seen, unseen = (found.constant(name) for name in where.input[1:])
    return seen is not None and unseen is not None and bool(np.all(seen == 0) and np.all(unseen < UNSEEN))
