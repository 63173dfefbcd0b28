"""Checks of graphs by their contract and the manifest, and what loading changes in them."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from jumok_serve.manifest.manifest import CROSS_ATTENTION, DType, GraphSpec, TensorSpec
from jumok_serve.runtime.graph_checks.onnx_model import drop_unread, inner_graphs, parse_model


class _Needed(NamedTuple):
    dtype: DType
    axes: int


_SELECTED = {"tokens": _Needed("int64", 2), "totals": _Needed("float32", 2)}
_OUTPUTS: dict[str, dict[str, _Needed]] = {
    "decoder": {**_SELECTED, "logits": _Needed("float32", 2)},
    "sampler": _SELECTED,
    "scorer": {"log_probabilities": _Needed("float32", 2)},
    "aligner": {CROSS_ATTENTION: _Needed("float32", 5)},
}
"""Outputs that every graph of a role has."""
_INPUTS = {
    **{name: _Needed("int64", 2) for name in ("source_ids", "target_ids")},
    **{
        name: _Needed("int64", 1)
        for name in ("source_lengths", "target_lengths", "start_ids", "parents", "renormalize")
    },
    "scores": _Needed("float32", 1),
    "places": _Needed("int64", 3),
    "visible": _Needed("bool", 3),
    "entry_positions": _Needed("int64", 2),
}
"""Inputs of a known type, if a graph has them."""


def contract_problems(graphs: Mapping[str, GraphSpec], full_decoder: GraphSpec) -> list[str]:
    """List the tensors that graphs lack, or have with another type or number of axes.

    Args:
        graphs: the graphs to run, by role.
        full_decoder: the decoder whose logits have all target tokens.
    """
    problems = [f"{spec.file}: {problem}" for role, spec in graphs.items() for problem in _tensors(role, spec)]
    logits = next((spec for spec in full_decoder.outputs if spec.name == "logits"), None)
    if logits is None or not logits.axes or not isinstance(logits.axes[-1], int):
        problems.append(f"{full_decoder.file}: output 'logits' must have a constant number of target tokens")
    return [*problems, *_state(graphs)]


def _tensors(role: str, graph: GraphSpec) -> Iterator[str]:
    outputs = {spec.name: spec for spec in graph.outputs}
    for name, needed in _OUTPUTS.get(role, {}).items():
        if name not in outputs:
            yield f"output {name!r} is missing"
        else:
            yield from _differences("output", outputs[name], needed)
    for spec in graph.inputs:
        if spec.name in _INPUTS:
            yield from _differences("input", spec, _INPUTS[spec.name])
    for spec in (*graph.inputs, *graph.outputs):
        if spec.name.partition(".")[0] in {"memory", "state", "next_state"} and not spec.axes:
            yield f"{spec.name!r} must have an axis for sentences"


def _differences(role: str, spec: TensorSpec, needed: _Needed) -> Iterator[str]:
    if (spec.dtype, len(spec.axes)) != needed:
        got = f"{spec.dtype} with {len(spec.axes)}"
        yield f"{role} {spec.name!r} must be {needed.dtype} with {needed.axes} axes, got {got}"


def _state(graphs: Mapping[str, GraphSpec]) -> Iterator[str]:
    """Problems between graphs: memory or listed weights without a source, state without a successor."""
    decoder = graphs["decoder"]
    makers = (graphs[role] for role in ("encoder", "projection", "decoder") if role in graphs)
    made = {spec.name: spec for maker in makers for spec in maker.outputs}
    for spec in decoder.inputs:
        kind = spec.name.partition(".")[0]
        name = f"next_{spec.name}" if kind == "state" else spec.name
        if kind not in {"memory", "state", "projection"}:
            continue
        if name not in made:
            yield f"{decoder.file}: no graph makes {name!r}, which the decoder reads"
        elif made[name].dtype != spec.dtype or not _fit(made[name].axes, spec.axes):
            yield f"{decoder.file}: {name!r} is made with other types or sizes than the decoder reads"


def _fit(made: Sequence[int | str], read: Sequence[int | str]) -> bool:
    """True if constant sizes agree."""
    return len(made) == len(read) and all(
        one == other for one, other in zip(made, read, strict=True) if isinstance(one, int) and isinstance(other, int)
    )


def check_graph(spec: GraphSpec, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[str]:
    """Return the differences between a loaded graph's tensors and the manifest.

    Names, element types, ranks and constant sizes must be equal. If the manifest has a symbol, the graph's axis must be
    dynamic; its name does not matter unless it is another symbol of the same entry.

    Args:
        inputs, outputs: ONNX Runtime's descriptions of the graph's tensors (``onnxruntime.NodeArg``).
    """
    symbols = {axis for tensor in (*spec.inputs, *spec.outputs) for axis in tensor.axes if isinstance(axis, str)}
    return [
        f"{spec.file}: {problem}"
        for role, specs, found in (("input", spec.inputs, inputs), ("output", spec.outputs, outputs))
        for problem in _tensor_problems(role, specs, found, symbols)
    ]


def _tensor_problems(role: str, specs: Sequence[TensorSpec], found: Sequence[Any], symbols: set[str]) -> Iterator[str]:
    by_name = {node.name: node for node in found}
    expected = {tensor.name for tensor in specs}
    for name in by_name.keys() - expected:
        yield f"{role} {name!r} is not in the manifest, which has {', '.join(sorted(expected)) or 'none'}"
    for tensor in specs:
        node = by_name.get(tensor.name)
        if node is None:
            yield f"{role} {tensor.name!r} is missing; the graph has {', '.join(by_name) or 'none'}"
            continue
        wanted = f"tensor({'float' if tensor.dtype == 'float32' else tensor.dtype})"
        if node.type != wanted:
            yield f"{role} {tensor.name!r} is {node.type}, the manifest says {wanted}"
        if not _axes_agree(tensor.axes, node.shape, symbols):
            shape, axes = _shape_text(node.shape), _shape_text(tensor.axes)
            yield f"{role} {tensor.name!r} has shape {shape}, the manifest says {axes}"


def _axes_agree(axes: Sequence[int | str], shape: Sequence[int | str | None], symbols: set[str]) -> bool:
    if len(axes) != len(shape):
        return False
    return all(
        axis == size or (isinstance(axis, str) and not isinstance(size, int) and size not in symbols)
        for axis, size in zip(axes, shape, strict=True)
    )


def _shape_text(axes: Sequence[int | str | None]) -> str:
    return f"[{', '.join('?' if axis is None else str(axis) for axis in axes)}]"


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


@contextmanager
def optimized_graph(options: Any) -> Iterator[Sequence[bytes]]:
    """Capture the optimized graph of the session that is opened within.

    The graph goes into memory: a server may have no writable file system.

    Yields:
        A list, with the graph as its one item afterwards.
    """
    descriptor = os.memfd_create("graph")
    before, found = options.optimized_model_filepath, list[bytes]()
    options.optimized_model_filepath = f"/proc/self/fd/{descriptor}"
    try:
        yield found
        with open(descriptor, "rb", closefd=False) as file:
            file.seek(0)
            found.append(file.read())
    finally:
        options.optimized_model_filepath = before
        os.close(descriptor)


def find_copies(model: bytes) -> list[str]:
    """Describe a graph's copies between device and host, with their operators.

    Such an operator has no kernel on the device, or reads a value of the device on the host.

    Args:
        model: an ONNX model, as a session wrote it.
    """
    return list(_copies(parse_model(model).graph, ""))


def _copies(graph: Any, prefix: str) -> Iterator[str]:
    writers = {name: node for node in graph.node for name in node.output}
    readers: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    for node in graph.node:
        for inner in inner_graphs(node):
            yield from _copies(inner, f"{prefix}{_label(node)}: ")
        if node.op_type == "MemcpyToHost":
            waiting = [_label(reader) for name in node.output for reader in readers.get(name, [])]
            yield f"{prefix}{', '.join(waiting) or 'an output'} on the host reads {node.input[0]!r} from the device"
        elif node.op_type == "MemcpyFromHost":
            writer = writers.get(node.input[0])
            made = f"{_label(writer)} on the host makes" if writer is not None else "the host gives"
            yield f"{prefix}{made} {node.input[0]!r} for the device"


def _label(node: Any) -> str:
    return f"{node.op_type} {node.name!r}" if node.name else str(node.op_type)
