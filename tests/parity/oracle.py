"""The oracle: Hugging Face's `generate`, one sentence at a time in float32."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from jumok_serve.search.options import DecodingOptions
from tests.parity.checkpoints import Checkpoint, Pair

LIFELESS = -1e8
"""A sum at or below this is of a row that ``generate`` never brought to life, which it marks with -1e9."""

NAMES = {
    "beam_size": "num_beams",
    "num_hypotheses": "num_return_sequences",
    "length_penalty": "length_penalty",
    "early_stopping": "early_stopping",
    "min_length": "min_new_tokens",
    "max_length": "max_new_tokens",
    "no_repeat_ngram_size": "no_repeat_ngram_size",
    "repetition_penalty": "repetition_penalty",
    "forced_first_token": "forced_bos_token_id",
}
"""Decoding options with their names in `generate`."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One sentence with what is asked of it.

    Attributes:
        text: the sentence, without the checkpoint's task prefix.
        pair: the direction.
        options: how to decode.
        prefix: how the target is to begin, as text.
    """

    text: str
    pair: Pair
    options: DecodingOptions
    prefix: str = ""


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """One of ``generate``'s results.

    Attributes:
        token_ids: without the start token and a target prefix.
        token_scores: log-probability of each.
        score: their sum / length^length_penalty.
        total: their sum.
        text: of the tokens and the target prefix.
        ends: whether the last token is one that ends a translation.
    """

    token_ids: tuple[int, ...]
    token_scores: tuple[float, ...]
    score: float
    total: float
    text: str
    ends: bool


@dataclass(frozen=True, kw_only=True)
class Answer:
    """All results of one sentence, best first, and how many of them were no hypotheses at all."""

    hypotheses: tuple[Hypothesis, ...]
    lifeless: int


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Resolve a case with the checkpoint's own defaults."""

    beam_size: int
    length_penalty: float
    early_stopping: bool | str
    eos_ids: tuple[int, ...]
    max_length: int | None
    prompt: tuple[int, ...]
    arguments: Mapping[str, Any]

    def normalised(self, total: float, length: int) -> float:
        """A hypothesis' score."""
        return float(total / length**self.length_penalty)


def settings(checkpoint: Checkpoint, case: Case) -> Settings:
    """Translates the options into ``generate``'s, and looks up what it makes of those left open."""
    defaults, options = checkpoint.model.generation_config, case.options
    arguments: dict[str, Any] = {
        theirs: getattr(options, ours) for ours, theirs in NAMES.items() if getattr(options, ours) is not None
    }
    if options.suppress_tokens is not None:  # ours come on top of the checkpoint's
        arguments["suppress_tokens"] = [*(defaults.suppress_tokens or ()), *options.suppress_tokens]
    if options.end_tokens is not None:
        arguments["eos_token_id"] = list(options.end_tokens)
    if options.beam_size is not None and options.num_hypotheses is None:
        arguments["num_return_sequences"] = min(defaults.num_return_sequences or 1, options.beam_size)
    start = defaults.decoder_start_token_id
    if case.pair.start is not None:
        start = arguments["decoder_start_token_id"] = checkpoint.token(case.pair.start)
    if case.pair.first is not None:
        arguments.setdefault("forced_bos_token_id", checkpoint.token(case.pair.first))
    prompt = [start]
    if case.prefix:
        first = arguments.get("forced_bos_token_id", defaults.forced_bos_token_id)
        prompt += [] if first is None else [first]
        prompt += checkpoint.target_ids(case.prefix)
        arguments["decoder_input_ids"] = torch.tensor([prompt])
    if checkpoint.shape.uncached:
        arguments["use_cache"] = False

    def effective(name: str, default: Any) -> Any:
        value = arguments.get(name, getattr(defaults, name))
        return default if value is None else value

    return Settings(
        beam_size=effective("num_beams", 1),
        length_penalty=effective("length_penalty", 1.0),
        early_stopping=effective("early_stopping", False),
        eos_ids=checkpoint.end_tokens if options.end_tokens is None else tuple(options.end_tokens),
        max_length=options.max_length or defaults.max_length - len(prompt),
        prompt=tuple(prompt),
        arguments=arguments,
    )


def answer(checkpoint: Checkpoint, case: Case) -> Answer:
    """Runs ``generate`` on one case."""
    chosen = settings(checkpoint, case)
    output = _generate(checkpoint, case, chosen)
    scores = torch.stack(output.scores)  # [T, K, V]; logits where greedy
    beams = chosen.beam_size > 1
    if not beams:
        scores = torch.log_softmax(scores, dim=-1)
    new = output.sequences[:, len(chosen.prompt) :]  # [H, T]
    hypotheses = []
    for index, tokens in enumerate(new):
        # As compute_transition_scores, which is wrong where the target vocabulary has a size of its own.
        rows = output.beam_indices[index] if beams else torch.zeros(len(tokens), dtype=torch.long)
        length = int((rows >= 0).sum())
        token_ids = tokens[:length]
        token_scores = scores[torch.arange(length), rows[:length], token_ids]
        score = float(output.sequences_scores[index]) if beams else chosen.normalised(float(token_scores.sum()), length)
        total = score * max(length, 1) ** chosen.length_penalty
        if total <= LIFELESS:
            continue
        hypotheses.append(
            Hypothesis(
                token_ids=tuple(token_ids.tolist()),
                token_scores=tuple(token_scores.tolist()),
                score=score,
                total=total,
                text=checkpoint.text([*chosen.prompt[1:], *token_ids.tolist()]),
                ends=int(token_ids[-1]) in chosen.eos_ids,
            )
        )
    return Answer(hypotheses=tuple(hypotheses), lifeless=len(new) - len(hypotheses))


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Every step of ``generate``: the beginnings it continued and what it thought of each token.

    Attributes:
        rows: by step, the new tokens of each row, [T][K].
        scores: by step, the processed scores, [T] of [K, V]: log-probabilities with beams, logits if greedy.
        settings: what it ran by.
    """

    rows: tuple[tuple[tuple[int, ...], ...], ...]
    scores: tuple[Tensor, ...]
    settings: Settings


def trace(checkpoint: Checkpoint, case: Case) -> Trace:
    """Runs ``generate`` once more, keeping what is needed to tell a tie from a difference."""
    chosen = settings(checkpoint, case)
    rows: list[tuple[tuple[int, ...], ...]] = []

    class Recorder(LogitsProcessor):
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            rows.append(tuple(tuple(row) for row in input_ids[:, len(chosen.prompt) :].tolist()))
            return scores

    output = _generate(checkpoint, case, chosen, logits_processor=LogitsProcessorList([Recorder()]))
    return Trace(rows=tuple(rows), scores=output.scores, settings=chosen)


@torch.inference_mode()
def _generate(checkpoint: Checkpoint, case: Case, chosen: Settings, **more: Any) -> Any:
    source = torch.tensor([checkpoint.source_ids(case.text, case.pair)])
    return checkpoint.model.generate(
        input_ids=source,
        attention_mask=torch.ones_like(source),
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        **chosen.arguments,
        **more,
    )
