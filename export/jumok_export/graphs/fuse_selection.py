"""Decoder and selection in one graph: a step then writes no logits that are only read once."""

from collections.abc import Mapping

import onnx
from onnx import NodeProto, helper

from jumok_export.graphs.graph import Graph, declare, rename
from jumok_export.graphs.selection import select_graph
from jumok_serve.manifest.manifest import TensorSpec
from jumok_serve.runtime.graphs import LOGIT_ROWS

_PREFIX = "select."
_LOGITS = "decoded_logits"
"""What the decoder's logits are called within the graph, where they are passed on only if they are asked for."""
_FLAT = "logits.in_one_axis"
"""The shape that they are constrained in."""


def with_selection(graphs: Mapping[str, Graph]) -> dict[str, Graph]:
    """The graphs of a precision, with the selection in every decoder.

    A decoder chooses candidates where its logits lie, and overwrites them: nothing is copied. It takes what
    `select` takes and gives what it gives, and the logits of as many rows as `logit_rows` says, none or all: sampling
    needs them.
    """
    fused = dict(graphs)
    for name in ("decoder", "decoder_shortlist"):
        if name in graphs:
            width = next(spec for spec in graphs[name].outputs if spec.name == "logits").axes[-1]
            select = select_graph(width if isinstance(width, int) else None, overwrite=True)
            fused[name] = with_selection_of(graphs[name], select)
    return fused


def with_selection_of(decoder: Graph, select: Graph) -> Graph:
    """A decoder with a selection in it, whose inputs and outputs it has besides its own; see `with_selection`."""
    logits = next(spec for spec in decoder.outputs if spec.name == "logits")
    width = logits.axes[-1]
    outside = {spec.name for spec in (*select.inputs, *select.outputs)}

    def renamed(name: str) -> str:
        return _LOGITS if name == "logits" else name if name in outside or not name else _PREFIX + name

    model = onnx.ModelProto()
    model.CopyFrom(decoder.model)
    rename(model.graph, lambda name: _LOGITS if name == "logits" else name)
    rename(select.model.graph, renamed)
    for node in select.model.graph.node:
        if node.op_type == "Reshape" and node.input[0] == _LOGITS:  # nothing may overwrite them before
            node.input[1] = _FLAT
    model.graph.initializer.extend(select.model.graph.initializer)
    model.graph.node.extend((*_asked_logits(), *select.model.graph.node))
    inputs = (
        *decoder.inputs,
        TensorSpec(name=LOGIT_ROWS, dtype="int64", axes=(1,)),
        *(spec for spec in select.inputs if spec.name != "logits"),
    )
    outputs = (
        *(spec for spec in decoder.outputs if spec.name != "logits"),
        *select.outputs,
        logits.model_copy(update={"axes": ("L", width)}),
    )
    declare(model, inputs, outputs)
    model.graph.value_info.extend(select.model.graph.value_info)  # by which ONNX Runtime knows what it may overwrite
    return Graph(model, inputs, outputs)


def _asked_logits() -> list[NodeProto]:
    """Passes logits on, and only then tells the shape in which they are overwritten."""
    node = helper.make_node
    return [
        node("Constant", [], ["logits.first"], value_ints=[0]),
        node("Constant", [], ["logits.all_in_one"], value_ints=[-1]),
        node("Slice", [_LOGITS, "logits.first", LOGIT_ROWS, "logits.first"], ["logits"]),
        node("Shape", ["logits"], ["logits.rows"], end=1),
        node("Min", ["logits.rows", "logits.all_in_one"], [_FLAT]),
    ]
