"""Generation settings of a checkpoint, as decoding defaults of a bundle."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jumok_export.importers.huggingface.errors import CheckpointError
from jumok_export.importers.huggingface.settings import MOST, shown
from jumok_proto.options import OPTIONS, EarlyStopping
from jumok_serve.manifest.manifest import GenerationDefaults, SpecialTokens
from jumok_serve.search.options import MAX_BEAM_SIZE

UNSUPPORTED: Mapping[str, Any] = {
    "assistant_early_exit": None,
    "assistant_model": None,
    "constraints": None,
    "diversity_penalty": 0,
    "dola_layers": None,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1,
    "exponential_decay_length_penalty": None,
    "force_words_ids": None,
    "guidance_scale": 1,
    "logits_processor": None,
    "low_memory": False,
    "max_time": None,
    "negative_prompt_attention_mask": None,
    "negative_prompt_ids": None,
    "num_beam_groups": 1,
    "penalty_alpha": 0,
    "prefix_allowed_tokens_fn": None,
    "prompt_lookup_num_tokens": None,
    "remove_invalid_values": False,
    "sequence_bias": None,
    "stop_strings": None,
    "stopping_criteria": None,
    "streamer": None,
    "token_healing": False,
    "use_mtp": False,
    "watermarking_config": None,
}
"""Unsupported fields that change the output of `generate`, with their values without effect."""
UNSUPPORTED_SAMPLING: Mapping[str, Any] = {
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
    "min_p": None,
    "top_h": None,
    "typical_p": 1,
}
"""Unsupported fields that matter only if tokens are sampled, with their values without effect."""
WITHOUT_EFFECT = frozenset(
    {
        "_commit_hash",
        "_from_model_config",
        "assistant_confidence_threshold",
        "assistant_ensemble_weight",
        "assistant_lookbehind",
        "cache_config",
        "compile_config",
        "continuous_batching_config",
        "disable_compile",
        "is_assistant",
        "max_cache_len",
        "max_matching_ngram_size",
        "num_assistant_tokens",
        "num_assistant_tokens_schedule",
        "output_attentions",
        "output_hidden_states",
        "output_logits",
        "output_scores",
        "pad_token_id",
        "prefill_chunk_size",
        "return_dict_in_generate",
        "speculation_type",
        "synced_gpus",
        "target_lookbehind",
        "transformers_version",
        "use_cache",
    }
)
"""Fields that do not change the output of `generate`."""
TOP_K = 50
"""Default `top_k` of `generate`."""


@dataclass(frozen=True, kw_only=True)
class ImportedGeneration:
    """Decoding defaults of a checkpoint.

    Attributes:
        special_tokens: special tokens; the start token is for languages without one of their own.
        notes: messages about assumed values and ignored settings.
    """

    special_tokens: SpecialTokens
    generation: GenerationDefaults
    notes: tuple[str, ...]


def read_generation(
    settings: Mapping[str, Any],
    *,
    legacy: bool,
    vocabulary: int,
    pad: int,
    max_target_length: int,
    bounded: bool = True,
    start: int | None,
) -> ImportedGeneration:
    """Read the defaults of `generate` in transformers 5 from generation settings.

    Args:
        settings: content of generation_config.json or, with `legacy`, of config.json.
        legacy: True without generation_config.json; config.json has the same fields then.
        bounded: False to keep a maximum length beyond `max_target_length`.
        start: start token if the settings name none; None: the settings must name one.

    Raises:
        CheckpointError: unsupported or contradictory settings; lists all.
    """
    fields = _Fields(settings, vocabulary)
    notes = ["there is no generation_config.json: decoding defaults are those in config.json"] if legacy else []
    sample = fields.flag("do_sample")
    fields.refuse(UNSUPPORTED)
    if settings.get("cache_implementation") == "quantized":
        fields.problems.append("cache_implementation 'quantized' is not supported: leave it out")
    if sample:
        fields.refuse(UNSUPPORTED_SAMPLING)
    else:
        idle = [name for name, neutral in UNSUPPORTED_SAMPLING.items() if settings.get(name) not in (None, neutral)]
        notes += [f"{name} {settings[name]!r} is left out: nothing is sampled by default" for name in idle]
    start = _start(fields, start)
    eos = fields.tokens("eos_token_id")
    if not eos:
        fields.problems.append("eos_token_id is not given: translations would never end")
    max_length, min_length = _lengths(fields, max_target_length, notes, bounded=bounded)
    suppress = tuple(token for token in fields.tokens("suppress_tokens", bound=False) if token < vocabulary)
    forced_first = _forced_first(fields, legacy=legacy)
    forced_last = fields.tokens("forced_eos_token_id")
    for name, forced in (("forced_bos_token_id", forced_first), ("forced_eos_token_id", forced_last)):
        if forced and set(forced) <= set(suppress):
            fields.problems.append(f"every token of {name} ({_listed(forced)}) is in suppress_tokens too")
    if eos and set(eos) <= set(suppress):
        fields.problems.append(f"every token of eos_token_id ({_listed(eos)}) is in suppress_tokens too")
    defaults: dict[str, Any] = {
        **_widths(fields, sample=sample),
        "length_penalty": fields.number("length_penalty", 1.0),
        "early_stopping": fields.early_stopping(),
        "min_length": min_length,
        "max_length": max_length,
        "no_repeat_ngram_size": fields.integer("no_repeat_ngram_size", 0),
        "repetition_penalty": fields.number("repetition_penalty", 1.0),
        "begin_suppress_tokens": tuple(
            token for token in fields.tokens("begin_suppress_tokens", bound=False) if token < vocabulary
        ),
        "bad_words": fields.token_lists("bad_words_ids"),
        "forced_first_token": forced_first[0] if forced_first else None,
        "forced_last_tokens": forced_last,
        "renormalize": fields.flag("renormalize_logits"),
        "sample": sample,
        **_sampling(fields, sample=sample),
    }
    if not legacy:
        unknown = sorted(
            settings.keys() - fields.read - UNSUPPORTED.keys() - UNSUPPORTED_SAMPLING.keys() - WITHOUT_EFFECT
        )
        if unknown:
            notes.append(f"generation_config.json has unknown fields, which are ignored: {', '.join(unknown)}")
    if fields.problems:
        raise CheckpointError(fields.problems)
    return ImportedGeneration(
        special_tokens=SpecialTokens(pad=pad, start=start, eos=eos, suppress=suppress),
        generation=GenerationDefaults(**defaults),
        notes=tuple(notes),
    )


class _Fields:
    """Fields of generation settings, `null` being no value; problems are collected."""

    def __init__(self, settings: Mapping[str, Any], vocabulary: int) -> None:
        self._settings = settings
        self._vocabulary = vocabulary
        self.read: set[str] = {"cache_implementation"}
        self.problems: list[str] = []

    def get(self, name: str) -> Any:
        self.read.add(name)
        return self._settings.get(name)

    def refuse(self, neutral: Mapping[str, Any]) -> None:
        """Note a problem for every field whose value has an effect."""
        for name, without in neutral.items():
            value = self._settings.get(name)
            if value is not None and value != without:
                least = "leave it out" if without is None else f"only {without!r}, which has no effect, is"
                self.problems.append(f"{name} {value!r} is not supported: {least}")

    def flag(self, name: str) -> bool:
        value = self.get(name)
        if value is None or isinstance(value, bool):
            return bool(value)
        self.problems.append(f"{name} must be true or false, got {value!r}")
        return False

    def early_stopping(self) -> EarlyStopping:
        value = self.get("early_stopping")
        if value is None or value is False or value is True or value == "never":
            return value or False
        self.problems.append(f'early_stopping must be true, false or "never", got {value!r}')
        return False

    def integer(self, name: str, default: int, *, least: int = 0) -> int:
        value = self.get(name)
        if value is None:
            return default
        if _is_integer(value) and least <= value <= MOST:
            return int(value)
        wanted = f"of at most {MOST}" if _is_integer(value) and value > MOST else f"of at least {least}"
        self.problems.append(f"{name} must be an integer {wanted}, got {shown(value)}")
        return default

    def number(self, name: str, default: float) -> float:
        value = self.get(name)
        if value is None:
            return default
        least, most = OPTIONS[name].least, OPTIONS[name].most
        if isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most:
            return float(value)
        self.problems.append(f"{name} must be a number from {least:g} to {most:g}, got {shown(value)}")
        return default

    def tokens(self, name: str, *, bound: bool = True) -> tuple[int, ...]:
        """Read a token or a list; with `bound` within the vocabulary."""
        value = self.get(name)
        if value is None:
            return ()
        return self._tokens(name, value if isinstance(value, list) else [value], bound=bound)

    def token_lists(self, name: str) -> tuple[tuple[int, ...], ...]:
        value = self.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not value or not all(isinstance(item, list) and item for item in value):
            self.problems.append(f"{name} must be a list of lists of tokens, none empty, got {value!r}")
            return ()
        return tuple(tokens for item in value if (tokens := self._tokens(name, item, bound=True)))

    def _tokens(self, name: str, values: Sequence[Any], *, bound: bool) -> tuple[int, ...]:
        wrong = [value for value in values if not _is_integer(value) or value < 0]
        if wrong:
            self.problems.append(f"{name} must be token ids, got {shown(wrong[0])}")
            return ()
        beyond = [value for value in values if value >= self._vocabulary]
        if beyond and bound:
            self.problems.append(f"{name}: token {shown(beyond[0])} lies beyond the vocabulary of {self._vocabulary}")
            return ()
        return tuple(values)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _listed(tokens: Sequence[int]) -> str:
    return ", ".join(map(str, tokens))


def _start(fields: _Fields, default: int | None) -> int:
    """Read the decoder's start token; bos_token_id is the default, as in `generate`."""
    named = [(name, fields.get(name)) for name in ("decoder_start_token_id", "bos_token_id")]
    for name, value in named:
        if isinstance(value, list):
            fields.problems.append(f"{name} must be one token, got {value!r}")
            return 0
        if value is not None:
            return next(iter(fields.tokens(name)), 0)
    if default is not None:
        return default
    fields.problems.append("neither decoder_start_token_id nor bos_token_id is given: decoding could not start")
    return 0


