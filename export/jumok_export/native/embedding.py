"""Native embeddings: rows of a table in int8 or fp32, scaled."""

from onnx import NodeProto, TensorProto, helper

from jumok_export.graphs.matching import Found, attributes
from jumok_export.native.operators import FLOAT, INT8, native

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
    table = found.constants.get(gather.input[0])
    if table is None or len(table.dims) != 2 or table.data_type != TensorProto.FLOAT:
        return False
    return gather.input[1] in TOKENS and _axis(gather) == 0


def _axis(gather: NodeProto) -> int:
    return int(attributes(gather).get("axis", 0))
