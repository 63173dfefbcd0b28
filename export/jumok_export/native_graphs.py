"""The graphs that decode with the native operators of `jumok_serve.native`: one operator in place of many."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from jumok_export.onnx_graph import Graph, declare, drop_unread, reads, rename
from jumok_serve.manifest import TensorSpec
from jumok_serve.opening import NATIVE
from jumok_serve.session import LISTED, LOGIT_ROWS

DOMAIN = "jumok"
VERSION = 1

KEYS_AND_VALUES = {"SelfAttention": (3, 4), "CrossAttention": (1, 2)}
"""Which inputs of attention are all keys and values, in heads."""
HALF, QUANTIZED = "Half", "Quantized"
"""What begins the names of operators that take these in fp16, and ends those of operators that give 8 bits."""
CHOICE = (
    "scores",
    "candidates",
    *(
        f"{stage}_{kind}.{part}"
        for stage in ("logit", "log_prob")
        for kind in ("factors", "biases")
        for part in ("places", "values")
    ),
    "renormalize",
)
"""What `Select` reads behind the logits."""

UNSEEN = -1e38
"""A mask adds less than this to scores of what may not be seen."""
_OF_ROWS = ("token_ids", "positions")
_ROW_BY_ROW = frozenset({
    *("Add", "Sub", "Mul", "Div", "MatMul", "Gemm", "MatMulIntegerToFloat", "MultiHeadAttention"),
    *("LayerNormalization", "QuantizeLinear", "Gather", "GatherND", "Unsqueeze", "Cast", "Relu", "Gelu", "Sigmoid"),
})  # fmt: skip
"""Operators that give as many rows as they are given."""


def with_native_graphs(graphs: Mapping[str, Graph], *, half: bool) -> dict[str, Graph]:
    """The finished graphs of a precision, with decoders in native operators besides where these replace something.

    Args:
        graphs: with the selection in every decoder.
        half: whether memory and state are in fp16, if native operators alone read them. The encoder has another form
            then, which gives it so.
    """
    decoders = {name: graphs[name] for name in ("decoder", f"decoder{LISTED}") if name in graphs}
    native = {name: made for name, decoder in decoders.items() if (made := native_graph(decoder)) is not None}
    if len(native) < len(decoders):
        return dict(graphs)
    halved = {name: made for name, decoder in native.items() if half and (made := _halved(decoder)) is not None}
    if len(halved) == len(native):
        native = {"encoder": _giving_half(graphs["encoder"], halved["decoder"]), **halved}
    return {**graphs, **{f"{name}{NATIVE}": graph for name, graph in native.items()}}


def native_graph(decoder: Graph) -> Graph | None:
    """A decoder in native operators; None if they replace nothing.

    These are attention with the cache that is written for it, sums with their normalisation, the rounding to 8 bits
    behind both, and the selection.
    """
    model = onnx.ModelProto()
    model.CopyFrom(decoder.model)
    _round_first(model.graph)
    found = _Found(model.graph)
    replaced: dict[str, NodeProto] = {}  # by what a node gives that another takes the place of
    for node in model.graph.node:
        native = _self_attention(found, node) or _cross_attention(found, node) or _add_norm(found, node)
        if native is not None:
            replaced[node.output[0]] = native
    select = _select(found)
    if select is not None:
        replaced["tokens"] = select
    if not replaced:
        return None
    given = {name for native in replaced.values() for name in native.output if name}
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        at = next((name for name in node.output if name in replaced), None)
        if at is not None:
            nodes.append(replaced[at])
        elif given.isdisjoint(node.output):
            nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    drop_unread(model.graph)
    model.opset_import.append(helper.make_opsetid(DOMAIN, VERSION))
    declare(model, decoder.inputs, decoder.outputs)
    return Graph(model, decoder.inputs, decoder.outputs)


class _Found:
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


def _round_first(graph: onnx.GraphProto) -> None:
    """Rounds what is reshaped before that instead of behind it, where what gives it can do so as well."""
    found = _Found(graph)
    for node in graph.node:
        reshaped = node.input[0] if node.op_type == "QuantizeLinear" else ""
        reshape = found.maker(reshaped, "Reshape")
        if reshape is None or found.only_reader(reshaped) is None or found.rounding(reshaped) is None:
            continue
        rounded, output = f"{reshape.input[0]}.{node.output[0]}", node.output[0]
        first = helper.make_node("QuantizeLinear", [reshape.input[0], *node.input[1:]], [rounded])
        second = helper.make_node("Reshape", [rounded, reshape.input[1]], [output])
        second.attribute.extend(reshape.attribute)
        reshape.CopyFrom(first)
        node.CopyFrom(second)


def _self_attention(found: _Found, node: NodeProto) -> NodeProto | None:
    """Attention to the entries of a state that each row sees, and what writes the rows' own entries before."""
    inputs = _attention_inputs(node)
    if inputs is None or inputs[4]:
        return None
    query, written_key, written_value, _, _, bias = inputs
    key, value = (_entry(found, name, _attributes(node)["num_heads"]) for name in (written_key, written_value))
    position_bias = _position_bias(found, bias)
    if key is None or value is None or position_bias is None or not found.in_heads(key[1], value[1]):
        return None
    read = [query, key[0], value[0], key[1], value[1], "places", "visible", position_bias]
    return _attention(found, node, "SelfAttention", read, [written_key, written_value])