def _lengths(fields: _Fields, limit: int, notes: list[str], *, bounded: bool) -> tuple[int, int]:
    """Read the limits of new tokens.

    `max_length` and `min_length` count the start token too.
    """
    new, total = fields.integer("max_new_tokens", 0, least=1), fields.integer("max_length", 0, least=2)
    wanted = new or total - 1
    if wanted < 1:
        wanted = limit
        notes.append(f"max_length is not given: {limit} tokens, the model's limit, where generate stops after 20")
    elif wanted > limit and not bounded:
        limit = wanted
    elif wanted > limit:
        name = "max_new_tokens" if new else "max_length"
        notes.append(f"{name} {new or total} is more than the model has positions for: lowered to {limit} new tokens")
    longest = min(wanted, limit)
    least, least_in_all = fields.integer("min_new_tokens", -1), fields.integer("min_length", 0)
    return longest, min(least if least >= 0 else max(0, least_in_all - 1), longest)


def _forced_first(fields: _Fields, *, legacy: bool) -> tuple[int, ...]:
    value = fields.get("forced_bos_token_id")
    if isinstance(value, list):
        fields.problems.append(f"forced_bos_token_id must be one token, got {value!r}")
        return ()
    # BART's former name of forced_bos_token_id; a boolean.
    former = fields.get("force_bos_token_to_be_generated") is True
    if former and (legacy or fields.flag("_from_model_config")):
        return fields.tokens("bos_token_id")
    return fields.tokens("forced_bos_token_id")


