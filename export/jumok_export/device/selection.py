"""Selection graphs for a device: `jumok_export.graphs.selection` in operators that CUDA has.

CUDA's top-k orders equal values arbitrarily, so ties are broken before it. Tensors on the host are copied, so numbers
that the host must know are computed from shapes.
"""

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from jumok_export.graphs.graph import Graph, drop_unread, make_graph
from jumok_export.graphs.selection import SELECTED, block_width, sampler_graph, select_inputs
from jumok_serve.manifest.manifest import TensorSpec

TIE_SHARE = 2.0**-43
"""Share by which a number is lowered for each position, to break ties.

Neighbours in fp32 differ by a share of at least 2**-24, so up to 2**18 positions change only the order of equals.
"""
_DRAWN_WHERE_SOME = "If"


def device_select_graph(vocabulary: int) -> Graph:
    """Make the graph `select` for a device; see `jumok_export.graphs.selection.select_graph`.

    Each kind of constraint has at least one entry, and `renormalize` one row; `renormalize.asked` says which of these
    rows renormalize. Operators of CUDA do not accept empty tensors everywhere.
    """
    node = helper.make_node
    nodes = [
        *_constrain("logits", "logit", "constrained_logits"),
        node("LogSoftmax", ["constrained_logits"], ["log_probabilities"], axis=-1),
        *_constrain("log_probabilities", "log_prob", "constrained"),
        *_candidates("constrained", vocabulary),
        node("Gather", ["constrained", "renormalize"], ["renormalized_rows"], axis=0),
        node("LogSoftmax", ["renormalized_rows"], ["normal"], axis=-1),
        node("Gather", ["tokens", "renormalize"], ["renormalized_tokens"], axis=0),
        node("GatherElements", ["normal", "renormalized_tokens"], ["normal_best"], axis=1),
        node("Gather", ["best", "renormalize"], ["renormalized_before"], axis=0),
        node("Unsqueeze", ["renormalize.asked", "last"], ["asked"]),
        node("Where", ["asked", "normal_best", "renormalized_before"], ["renormalized_best"]),
        node("Unsqueeze", ["renormalize", "last"], ["renormalized_places"]),
        node("ScatterND", ["best", "renormalized_places", "renormalized_best"], ["processed"]),
        node("Unsqueeze", ["scores", "last"], ["running"]),
        node("Add", ["processed", "running"], ["totals"]),
    ]
    constants = {
        "last": np.array([-1]),
        "zero": np.array([0]),
        "by_row": np.array([-1, vocabulary]),
        "nothing": np.zeros(1, np.float32),
        "shares": np.arange(1, vocabulary + 1) * TIE_SHARE,  # from 1: 0 times infinity is NaN
    }
    inputs = (*select_inputs(vocabulary), TensorSpec(name="renormalize.asked", dtype="bool", axes=("N",)))
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    return make_graph("select", nodes, inputs, SELECTED, constants=tensors)


def _constrain(scores: str, stage: str, output: str) -> list[NodeProto]:
    """Apply factors, then biases, to flat scores."""
    node = helper.make_node
    factors, biases = f"{stage}_factors", f"{stage}_biases"
    return [
        node("Reshape", [scores, "last"], [f"{stage}_flat"]),
        node("Unsqueeze", [f"{factors}.places", "last"], [f"{factors}.rows"]),
        node("GatherND", [f"{stage}_flat", f"{factors}.rows"], [f"{stage}_old"]),
        node("Less", [f"{stage}_old", "nothing"], [f"{stage}_negative"]),
        node("Mul", [f"{stage}_old", f"{factors}.values"], [f"{stage}_multiplied"]),
        node("Div", [f"{stage}_old", f"{factors}.values"], [f"{stage}_divided"]),
        node("Where", [f"{stage}_negative", f"{stage}_multiplied", f"{stage}_divided"], [f"{stage}_new"]),
        node("ScatterND", [f"{stage}_flat", f"{factors}.rows", f"{stage}_new"], [f"{stage}_penalised"]),
        node("Unsqueeze", [f"{biases}.places", "last"], [f"{biases}.rows"]),
        node(
            "ScatterND",
            [f"{stage}_penalised", f"{biases}.rows", f"{biases}.values"],
            [f"{stage}_biased"],
            reduction="add",
        ),
        node("Reshape", [f"{stage}_biased", "by_row"], [output]),
    ]


