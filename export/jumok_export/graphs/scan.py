"""Scorer and aligner of step-by-step models: a Scan over the decoder."""

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper

from jumok_export.graphs.graph import Graph, declare, rename
from jumok_serve.manifest.manifest import TensorSpec
from jumok_serve.runtime.graphs import ATTENTION_OUTPUTS

ATTENTION = "attention"
"""Output of a traced decoder, from which the aligner's is made: attention of each row, [R, layers, heads, S]."""
_CROSS = ATTENTION_OUTPUTS["cross"]
_STEP = "step."
"""Prefix of names from the decoder."""

_PAIR = (
    TensorSpec(name="source_ids", dtype="int64", axes=("B", "S")),
    TensorSpec(name="source_lengths", dtype="int64", axes=("B",)),
    TensorSpec(name="start_ids", dtype="int64", axes=("B",)),
    TensorSpec(name="target_ids", dtype="int64", axes=("B", "T")),
    TensorSpec(name="target_lengths", dtype="int64", axes=("B",)),
)


def with_one_pass(graphs: Mapping[str, Graph]) -> dict[str, Graph]:
    """Add `scorer` and `aligner`, made of encoder and decoder, if there is no scorer.

    Both encode the sources and repeat the decoder's step along the targets, one row per sentence. The aligner needs a
    decoder with the output `attention`; the returned decoder, for serving, no longer has it.
    """
    if "scorer" in graphs:
        return dict(graphs)
    made = {"scorer": _scorer(graphs["encoder"], graphs["decoder"])}
    if any(spec.name == ATTENTION for spec in graphs["decoder"].outputs):
        made["aligner"] = _aligner(graphs["encoder"], graphs["decoder"])
    return {**graphs, "decoder": _without_attention(graphs["decoder"]), **made}


def _without_attention(decoder: Graph) -> Graph:
    model = decoder.copy_model()
    outputs = tuple(spec for spec in decoder.outputs if spec.name != ATTENTION)
    return declare(model, decoder.inputs, outputs)


def _scorer(encoder: Graph, decoder: Graph) -> Graph:
    node = helper.make_node
    each_step = [
        node("LogSoftmax", [f"{_STEP}logits"], [f"{_STEP}log_probabilities"], axis=-1),
        node("Unsqueeze", [f"{_STEP}target", "last"], [f"{_STEP}chosen"]),
        node("GatherElements", [f"{_STEP}log_probabilities", f"{_STEP}chosen"], [f"{_STEP}gathered"], axis=1),
        node("Squeeze", [f"{_STEP}gathered", "last"], [f"{_STEP}collected"]),
    ]
    after = [
        node("Transpose", ["collected"], ["in_order"], perm=[1, 0]),  # [B, T]
        node("Where", ["target_mask", "in_order", "nothing"], ["log_probabilities"]),
    ]
    outputs = (TensorSpec(name="log_probabilities", dtype="float32", axes=("B", "T")),)
    return _over_targets(encoder, decoder, each_step, after, outputs)


def _aligner(encoder: Graph, decoder: Graph) -> Graph:
    (attention,) = (spec for spec in decoder.outputs if spec.name == ATTENTION)
    _, layers, heads, _ = attention.axes
    node = helper.make_node
    each_step = [node("Identity", [f"{_STEP}{ATTENTION}"], [f"{_STEP}collected"])]
    after = [
        node("Transpose", ["collected"], ["in_order"], perm=[1, 2, 3, 0, 4]),  # [B, layers, heads, T, S]
        node("Unsqueeze", ["target_mask", "axes_around_time"], ["mask"]),
        node("Where", ["mask", "in_order", "nothing"], [_CROSS]),
    ]
    outputs = (TensorSpec(name=_CROSS, dtype="float32", axes=("B", layers, heads, "T", "S")),)
    return _over_targets(encoder, decoder, each_step, after, outputs)


