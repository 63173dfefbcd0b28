"""Errors that an exporter could make, put into correct graphs."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from jumok_export.graphs.graph import Graph

Graphs = dict[str, Graph]


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


def perturbed_weight(graphs: Graphs) -> None:
    graph = graphs["decoder"]
    name = weight_of(node(graph, "MatMul", 2), graph)
    change_weight(graph, name, lambda weight: weight.__setitem__((0, 0), weight[0, 0] + 0.1))


def perturbed_bias(graphs: Graphs) -> None:
    graph = graphs["encoder"]
    change_weight(graph, node(graph, "LayerNormalization").input[2], lambda bias: np.copyto(bias, bias + 0.01))


def swapped_operator(graphs: Graphs) -> None:
    node(graphs["decoder"], "Relu").op_type = "Softplus"


def attention_is_too_sharp(graphs: Graphs) -> None:
    for attribute in node(graphs["encoder"], "MultiHeadAttention").attribute:
        if attribute.name == "scale":
            attribute.f *= 1.1


def entries_of_all_rows_are_seen(graphs: Graphs) -> None:
    insert(graphs["decoder"], "visible", "Or", constant(graphs["decoder"], np.array(True)))


def token_cannot_see_itself(graphs: Graphs) -> None:
    for reader in graphs["decoder"].model.graph.node:
        reader.input[:] = [name.replace("next_state.key", "state.key") for name in reader.input]


def padding_is_seen(graphs: Graphs) -> None:
    insert(graphs["decoder"], "source_lengths", "Add", constant(graphs["decoder"], np.array(1)))


def position_ignored(graphs: Graphs) -> None:
    graph = graphs["decoder"]
    lookup = node(graph, "GatherND")
    change_weight(graph, lookup.input[0], lambda table: table.__setitem__(slice(1, None), table[0]))


def scorer_is_not_causal(graphs: Graphs) -> None:
    node(graphs["scorer"], "GreaterOrEqual").op_type = "Greater"


def aligner_swaps_its_outputs(graphs: Graphs) -> None:
    nodes = graphs["aligner"].model.graph.node
    swap = {"encoder_attention": "decoder_attention", "decoder_attention": "encoder_attention"}
    for each in nodes:
        for place, name in enumerate(each.output):
            each.output[place] = swap.get(name, name)


def select_forgets_the_running_score(graphs: Graphs) -> None:
    insert(graphs["select"], "scores", "Mul", constant(graphs["select"], np.array(0, np.float32)))


def select_takes_the_worst(graphs: Graphs) -> None:
    node(graphs["select"], "TopK", -1).attribute.append(helper.make_attribute("largest", 0))


def select_normalizes_again_after_constraints(graphs: Graphs) -> None:
    insert(graphs["select"], "constrained", "LogSoftmax", axis=-1)


def select_never_renormalizes(graphs: Graphs) -> None:
    insert(graphs["select"], "renormalize", "Mul", constant(graphs["select"], np.array(0)))


def select_penalises_too_much(graphs: Graphs) -> None:
    insert(graphs["select"], "log_prob_factors.values", "Sqrt")


def sampler_knows_no_chance(graphs: Graphs) -> None:
    insert(graphs["sampler"], "uniform", "Mul", constant(graphs["sampler"], np.array(0, np.float32)))


def sampler_keeps_one_temperature(graphs: Graphs) -> None:
    insert(graphs["sampler"], "temperature", "Pow", constant(graphs["sampler"], np.array(0, np.float32)))


def sampler_ignores_top_k(graphs: Graphs) -> None:
    insert(graphs["sampler"], "top_k", "Mul", constant(graphs["sampler"], np.array(0)))


def sampler_ignores_top_p(graphs: Graphs) -> None:
    insert(graphs["sampler"], "top_p", "Max", constant(graphs["sampler"], np.array(1, np.float32)))


def sampler_draws_for_the_wrong_rows(graphs: Graphs) -> None:
    insert(graphs["sampler"], "rows", "Mul", constant(graphs["sampler"], np.array(0)))


def a_graph_that_fails_to_run(graphs: Graphs) -> None:
    insert(graphs["decoder"], "positions", "Sub", constant(graphs["decoder"], np.array(1000)))


def epsilon_is_wrong(graphs: Graphs) -> None:
    for each in graphs["encoder"].model.graph.node:
        for attribute in each.attribute:
            if attribute.name == "epsilon":
                attribute.f = 1e-3


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


def position_is_off_by_one(graphs: Graphs) -> None:
    graph = graphs["decoder"]
    change_weight(graph, node(graph, "GatherND").input[0], lambda table: np.copyto(table, np.roll(table, 1, axis=0)))


BREAKS: dict[Callable[[Graphs], None], str] = {
    perturbed_weight: "step logits",
    perturbed_bias: "encoder",
    swapped_operator: "step logits",
    attention_is_too_sharp: "encoder",
    entries_of_all_rows_are_seen: "decode, beam 3",
    token_cannot_see_itself: "step logits",
    padding_is_seen: "batch invariance, beam 1",
    position_ignored: "scorer agreement, beam 1",
    scorer_is_not_causal: "scorer",
    aligner_swaps_its_outputs: "aligner",
    a_graph_that_fails_to_run: "step",
    epsilon_is_wrong: "encoder",
    heads_are_swapped: "encoder",
    bias_is_dropped: "step logits",
    position_is_off_by_one: "step logits",
}
SELECTION_BREAKS: dict[Callable[[Graphs], None], str] = {
    select_forgets_the_running_score: "select scores",
    select_takes_the_worst: "select tokens",
    select_normalizes_again_after_constraints: "select scores",
    select_never_renormalizes: "select scores",
    select_penalises_too_much: "select scores",
    sampler_knows_no_chance: "sampler tokens",
    sampler_keeps_one_temperature: "sampler scores",
    sampler_ignores_top_k: "sampler scores",
    sampler_ignores_top_p: "sampler scores",
    sampler_draws_for_the_wrong_rows: "sampler tokens",
}
