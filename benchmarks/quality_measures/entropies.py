"""Entropy of attention weights, relative to uniform weights."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, cast

import torch
from torch import Tensor

from jumok_export.models.attention import dot_scores, masked_softmax, scaled_dot_scores
from jumok_export.models.encoder_decoder import EncoderDecoder
from jumok_export.models.layers import DecoderLayer
from jumok_export.models.seq2seq import Seq2Seq, length_mask
from jumok_export.training.corpus import Batch
from jumok_export.training.vocabulary import START

WIDTHS = (16, 64, 256, 1024)
KEYS, QUERIES = 14, 2000


class Aligning(Protocol):
    """A model with attention."""

    def align(
        self, source_ids: Tensor, source_lengths: Tensor, start_ids: Tensor, target_ids: Tensor, target_lengths: Tensor
    ) -> tuple[Tensor, ...]:
        """Cross-attention [B, layers, heads, T, S] first."""
        ...


def relative_entropy(weights: Tensor, lengths: Tensor) -> Tensor:
    """Entropy of attention weights, divided by that of the uniform distribution.

    Args:
        weights: attention weights, 0 outside a source, [..., S].
        lengths: source lengths, at least 2, broadcastable to [...].

    Returns:
        [...], from 0 (one position) to 1 (uniform).
    """
    entropies: Tensor = torch.special.entr(weights).sum(dim=-1)
    return entropies / lengths.log()


def attention_entropy(model: Seq2Seq, batches: Sequence[Batch]) -> float:
    """The mean of `relative_entropy` over layers, heads and given target tokens.

    Args:
        model: a model that can `align`.
        batches: sentence pairs, sources of at least 2 tokens.
    """
    total = count = 0.0
    with torch.no_grad():
        for batch in batches:
            start_ids = torch.full_like(batch.source_lengths, START)
            weights = cast(Aligning, model).align(
                batch.source_ids, batch.source_lengths, start_ids, batch.target_ids, batch.target_lengths
            )[0]
            entropies = relative_entropy(weights, batch.source_lengths[:, None, None, None])  # [B, layers, heads, T]
            within = length_mask(batch.target_lengths, batch.target_ids.shape[1])[:, None, None]
            total += float((entropies * within).sum())
            count += float(within.expand_as(entropies).sum())
    return total / count


@contextmanager
def without_division(model: EncoderDecoder) -> Iterator[None]:
    """Remove the division by sqrt(d_k) from a Transformer's cross-attention within this context."""
    attention = [cast(DecoderLayer, layer).cross_attention for layer in model.decoder]
    scales = [each.scale for each in attention]
    for each in attention:
        each.scale = 1.0
    try:
        yield
    finally:
        for each, scale in zip(attention, scales, strict=True):
            each.scale = scale


def random_scores(width: int) -> dict[str, float]:
    """Products of random queries and keys, whose components are independent with variance 1.

    Returns:
        `variance` of the products, in theory `width`; mean relative entropies of their softmax, `entropy`, and after
        division by sqrt(width), `scaled_entropy`.
    """
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(QUERIES, 1, width, generator=generator)
    key = torch.randn(QUERIES, KEYS, width, generator=generator)
    products, scaled = dot_scores(query, key), scaled_dot_scores(query, key)
    places = torch.tensor(float(KEYS))
    return {
        "width": width,
        "variance": float(products.var()),
        "entropy": float(relative_entropy(masked_softmax(products, None), places).mean()),
        "scaled_entropy": float(relative_entropy(masked_softmax(scaled, None), places).mean()),
    }
