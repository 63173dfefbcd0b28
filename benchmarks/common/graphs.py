"""A Transformer's graphs with random weights, and sentences without text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from jumok_export.graphs.graph import Graph
from jumok_export.graphs.tracing import export_graphs
from jumok_export.models.attention import scaled_queries
from jumok_export.models.transformer import Transformer, TransformerSizes
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.engine.sentence import Sentence
from jumok_serve.manifest.manifest import PrecisionVariant
from jumok_serve.search.options import SearchOptions
from jumok_serve.search.plan import SearchPlan

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
    """Graphs to measure.

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
    start: int = 0
    pad: int = 0

    def variant(self, precision: str) -> PrecisionVariant:
        """Return the graphs of one precision."""
        return self.variants[precision]


def opened(path: Path) -> Model:
    """Return the graphs of a bundle."""
    bundle = Bundle.open(path)
    tokens = bundle.manifest.special_tokens
    vocabulary = min(bundle.tokenizer.source_vocab_size, bundle.tokenizer.vocab_size)
    variants = bundle.manifest.precisions
    return Model(path=bundle.path, variants=variants, vocabulary=vocabulary, start=tokens.start, pad=tokens.pad)


def spread_normally(model: nn.Module) -> None:
    """Draw each matrix of an untrained model anew, from a normal distribution of the same deviation.

    The results of int8 products without VNNI depend on the distribution.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=float(parameter.std()))


def random_graphs(sizes: Sizes) -> dict[str, Graph]:
    """Export a model with random weights, as fast as a trained one; always the same."""
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
    spread_normally(transformer)
    with scaled_queries(transformer):
        return export_graphs(transformer, sizes.vocabulary, sizes.vocabulary)


def sources(vocabulary: int, count: int, lengths: tuple[int, int], seed: int = 1) -> list[list[int]]:
    """Draw random sources with lengths within bounds, by seed."""
    random = np.random.default_rng(seed)
    return [random.integers(2, vocabulary, random.integers(lengths[0], lengths[1] + 1)).tolist() for _ in range(count)]


def sentence(model: Model, source: Sequence[int], *, beam_size: int, tokens: int) -> Sentence:
    """Make a sentence with a translation of fixed length."""
    options = SearchOptions(
        beam_size=beam_size,
        num_hypotheses=1,
        length_penalty=1.0,
        early_stopping=False,
        min_length=0,
        max_length=tokens,
        eos_ids=(),  # so that nothing ends before
        suppress_tokens=(),
    )
    return Sentence(source_ids=source, plan=SearchPlan(options, model.start))
