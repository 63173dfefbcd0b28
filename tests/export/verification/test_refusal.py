"""Broken graphs are refused."""

import copy
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import helper
from torch import Tensor

from jumok_export.bundles import export as export_module
from jumok_export.bundles import recipe
from jumok_export.bundles import variants as variants_module
from jumok_export.errors import ExportError, VerificationError
from jumok_export.graphs.graph import Graph
from jumok_export.models.seq2seq import Tensors
from jumok_export.models.transformer import Transformer
from jumok_export.quantization.int8_graphs import quantize_graph
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.bundle.describe import as_json, describe
from jumok_serve.errors import BundleError
from tests.support.models.broken_graphs import (
    BREAKS,
    SELECTION_BREAKS,
    Damage,
    Graphs,
    change_weight,
    constant,
    copied,
    inserted,
    replaced,
)

Export = Callable[..., Bundle]


@pytest.fixture(autouse=True)
def no_bundle(tmp_path: Path) -> Iterator[None]:
    """Assert that a refused export leaves no file."""
    yield
    assert [path.name for path in tmp_path.iterdir() if path.name != "kept"] == []


IN_MANY_INPUTS = ("perturbed weight", "padding is seen", "position ignored")
"""Damages that show clearly in many inputs only."""


def broken(tiny_graphs: Graphs, name: str) -> Graphs:
    graphs = copied(tiny_graphs)
    BREAKS[name][0](graphs)
    return graphs


@pytest.mark.parametrize("name", IN_MANY_INPUTS)
def test_a_broken_graph_is_refused(name: str, export_tiny: Export, tiny_graphs: Graphs, tmp_path: Path) -> None:
    graphs = broken(tiny_graphs, name)
    assert_refused(lambda: export_tiny(tmp_path / "out", graphs=graphs, precisions=("fp32",)), BREAKS[name][1])


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_graph_is_refused_for_int8_alone_with_the_fewest_inputs(
    name: str, export_tiny: Export, tiny_graphs: Graphs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest models are verified on as few inputs."""
    monkeypatch.setattr(export_module, "USUAL_PARAMETERS", 1)
    graphs, failing = broken(tiny_graphs, name), None if name in IN_MANY_INPUTS else BREAKS[name][1]
    assert_refused(lambda: export_tiny(tmp_path / "out", graphs=graphs, precisions=("int8",)), failing)


@pytest.mark.parametrize(
    ("name", "precision"),
    [*((each, "fp32") for each in SELECTION_BREAKS), *((each, "int8") for each in [*SELECTION_BREAKS][-2:])],
)
def test_a_broken_selection_is_refused(
    name: str, precision: str, export_tiny: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    role, (damage, failing) = name.partition(" ")[0], SELECTION_BREAKS[name]
    make: Callable[[int | None], Graph] = getattr(recipe, f"{role}_graph")

    def damaged(width: int | None) -> Graph:
        graphs = {role: make(width)}
        damage(graphs)
        return graphs[role]

    monkeypatch.setattr(recipe, f"{role}_graph", damaged)
    assert_refused(lambda: export_tiny(tmp_path / "out", precisions=(precision,)), failing, precision)


def test_a_broken_graph_is_written_if_that_is_asked(export_tiny: Export, tiny_graphs: Graphs, tmp_path: Path) -> None:
    graphs = broken(tiny_graphs, "attention is too sharp")
    bundle = export_tiny(tmp_path / "kept", graphs=graphs, precisions=("fp32",), unverified=True)
    failed = [check.name for check in bundle.manifest.verification["fp32"].checks if not check.passed]
    assert "encoder" in failed
    assert as_json(bundle)["verified"] == {"fp32": False}
    assert re.search(r"encoder +\d+ .* FAILED", describe(bundle))


def assert_refused(export: Callable[[], Bundle], failing: str | None, precision: str = "fp32") -> None:
    with pytest.raises(VerificationError, match=f"verification failed in {precision}; no bundle was written") as caught:
        export()
    failed = {check.name: check for check in caught.value.checks}
    assert failing is None or failing in failed
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
@pytest.mark.parametrize("usual", [1, 10**9], ids=["fewest inputs", "all inputs"])
def test_a_broken_quantization_is_refused(
    damage: Damage,
    expected: str,
    usual: int,
    export_tiny: Export,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def damaged(graph: Graph, **options: Any) -> Graph:
        quantized = {"decoder": quantize_graph(graph, **options)}
        if any(spec.name == "token_ids" for spec in graph.inputs):
            damage(quantized)
        return quantized["decoder"]

    monkeypatch.setattr(export_module, "USUAL_PARAMETERS", usual)
    monkeypatch.setattr(variants_module, "quantize_graph", damaged)
    with pytest.raises(VerificationError, match=r"(?s)failed in int8; .*\nfp32 passed: leave int8 out") as caught:
        export_tiny(tmp_path / "out", precisions=("int8",))
    assert expected in {check.name for check in caught.value.checks}


def test_a_quantized_scorer_that_contradicts_the_steps_is_refused(
    export_tiny: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(graph: Graph, **options: Any) -> Graph:
        quantized = quantize_graph(graph, **options)
        if [spec.name for spec in graph.outputs] == ["log_probabilities"]:
            scaled_scorer({"scorer": quantized})
        return quantized

    monkeypatch.setattr(variants_module, "quantize_graph", damaged)
    with pytest.raises(VerificationError, match="failed in int8") as caught:
        export_tiny(tmp_path / "out", precisions=("int8",))
    assert [check.name for check in caught.value.checks] == ["scorer agreement"]


class Unlike(Transformer):
    """A model whose one-pass scores differ from its steps."""

    def score(self, *given: Tensor) -> Tensor:
        return super().score(*given) * 0.99


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


@pytest.mark.parametrize(
    ("kind", "same", "expected"),
    [
        (Unlike, scaled_scorer, "scorer agreement"),
        (Nosy, inserted("encoder", "source_lengths", "Max", 1000), "batch invariance"),
    ],
)
def test_a_model_that_contradicts_itself_is_refused(
    kind: type[Transformer],
    same: Damage,
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
    replaced("decoder", "Relu", "Rellu")(graphs)
    with pytest.raises(ExportError, match=r"cannot load the fp32 graphs: fp32/decoder.onnx: .*Rellu"):
        export_tiny(tmp_path / "out", graphs=graphs)


def test_an_existing_folder_is_not_overwritten(export_tiny: Export, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    with pytest.raises(BundleError, match="exists already"):
        export_tiny(tmp_path / "kept")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"precisions": ()}, "precisions must be some of fp32, fp16, int8, got none"),
        ({"precisions": ("fp32", "int4")}, "precisions must be some of fp32, fp16, int8, got int4"),
        ({"dtype": torch.bfloat16}, r"needs a model in float32 on the CPU, but .* is bfloat16 on cpu"),
    ],
)
def test_unknown_precisions_are_refused(
    options: dict[str, Any], problem: str, export_tiny: Export, tiny_model: Transformer, tmp_path: Path
) -> None:
    model = copy.deepcopy(tiny_model).to(options.pop("dtype", torch.float32))
    with pytest.raises(ExportError, match=problem):
        export_tiny(tmp_path / "out", model=model, **options)
