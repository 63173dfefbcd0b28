"""Errors that an exporter could make, put into correct graphs."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from jumok_export.graphs.graph import Graph

Graphs = dict[str, Graph]
Damage = Callable[[Graphs], None]


def copied(graphs: Mapping[str, Graph]) -> Graphs:
    """A copy of the graphs."""
    copies = {}
    for name, graph in graphs.items():
        model = onnx.ModelProto()
        model.CopyFrom(graph.model)
        copies[name] = Graph(model, graph.inputs, graph.outputs)
    return copies


def node(graph: Graph, operator: str, number: int = 0) -> onnx.NodeProto:
    return [node for node in graph.model.graph.node if node.op_type == operator][number]


def change_weight(graph: Graph, name: str, change: Callable[[np.ndarray[Any, Any]], None]) -> None:
    (tensor,) = (tensor for tensor in graph.model.graph.initializer if tensor.name == name)
    values = numpy_helper.to_array(tensor).copy()
    change(values)
    tensor.CopyFrom(numpy_helper.from_array(values, name))


def weight_of(node: onnx.NodeProto, graph: Graph) -> str:
    constants = {tensor.name for tensor in graph.model.graph.initializer}
    return next(name for name in node.input if name in constants)


def insert(graph: Graph, at: str, operator: str, *others: str, **attributes: Any) -> None:
    """Insert an operator between the tensor `at` and its readers."""
    for reader in graph.model.graph.node:
        for place, name in enumerate(reader.input):
            if name == at:
                reader.input[place] = f"{at}.changed"
    nodes = graph.model.graph.node
    place = next((place + 1 for place, each in enumerate(nodes) if at in each.output), 0)
    nodes.insert(place, helper.make_node(operator, [at, *others], [f"{at}.changed"], **attributes))


def constant(graph: Graph, value: np.ndarray[Any, Any]) -> str:
    name = f"constant{len(graph.model.graph.initializer)}"
    graph.model.graph.initializer.append(numpy_helper.from_array(value, name))
    return name


def inserted(role: str, at: str, operator: str, *others: Any, **attributes: Any) -> Damage:
    """Insert an operator between a tensor of a graph and its readers; its other inputs are constants."""

    def damage(graphs: Graphs) -> None:
        graph = graphs[role]
        insert(graph, at, operator, *(constant(graph, np.asarray(other)) for other in others), **attributes)

    return damage


def replaced(role: str, operator: str, other: str) -> Damage:
    """Put another operator in the place of the first one of a kind."""

    def damage(graphs: Graphs) -> None:
        node(graphs[role], operator).op_type = other

    return damage


def attribute_changed(
    operator: str, name: str, change: Callable[[float], float], *, first_only: bool = False
) -> Damage:
    """Change an attribute of the encoder's operators of a kind, or of the first one."""

    def damage(graphs: Graphs) -> None:
        found = [each for each in graphs["encoder"].model.graph.node if each.op_type == operator]
        for each in found[:1] if first_only else found:
            for attribute in each.attribute:
                if attribute.name == name:
                    attribute.f = change(attribute.f)

    return damage


def positions_changed(change: Callable[[np.ndarray[Any, Any]], None]) -> Damage:
    """Change the decoder's table of positions."""

    def damage(graphs: Graphs) -> None:
        graph = graphs["decoder"]
        change_weight(graph, node(graph, "GatherND").input[0], change)

    return damage


def perturbed_weight(graphs: Graphs) -> None:
    graph = graphs["decoder"]
    name = weight_of(node(graph, "MatMul", 2), graph)
    change_weight(graph, name, lambda weight: weight.__setitem__((0, 0), weight[0, 0] + 0.1))


def perturbed_bias(graphs: Graphs) -> None:
    graph = graphs["encoder"]
    change_weight(graph, node(graph, "LayerNormalization").input[2], lambda bias: np.copyto(bias, bias + 0.01))


def token_cannot_see_itself(graphs: Graphs) -> None:
    for reader in graphs["decoder"].model.graph.node:
        reader.input[:] = [name.replace("next_state.key", "state.key") for name in reader.input]