def _cross_attention(found: _Found, node: NodeProto) -> NodeProto | None:
    """Attention to memory, as far as sources are long."""
    inputs = _attention_inputs(node)
    if inputs is None or inputs[5]:
        return None
    query, key, value, _, lengths, _ = inputs
    cast = found.maker(lengths, "Cast")
    if cast is None or cast.input[0] != "source_lengths" or not found.in_heads(key, value):
        return None
    return _attention(found, node, "CrossAttention", [query, key, value, "source_lengths"], [])


def _attention_inputs(node: NodeProto) -> list[str] | None:
    """Query, key, value, nothing, lengths and bias of fused attention, "" where there are none; None for others."""
    if node.op_type != "MultiHeadAttention":
        return None
    inputs = [*node.input, *[""] * (6 - len(node.input))]
    return inputs if len(inputs) == 6 and not inputs[3] and {"num_heads", "scale"} <= _attributes(node).keys() else None


def _attention(found: _Found, node: NodeProto, operator: str, inputs: list[str], caches: Sequence[str]) -> NodeProto:
    """A native operator in place of fused attention, rounding what it gives if that is all that becomes of it."""
    attributes, output = _attributes(node), node.output[0]
    rounding = found.rounding(output) if found.only_reader(output) else None
    if rounding is not None:
        operator, output = f"{operator}{QUANTIZED}", rounding.output[0]
        inputs = [*inputs, *rounding.input[1:]]
    elif not inputs[-1]:
        inputs = inputs[:-1]
    return _native(operator, inputs, [output, *caches], num_heads=attributes["num_heads"], scale=attributes["scale"])


def _entry(found: _Found, written: str, heads: int) -> tuple[str, str] | None:
    """The new keys or values [B, K, W] in a state that attention alone reads, and the state before."""
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


def _position_bias(found: _Found, bias: str) -> str | None:
    """What is added to scores besides the mask of what is visible, "" if nothing is; None without such a mask."""
    if _masks(found, bias):
        return ""
    both = found.maker(bias, "Add")
    for mask, other in (both.input, reversed(both.input)) if both is not None else ():
        turned = found.maker(other, "Transpose")
        if _masks(found, mask) and turned is not None and len(_attributes(turned).get("perm", ())) == 4:
            return other
    return None


def _masks(found: _Found, bias: str) -> bool:
    """Whether scores are added 0 where entries are visible, and the least number elsewhere."""
    where = found.maker(bias, "Where")
    if where is None or found.unsqueezed(where.input[0]) != "visible":
        return False
    seen, unseen = (found.constant(name) for name in where.input[1:])
    return seen is not None and unseen is not None and bool(np.all(seen == 0) and np.all(unseen < UNSEEN))


