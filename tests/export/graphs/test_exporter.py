"""Shortcuts of the exporter: graphs compute the same bits with and without them."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from jumok_export.graphs import tracing
from jumok_export.graphs.exporter import quick_exporter
from jumok_export.graphs.graph import Graph
from jumok_export.models.attention import scaled_queries
from jumok_export.models.transformer import Transformer
from jumok_export.training.vocabulary import Vocabulary
from tests.support.models.small_graphs import operators, outputs_of


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
        products, found = (operators(each).count("MatMul") for each in (graph, tiny_graphs[name]))
        assert products == found
        if name != "decoder":  # verification compares its steps
            given = {spec.name: feeds[spec.name] for spec in graph.inputs}
            for value, other in zip(outputs_of(graph, given), outputs_of(tiny_graphs[name], given), strict=True):
                np.testing.assert_array_equal(value, other)


def test_a_transformer_is_traced_once_for_each_graph(
    tiny_model: Transformer, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decomposition would trace a graph again, and the insertion of casts would compute all of its values again."""
    from torch.onnx._internal.exporter import _fx_passes

    def refuse(*_: object) -> None:
        raise AssertionError("a second time")

    monkeypatch.setattr(_fx_passes, "decompose_with_registry", refuse)
    computed: list[object] = []
    compute = torch.fx.Interpreter.run_node

    def counted(self: torch.fx.Interpreter, node: torch.fx.Node) -> object:
        computed.append(node.target)
        return compute(self, node)

    monkeypatch.setattr(torch.fx.Interpreter, "run_node", counted)
    graphs = tracing.export_graphs(tiny_model, len(vocabulary), len(vocabulary))
    assert graphs.keys() == {"encoder", "decoder", "scorer", "aligner"}
    values = [target for target in computed if isinstance(target, torch._ops.OpOverload)]
    casts = values.count(torch.ops.prims.convert_element_type.default)
    assert len(values) <= 2 * casts  # each cast, and the operator that reads it


def test_programs_have_no_stack_traces_and_descriptions_within_the_context_alone() -> None:
    def described() -> bool:
        (*_, node) = make_fx(torch.abs, tracing_mode="symbolic")(torch.zeros(2, 3)).graph.nodes
        return node.args[0].meta["tensor_meta"] is not None

    before = torch.fx.config.do_not_emit_stack_traces
    assert described()
    with quick_exporter():
        assert torch.fx.config.do_not_emit_stack_traces
        assert not described()
    assert torch.fx.config.do_not_emit_stack_traces == before
    assert described()


def test_operators_are_those_that_are_collected_without_the_context() -> None:
    from torch.onnx._internal import _lazy_import

    collector = vars(_lazy_import)["onnxscript_apis"]
    plain = collector.get_torchlib_ops()
    with quick_exporter():
        assert collector.get_torchlib_ops() == plain
