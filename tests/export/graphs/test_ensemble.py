"""Joined graphs of every family compute the mean of their models."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from jumok_export.bundles.recipe import write_variant
from jumok_export.bundles.variants import Folder, opened
from jumok_export.graphs.ensemble import join_models
from jumok_export.graphs.fuse_selection import remove_selection
from jumok_export.graphs.graph import Graph
from jumok_export.quantization.int8_graphs import quantize_graph
from jumok_export.verification.ensemble import verify_ensemble
from jumok_export.verification.native import verify_native
from jumok_export.verification.runtime_side import RuntimeSide
from jumok_export.verification.sides import PartsSide
from jumok_serve.native import library
from jumok_serve.runtime.device import CPU
from tests.support.models.random_models import random_model


@pytest.mark.slow
@pytest.mark.parametrize(("family", "precision"), [("t5-gated-and-untied", "int8"), ("own-gru", "fp32")])
def test_graphs_of_a_family(family: str, precision: str, tmp_path: Path) -> None:
    cases = [random_model(family, scale) for scale in (1.0, 1.5)]
    models: list[Mapping[str, Graph]] = [case.graphs() for case in cases]
    if precision == "int8":
        models = [{role: quantize_graph(graph) for role, graph in model.items()} for model in models]
    sides = [
        RuntimeSide(opened(Folder(folder, write_variant(model, folder, precision)), precision, CPU, native=False))
        for model, folder in zip(models, (tmp_path / "first", tmp_path / "second"), strict=True)
    ]
    written = Folder(tmp_path / "both", write_variant(join_models(models), tmp_path / "both", precision))
    parts = PartsSide(sides, aligns="aligner" in written.only.graphs)
    bounds = replace(cases[0].bounds, share=0.2)
    checks = verify_ensemble(parts, opened(written, precision, CPU, native=False), bounds, precision, {})
    assert written.only.native == (library() is not None)
    if written.only.native:
        checks += verify_native(parts, opened(written, precision, CPU), None, bounds, precision)
    assert [check.name for check in checks if not check.passed] == []
    assert "decode" in {check.name.removesuffix(", beam 3") for check in checks}


def test_selection_is_removed_from_a_finished_decoder(tiny_graphs: dict[str, Graph], tmp_path: Path) -> None:
    variant = write_variant(tiny_graphs, tmp_path, "fp32", native=False)
    spec = variant.graphs["decoder"]
    finished = Graph(onnx.load(tmp_path / spec.file, load_external_data=False), spec.inputs, spec.outputs)
    found, given = remove_selection(finished), tiny_graphs["decoder"]
    assert {one.name for one in found.inputs} == {one.name for one in given.inputs}
    assert {one.name: one.axes for one in found.outputs} == {one.name: one.axes for one in given.outputs}
    operators = [node.op_type for node in found.model.graph.node if node.op_type != "Transpose"]
    assert operators == [node.op_type for node in given.model.graph.node if node.op_type != "Transpose"]
    with pytest.raises(ValueError, match="no tensor 'decoded_logits'"):
        remove_selection(given)


def test_models_without_a_scorer_cannot_be_joined(tiny_graphs: dict[str, Graph]) -> None:
    without = {role: graph for role, graph in tiny_graphs.items() if role != "scorer"}
    with pytest.raises(ValueError, match="a bundle has no scorer"):
        join_models([tiny_graphs, without])
