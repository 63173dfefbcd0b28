"""Random weights whose translations end, about as long as their sources.

Speed depends on sizes and on the distribution of weights; batching depends on lengths too, and random weights never
end. A Transformer's hidden states hold its position and, through cross-attention, the source length. So ridge
regression (Hoerl and Kennard, 1970) finds a row of the output layer, that of the end token, that counts the tokens
left. Its logit rises by one per token and meets the maximum of the others at the end.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForSeq2SeqLM

RIDGE = 100.0
STRETCH = 1.7
"""Factor by which the fitted lengths deviate more from their mean: regression shrinks deviations."""
SPARE = 8
"""Steps beyond the longest source that are fitted."""


def learn_to_end(checkpoint: Path, sources: Sequence[Sequence[int]]) -> None:
    """Fit the end token's row in a Marian checkpoint, and save it.

    The checkpoint has tied embeddings.

    Args:
        checkpoint: folder of the checkpoint.
        sources: token ids of the training sources, with end tokens.
    """
    auto: Any = AutoModelForSeq2SeqLM  # untyped
    model = auto.from_pretrained(checkpoint, dtype=torch.float32).eval()
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
