"""The model under test in fp32 and fp16, and decodes without text."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from jumok_export.bundles.recipe import half_sources, write_variant
from jumok_export.graphs.tracing import export_graphs
from jumok_export.models.attention import scaled_queries
from jumok_export.models.transformer import Transformer, TransformerSizes
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.engine.batch import Batch
from jumok_serve.engine.sentence import Sentence
from jumok_serve.manifest.manifest import PrecisionVariant
from jumok_serve.runtime.graphs import Graphs
from jumok_serve.search import SearchPlan
from jumok_serve.search.options import SearchOptions

HEAD = 64
"""Width of an attention head."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of a random Transformer; by default those of OPUS-MT models."""

    layers: int = 6
    width: int = 512
    feed_forward: int = 2048
    vocabulary: int = 32_000


@dataclass(frozen=True, kw_only=True)
class Model:
    """Graphs under test.

    Attributes:
        path: folder of the graphs.
        variants: graphs by precision.
        vocabulary: size of the smaller vocabulary.
        start: start token.
        pad: padding token.
    """

    path: Path
    variants: Mapping[str, PrecisionVariant]
    vocabulary: int
    start: int
    pad: int

    def variant(self, precision: str) -> PrecisionVariant:
        """The graphs of one precision."""
        return self.variants[precision]


def made(sizes: Sizes, folder: Path) -> Model:
    """A model with random weights, as fast as a trained one; always the same."""
    torch.manual_seed(0)
    transformer = Transformer(
        TransformerSizes(
            source_vocabulary=sizes.vocabulary,
            target_vocabulary=sizes.vocabulary,
            width=sizes.width,
            heads=max(1, sizes.width // HEAD),
            feed_forward=sizes.feed_forward,
            encoder_layers=sizes.layers,
            decoder_layers=sizes.layers,
            norm="post",
            activation="silu",
            output_bias=True,
        )
    ).eval()
    with scaled_queries(transformer):
        graphs = export_graphs(transformer, sizes.vocabulary, sizes.vocabulary)
    variants = {
        "fp32": write_variant(graphs, folder, "fp32", targets=("cpu", "device")),
        "fp16": write_variant(half_sources(graphs), folder, "fp16", targets=("device",)),
    }
    return Model(path=folder, variants=variants, vocabulary=sizes.vocabulary, start=0, pad=0)


def opened(path: Path) -> Model:
    """The graphs of a bundle."""
    bundle = Bundle.open(path)
    tokens = bundle.manifest.special_tokens
    vocabulary = min(bundle.tokenizer.source_vocab_size, bundle.tokenizer.vocab_size)
    variants = bundle.manifest.precisions
    return Model(path=bundle.path, variants=variants, vocabulary=vocabulary, start=tokens.start, pad=tokens.pad)


@dataclass(frozen=True, slots=True)
class Translated:
    """The best hypothesis of a sentence, and the sum of its token scores."""

    tokens: tuple[int, ...]
    total: float


def sources(model: Model, count: int, lengths: tuple[int, int], seed: int = 1) -> list[list[int]]:
    """Random sources with lengths within bounds, by seed."""
    random = np.random.default_rng(seed)
    return [
        random.integers(2, model.vocabulary, random.integers(lengths[0], lengths[1] + 1)).tolist() for _ in range(count)
    ]


def sentence(model: Model, source: Sequence[int], *, beam_size: int, tokens: int) -> Sentence:
    """A sentence with a translation of fixed length."""
    options = SearchOptions(
        beam_size=beam_size,
        num_hypotheses=1,
        length_penalty=1.0,
        early_stopping=False,
        min_length=0,
        max_length=tokens,
        eos_ids=(),
        suppress_tokens=(),
    )
    return Sentence(source_ids=source, plan=SearchPlan(options, model.start))


def decode(
    graphs: Graphs, model: Model, batch: Sequence[Sequence[int]], *, beam_size: int, tokens: int
) -> list[Translated]:
    """Translate sources together."""
    sentences = [sentence(model, source, beam_size=beam_size, tokens=tokens) for source in batch]
    running = Batch(graphs, beam_size, model.pad)
    running.admit(sentences)
    while running.sentences:
        running.step()
        running.remove(running.done)
    best = [one.search.hypotheses()[0] for one in sentences]
    return [Translated(hypothesis.token_ids, sum(hypothesis.token_scores)) for hypothesis in best]


def step_times(graphs: Graphs, model: Model, *, rows: tuple[int, int], source: int, steps: int) -> Iterator[float]:
    """Seconds per step in the middle of a decode.

    `rows` is the number of sentences, and of rows for each.
    """
    sentences, beam_size = rows
    running = Batch(graphs, beam_size, model.pad)
    drawn = sources(model, sentences, (source, source))
    running.admit([sentence(model, one, beam_size=beam_size, tokens=3 * steps) for one in drawn])
    for number in range(2 * steps):
        started = time.perf_counter()
        running.step()
        if number >= steps:
            yield time.perf_counter() - started