def aligner_swaps_its_outputs(graphs: Graphs) -> None:
    swap = {"encoder_attention": "decoder_attention", "decoder_attention": "encoder_attention"}
    for each in graphs["aligner"].model.graph.node:
        each.output[:] = [swap.get(name, name) for name in each.output]


def select_takes_the_worst(graphs: Graphs) -> None:
    node(graphs["select"], "TopK", -1).attribute.append(helper.make_attribute("largest", 0))


def heads_are_swapped(graphs: Graphs) -> None:
    """Swap the first two heads of an attention's values, and not those of its keys."""
    graph = graphs["encoder"]
    attention = node(graph, "MultiHeadAttention")
    heads = next(attribute.i for attribute in attention.attribute if attribute.name == "num_heads")
    (product,) = (each for each in graph.model.graph.node if attention.input[2] in each.output)
    if product.op_type == "Add":
        (product,) = (each for each in graph.model.graph.node if set(each.output) & set(product.input))

    def swap(weight: np.ndarray[Any, Any]) -> None:
        width = weight.shape[1] // heads
        weight[:, : 2 * width] = np.roll(weight[:, : 2 * width], width, axis=1)

    change_weight(graph, weight_of(product, graph), swap)


def bias_is_dropped(graphs: Graphs) -> None:
    graph = graphs["decoder"]
    name = next(
        name for each in graph.model.graph.node if each.op_type == "LayerNormalization" for name in each.input[2:]
    )
    change_weight(graph, name, lambda bias: bias.fill(0))


NONE = np.float32(0)
BREAKS: dict[str, tuple[Damage, str]] = {
    "perturbed weight": (perturbed_weight, "step logits"),
    "perturbed bias": (perturbed_bias, "encoder"),
    "swapped operator": (replaced("decoder", "Relu", "Softplus"), "step logits"),
    "attention is too sharp": (
        attribute_changed("MultiHeadAttention", "scale", lambda scale: scale * 1.1, first_only=True),
        "encoder",
    ),
    "entries of all rows are seen": (inserted("decoder", "visible", "Or", True), "decode, beam 3"),
    "token cannot see itself": (token_cannot_see_itself, "step logits"),
    "padding is seen": (inserted("decoder", "source_lengths", "Add", 1), "batch invariance, beam 1"),
    "position ignored": (
        positions_changed(lambda table: table.__setitem__(slice(1, None), table[0])),
        "scorer agreement, beam 1",
    ),
    "scorer is not causal": (replaced("scorer", "GreaterOrEqual", "Greater"), "scorer"),
    "aligner swaps its outputs": (aligner_swaps_its_outputs, "aligner"),
    "a graph that fails to run": (inserted("decoder", "positions", "Sub", 1000), "step"),
    "epsilon is wrong": (attribute_changed("LayerNormalization", "epsilon", lambda _: 1e-3), "encoder"),
    "heads are swapped": (heads_are_swapped, "encoder"),
    "bias is dropped": (bias_is_dropped, "step logits"),
    "position is off by one": (
        positions_changed(lambda table: np.copyto(table, np.roll(table, 1, axis=0))),
        "step logits",
    ),
}
"""Damages, and the check that notices each."""
SELECTION_BREAKS: dict[str, tuple[Damage, str]] = {
    "select forgets the running score": (inserted("select", "scores", "Mul", NONE), "select scores"),
    "select takes the worst": (select_takes_the_worst, "select tokens"),
    "select normalizes again after constraints": (
        inserted("select", "constrained", "LogSoftmax", axis=-1),
        "select scores",
    ),
    "select never renormalizes": (inserted("select", "renormalize", "Mul", 0), "select scores"),
    "select penalises too much": (inserted("select", "log_prob_factors.values", "Sqrt"), "select scores"),
    "sampler knows no chance": (inserted("sampler", "uniform", "Mul", NONE), "sampler tokens"),
    "sampler keeps one temperature": (inserted("sampler", "temperature", "Pow", NONE), "sampler scores"),
    "sampler ignores top_k": (inserted("sampler", "top_k", "Mul", 0), "sampler scores"),
    "sampler ignores top_p": (inserted("sampler", "top_p", "Max", np.float32(1)), "sampler scores"),
    "sampler draws for the wrong rows": (inserted("sampler", "rows", "Mul", 0), "sampler tokens"),
}
