"""Hugging Face's `generate` on a model whose logits a step function gives, as an oracle of every search."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from jumok_serve.search.options import SearchOptions
from tests.support.reference_search import START, StepFunction

UNBORN = -1e6
"""A score below this is of a row that `generate` never brought to life: -1e9, over some power of a length."""


@dataclass(frozen=True)
class Generated:
    """One hypothesis of `generate`: new tokens, their scores, their sum, and that over the power of its length."""

    token_ids: tuple[int, ...]
    token_scores: tuple[float, ...]
    total: float
    score: float


class _Settings(PretrainedConfig):  # type: ignore[no-untyped-call]
    model_type = "given"


class _Encoder(nn.Module):
    """Reads nothing."""

    main_input_name = "input_ids"

    def forward(self, input_ids: Tensor, **_: Any) -> BaseModelOutput:
        """One vector for each token."""
        return BaseModelOutput(last_hidden_state=torch.zeros(*input_ids.shape, 1))


class GivenModel(PreTrainedModel, GenerationMixin):  # type: ignore[no-untyped-call]
    """An encoder-decoder whose next logits are what a step function answers to all tokens before."""

    config_class = _Settings
    main_input_name = "input_ids"
    _supports_cache_class = False

    def __init__(self, step: StepFunction) -> None:
        settings = _Settings(is_encoder_decoder=True)
        settings.vocab_size = len(step((START,)))
        super().__init__(settings)
        self.step = step
        self.encoder = _Encoder()
        self.somewhere = nn.Parameter(torch.zeros(1))

    def get_encoder(self, *_: Any, **__: Any) -> nn.Module:
        return self.encoder

    def forward(self, decoder_input_ids: Tensor, **_: Any) -> Seq2SeqLMOutput:
        """Logits of the next token, [B, 1, V]."""
        logits = np.stack([self.step(tuple(row)) for row in decoder_input_ids.tolist()])
        return Seq2SeqLMOutput(logits=torch.from_numpy(logits).float()[:, None])

    def prepare_inputs_for_generation(self, input_ids: Tensor, *_: Any, **__: Any) -> dict[str, Any]:
        """All tokens: there is no cache."""
        return {"decoder_input_ids": input_ids}

    def hypotheses(self, options: SearchOptions, prefix: Sequence[int] = ()) -> list[Generated]:
        """Return the hypotheses of `generate` for one sentence, best first, or its samples."""
        prompt = (START, *prefix)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of combinations that are unusual
            model: Any = self  # the types of its mixin do not fit its own models
            found = model.generate(
                input_ids=torch.zeros(1, 1, dtype=torch.long),
                decoder_input_ids=torch.tensor([prompt]),
                generation_config=generation_config(options),
            )
        scores = model.compute_transition_scores(
            found.sequences.clamp(min=0),  # what was never born is filled up with -1
            found.scores,
            found.get("beam_indices"),
            normalize_logits=options.beam_size == 1,
        )
        hypotheses = []
        for index, (sequence, token_scores) in enumerate(zip(found.sequences.tolist(), scores.tolist(), strict=True)):
            tokens = _until_end(sequence[len(prompt) :], options)
            if "sequences_scores" in found:
                score = float(found.sequences_scores[index])
                total = score * len(tokens) ** options.length_penalty
            else:
                total = sum(token_scores[: len(tokens)])
                score = total / len(tokens) ** options.length_penalty
            if score > UNBORN:
                hypotheses.append(Generated(tokens, tuple(token_scores[: len(tokens)]), total, score))
        return hypotheses


def _until_end(tokens: Sequence[int], options: SearchOptions) -> tuple[int, ...]:
    """New tokens without padding."""
    ends = (place + 1 for place, token in enumerate(tokens) if token in options.eos_ids)
    return tuple(tokens[: next(ends, options.max_length)])


def generation_config(options: SearchOptions) -> GenerationConfig:
    """The same options in the words of Hugging Face."""
    settings: dict[str, Any] = {
        "num_beams": options.beam_size,
        "num_return_sequences": options.num_hypotheses,
        "min_new_tokens": options.min_length,
        "max_new_tokens": options.max_length,
        "eos_token_id": _listed(options.eos_ids),
        "pad_token_id": 0,
        "decoder_start_token_id": START,
        "suppress_tokens": _listed(options.suppress_tokens),
        "begin_suppress_tokens": _listed(options.begin_suppress_tokens),
        "no_repeat_ngram_size": options.no_repeat_ngram_size,
        "repetition_penalty": options.repetition_penalty,
        "bad_words_ids": _listed(list(word) for word in options.bad_words),
        "forced_bos_token_id": options.forced_first_token,
        "forced_eos_token_id": _listed(options.forced_last_tokens),
        "renormalize_logits": options.renormalize,
        "use_cache": False,
        "return_dict_in_generate": True,
        "output_scores": True,
    }
    if options.beam_size > 1:
        settings |= {"length_penalty": options.length_penalty, "early_stopping": options.early_stopping}
    sampling = options.sampling
    if sampling is not None:
        settings |= {
            "do_sample": True,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
        }
    config: GenerationConfig = GenerationConfig.from_dict(settings)
    return config


def _listed(values: Iterable[Any]) -> list[Any] | None:
    return list(values) or None
