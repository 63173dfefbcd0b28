"""Encoder and decoders in jumok's native operators: one operator replaces many."""

from collections.abc import Iterable, Mapping
from functools import partial

import onnx
from onnx import NodeProto, helper

from jumok_export.graphs.graph import Graph, declare, drop_unread, rename
from jumok_export.graphs.matching import Found, attributes
from jumok_export.native.attention import cross_attention, self_attention
from jumok_export.native.embedding import embedding, fuse_positions, rows_of
from jumok_export.native.int8_cache import entries_spec
from jumok_export.native.listed import listed_logits, native_projection, with_sums
from jumok_export.native.operators import DOMAIN, FLOAT, INT8, QUANTIZED, VERSION, native
from jumok_export.native.products import float_product, fuse_norms, fuse_threes, product
from jumok_export.native.row_quantization import quantized_rows
from jumok_export.native.ssru import fuse_units
from jumok_export.quantization.find_matrices import Matrices
from jumok_export.quantization.int8_graphs import MARIAN_ZERO_POINT
from jumok_serve.manifest.manifest import TensorSpec
from jumok_serve.runtime.graphs import LOGIT_ROWS, SLOTS

KEYS_AND_VALUES = {"SelfAttention": (3, 4), "CrossAttention": (1, 2)}
"""Inputs of the attention operators that are keys and values, in heads."""
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
"""Inputs of `Select` after the logits."""


def native_graphs(graphs: Mapping[str, Graph], *, int8_cache: bool) -> dict[str, Graph]:
    """Make the native forms of an encoder, its decoders, and the projection for one of them.

    Args:
        graphs: the finished `encoder`, and decoders with fused selection, one of them `decoder`; with
            `decoder_shortlist` also `projection`.
        int8_cache: True to keep keys and values in int8, if there is a KV cache and only native operators read them.
            The encoder then outputs memory in int8, even if nothing else in it is native.

    Returns:
        The native decoders by name, and the others if they change; nothing if a decoder does not change.
    """
    decoders = {name: graph for name, graph in graphs.items() if name not in {"encoder", "projection"}}
    encoder = graphs["encoder"]
    made = {name: native for name, decoder in decoders.items() if (native := native_graph(decoder)) is not None}
    if len(made) < len(decoders):
        return {}
    in_int8 = {
        name: graph for name, native in made.items() if int8_cache and (graph := _with_int8_cache(native)) is not None
    }
    native_encoder = native_graph(encoder)
    if len(in_int8) == len(made):
        made = in_int8
        native_encoder = _with_int8_memory(native_encoder or encoder, encoder, in_int8["decoder"])
    made = {name: _by_slot(decoder) for name, decoder in made.items()}
    if "projection" in graphs:
        projection = native_projection(graphs["projection"], made["decoder_shortlist"])
        made |= {} if projection is None else {"projection": projection}
    return made if native_encoder is None else {**made, "encoder": native_encoder}


def native_graph(graph: Graph) -> Graph | None:
    """Rewrite an encoder or a decoder in native operators; None if they replace nothing.

    They replace embeddings, quantization of rows, products with their activation, attention with its cache update, sums
    with their norm, quantization after all of these, recurrent units, memory by heads, a shortlist's logits, and the
    selection.
    """
    model = graph.copy_model()
    _round_first(model.graph)
    found, matrices = Found(model.graph), Matrices(model)
    add_norm = partial(_add_norm, _rounds_as_marian(found, model.graph.node))
    rules = (
        *(quantized_rows, product, partial(float_product, matrices), self_attention, cross_attention),
        *(add_norm, embedding, rows_of, partial(listed_logits, graph.inputs)),
    )
    replaced: dict[str, NodeProto] = {}  # new nodes by the output that they replace
    for node in model.graph.node:
        made = next((made for rule in rules if (made := rule(found, node)) is not None), None)
        if made is not None:
            replaced[node.output[0]] = made
    for spec in graph.outputs:
        tokens = _tokens(found, spec)
        if tokens is not None:
            replaced[spec.name] = native(f"{FLOAT}Entries", [tokens], [spec.name], num_heads=spec.axes[1])
    select = _select(found)
    if select is not None:
        replaced["tokens"] = select
    if not replaced:
        return None
    given = {name for made in replaced.values() for name in made.output if name}
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        at = next((name for name in node.output if name in replaced), None)
        if at is not None:
            nodes.append(replaced[at])
        elif given.isdisjoint(node.output):
            nodes.append(node)
    del model.graph.node[:]
    with_norms = fuse_norms(nodes, [spec.name for spec in graph.outputs], found.constants.keys())
    model.graph.node.extend(fuse_threes(fuse_units(found, with_norms)))
    fuse_positions(model.graph)
    drop_unread(model.graph)
    model.opset_import.append(helper.make_opsetid(DOMAIN, VERSION))
    return with_sums(Graph(model, graph.inputs, graph.outputs))


