"""Shortcuts of the exporter: graphs compute the same bits with and without them."""

from contextlib import nullcontext

import numpy as np
import onnxruntime
import pytest

from jumok_export.graphs import tracing
from jumok_export.graphs.graph import Graph
from jumok_export.models.attention import scaled_queries
from jumok_export.models.transformer import Transformer
from jumok_export.training.vocabulary import Vocabulary


def outputs(graph: Graph, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(graph.model.SerializeToString(), providers=["CPUExecutionProvider"])
    found: list[np.ndarray] = session.run(None, {spec.name: feeds[spec.name] for spec in graph.inputs})
    return found


@pytest.mark.slow
def test_graphs_compute_the_same_without_shortcuts(
    tiny_model: Transformer, tiny_graphs: dict[str, Graph], vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "quick_exporter", nullcontext)
    monkeypatch.setattr(tracing, "BOTH", "no such method")
    with scaled_queries(tiny_model):
        plain = tracing.export_graphs(tiny_model, len(vocabulary), len(vocabulary))
    assert plain.keys() == tiny_graphs.keys()
    random = np.random.default_rng(0)
    feeds = {
        "source_ids": random.integers(len(vocabulary), size=(3, 9)),
        "source_lengths": np.array([9, 1, 5]),
        "start_ids": np.array([1, 2, 3]),
        "target_ids": random.integers(len(vocabulary), size=(3, 7)),
        "target_lengths": np.array([2, 7, 4]),
    }
    for name, graph in plain.items():
        assert (graph.inputs, graph.outputs) == (tiny_graphs[name].inputs, tiny_graphs[name].outputs)
        products, found = (
            sum(node.op_type == "MatMul" for node in each.model.graph.node) for each in (graph, tiny_graphs[name])
        )
        assert products == found
        if name != "decoder":  # verification compares its steps
            for value, other in zip(outputs(graph, feeds), outputs(tiny_graphs[name], feeds), strict=True):
                np.testing.assert_array_equal(value, other)
