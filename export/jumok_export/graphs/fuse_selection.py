"""Fuse a selection graph into a decoder: logits are consumed where they are computed."""

from onnx import NodeProto, helper

from jumok_export.graphs.graph import Graph, declare, drop_unread, reads, rename
from jumok_serve.manifest.manifest import TensorSpec
from jumok_serve.runtime.graphs import LOGIT_ROWS

DECODED_LOGITS = "decoded_logits"
"""The decoder's logits within the fused graph; its output `logits` has them only on request."""
_PREFIX = "select."
_FLAT = "logits.in_one_axis"
"""Name of the shape [-1], to which logits are flattened before constraints overwrite them."""


def fuse_selection(decoder: Graph, select: Graph) -> Graph:
    """Fuse a selection graph into a decoder.

    The selection overwrites the logits in place. The result has the inputs and outputs of both graphs. `logit_rows`
    says how many rows of logits it outputs, none or all; sampling needs them.
    """
    logits = next(spec for spec in decoder.outputs if spec.name == "logits")
    width = logits.axes[-1]
    interface = {spec.name for spec in (*select.inputs, *select.outputs)}

    def renamed(name: str) -> str:
        return DECODED_LOGITS if name == "logits" else name if name in interface or not name else _PREFIX + name

    model = decoder.copy_model()
    rename(model.graph, lambda name: DECODED_LOGITS if name == "logits" else name)
    rename(select.model.graph, renamed)
    for node in select.model.graph.node:
        if node.op_type == "Reshape" and node.input[0] == DECODED_LOGITS:  # `logits` is copied before
            node.input[1] = _FLAT
    model.graph.initializer.extend(select.model.graph.initializer)
    model.graph.node.extend((*_requested_logits(), *select.model.graph.node))
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
    graph = declare(model, inputs, outputs)
    model.graph.value_info.extend(select.model.graph.value_info)  # tells ONNX Runtime what it may overwrite
    return graph


def remove_selection(decoder: Graph) -> Graph:
    """Return the decoder that `fuse_selection` was given, with logits of all rows.

    Raises:
        ValueError: `fuse_selection` did not make the decoder.
    """
    model = decoder.copy_model()
    if all(DECODED_LOGITS not in node.output for node in model.graph.node):
        raise ValueError(f"its decoder has no tensor {DECODED_LOGITS!r}: export the model again with this jumok")
    names = {"logits": f"{_PREFIX}logits", DECODED_LOGITS: "logits"}
    rename(model.graph, lambda name: names.get(name, name))
    outputs = tuple(
        spec.model_copy(update={"axes": ("R", spec.axes[-1])}) if spec.name == "logits" else spec
        for spec in decoder.outputs
        if spec.name == "logits" or spec.name.startswith("next_state.")
    )
    declare(model, decoder.inputs, outputs)
    drop_unread(model.graph)
    read = {name for node in model.graph.node for name in reads(node)}
    inputs = tuple(spec for spec in decoder.inputs if spec.name in read or spec.name.startswith(("memory.", "state.")))
    return declare(model, inputs, outputs)


def _requested_logits() -> list[NodeProto]:
    """Output the requested rows of logits before logits are overwritten.

    The overwriting nodes need the shape `_FLAT`. It is always [-1], and computed from this output only for the order.
    """
    node = helper.make_node
    return [
        node("Constant", [], ["logits.first"], value_ints=[0]),
        node("Constant", [], ["logits.all_in_one"], value_ints=[-1]),
        node("Slice", [DECODED_LOGITS, "logits.first", LOGIT_ROWS, "logits.first"], ["logits"]),
        node("Shape", ["logits"], ["logits.rows"], end=1),
        node("Min", ["logits.rows", "logits.all_in_one"], [_FLAT]),
    ]
