"""Greedy decoding in PyTorch, for validation and as a reference of exported graphs."""

import torch
from torch import Tensor

from jumok_export.models.seq2seq import Seq2Seq
from jumok_export.training.vocabulary import END, START


@torch.no_grad()
def greedy_decode(model: Seq2Seq, source_ids: Tensor, source_lengths: Tensor, max_length: int) -> list[list[int]]:
    """Decode the most likely token at every step, until each sentence's end token.

    Args:
        source_ids: [B, S], padded.
        source_lengths: [B].
        max_length: most new tokens of a sentence.

    Returns:
        The new tokens of every sentence, with the end token if it was reached.
    """
    memory, first_state = model.encode(source_ids, source_lengths)
    state = first_state or model.empty_state()
    rows = torch.arange(len(source_ids), device=source_ids.device)  # the sentence of each row
    token = torch.full_like(rows, START)
    parents = rows if first_state else torch.zeros_like(rows)
    decoded: list[list[int]] = [[] for _ in rows]
    for position in range(max_length):
        logits, state = model.step(
            token, torch.full_like(token, position), parents, source_lengths[rows], memory, state
        )
        token = logits.argmax(dim=-1)
        for sentence, chosen in zip(rows.tolist(), token.tolist(), strict=True):
            decoded[sentence].append(chosen)
        parents = torch.nonzero(token != END)[:, 0]
        if not len(parents):
            break
        # Sentences that have ended leave the batch.
        token, rows = token[parents], rows[parents]
        memory = {name: tensor[parents] for name, tensor in memory.items()}
    return decoded
