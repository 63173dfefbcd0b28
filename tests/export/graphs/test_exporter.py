"""Shortcuts of the exporter: they change no graph."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from onnx import numpy_helper

from jumok_export.graphs import tracing
from jumok_export.graphs.graph import Graph
from jumok_export.models.attention import scaled_queries
from jumok_export.models.transformer import Transformer
from jumok_export.training.vocabulary import Vocabulary


def content(graph: Graph) -> Iterator[tuple[Any, ...]]:
    """Nodes with values of constants, and with numbers instead of names."""
    numbers: dict[str, int] = {}
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.model.graph.initializer}

    def described(name: str) -> object:
        if name in constants:
            return constants[name].shape, constants[name].tobytes()
        return numbers.setdefault(name, len(numbers))

    yield tuple(spec.name for spec in graph.inputs), tuple(spec.name for spec in graph.outputs)
    for node in graph.model.graph.node:
        attributes = sorted(attribute.SerializeToString(deterministic=True) for attribute in node.attribute)
        yield node.op_type, *map(described, node.input), *map(described, node.output), *attributes


def test_graphs_are_those_of_the_exporter_without_shortcuts(
    tiny_model: Transformer, tiny_graphs: dict[str, Graph], vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "quick_exporter", nullcontext)
    with scaled_queries(tiny_model):
        graphs = tracing.export_graphs(tiny_model, len(vocabulary), len(vocabulary))
    assert graphs.keys() == tiny_graphs.keys()
    for name, graph in graphs.items():
        assert list(content(graph)) == list(content(tiny_graphs[name])), name
