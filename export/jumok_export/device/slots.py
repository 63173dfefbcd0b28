"""Graphs that move sentences between the slots of device buffers: `grow` and `write`."""

from collections.abc import Sequence

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

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

    Each index names one vector of the last axis. On CUDA, ONNX Runtime copies the elements of an index one after
    another in one thread; a slot has up to millions of elements.
    """
    node = helper.make_node
    nodes, inputs, outputs = [], [], []
    indices_of: dict[tuple[object, ...], str] = {}  # by the sizes of all axes between the first and the last
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
        if (between := spec.axes[1:-1]) not in indices_of:
            indices_of[between] = f"{written}.indices" if between else "slots"
            nodes += _vector_indices(rows, len(between), indices_of[between])
        nodes.append(node("ScatterND", [into, indices_of[between], rows], [written]))
    indices = (
        TensorSpec(name="rows", dtype="int64", axes=("n",)),
        TensorSpec(name="slots", dtype="int64", axes=("n", 1)),
    )
    return make_graph("write", nodes, (*indices, *inputs), tuple(outputs))


def _vector_indices(rows: str, axes: int, output: str) -> list[NodeProto]:
    """Index every vector of some slots, [n, ..., 1 + `axes`].

    Args:
        rows: values of the slots, [n, ..., vector].
        axes: number of axes between the first and the last.
        output: name of the indices; none are made without axes in between.
    """
    if not axes:
        return []
    node, rank = helper.make_node, axes + 2
    nodes = [
        node("Shape", [rows], [f"{output}.sizes"], start=0, end=rank - 1),
        node("Constant", [], [f"{output}.last"], value_ints=[1]),
        node("Constant", [], [f"{output}.slot_shape"], value_ints=[-1] + [1] * (rank - 1)),
        node("Concat", [f"{output}.sizes", f"{output}.last"], [f"{output}.shape"], axis=0),
        node("Reshape", ["slots", f"{output}.slot_shape"], [f"{output}.slots"]),
        node("Expand", [f"{output}.slots", f"{output}.shape"], [f"{output}.0"]),
        node("Constant", [], [f"{output}.zero"], value_int=0),
        node("Constant", [], [f"{output}.one"], value_int=1),
    ]
    for at in range(1, axes + 1):
        shape = [-1 if place == at else 1 for place in range(rank)]
        nodes += [
            node("Shape", [rows], [f"{output}.size.{at}"], start=at, end=at + 1),
            node("Squeeze", [f"{output}.size.{at}"], [f"{output}.count.{at}"]),
            node("Range", [f"{output}.zero", f"{output}.count.{at}", f"{output}.one"], [f"{output}.places.{at}"]),
            node("Constant", [], [f"{output}.along.{at}"], value_ints=shape),
            node("Reshape", [f"{output}.places.{at}", f"{output}.along.{at}"], [f"{output}.spread.{at}"]),
            node("Expand", [f"{output}.spread.{at}", f"{output}.shape"], [f"{output}.{at}"]),
        ]
    return [*nodes, node("Concat", [f"{output}.{at}" for at in range(axes + 1)], [output], axis=-1)]


def _resize(
    spec: TensorSpec, axis: str, source: str, output: str, *, slots: str | None, length: str
) -> list[NodeProto]:
    """Cut or zero-pad a tensor to `slots` and `length` positions.

    None for `slots` leaves them unchanged.
    """
    node = helper.make_node
    nodes = []
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
    last = max(sizes, default=None)
    for at, size in sizes.items():
        filled = output if at == last else f"{output}.filled.{at}"
        nodes += [
            node("Shape", [source], [f"{filled}.had"], start=at, end=at + 1),
            node("Sub", [size, f"{filled}.had"], [f"{filled}.more"]),
            node("Shape", [source], [f"{filled}.before"], start=0, end=at),
            node("Shape", [source], [f"{filled}.after"], start=at + 1),
            node("Concat", [f"{filled}.before", f"{filled}.more", f"{filled}.after"], [f"{filled}.shape"], axis=0),
            node("ConstantOfShape", [f"{filled}.shape"], [f"{filled}.zeros"], value=_zero(spec)),
            node("Concat", [source, f"{filled}.zeros"], [filled], axis=at),  # Pad takes ten times as long on CUDA
        ]
        source = filled
    return nodes


def _zero(spec: TensorSpec) -> TensorProto:
    return numpy_helper.from_array(np.zeros(1, spec.dtype))


def _named(name: str, spec: TensorSpec, symbols: tuple[str, str, str]) -> TensorSpec:
    """Rename a spec and the symbols of its axes.

    `symbols`: new symbol of axis 0, symbol of the growing axis, and its new symbol.
    """
    slots, axis, renamed = symbols
    axes = tuple(renamed if size == axis else size for size in spec.axes[1:])
    return spec.model_copy(update={"name": name, "axes": (slots, *axes)})
