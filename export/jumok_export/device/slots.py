"""Graphs that move sentences between the slots of device buffers: `grow` and `write`."""

from collections.abc import Sequence

from onnx import NodeProto, helper

from jumok_export.graphs.graph import Graph, make_graph
from jumok_serve.manifest.manifest import TensorSpec


def grow_graph(specs: Sequence[TensorSpec], axis: str) -> Graph:
    """Make the graph that copies buffers into larger ones, filled up with zeros.

    `grown.<name>` [slots, ..., length, ...] holds `from.<name>` [M, ..., before, ...], M <= `slots`. Positions after
    `length` are cut; positions that `from.<name>` lacks are zeros.

    Args:
        specs: memory or state of a decoder; axis 0 is the slot.
        axis: symbol of the axis that grows with the longest sentence.
    """
    nodes, inputs, outputs = [], [], []
    for spec in specs:
        inputs.append(_named(f"from.{spec.name}", spec, ("M", axis, "before")))
        outputs.append(_named(f"grown.{spec.name}", spec, ("N", axis, axis)))
        nodes += _resize(spec, axis, f"from.{spec.name}", f"grown.{spec.name}", slots="slots", length="length")
    sizes = (
        TensorSpec(name="slots", dtype="int64", axes=(1,)),
        *([TensorSpec(name="length", dtype="int64", axes=(1,))] if any(axis in spec.axes for spec in specs) else []),
    )
    return make_graph("grow", nodes, (*sizes, *inputs), tuple(outputs))


def write_graph(specs: Sequence[TensorSpec], axis: str) -> Graph:
    """Make the graph that copies rows into the slots of a buffer.

    `written.<name>` is `into.<name>`, but slot `slots[i, 0]` holds row `rows[i]` of `from.<name>`, cut or filled up
    with zeros to the buffer's length. Only these rows are copied if `into` and `written` share a buffer.
    """
    node = helper.make_node
    nodes, inputs, outputs = [], [], []
    for spec in specs:
        into, source, written = f"into.{spec.name}", f"from.{spec.name}", f"written.{spec.name}"
        inputs += [_named(into, spec, ("N", axis, axis)), _named(source, spec, ("M", axis, "before"))]
        outputs.append(_named(written, spec, ("N", axis, axis)))
        nodes.append(node("Gather", [source, "rows"], [f"{written}.rows"], axis=0))
        rows = f"{written}.rows"
        if axis in spec.axes:
            at = spec.axes.index(axis)
            nodes.append(node("Shape", [into], [f"{written}.length"], start=at, end=at + 1))
            nodes += _resize(spec, axis, rows, f"{written}.resized", slots=None, length=f"{written}.length")
            rows = f"{written}.resized"
        nodes.append(node("ScatterND", [into, "slots", rows], [written]))
    indices = (
        TensorSpec(name="rows", dtype="int64", axes=("n",)),
        TensorSpec(name="slots", dtype="int64", axes=("n", 1)),
    )
    return make_graph("write", nodes, (*indices, *inputs), tuple(outputs))


def _resize(
    spec: TensorSpec, axis: str, source: str, output: str, *, slots: str | None, length: str
) -> list[NodeProto]:
    """Cut or zero-pad a tensor to `slots` and `length` positions.

    None for `slots` leaves them unchanged.
    """
    node = helper.make_node
    nodes, rank = [], len(spec.axes)
    sizes = {} if slots is None else {0: slots}
    if axis in spec.axes:
        at = spec.axes.index(axis)
        sizes[at] = length
        nodes += [
            node("Constant", [], [f"{output}.axis"], value_ints=[at]),
            node("Constant", [], [f"{output}.first"], value_ints=[0]),
            node("Slice", [source, f"{output}.first", length, f"{output}.axis"], [f"{output}.cut"]),
        ]
        source = f"{output}.cut"
    for at, size in sizes.items():
        nodes += [
            node("Shape", [source], [f"{output}.had.{at}"], start=at, end=at + 1),
            node("Sub", [size, f"{output}.had.{at}"], [f"{output}.more.{at}"]),
        ]
    after = [f"{output}.more.{at}" if at in sizes else f"{output}.none" for at in range(rank)]
    return [
        *nodes,
        node("Constant", [], [f"{output}.none"], value_ints=[0]),
        node("Concat", [*[f"{output}.none"] * rank, *after], [f"{output}.pads"], axis=0),
        node("Pad", [source, f"{output}.pads"], [output]),
    ]


def _named(name: str, spec: TensorSpec, symbols: tuple[str, str, str]) -> TensorSpec:
    """Rename a spec and the symbols of its axes.

    `symbols`: new symbol of axis 0, symbol of the growing axis, and its new symbol.
    """
    slots, axis, renamed = symbols
    axes = tuple(renamed if size == axis else size for size in spec.axes[1:])
    return spec.model_copy(update={"name": name, "axes": (slots, *axes)})