def _over_targets(
    encoder: Graph,
    decoder: Graph,
    each_step: Sequence[NodeProto],
    after: Sequence[NodeProto],
    outputs: tuple[TensorSpec, ...],
) -> Graph:
    """Make a graph that encodes sources and steps along targets.

    Args:
        each_step: nodes that compute `step.collected` [B, ...] from the decoder's outputs and the target token
            `step.target` [B].
        after: nodes that compute the outputs from `collected` [T, B, ...] and `target_mask` [B, T].
    """
    node = helper.make_node
    dtypes = {
        spec.name: helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype))
        for spec in decoder.inputs
        if spec.name.startswith("state.")
    }
    states = list(dtypes)
    given = {"source_lengths", *(spec.name for spec in decoder.inputs if spec.name.startswith("memory."))}
    step = decoder.copy_model()
    rename(step.graph, lambda name: name if name in given or not name else _STEP + name)
    inputs = [*states, "position", "token", "target"]
    collected = [*(f"next_{name}" for name in states), "collected"]
    step_inputs = [
        node("Expand", [f"{_STEP}position", f"{_STEP}rows"], [f"{_STEP}positions"]),
        node("Identity", [f"{_STEP}token"], [f"{_STEP}token_ids"]),
    ]
    body = GraphProto(name="step")
    body.input.extend(
        helper.make_tensor_value_info(_STEP + name, dtypes.get(name, TensorProto.INT64), None) for name in inputs
    )
    body.output.extend(
        helper.make_tensor_value_info(_STEP + name, dtypes.get(name.removeprefix("next_"), TensorProto.FLOAT), None)
        for name in collected
    )
    body.node.extend((*step_inputs, *step.graph.node, *each_step))
    # The weights go into the Scan's body: if products saturate, ONNX Runtime makes weights unsigned, but only those in
    # the graph of the product.
    body.initializer.extend(step.graph.initializer)

    model = encoder.copy_model()
    graph = model.graph
    for name, value, shape in (
        ("zero", [0], ()),
        ("one", [1], ()),
        ("first", [0], (1,)),
        ("last", [-1], (1,)),
        ("axes_around_time", [1, 2, 4], (3,)),
    ):
        graph.initializer.append(helper.make_tensor(name, TensorProto.INT64, shape, value))
    graph.initializer.append(helper.make_tensor("nothing", TensorProto.FLOAT, (), [0.0]))
    graph.node.extend(
        (
            node("Unsqueeze", ["start_ids", "last"], ["starts"]),
            node("Slice", ["target_ids", "first", "last", "last"], ["before"]),
            node("Concat", ["starts", "before"], ["inputs"], axis=1),
            node("Transpose", ["inputs"], ["inputs_by_time"], perm=[1, 0]),
            node("Transpose", ["target_ids"], ["targets_by_time"], perm=[1, 0]),
            node("Shape", ["start_ids"], [f"{_STEP}rows"]),
            node("Squeeze", [f"{_STEP}rows"], ["sentences"]),
            node("Range", ["zero", "sentences", "one"], [f"{_STEP}parents"]),
            node("Shape", ["target_ids"], ["time"], start=1),
            node("Squeeze", ["time"], ["longest"]),
            node("Range", ["zero", "longest", "one"], ["positions"]),
            node(
                "Scan",
                [*states, "positions", "inputs_by_time", "targets_by_time"],
                [*(f"last.{name}" for name in states), "collected"],
                body=body,
                num_scan_inputs=3,
            ),
            node("Unsqueeze", ["target_lengths", "last"], ["lengths"]),
            node("Less", ["positions", "lengths"], ["target_mask"]),
            *after,
        )
    )
    for domain in (opset.domain for opset in decoder.model.opset_import):
        if all(opset.domain != domain for opset in model.opset_import):
            model.opset_import.append(next(opset for opset in decoder.model.opset_import if opset.domain == domain))
    read = {name for each in graph.node for name in each.input} | given
    used = tuple(spec for spec in _PAIR if spec.name in read)
    return declare(model, used, outputs)
