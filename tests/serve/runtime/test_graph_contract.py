"""Comparison of graphs with the manifest."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from jumok_serve.bundle.bundle import Bundle
from jumok_serve.manifest.manifest import GraphSpec, TensorSpec
from jumok_serve.runtime.graph_checks.contract import check_graph


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
