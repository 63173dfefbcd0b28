"""How much of the loss's gradient reaches each source token: what is said to vanish on the way through an encoder."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jumok_export.models.seq2seq import Seq2Seq
from jumok_export.training.corpus import Batch
from jumok_export.training.vocabulary import PAD, START

PARTS = 10


def token_gradients(model: Seq2Seq, batch: Batch) -> Tensor:
    """The norm of the gradient of each sentence's loss with respect to its embedded source tokens.

    The loss is the sum of the cross-entropies of the target's tokens, so that a sentence's gradient does not depend on
    the others in its batch.

    Args:
        model: in evaluation mode, with an embedding `source_embedding`, which it reads the source with first.
        batch: sentence pairs.

    Returns:
        [B, S], 0 behind a source's end.

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
    # The first: where both languages share an embedding, the target is read with it, too.
    [gradient] = torch.autograd.grad(loss, embedded[:1])
    norms: Tensor = gradient.norm(dim=-1)
    return norms


def relative_gradients(norms: Tensor, parts: int = PARTS) -> Tensor:
    """One sentence's gradients by place in the sentence, over what they would be if all were equal.

    Args:
        norms: [S] of one sentence's tokens, S >= `parts`.
        parts: of equal length that the sentence is divided into; a token belongs to the part that its middle is in.

    Returns:
        [parts], the mean over a part's tokens of a token's share of all norms, times S: 1 if all norms are equal.

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
