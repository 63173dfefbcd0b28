"""Native embeddings: rows of a table in int8 or fp32, scaled; with positions, and quantized."""

import onnx
from onnx import NodeProto, TensorProto, helper

from jumok_export.graphs.matching import Found, attributes
from jumok_export.native.operators import FLOAT, INT8, QUANTIZED, native

TOKENS = ("token_ids", "source_ids")
"""Inputs of graphs that are never negative."""


def embedding(found: Found, node: NodeProto) -> NodeProto | None:
    """Replace an int8 or fp32 table look-up and its constant factor."""
    if node.op_type != "Mul":
        return None
    factor, rows = 1.0, node
    for name, other in (tuple(node.input), tuple(node.input)[::-1]):
        constant = found.constant(other)
        if constant is None or constant.ndim != 0 or found.only_reader(name) is None:
            continue
        maker, gather = found.maker(name, "Mul"), found.maker(name, "Gather")
        if maker is not None:
            factor, rows = float(constant), maker
        elif gather is not None and _of_floats(found, gather):
            return native(f"{FLOAT}Embedding", gather.input, [node.output[0]], factor=float(constant))
    cast = found.maker(rows.input[0], "Cast")
    values = found.maker(cast.input[0], "Gather") if cast is not None else None
    scales = found.maker(rows.input[1], "Gather")
    if values is None or scales is None or values.input[1] != scales.input[1]:
        return None
    vector = found.unsqueezed(scales.input[0])
    if values.input[0] not in found.constants or vector not in found.constants or any(map(_axis, (values, scales))):
        return None
    return native(f"{INT8}Embedding", [values.input[0], vector, values.input[1]], [node.output[0]], factor=factor)


def fuse_positions(graph: onnx.GraphProto) -> None:
    """Let native embeddings of a decoder's tokens add those of the positions, and quantize the sums."""
    found = Found(graph)
    floats = {value.name for value in graph.input if value.type.tensor_type.elem_type == TensorProto.FLOAT}
    fused = {node.output[0]: made for node in graph.node if (made := _positioned(found, node, floats)) is not None}
    given = {name for made in fused.values() for name in made.output}
    nodes = [
        fused.get(node.output[0], node)
        for node in graph.node
        if node.output[0] in fused or given.isdisjoint(node.output)
    ]
    del graph.node[:]
    graph.node.extend(nodes)


def _positioned(found: Found, node: NodeProto, floats: set[str]) -> NodeProto | None:
    """Replace the sum of token and position embeddings."""
    for rows, other in (tuple(node.input), tuple(node.input)[::-1]) if node.op_type == "Add" else ():
        embedded = found.maker(rows, f"{INT8}Embedding") or found.maker(rows, f"{FLOAT}Embedding")
        gather = found.maker(other, "Gather")
        if embedded is None or gather is None or _axis(gather) or not _of_table(found, gather):
            continue
        if found.only_reader(rows) is None or found.only_reader(other) is None:
            continue
        *table, tokens = embedded.input
        groups = _groups(found, tokens, gather.input[1], floats)
        if groups is None:
            continue
        tokens, positions, grouped = groups
        inputs, rounding = [*table, tokens, gather.input[0], positions, grouped], found.rounding(node.output[0])
        if rounding is None:
            return native(embedded.op_type, inputs, node.output, **attributes(embedded))
        inputs, outputs = [*inputs, *rounding.input[1:]], [node.output[0], rounding.output[0]]
        return native(f"{embedded.op_type}{QUANTIZED}", inputs, outputs, **attributes(embedded))
    return None


def _groups(found: Found, tokens: str, positions: str, floats: set[str]) -> tuple[str, str, str] | None:
    """Find the inputs with tokens and positions, and one whose first axis groups both in the same way, or ""."""
    if (tokens, positions) == ("token_ids", "positions"):
        return tokens, positions, ""
    reshapes = found.maker(tokens, "Reshape"), found.maker(positions, "Reshape")
    if reshapes[0] is None or reshapes[1] is None or reshapes[0].input[1] != reshapes[1].input[1]:
        return None
    shape = found.maker(reshapes[0].input[1], "Concat")
    first = found.maker(shape.input[0], "Shape") if shape is not None and len(shape.input) == 2 else None
    rest = found.constant(shape.input[1]) if shape is not None and first is not None else None
    given = (reshapes[0].input[0], reshapes[1].input[0])
    if first is None or rest is None or rest.tolist() != [-1] or given != ("token_ids", "positions"):
        return None
    range_of = attributes(first)
    if (range_of.get("start", 0), range_of.get("end")) != (0, 1) or first.input[0] not in floats:
        return None
    return (*given, first.input[0])


def _of_table(found: Found, gather: NodeProto) -> bool:
    """True if rows of an fp32 table are looked up."""
    table = found.constants.get(gather.input[0])
    return table is not None and len(table.dims) == 2 and table.data_type == TensorProto.FLOAT


def rows_of(found: Found, node: NodeProto | None) -> NodeProto | None:
    """Replace `GatherND` over one axis of a table by the cheaper `Gather`."""
    if node is None or node.op_type != "GatherND":
        return None
    if attributes(node).get("batch_dims", 0) != 0 or node.input[0] not in found.constants:
        return None
    places = found.maker(node.input[1], "Unsqueeze")
    axes = found.constant(places.input[1]) if places is not None else None
    if places is None or axes is None or axes.tolist() != [-1] or len(found.constants[node.input[0]].dims) != 2:
        return None
    return helper.make_node("Gather", [node.input[0], places.input[0]], [node.output[0]], axis=0)


def _of_floats(found: Found, gather: NodeProto) -> bool:
    """True if tokens look up rows of an fp32 table."""
    return _of_table(found, gather) and gather.input[1] in TOKENS and _axis(gather) == 0


def _axis(gather: NodeProto) -> int:
    return int(attributes(gather).get("axis", 0))
