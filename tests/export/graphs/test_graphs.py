"""Exported graphs: axes, shapes at any size, and models that cannot be exported."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from jumok_export.bundles.export import export_bundle
from jumok_export.errors import ExportError
from jumok_export.graphs.graph import Graph
from jumok_export.models.seq2seq import Tensors
from jumok_export.training.vocabulary import END, PAD, START, UNKNOWN, train_vocabulary
from jumok_serve import Translator
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.manifest.languages import Languages
from jumok_serve.manifest.manifest import Limits, SpecialTokens
from jumok_serve.tokenizers.sentencepiece import SentencePieceTokenizer
from tests.support.data import Sentences
from tests.support.models.small_graphs import outputs_of


def test_axes_are_those_of_the_contract(tiny_graphs: dict[str, Graph]) -> None:
    def axes(graph: str) -> tuple[dict[str, tuple[int | str, ...]], dict[str, tuple[int | str, ...]]]:
        specs = tiny_graphs[graph]
        return ({spec.name: spec.axes for spec in specs.inputs}, {spec.name: spec.axes for spec in specs.outputs})

    memory = {"memory.key.0": ("B", 2, "S", 16), "memory.value.0": ("B", 2, "S", 16)}
    source = {"source_ids": ("B", "S"), "source_lengths": ("B",)}
    targets = {**source, "start_ids": ("B",), "target_ids": ("B", "T"), "target_lengths": ("B",)}
    row = {"token_ids": ("B", "K"), "positions": ("B", "K"), "places": ("B", "K", 3)}
    rows = {**row, "visible": ("B", "K", "E"), "source_lengths": ("B",)}
    state = {"state.key.0": ("B", 2, "E", 16), "state.value.0": ("B", 2, "E", 16)}
    written = {f"next_{name}": axes for name, axes in state.items()}
    assert axes("encoder") == (source, memory)
    assert axes("decoder") == ({**rows, **memory, **state}, {"logits": ("R", 180), **written})
    assert axes("scorer") == (targets, {"log_probabilities": ("B", "T")})
    sizes = {"cross": ("T", "S"), "encoder": ("S", "S"), "decoder": ("T", "T")}
    assert axes("aligner") == (targets, {f"{kind}_attention": ("B", 1, 2, *pair) for kind, pair in sizes.items()})


@pytest.mark.parametrize("sizes", [dict.fromkeys("BKSTE", 1), {"B": 4, "K": 5, "S": 13, "T": 20, "E": 30}], ids=str)
def test_outputs_have_the_shapes_that_their_axes_say(tiny_graphs: dict[str, Graph], sizes: dict[str, int]) -> None:
    sizes = {**sizes, "R": sizes["B"] * sizes["K"]}
    values = {"source_lengths": sizes["S"], "target_lengths": 1, "positions": sizes["T"] - 1}
    for name in ("encoder", "decoder", "scorer", "aligner"):
        graph = tiny_graphs[name]
        shapes = {
            spec.name: [axis if isinstance(axis, int) else sizes[axis] for axis in spec.axes]
            for spec in (*graph.inputs, *graph.outputs)
        }
        feeds = {spec.name: np.full(shapes[spec.name], values.get(spec.name, 0), spec.dtype) for spec in graph.inputs}
        for spec, output in zip(graph.outputs, outputs_of(graph, feeds), strict=True):
            assert list(output.shape) == shapes[spec.name], (name, spec.name)


class Bag(nn.Module):
    """Translates by the mean of the source's words and the last target word, without state."""

    def __init__(self, source_vocabulary: int, target_vocabulary: int) -> None:
        super().__init__()
        self.source = nn.Embedding(source_vocabulary, 8)
        self.target = nn.Embedding(target_vocabulary, 8)
        self.output = nn.Linear(8, target_vocabulary)

    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> tuple[Tensors, Tensors]:
        inside = torch.arange(source_ids.shape[1]) < source_lengths[:, None]
        words = self.source(source_ids) * inside[..., None]
        return {"mean": words.sum(1) / source_lengths[:, None]}, {}

    def empty_state(self) -> Tensors:
        return {}

    def step(self, token_ids: Tensor, _: Tensor, __: Tensor, ___: Tensor, memory: Tensors, ____: Tensors) -> Any:
        words = self.target(token_ids).unflatten(0, (memory["mean"].shape[0], -1))
        return self.output((words + memory["mean"][:, None]).flatten(0, 1)), {}

    def score(self, source_ids: Tensor, source_lengths: Tensor, start: Tensor, targets: Tensor, _: Tensor) -> Any:
        memory = self.encode(source_ids, source_lengths)[0]
        before = torch.cat((start[:, None], targets[:, :-1]), dim=1)
        log_probabilities = self.output(self.target(before) + memory["mean"][:, None]).log_softmax(-1)
        return log_probabilities.gather(-1, targets[..., None])[..., 0]


@pytest.fixture(scope="module")
def two_vocabularies(sentences: Sentences) -> SentencePieceTokenizer:
    """A tokenizer with separate vocabularies."""
    models = [
        train_vocabulary(lines, size=size, kind="bpe", character_coverage=1.0, seed=1)
        for lines, size in zip(sentences, (90, 110), strict=True)
    ]
    return SentencePieceTokenizer(*models)


def export(model: nn.Module, tokenizer: SentencePieceTokenizer, out: Path) -> Bundle:
    return export_bundle(
        model,
        tokenizer,
        out,
        name="own",
        languages=Languages.of_pair("en", "de", suffix=(3,)),
        special_tokens=SpecialTokens(pad=PAD, start=START, eos=(END,), unk=UNKNOWN),
        limits=Limits(max_source_length=20, max_target_length=6),
    )


def test_a_model_without_state_with_two_vocabularies(two_vocabularies: SentencePieceTokenizer, tmp_path: Path) -> None:
    torch.manual_seed(1)
    bundle = export(Bag(90, 110), two_vocabularies, tmp_path / "out")
    decoder = bundle.manifest.precisions["int8"].graphs["decoder"]
    assert [spec.name for spec in decoder.inputs][:3] == ["token_ids", "memory.mean", "logit_rows"]
    assert [spec.name for spec in decoder.outputs] == ["tokens", "totals", "logits"]
    assert "aligner" not in bundle.manifest.precisions["int8"].graphs
    assert bundle.manifest.generation.max_length == 6
    assert bundle.manifest.architecture.family == "Bag"
    assert bundle.manifest.architecture.parameters == 90 * 8 + 110 * 8 + 8 * 110 + 110
    with Translator(tmp_path / "out", precision="fp32", replicas=1, threads=1) as translator:
        (translation,) = translator.translate(["The cat sleeps."], beam_size=2)
    assert 1 <= translation.output_token_count <= 6


class Wordless(nn.Module):
    """A model that lacks methods."""

    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> None:
        """Do nothing."""


def test_a_model_without_methods_is_refused(two_vocabularies: SentencePieceTokenizer, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="Wordless cannot be exported: Wordless has no empty_state, step, score"):
        export(Wordless(), two_vocabularies, tmp_path / "out")
    assert not (tmp_path / "out").exists()
