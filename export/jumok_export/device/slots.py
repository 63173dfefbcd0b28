"""The graphs that move sentences between the slots of buffers that stay on a device: `grow` and `write`."""

from collections.abc import Sequence

import onnx
from onnx import NodeProto, helper

from jumok_export.graphs.graph import OPSET, Graph, declare
from jumok_serve.manifest.manifest import TensorSpec


def slot_graphs(kind: str, specs: Sequence[TensorSpec], axis: str) -> dict[str, Graph]:
    """The graphs for the memory or the state of a decoder, which may have none: then there are no graphs.

    Args:
        kind: "memory" or "state", which begins their names.
        specs: the decoder's inputs of this kind; axis 0 is the slot.
        axis: the symbol of the axis that is as long as the longest sentence needs.
    """
    return {f"{kind}_grow": _grow(specs, axis), f"{kind}_write": _write(specs, axis)} if specs else {}


def _grow(specs: Sequence[TensorSpec], axis: str) -> Graph:
    """`grown.<name>` [slots, ..., length, ...]: what `from.<name>` [M, ..., L, ...] holds, and zeros behind it.

    Positions beyond `length` are cut off; M is `slots` at most.
    """
    nodes, inputs, outputs = [], [], []
    for spec in specs:
        inputs.append(_named(f"from.{spec.name}", spec, ("M", axis, "before")))
        outputs.append(_named(f"grown.{spec.name}", spec, ("N", axis, axis)))
        nodes += _fitted(spec, axis, f"from.{spec.name}", f"grown.{spec.name}", slots="slots", length="length")
    sizes = (
        TensorSpec(name="slots", dtype="int64", axes=(1,)),
        *([TensorSpec(name="length", dtype="int64", axes=(1,))] if any(axis in spec.axes for spec in specs) else []),
    )
    return _graph("grow", nodes, (*sizes, *inputs), tuple(outputs))


def _write(specs: Sequence[TensorSpec], axis: str) -> Graph:
    """`written.<name>`, which is `into.<name>` with rows `rows` [n] of `from.<name>` in the slots `slots` [n, 1].

    Nothing is copied but these rows where input and output are one buffer. Rows are cut, or zeros are put behind them,
    to be as long as the buffer.
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
            nodes += _fitted(spec, axis, rows, f"{written}.fitting", slots=None, length=f"{written}.length")
            rows = f"{written}.fitting"
        nodes.append(node("ScatterND", [into, "slots", rows], [written]))
    places = (
        TensorSpec(name="rows", dtype="int64", axes=("n",)),
        TensorSpec(name="slots", dtype="int64", axes=("n", 1)),
    )
    return _graph("write", nodes, (*places, *inputs), tuple(outputs))


def _fitted(
    spec: TensorSpec, axis: str, source: str, output: str, *, slots: str | None, length: str
) -> list[NodeProto]:
    """A tensor cut, or with zeros behind, to so many slots (None: as many as it has) and positions."""
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
    behind = [f"{output}.more.{at}" if at in sizes else f"{output}.none" for at in range(rank)]
    return [
        *nodes,
        node("Constant", [], [f"{output}.none"], value_ints=[0]),
        node("Concat", [*[f"{output}.none"] * rank, *behind], [f"{output}.pads"], axis=0),
        node("Pad", [source, f"{output}.pads"], [output]),
    ]


def _named(name: str, spec: TensorSpec, symbols: tuple[str, str, str]) -> TensorSpec:
    """The spec of a buffer under another name; `symbols` are those of slots, of the axis, and of the axis here."""
    slots, axis, here = symbols
    axes = tuple(here if size == axis else size for size in spec.axes[1:])
    return spec.model_copy(update={"name": name, "axes": (slots, *axes)})


def _graph(name: str, nodes: list[NodeProto], inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> Graph:
    model = helper.make_model(
        helper.make_graph(nodes, name, [], []), opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10
    )
    declare(model, inputs, outputs)
    onnx.checker.check_model(model)
    return Graph(model, inputs, outputs)