def _round_first(graph: onnx.GraphProto) -> None:
    """Quantize before a reshape instead of after.

    The operator before the reshape can then quantize.
    """
    found = Found(graph)
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


def _rounds_as_marian(found: Found, nodes: Iterable[NodeProto]) -> bool:
    """True if products are rounded as Marian rounds them: norms then have to be too.

    Sums in another order differ by some 1e-6, which rounding to int8 makes larger: of 1,000 sentences translated by a
    student, 4 to 6 more differed from Marian's.
    """
    products = (node for node in nodes if node.op_type == "MatMulIntegerToFloat")
    zero_points = (found.constant(name) for node in products for name in node.input[4:5])
    return any(each is not None and each.ndim == 0 and each == MARIAN_ZERO_POINT for each in zero_points)


def _add_norm(in_order: bool, found: Found, node: NodeProto) -> NodeProto | None:
    """Replace a sum, its norm and the norm's quantization.

    Outputs are only those that other nodes read.

    Args:
        in_order: True to sum in order, as Marian does.
    """
    added = list(node.input) if found.of_rows.issuperset(node.input) else _with_positions(found, node)
    if node.op_type != "Add" or not added:
        return None
    total = node.output[0]
    norm = next((each for each in found.readers.get(total, []) if _normalises(found, each, total)), None)
    if norm is None:
        return None
    normal = norm.output[0]
    rounding = found.rounding(normal)
    inputs = [*added, *norm.input[1:]]
    outputs = [total if found.read_besides(total, norm) else "", normal]
    if rounding is not None:
        inputs += rounding.input[1:]
        outputs = [outputs[0], normal if found.read_besides(normal, rounding) else "", rounding.output[0]]
    operator = "AddNorm" if rounding is None else f"AddNorm{QUANTIZED}"
    settings = {"in_order": 1} if in_order else {}
    return native(operator, inputs, outputs, epsilon=attributes(norm).get("epsilon", 1e-5), **settings)


def _with_positions(found: Found, node: NodeProto) -> list[str]:
    """The token vectors and the position table of a sum, or nothing."""
    for rows, other in (tuple(node.input), tuple(node.input)[::-1]) if len(node.input) == 2 else ():
        gather = found.maker(other, "Gather") or rows_of(found, found.maker(other, "GatherND"))
        numbers = found.maker(gather.input[1], "Range") if gather is not None else None
        if gather is None or numbers is None or rows not in found.of_rows or attributes(gather).get("axis", 0) != 0:
            continue
        length = found.maker(numbers.input[1], "Squeeze")
        shape = found.maker(length.input[0], "Shape") if length is not None else None
        first, step = (found.constant(numbers.input[index]) for index in (0, 2))
        if shape is None or shape.input[0] != "source_ids" or attributes(shape).get("start", 0) != 1:
            continue
        table = found.constants.get(gather.input[0])
        if first == 0 and step == 1 and table is not None and len(table.dims) == 2:
            return [rows, gather.input[0]]
    return []


def _normalises(found: Found, node: NodeProto, total: str) -> bool:
    """True if a node normalizes the last axis with constant parameters."""
    return (
        node.op_type == "LayerNormalization"
        and node.input[0] == total
        and len(node.input) == 3
        and found.constants.keys() >= set(node.input[1:])
        and len(node.output) == 1
        and attributes(node).get("axis", -1) == -1
    )


