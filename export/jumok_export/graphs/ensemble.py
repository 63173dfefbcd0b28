"""Join the graphs of several models into those of their ensemble.

Graphs run side by side and share the inputs that every model has. `onnx.compose` joins outputs of one graph with
inputs of another, but refuses two graphs with an input in common.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

from jumok_export.graphs.graph import Graph, declare, drop_unread, reads, rename, with_inner
from jumok_serve.manifest.manifest import TensorSpec
from jumok_serve.runtime.graphs import ATTENTION_OUTPUTS

_KINDS = ("memory", "state", "next_state")
"""Tensors that each model has for itself, by the first part of their names."""


def part_name(name: str, part: int) -> str:
    """The name of a model's memory or state in the ensemble: `state.key.0` of model 1 is `state.1.key.0`."""
    kind, _, own = name.partition(".")
    return f"{kind}.{part}.{own}"


def join_models(models: Sequence[Mapping[str, Graph]]) -> dict[str, Graph]:
    """Join the source graphs of models, by role.

    The logits of the ensemble are the mean of the models' logits. Softmax ignores what all logits of a row have in
    common, so their log-softmax is the mean of the models' log-probabilities, normalized again.

    Attention is the mean of the models' attention: head by head if all have the same layers and heads, else one mean
    over all of them.

    Args:
        models: `encoder`, `decoder` (before its selection), `scorer` and maybe `aligner` of each.

    Returns:
        The same roles. There is no `scorer` if a model scores step by step; it is then made of encoder and decoder.

    Raises:
        ValueError: the decoders keep their state in different ways, or a Transformer lacks a scorer.
    """
    if len({_writes_in_place(model["decoder"]) for model in models}) > 1:
        ways = ", ".join("in place" if _writes_in_place(model["decoder"]) else "gathered" for model in models)
        raise ValueError(f"their decoders keep their state in different ways ({ways}), so no step can run all of them")
    joined = {
        "encoder": _join([model["encoder"] for model in models], _all_outputs),
        "decoder": _join([model["decoder"] for model in models], _mean_logits),
    }
    scorers = [model["scorer"] for model in models if "scorer" in model]
    if len(scorers) == len(models) and all(len(_log_softmax(scorer)) == 1 for scorer in scorers):
        joined["scorer"] = _join(scorers, _mean_scores)
    elif _writes_in_place(models[0]["decoder"]):
        raise ValueError("a bundle has no scorer, or one without a log-softmax of the logits: export it again")
    if all("aligner" in model for model in models):
        joined["aligner"] = _join([model["aligner"] for model in models], _mean_attention)
    return joined


def _writes_in_place(decoder: Graph) -> bool:
    return any(spec.name == "visible" for spec in decoder.inputs)


Ends = tuple[list[NodeProto], list[TensorSpec]]
"""Last nodes of a joined graph, and its outputs."""


def _join(graphs: Sequence[Graph], end: Callable[[Sequence[Graph]], Ends]) -> Graph:
    """Join graphs side by side; `end` makes the outputs of those of the graphs."""
    nodes, outputs = end(graphs)
    model = onnx.ModelProto()
    model.CopyFrom(_renamed(graphs[0], 0))
    for part, graph in enumerate(graphs[1:], start=1):
        other = _renamed(graph, part)
        model.graph.node.extend(other.graph.node)
        model.graph.initializer.extend(other.graph.initializer)
        known = {opset.domain: opset.version for opset in model.opset_import}
        for opset in other.opset_import:
            if known.setdefault(opset.domain, opset.version) != opset.version:
                raise ValueError(
                    f"their graphs need versions {known[opset.domain]} and {opset.version} of the operators "
                    f"{opset.domain or 'ai.onnx'!r}: export all with one version of jumok"
                )
        del model.opset_import[:]
        model.opset_import.extend(helper.make_opsetid(domain, version) for domain, version in known.items())
    model.graph.node.extend(nodes)
    inputs = {
        spec.name: spec for part, graph in enumerate(graphs) for spec in _of_part(graph.inputs, part, shared=True)
    }
    joined = declare(model, tuple(inputs.values()), tuple(outputs))
    drop_unread(joined.model.graph)
    return joined


