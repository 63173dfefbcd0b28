"""The encoded source in a native encoder and in an aligner, which can read what the encoder computed."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from jumok_serve.runtime.graph_checks.onnx_model import drop_unread, inner_graphs, parse_model

_ENTRIES = "Entries"
"""End of the names of native operators that make memory from projected tokens."""
_MATRIX = 2
_FLOAT, _UINT8 = 1, 2
"""Types of elements by ONNX's numbers."""

Constants = dict[str, tuple[int, bytes]]
"""Number of axes of each constant, and its content or place in the file of weights."""


class EncodedSource(NamedTuple):
    """Names of one tensor in two graphs, [B, S, W], which all projections to memory read.

    Attributes:
        quantized: True if it is in uint8 with a constant scale, False if in fp32.
    """

    encoder: str
    aligner: str
    quantized: bool


def find_encoded_source(encoder: bytes, aligner: bytes) -> EncodedSource | None:
    """Find the encoded source of a native encoder in an aligner, by the weights that both multiply it with.

    Args:
        encoder, aligner: ONNX models with the same file of weights.

    Returns:
        None if one of the graphs is built in another way.

    Raises:
        ValueError: a content is no ONNX model.
    """
    theirs, mine = parse_model(encoder).graph, parse_model(aligner).graph
    if any(True for node in mine.node for _ in inner_graphs(node)):
        return None
    makers, own_makers = ({name: node for node in graph.node for name in node.output} for graph in (theirs, mine))
    entries = [makers.get(output.name) for output in theirs.output]
    projected = [
        node.input[0] for node in entries if node is not None and node.op_type.endswith(_ENTRIES) and node.input
    ]
    products = [makers[name] for name in projected if name in makers and makers[name].input]
    if len(products) < len(entries):
        return None
    constants, own_constants = _constants(theirs), _constants(mine)
    matrices, scale = (_read(products, constants, axes=axes) for axes in (_MATRIX, 0))
    readers = [node for node in mine.node if not matrices.isdisjoint(_read([node], own_constants, axes=_MATRIX))]
    encoded, own = {node.input[0] for node in products}, {node.input[0] for node in readers}
    if len(encoded) != 1 or len(own) != 1 or not all(scale <= _read([node], own_constants, axes=0) for node in readers):
        return None
    found = EncodedSource(encoded.pop(), own.pop(), quantized=bool(scale))
    return found if found.encoder in makers and found.aligner in own_makers else None


def with_encoded_output(encoder: bytes, found: EncodedSource) -> bytes:
    """Add the encoded source to the outputs of an encoder."""
    model = parse_model(encoder)
    model.graph.output.add(name=found.encoder)
    added: bytes = model.SerializeToString()
    return added


def read_encoded(aligner: Any, found: EncodedSource) -> None:
    """Let a parsed aligner have the encoded source as an input, and drop the nodes that compute it."""
    graph = aligner.graph
    kept = [node for node in graph.node if found.aligner not in node.output]
    del graph.node[:]
    graph.node.extend(kept)
    others = [value for value in graph.value_info if value.name != found.aligner]
    del graph.value_info[:]
    graph.value_info.extend(others)
    graph.input.add(name=found.aligner).type.tensor_type.elem_type = _UINT8 if found.quantized else _FLOAT
    drop_unread(graph)


def _constants(graph: Any) -> Constants:
    constants = {}
    for tensor in graph.initializer:
        unnamed = type(tensor)()
        unnamed.CopyFrom(tensor)
        unnamed.ClearField("name")
        constants[tensor.name] = len(tensor.dims), unnamed.SerializeToString(deterministic=True)
    return constants


def _read(nodes: Iterable[Any], constants: Constants, *, axes: int) -> set[bytes]:
    """Return the contents of the constants that nodes read, of those with some number of axes."""
    read = (constants[name] for node in nodes for name in node.input if name in constants)
    return {content for number, content in read if number == axes}
