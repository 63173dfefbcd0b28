"""The part of an aligner for some layers computes what the whole aligner does, with less."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from jumok_serve.bundle.bundle import Bundle
from jumok_serve.interrupts import Deadline
from jumok_serve.manifest.parts import AlignmentHeads, AttentionHead
from jumok_serve.runtime.device import CPU
from jumok_serve.runtime.graph_checks.contract import layers_part
from jumok_serve.runtime.graphs import Graphs, Pairs
from jumok_serve.tasks.teacher_forcing import GivenTarget, TeacherForcing

COMMITTED = Path(__file__).parents[3] / "models/multi30k-en-de-transformer"
PAIRS = Pairs(
    np.array([[5, 6, 7, 8, 3], [9, 5, 3, 0, 0]]),
    np.array([5, 3]),
    np.array([2, 2]),
    np.array([[9, 8, 7, 3], [6, 3, 0, 0]]),
    np.array([4, 2]),
)


def opened(path: Path, precision: str) -> tuple[Bundle, Graphs]:
    """Open a bundle without native operators, which would encode sources for a part of the aligner."""
    bundle = Bundle.open(path)
    return bundle, Graphs(bundle, precision, device=CPU, threads=1, native=False)


def assert_same(graphs: Graphs, layers: Sequence[int]) -> None:
    """Compare some layers with those of the whole aligner, without rows and columns of padding."""
    found, whole = graphs.cross_attention(layers, PAIRS), graphs.align(PAIRS)[0][:, list(layers)]
    assert found.shape == whole.shape
    for row, (source, target) in enumerate(zip(PAIRS.source_lengths, PAIRS.target_lengths, strict=True)):
        np.testing.assert_array_equal(found[row, ..., :target, :source], whole[row, ..., :target, :source])


@pytest.mark.parametrize("layers", [[0], [1], [2], [2, 0]])
def test_layers_have_the_weights_of_the_whole_aligner(layers: list[int]) -> None:
    assert_same(opened(COMMITTED, "int8")[1], layers)


def test_the_only_layer_is_the_aligner(tiny_bundle: Path) -> None:
    assert_same(opened(tiny_bundle, "fp32")[1], [0])


def test_later_layers_and_other_attention_are_left_out() -> None:
    spec = Bundle.open(COMMITTED).variant("int8").graphs["aligner"]
    whole = (COMMITTED / spec.file).read_bytes()

    def weights(content: bytes) -> set[str]:
        return {tensor.name for tensor in onnx.load_from_string(content).graph.initializer}

    for layer, later in ((0, ("decoder.1.", "decoder.2.")), (2, ("decoder.2.feed_forward",))):
        part = layers_part(whole, spec.outputs[0], [layer])
        assert part is not None
        left_out = weights(whole) - weights(part)
        for name in later:
            assert {one for one in weights(whole) if name in one} <= left_out
        assert any(f"decoder.{layer}." in name for name in weights(part))
        (output,) = onnx.load_from_string(part).graph.output
        assert output.name not in {other.name for other in spec.outputs}


def test_an_aligner_of_steps_runs_whole(recurrent_bundle: Path) -> None:
    bundle, graphs = opened(recurrent_bundle, "fp32")
    spec = bundle.variant("fp32").graphs["aligner"]
    assert layers_part((bundle.path / spec.file).read_bytes(), spec.outputs[0], [0]) is None
    assert_same(graphs, [0])


@pytest.mark.parametrize("named", [False, True])
def test_alignments_are_means_of_the_heads_that_align(named: bool) -> None:
    bundle, graphs = opened(COMMITTED, "int8")
    heads = AlignmentHeads(heads=(AttentionHead(layer=2, head=3), AttentionHead(layer=0, head=1)), origin="measured")
    aligner = TeacherForcing(
        graphs, bundle.variant("int8"), pad=0, vocabulary=graphs.vocabulary, aligning=heads if named else None
    )
    given = [
        GivenTarget(PAIRS.source_ids[row, :source].tolist(), 2, PAIRS.target_ids[row, :target].tolist())
        for row, (source, target) in enumerate(zip(PAIRS.source_lengths, PAIRS.target_lengths, strict=True))
    ]
    whole = graphs.align(PAIRS)[0]
    chosen = whole[:, [2, 0], [3, 1]] if named else whole[:, 1]
    for row, found in enumerate(aligner.alignments(given, Deadline(None))):
        target, source = len(given[row].target_ids), len(given[row].source_ids)
        assert found.shape == (target, source)
        np.testing.assert_allclose(found, chosen[row].mean(axis=0)[:target, :source], atol=1e-6)