def _renamed(graph: Graph, part: int) -> onnx.ModelProto:
    """A copy of a graph whose names clash with no other part's."""
    model = graph.copy_model()
    shared = {spec.name for spec in graph.inputs if not _is_own(spec.name)}
    own = {spec.name for spec in (*graph.inputs, *graph.outputs) if _is_own(spec.name)}

    def renamed(name: str) -> str:
        if not name or name in shared:
            return name
        return part_name(name, part) if name in own else _inner(name, part)

    rename(model.graph, renamed)
    for each in with_inner(model.graph):
        for node in each.node:
            node.name = _inner(node.name, part) if node.name else ""
    return model


def _inner(name: str, part: int) -> str:
    return f"part{part}.{name}"


def _is_own(name: str) -> bool:
    return name.partition(".")[0] in _KINDS and "." in name


def _of_part(specs: Iterable[TensorSpec], part: int, *, shared: bool) -> list[TensorSpec]:
    """Specs of a part's memory and state; with `shared` the other specs too, unchanged."""
    return [
        spec.model_copy(update={"name": part_name(spec.name, part)}) if _is_own(spec.name) else spec
        for spec in specs
        if shared or _is_own(spec.name)
    ]


def _all_outputs(graphs: Sequence[Graph]) -> Ends:
    outputs = (_of_part(graph.outputs, part, shared=False) for part, graph in enumerate(graphs))
    return [], list(itertools.chain.from_iterable(outputs))


def _mean_logits(graphs: Sequence[Graph]) -> Ends:
    _, states = _all_outputs(graphs)
    logits = next(spec for spec in graphs[0].outputs if spec.name == "logits")
    return _mean([_inner("logits", part) for part in range(len(graphs))], "logits"), [logits, *states]


def _mean_attention(graphs: Sequence[Graph]) -> Ends:
    nodes: list[NodeProto] = []
    outputs: list[TensorSpec] = []
    for name in ATTENTION_OUTPUTS.values():
        found = [spec for graph in graphs for spec in graph.outputs if spec.name == name]
        if len(found) < len(graphs) or any(0 in spec.axes for spec in found):
            continue
        names, spec = [_inner(name, part) for part in range(len(graphs))], found[0]
        if len({each.axes for each in found}) > 1:
            heads = [f"{each}.mean" for each in names]
            axes = helper.make_node("Constant", [], [f"{name}.heads"], value_ints=[1, 2])
            reduce = [
                helper.make_node("ReduceMean", [each, f"{name}.heads"], [mean])
                for each, mean in zip(names, heads, strict=True)
            ]
            nodes += [axes, *reduce]
            names, spec = heads, spec.model_copy(update={"axes": (spec.axes[0], 1, 1, *spec.axes[3:])})
        nodes += _mean(names, name)
        outputs.append(spec)
    return nodes, outputs


def _mean(names: Sequence[str], output: str) -> list[NodeProto]:
    """The mean of tensors: that of two equal numbers is exactly this number."""
    count = numpy_helper.from_array(np.array(len(names), np.float32))
    return [
        helper.make_node("Sum", names, [f"{output}.sum"]),
        helper.make_node("Constant", [], [f"{output}.count"], value=count),
        helper.make_node("Div", [f"{output}.sum", f"{output}.count"], [output]),
    ]


def _log_softmax(scorer: Graph) -> list[NodeProto]:
    """The log-softmax of a scorer's logits; nothing if it is within the loop of a step-by-step scorer."""
    return [node for node in scorer.model.graph.node if node.op_type == "LogSoftmax"]


def _mean_scores(scorers: Sequence[Graph]) -> Ends:
    """Compute scores of mean logits: by the nodes of the first scorer from its log-softmax on."""
    logits = [node.input[0] for scorer in scorers for node in _log_softmax(scorer)]
    first, outputs = scorers[0], {spec.name for spec in scorers[0].outputs}
    given = {spec.name for spec in first.inputs}
    made: set[str] = {logits[0]}
    last = onnx.GraphProto()
    for node in first.model.graph.node:
        if not made.isdisjoint(reads(node)):
            last.node.append(node)
            last.node[-1].name = ""  # the node itself stays in the graph until unread nodes are dropped
            made.update(node.output)

    def renamed(name: str) -> str:
        if not name or name in outputs or name in given:
            return name
        return f"mean.{name}" if name in made else _inner(name, 0)

    rename(last, renamed)
    mean = _mean([_inner(name, part) for part, name in enumerate(logits)], renamed(logits[0]))
    return [*mean, *last.node], list(first.outputs)