def _widths(fields: _Fields, *, sample: bool) -> dict[str, int]:
    beams, hypotheses = fields.integer("num_beams", 1, least=1), fields.integer("num_return_sequences", 1, least=1)
    if beams > MAX_BEAM_SIZE:
        fields.problems.append(f"num_beams must be at most {MAX_BEAM_SIZE}, got {beams}")
    if sample and beams > 1:
        fields.problems.append(f"do_sample with num_beams {beams} is not supported: only with 1")
    elif hypotheses > (MAX_BEAM_SIZE if sample else beams):
        most = MAX_BEAM_SIZE if sample else f"num_beams, which is {beams}"
        fields.problems.append(f"num_return_sequences must be at most {most}, got {hypotheses}")
    beams = min(beams, 1 if sample else MAX_BEAM_SIZE)
    return {"beam_size": beams, "num_hypotheses": min(hypotheses, MAX_BEAM_SIZE if sample else beams)}


def _sampling(fields: _Fields, *, sample: bool) -> dict[str, float]:
    """Read the sampling options; their problems matter only if tokens are sampled."""
    known = len(fields.problems)
    options = {
        "temperature": fields.number("temperature", 1.0),
        "top_k": fields.integer("top_k", TOP_K),
        "top_p": fields.number("top_p", 1.0),
    }
    if not sample:
        del fields.problems[known:]
    return options
