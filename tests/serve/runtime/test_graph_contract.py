"""Graphs compared with the manifest and with their contract."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from jumok_serve.bundle.bundle import Bundle
from jumok_serve.manifest.manifest import GraphSpec, PrecisionVariant, TensorSpec
from jumok_serve.manifest.parts import graphs_by_role
from jumok_serve.runtime.graph_checks.contract import check_graph, contract_problems


def session(path: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


@dataclass(frozen=True)
class Node:
    """Tensor of a graph from another exporter."""

    name: str
    type: str
    shape: Sequence[int | str | None]


@pytest.fixture
def decoder(toy_bundle: Path) -> GraphSpec:
    return Bundle.open(toy_bundle).manifest.precisions["fp32"].graphs["decoder"]


def test_real_graphs_are_as_the_manifest_says(toy_bundle: Path) -> None:
    bundle = Bundle.open(toy_bundle)
    graphs = bundle.variant("fp32").graphs
    for spec in graphs.values():
        graph = session(bundle.path / spec.file)
        assert check_graph(spec, graph.get_inputs(), graph.get_outputs()) == []
    (logits,) = session(bundle.path / graphs["decoder"].file).run(None, {"token_ids": np.array([1, 2, 1])})
    assert logits.shape == (3, bundle.tokenizer.vocab_size)


def test_wrong_names_in_a_real_graph_are_all_found(toy_bundle: Path, decoder: GraphSpec) -> None:
    encoder = session(toy_bundle / "fp32/encoder.onnx")
    assert check_graph(decoder, encoder.get_inputs(), encoder.get_outputs()) == [
        "fp32/decoder.onnx: input 'source_ids' is not in the manifest, which has token_ids",
        "fp32/decoder.onnx: input 'token_ids' is missing; the graph has source_ids",
        "fp32/decoder.onnx: output 'memory.embedding' is not in the manifest, which has logits",
        "fp32/decoder.onnx: output 'logits' is missing; the graph has memory.embedding",
    ]


def test_wrong_type_rank_and_size_in_a_real_graph_are_found(toy_bundle: Path, decoder: GraphSpec) -> None:
    graph = session(toy_bundle / "fp32/decoder.onnx")
    width = decoder.outputs[0].axes[1]
    claimed = GraphSpec(
        file=decoder.file,
        inputs=(TensorSpec(name="token_ids", dtype="int32", axes=("R", "T")),),
        outputs=(TensorSpec(name="logits", dtype="float16", axes=("R", 7)),),
    )
    assert check_graph(claimed, graph.get_inputs(), graph.get_outputs()) == [
        "fp32/decoder.onnx: input 'token_ids' is tensor(int64), the manifest says tensor(int32)",
        "fp32/decoder.onnx: input 'token_ids' has shape [R], the manifest says [R, T]",
        "fp32/decoder.onnx: output 'logits' is tensor(float), the manifest says tensor(float16)",
        f"fp32/decoder.onnx: output 'logits' has shape [R, {width}], the manifest says [R, 7]",
    ]


@pytest.mark.parametrize(
    ("shape", "agrees"),
    [
        (["B", "P", 4], True),
        ([None, "s0", 4], True),
        (["P", "B", 4], False),
        (["B", "B", 4], False),
        ([1, "P", 4], False),
        (["B", "P", "D"], False),
        (["B", "P", None], False),
        (["B", "P", 5], False),
        (["B", "P"], False),
        ([], False),
    ],
)
def test_axes(shape: list[int | str | None], agrees: bool) -> None:
    spec = GraphSpec(file="g.onnx", inputs=(TensorSpec(name="state", dtype="float32", axes=("B", "P", 4)),), outputs=())
    node = Node("state", "tensor(float)", shape)
    assert (check_graph(spec, [node], []) == []) is agrees
    assert check_graph(spec, [replace(node, type="tensor(double)")], []) != []


def test_scalar_agrees_with_no_axes() -> None:
    spec = GraphSpec(file="g.onnx", inputs=(TensorSpec(name="count", dtype="int64", axes=()),), outputs=())
    assert check_graph(spec, [Node("count", "tensor(int64)", [])], []) == []
    assert check_graph(spec, [Node("count", "tensor(int64)", [1])], []) != []


Spec = dict[str, Any]


def memory(graph: Spec, side: str) -> Spec:
    """The first tensor of encoder memory among a graph's inputs or outputs."""
    found: Spec = next(spec for spec in graph[side] if spec["name"].startswith("memory."))
    return found


def logits(graphs: dict[str, Spec]) -> Spec:
    found: Spec = next(spec for spec in graphs["decoder"]["outputs"] if spec["name"] == "logits")
    return found


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda graphs: graphs["decoder"]["outputs"].remove(logits(graphs)), "output 'logits' is missing"),
        (lambda graphs: logits(graphs).update(dtype="float16"), "must be float32 with 2 axes, got float16 with 2"),
        (lambda graphs: logits(graphs).update(axes=["R", "V"]), "must have a constant number of target tokens"),
        (lambda graphs: memory(graphs["encoder"], "outputs").update(name="memory.other"), "no graph makes 'memory."),
        (lambda graphs: memory(graphs["decoder"], "inputs").update(axes=[]), "must have an axis for sentences"),
        (lambda graphs: memory(graphs["encoder"], "outputs").update(dtype="int8"), "is made with other types or sizes"),
    ],
)
def test_graphs_that_break_their_contract(
    change: Callable[[dict[str, Spec]], object], problem: str, tiny_bundle: Path
) -> None:
    fields = Bundle.open(tiny_bundle).variant("fp32").model_dump(mode="json")
    for changes in (lambda _: None, change):
        changes(fields["graphs"])
        graphs = PrecisionVariant.model_validate_json(json.dumps(fields)).graphs
        found = contract_problems(graphs_by_role(graphs, "cpu", shortlist=False), graphs["decoder"])
        assert any(problem in line for line in found) == (changes is change), found