def _select(found: Found) -> NodeProto | None:
    asked = found.maker("logits", "Slice")
    if asked is None or LOGIT_ROWS not in asked.input or not found.inputs.issuperset(CHOICE):
        return None
    return native("Select", [asked.input[0], *CHOICE], ["tokens", "totals"])


def _with_int8_cache(decoder: Graph) -> Graph | None:
    """A decoder with int8 memory and KV cache, or None.

    None without a KV cache, or if other operators than attention read them. Memory beside a recurrent state is small:
    it stays in fp32, as in Marian.
    """
    if not any(spec.name == "visible" for spec in decoder.inputs):  # the state is recurrent
        return None
    kept = {spec.name for spec in decoder.inputs if spec.name.startswith(("memory.", "state."))}
    model = decoder.copy_model()
    for node in model.graph.node:
        places = KEYS_AND_VALUES.get(node.op_type.removesuffix(QUANTIZED), ()) if node.domain == DOMAIN else ()
        if places:
            node.op_type = f"{INT8}{node.op_type}"
        read = [name for index, name in enumerate(node.input) if index not in places]
        if not kept.isdisjoint(read) or not kept.issuperset(node.input[index] for index in places):
            return None
    inputs, outputs = (
        tuple(entries_spec(spec) if spec.name.removeprefix("next_") in kept else spec for spec in specs)
        for specs in (decoder.inputs, decoder.outputs)
    )
    return declare(model, inputs, outputs)


def _by_slot(decoder: Graph) -> Graph:
    """A decoder whose sentences may have any slots.

    Unchanged if other operators than attention read memory and state.

    Self-attention knows the slots already, from the positions of new tokens.
    """
    kept = {spec.name for spec in decoder.inputs if spec.name.startswith(("memory.", "state.", "visible"))}
    model = decoder.copy_model()
    for node in model.graph.node:
        attention = node.op_type.removeprefix(INT8).removesuffix(QUANTIZED) if node.domain == DOMAIN else ""
        if attention == "CrossAttention" and not kept.isdisjoint(node.input):
            node.input.append("places")
        elif attention != "SelfAttention" and not kept.isdisjoint(node.input):
            return decoder
    if not {"visible", "places"} <= {spec.name for spec in decoder.inputs}:
        return decoder
    inputs, outputs = (
        tuple(_in_slots(spec) if spec.name.removeprefix("next_") in kept else spec for spec in specs)
        for specs in (decoder.inputs, decoder.outputs)
    )
    return declare(model, inputs, outputs)


def _in_slots(spec: TensorSpec) -> TensorSpec:
    return spec.model_copy(update={"axes": (SLOTS, *spec.axes[1:])})


def _with_int8_memory(encoder: Graph, plain: Graph, decoder: Graph) -> Graph:
    """An encoder that outputs memory in int8, for a decoder that reads int8."""
    kept = {spec.name for spec in decoder.inputs if spec.dtype == "int8"}
    given = [spec for spec in encoder.outputs if spec.name in kept]
    model = encoder.copy_model()
    rename(model.graph, lambda name: f"{name}.fp32" if name in kept else name)
    found = Found(plain.model.graph)
    for spec in given:
        floats = _tokens(found, spec) or f"{spec.name}.fp32"
        model.graph.node.append(native(f"{INT8}Entries", [floats], [spec.name], num_heads=spec.axes[1]))
    outputs = tuple(entries_spec(spec) if spec in given else spec for spec in encoder.outputs)
    declare(model, encoder.inputs, outputs)
    drop_unread(model.graph)
    return Graph(model, encoder.inputs, outputs)


def _tokens(found: Found, memory: TensorSpec) -> str | None:
    """The tensor of memory [B, heads, S, D] before head splitting, or None."""
    turned = found.maker(memory.name, "Transpose")
    split = found.maker(turned.input[0], "Reshape") if turned is not None else None
    if not memory.name.startswith("memory.") or turned is None or split is None:
        return None
    shape, axes = found.constant(split.input[1]), memory.axes
    if attributes(turned).get("perm") != [0, 2, 1, 3] or len(axes) != 4 or split.input[0] not in found.of_rows:
        return None
    if shape is not None and (len(shape) != 4 or shape[2] != axes[1]):
        return None
    return split.input[0] if isinstance(axes[1], int) and isinstance(axes[3], int) else None
