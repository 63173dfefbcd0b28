"""Gradient of the loss at each source token, which encoders may lose."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jumok_export.models.seq2seq import Seq2Seq
from jumok_export.training.corpus import Batch
from jumok_export.training.vocabulary import PAD, START

PARTS = 10


def token_gradients(model: Seq2Seq, batch: Batch) -> Tensor:
    """Norms of each sentence's loss gradients at its embedded source tokens.

    The loss is the sum of the cross-entropies of the target tokens, so sentences in a batch are independent.

    Args:
        model: model in evaluation mode, with the embedding `source_embedding`.
        batch: sentence pairs.

    Returns:
        [B, S], 0 after a source's end.

    Raises:
        TypeError: the model has no such embedding.
    """
    embedding = getattr(model, "source_embedding", None)
    if not isinstance(embedding, nn.Embedding):
        raise TypeError(f"{type(model).__name__} has no source_embedding to take gradients at")
    embedded: list[Tensor] = []
    hook = embedding.register_forward_hook(lambda *arguments: embedded.append(arguments[-1]))
    try:
        start_ids = torch.full_like(batch.source_lengths, START)
        logits = model(batch.source_ids, batch.source_lengths, start_ids, batch.target_ids)
    finally:
        hook.remove()
    loss = F.cross_entropy(logits.flatten(0, 1), batch.target_ids.flatten(), ignore_index=PAD, reduction="sum")
    # Only the first use: if both languages share an embedding, the second use reads the target.
    [gradient] = torch.autograd.grad(loss, embedded[:1])
    norms: Tensor = gradient.norm(dim=-1)
    return norms


def relative_gradients(norms: Tensor, parts: int = PARTS) -> Tensor:
    """One sentence's gradients by position, relative to equal gradients.

    Args:
        norms: norms of one sentence's tokens, S >= `parts`, [S].
        parts: number of equal parts of the sentence; a token belongs to the part of its middle.

    Returns:
        [parts], the mean share of a part's tokens in all norms, times S: 1 if all norms are equal.

    Raises:
        ValueError: the sentence has fewer tokens than parts.
    """
    length = len(norms)
    if length < parts:
        raise ValueError(f"{parts} parts need as many tokens, got {length}")
    shares = length * norms / norms.sum()
    part = (parts * (2 * torch.arange(length) + 1)) // (2 * length)  # [S]
    return torch.zeros(parts).index_add_(0, part, shares) / torch.bincount(part, minlength=parts)


def mean_gradients(model: Seq2Seq, batches: Sequence[Batch], parts: int = PARTS) -> list[float]:
    """The mean over sentences of `relative_gradients`."""
    found = [
        relative_gradients(norms[:length], parts)
        for batch in batches
        for norms, length in zip(token_gradients(model, batch), batch.source_lengths.tolist(), strict=True)
    ]
    return [float(value) for value in torch.stack(found).mean(dim=0)]
