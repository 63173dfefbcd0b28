"""Random weights that nevertheless end their translations, about as long as their sources.

Speed depends on sizes and on how weights are spread, not on what they say; but batching depends on lengths, and random
weights repeat themselves up to the limit. A Transformer's hidden states hold its position, and, through
cross-attention, the length of the source, so one row of the output layer, that of the end of sentence, is enough to
tell how many tokens are left; it is found by ridge regression (Hoerl and Kennard, 1970). Its logit rises by one a
token, and meets the others' maximum where translations are to end.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from tests.parity.checkpoints import MODEL

RIDGE = 100.0
STRETCH = 1.7
"""How much further from their mean lengths are asked for than they are: regression brings them nearer to it."""
SPARE = 8
"""Steps that are looked at beyond the longest source."""


def learn_to_end(checkpoint: Path, sources: Sequence[Sequence[int]]) -> None:
    """Sets the end's row in a Marian checkpoint whose embeddings are all one, and saves it.

    Args:
        checkpoint: its folder.
        sources: token ids to learn from, their ends included.
    """
    model: Any = MODEL.from_pretrained(checkpoint, dtype=torch.float32).eval()
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        for _ in range(2):  # the row is an input too, where a source ends
            _fit(model, [torch.tensor(source) for source in sources])
    model.save_pretrained(checkpoint)


def _fit(model: Any, sources: Sequence[Tensor]) -> None:
    pad, end = model.config.pad_token_id, model.config.eos_token_id
    padded = pad_sequence(list(sources), batch_first=True, padding_value=pad)  # [B, S]
    lengths = torch.tensor([len(source) for source in sources])  # [B]
    steps = padded.shape[1] + SPARE
    written = torch.randint(2, pad, (len(sources), steps))  # [B, T]
    written[:, 0] = model.config.decoder_start_token_id
    output = model(
        input_ids=padded,
        attention_mask=(padded != pad).long(),
        decoder_input_ids=written,
        use_cache=False,
        output_hidden_states=True,
    )
    hidden = output.decoder_hidden_states[-1]  # [B, T, D]
    output.logits[..., end] = -torch.inf
    ends = lengths.float().mean() + STRETCH * (lengths - lengths.float().mean())  # [B]
    rising = (torch.arange(1, steps + 1) - ends[:, None]).clamp(-SPARE, SPARE)  # [B, T], 0 where it is to end
    wanted = (rising + output.logits.amax(-1).mean()).flatten()
    inputs = F.pad(hidden.flatten(0, 1), (0, 1), value=1.0)  # [B*T, D+1]
    penalty = RIDGE * torch.eye(inputs.shape[1])
    penalty[-1, -1] = 0
    found = torch.linalg.solve(inputs.T @ inputs + penalty, inputs.T @ wanted)
    model.lm_head.weight[end] = found[:-1]
    model.final_logits_bias[0, end] = found[-1]
