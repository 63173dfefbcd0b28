"""Broken graphs are refused."""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import Tensor

from jumok_export.bundles import recipe
from jumok_export.bundles import variants as variants_module
from jumok_export.errors import ExportError, VerificationError
from jumok_export.graphs.graph import Graph
from jumok_export.models.seq2seq import Tensors
from jumok_export.models.transformer import Transformer
from jumok_export.quantization.int8 import Scales, quantize_graph
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.errors import BundleError

Export = Callable[..., Bundle]
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


@pytest.mark.parametrize("damage", BREAKS, ids=lambda damage: damage.__name__)
def test_a_broken_graph_is_refused(
    damage: Callable[[Graphs], None], export_tiny: Export, tiny_graphs: Graphs, tmp_path: Path
) -> None:
    graphs = copied(tiny_graphs)
    damage(graphs)
    assert_refused(lambda: export_tiny(tmp_path / "out", graphs=graphs, precisions=("fp32",)), BREAKS[damage])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", SELECTION_BREAKS, ids=lambda damage: damage.__name__)
def test_a_broken_selection_is_refused(
    damage: Callable[[Graphs], None], export_tiny: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = damage.__name__.partition("_")[0]
    make: Callable[[int | None], Graph] = getattr(recipe, f"{role}_graph")

    def damaged(width: int | None) -> Graph:
        graphs = {role: make(width)}
        damage(graphs)
        return graphs[role]

    monkeypatch.setattr(recipe, f"{role}_graph", damaged)
    assert_refused(lambda: export_tiny(tmp_path / "out", precisions=("fp32",)), SELECTION_BREAKS[damage])
    assert list(tmp_path.iterdir()) == []


def assert_refused(export: Callable[[], Bundle], failing: str) -> None:
    with pytest.raises(VerificationError, match="verification failed in fp32; no bundle was written") as caught:
        export()
    failed = {check.name: check for check in caught.value.checks}
    assert failing in failed
    for check in failed.values():
        assert check.worst > check.limit
        assert f"{check.name}: {check.worst:.3g} is over {check.limit:.3g}" in str(caught.value)


def wrong_scales(graphs: Graphs) -> None:
    graph = graphs["decoder"]
    name = next(tensor.name for tensor in graph.model.graph.initializer if ".scale." in tensor.name)
    change_weight(graph, name, lambda scales: np.copyto(scales, np.roll(scales, 1) * 1.5))


def one_scale_for_the_batch(graphs: Graphs) -> None:
    graph = graphs["decoder"]
    nodes = graph.model.graph.node
    for place, each in reversed(list(enumerate(nodes))):
        if each.op_type == "ReduceMax" and each.output[0].endswith(".int8.largest"):
            row = each.output[0]
            each.output[0] = f"{row}.row"
            nodes.insert(place + 1, helper.make_node("ReduceMax", [f"{row}.row"], [f"{row}.batch"], keepdims=1))
            nodes.insert(place + 2, helper.make_node("Max", [f"{row}.row", f"{row}.batch"], [row]))


def shifted_zero_point(graphs: Graphs) -> None:
    """Use another zero point in products than in the quantization of activations."""
    graph = graphs["decoder"]
    shifted = constant(graph, np.array(126, np.uint8))
    for each in graph.model.graph.node:
        if each.op_type == "MatMulIntegerToFloat" and each.input[4] == "int8.zero_point.128":
            each.input[4] = shifted


@pytest.mark.parametrize(
    ("damage", "expected"),
    [(wrong_scales, "decode"), (one_scale_for_the_batch, "batch invariance"), (shifted_zero_point, "excess error")],
)
def test_a_broken_quantization_is_refused(
    damage: Callable[[Graphs], None],
    expected: str,
    export_tiny: Export,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def damaged(graph: Graph, scales: Scales) -> Graph:
        quantized = {"decoder": quantize_graph(graph, scales)}
        if any(spec.name == "token_ids" for spec in graph.inputs):
            damage(quantized)
        return quantized["decoder"]

    monkeypatch.setattr(variants_module, "quantize_graph", damaged)
    with pytest.raises(VerificationError, match=r"(?s)failed in int8; .*\nfp32 passed: leave int8 out") as caught:
        export_tiny(tmp_path / "out", precisions=("int8",))
    assert expected in {check.name for check in caught.value.checks}
    assert list(tmp_path.iterdir()) == []


def test_a_quantized_scorer_that_contradicts_the_steps_is_refused(
    export_tiny: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(graph: Graph, scales: Scales) -> Graph:
        quantized = quantize_graph(graph, scales)
        if [spec.name for spec in graph.outputs] == ["log_probabilities"]:
            scaled_scorer({"scorer": quantized})
        return quantized

    monkeypatch.setattr(variants_module, "quantize_graph", damaged)
    with pytest.raises(VerificationError, match="failed in int8") as caught:
        export_tiny(tmp_path / "out", precisions=("int8",))
    assert [check.name for check in caught.value.checks] == ["scorer agreement"]


class Unlike(Transformer):
    """A model whose one-pass scores differ from its steps."""

    def score(
        self, source_ids: Tensor, source_lengths: Tensor, start_ids: Tensor, target_ids: Tensor, target_lengths: Tensor
    ) -> Tensor:
        return super().score(source_ids, source_lengths, start_ids, target_ids, target_lengths) * 0.99


class Nosy(Transformer):
    """A model whose encoder attends to padding."""

    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> tuple[Tensors, Tensors]:
        return super().encode(source_ids, torch.full_like(source_lengths, 1000))


def scaled_scorer(graphs: Graphs) -> None:
    graph = graphs["scorer"]
    for each in graph.model.graph.node:
        if "log_probabilities" in each.output:
            each.output[0] = "unscaled"
    scale = constant(graph, np.array(0.99, np.float32))
    graph.model.graph.node.append(helper.make_node("Mul", ["unscaled", scale], ["log_probabilities"]))


def nosy_encoder(graphs: Graphs) -> None:
    insert(graphs["encoder"], "source_lengths", "Max", constant(graphs["encoder"], np.array(1000)))


@pytest.mark.parametrize(
    ("kind", "same", "expected"),
    [(Unlike, scaled_scorer, "scorer agreement"), (Nosy, nosy_encoder, "batch invariance")],
)
def test_a_model_that_contradicts_itself_is_refused(
    kind: type[Transformer],
    same: Callable[[Graphs], None],
    expected: str,
    export_tiny: Export,
    tiny_model: Transformer,
    tiny_graphs: Graphs,
    tmp_path: Path,
) -> None:
    """The graphs equal the model, so only comparing the graphs with each other shows the error."""
    model = copy.deepcopy(tiny_model)
    model.__class__ = kind
    graphs = copied(tiny_graphs)
    same(graphs)
    with pytest.raises(VerificationError) as caught:
        export_tiny(tmp_path / "out", model=model, graphs=graphs, precisions=("fp32",))
    failed = {check.name.partition(",")[0] for check in caught.value.checks}
    assert expected in failed
    assert not failed & {"encoder", "step logits", "scorer", "decode"}


def test_a_graph_that_does_not_load_is_refused(export_tiny: Export, tiny_graphs: Graphs, tmp_path: Path) -> None:
    graphs = copied(tiny_graphs)
    node(graphs["decoder"], "Relu").op_type = "Rellu"
    with pytest.raises(ExportError, match=r"cannot load the fp32 graphs: fp32/decoder.onnx: .*Rellu"):
        export_tiny(tmp_path / "out", graphs=graphs)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_not_overwritten(export_tiny: Export, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(BundleError, match="exists already"):
        export_tiny(tmp_path / "out")


@pytest.mark.parametrize("precisions", [(), ("fp32", "int4")])
def test_unknown_precisions_are_refused(precisions: tuple[str, ...], export_tiny: Export, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"precisions must be some of fp32, fp16, int8, got (none|int4)"):
        export_tiny(tmp_path / "out", precisions=precisions)


def test_a_model_in_another_precision_is_refused(export_tiny: Export, tiny_model: Transformer, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"needs a model in float32 on the CPU, but .* is bfloat16 on cpu"):
        export_tiny(tmp_path / "out", model=copy.deepcopy(tiny_model).bfloat16())