def _add_norm(found: _Found, node: NodeProto) -> NodeProto | None:
    """A sum, its normalisation, and the rounding of that; what nobody else reads is not given."""
    if node.op_type != "Add" or not found.of_rows.issuperset(node.input):
        return None
    total = node.output[0]
    norm = next((each for each in found.readers.get(total, []) if _normalises(found, each, total)), None)
    if norm is None:
        return None
    normal = norm.output[0]
    rounding = found.rounding(normal)
    inputs = [*node.input, *norm.input[1:]]
    outputs = [total if found.read_besides(total, norm) else "", normal]
    if rounding is not None:
        inputs += rounding.input[1:]
        outputs = [outputs[0], normal if found.read_besides(normal, rounding) else "", rounding.output[0]]
    operator = "AddNorm" if rounding is None else f"AddNorm{QUANTIZED}"
    return _native(operator, inputs, outputs, epsilon=_attributes(norm).get("epsilon", 1e-5))


def _normalises(found: _Found, node: NodeProto, total: str) -> bool:
    """Whether a node normalises a tensor over its last axis, by weights and biases that are constant."""
    return (
        node.op_type == "LayerNormalization"
        and node.input[0] == total
        and len(node.input) == 3
        and found.constants.keys() >= set(node.input[1:])
        and len(node.output) == 1
        and _attributes(node).get("axis", -1) == -1
    )


def _select(found: _Found) -> NodeProto | None:
    """The selection from the logits of which those are given that are asked for."""
    asked = found.maker("logits", "Slice")
    if asked is None or LOGIT_ROWS not in asked.input or not found.inputs.issuperset(CHOICE):
        return None
    return _native("Select", [asked.input[0], *CHOICE], ["tokens", "totals"])


def _attributes(node: NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def _native(operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> NodeProto:
    return helper.make_node(operator, inputs, outputs, domain=DOMAIN, **attributes)


def _halved(decoder: Graph) -> Graph | None:
    """A decoder with memory and state in fp16; None if other operators than attention read some of these."""
    halved = {spec.name for spec in decoder.inputs if spec.name.startswith(("memory.", "state."))}
    model = onnx.ModelProto()
    model.CopyFrom(decoder.model)
    for node in model.graph.node:
        places = KEYS_AND_VALUES.get(node.op_type.removesuffix(QUANTIZED), ()) if node.domain == DOMAIN else ()
        if places:
            node.op_type = f"{HALF}{node.op_type}"
        read = [name for index, name in enumerate(node.input) if index not in places]
        if not halved.isdisjoint(read) or not halved.issuperset(node.input[index] for index in places):
            return None
    if not halved:
        return None
    inputs, outputs = (
        tuple(_in_half(spec) if spec.name.removeprefix("next_") in halved else spec for spec in specs)
        for specs in (decoder.inputs, decoder.outputs)
    )
    declare(model, inputs, outputs)
    return Graph(model, inputs, outputs)


def _giving_half(encoder: Graph, decoder: Graph) -> Graph:
    """An encoder that gives in fp16 what a decoder takes so."""
    halved = {spec.name for spec in decoder.inputs if spec.dtype == "float16"}
    model = onnx.ModelProto()
    model.CopyFrom(encoder.model)
    cast = [spec.name for spec in encoder.outputs if spec.name in halved]
    rename(model.graph, lambda name: f"{name}.fp32" if name in cast else name)
    model.graph.node.extend(helper.make_node("Cast", [f"{name}.fp32"], [name], to=TensorProto.FLOAT16) for name in cast)
    outputs = tuple(_in_half(spec) if spec.name in cast else spec for spec in encoder.outputs)
    declare(model, encoder.inputs, outputs)
    return Graph(model, encoder.inputs, outputs)


def _in_half(spec: TensorSpec) -> TensorSpec:
    return spec.model_copy(update={"dtype": "float16"})