def _candidates(scores: str, vocabulary: int) -> list[NodeProto]:
    """Find each row's best scores and `tokens`, in order.

    See `jumok_export.graphs.selection`.
    """
    node = helper.make_node
    count = [
        node("Shape", [scores], ["vocabulary"], start=1),
        node("Min", ["candidates", "vocabulary"], ["count"]),
    ]
    width = block_width(vocabulary)
    if width is None:
        return [
            *count,
            *_top(scores, "count", "tokens"),
            node("GatherElements", [scores, "tokens"], ["best"], axis=1),
        ]
    return [
        *count,
        node("Constant", [], ["width"], value_ints=[width]),
        node("Constant", [], ["cut"], value_ints=[0, vocabulary // width, width]),
        node("Constant", [], ["in_one"], value_ints=[0, -1]),
        node("Reshape", [scores, "cut"], ["by_block"]),
        node("ReduceMax", ["by_block", "last"], ["maxima"], keepdims=0),
        node("Shape", ["maxima"], ["blocks"], start=1),
        node("Min", ["count", "blocks"], ["depth"]),
        *_top("maxima", "depth", "chosen"),
        node("TopK", ["chosen", "depth"], ["ascending", "order"], axis=-1, largest=0),  # so that ties go by token
        node("Unsqueeze", ["ascending", "last"], ["places"]),
        node("GatherND", ["by_block", "places"], ["within_chosen"], batch_dims=1),
        node("Reshape", ["within_chosen", "in_one"], ["few"]),
        *_top("few", "count", "found"),
        node("GatherElements", ["few", "found"], ["best"], axis=1),
        node("Div", ["found", "width"], ["which"]),
        node("GatherElements", ["ascending", "which"], ["block"], axis=1),
        node("Sub", ["block", "which"], ["moved"]),
        node("Mul", ["moved", "width"], ["distance"]),
        node("Add", ["found", "distance"], ["tokens"]),
    ]


def _top(scores: str, count: str, output: str) -> list[NodeProto]:
    """Positions of the best of every row; among equals the first comes first.

    In double precision, numbers lowered by a tiny share that grows with their position are never equal.
    """
    node = helper.make_node
    return [
        node("Shape", [scores], [f"{output}.size"], start=1),
        node("Slice", ["shares", "zero", f"{output}.size"], [f"{output}.shares"]),
        node("Cast", [scores], [f"{output}.exact"], to=TensorProto.DOUBLE),
        node("Abs", [f"{output}.exact"], [f"{output}.magnitude"]),
        node("Mul", [f"{output}.magnitude", f"{output}.shares"], [f"{output}.less"]),
        node("Sub", [f"{output}.exact", f"{output}.less"], [f"{output}.ranked"]),
        node("TopK", [f"{output}.ranked", count], [f"{output}.values", output], axis=-1),
    ]


def device_sampler_graph(vocabulary: int) -> Graph:
    """Make the graph `sampler` for a device: it always sorts the whole vocabulary."""
    sampler = sampler_graph(vocabulary)
    model = sampler.copy_model()
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        if node.op_type == _DRAWN_WHERE_SOME:
            (output,) = node.output
            nodes.append(helper.make_node("Identity", ["some_best"], [output]))
        elif node.op_type == "TopK":
            node.input[1] = "vocabulary"
            nodes.append(node)
        elif node.op_type == "ScatterElements":
            places = f"{node.input[1]}.rows"
            nodes.append(helper.make_node("Unsqueeze", [node.input[1], "last"], [places]))
            reduction = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
            scattered = [node.input[0], places, node.input[2]]
            nodes.append(helper.make_node("ScatterND", scattered, list(node.output), **reduction))
        else:
            nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    drop_unread(model.graph)
    return Graph(model, sampler.inputs, sampler.outputs)
