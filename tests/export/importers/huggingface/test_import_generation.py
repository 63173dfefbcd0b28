"""Generation settings of checkpoints against transformers, and refused settings."""

import inspect
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import GenerationConfig

from jumok_export.importers.huggingface.errors import CheckpointError
from jumok_export.importers.huggingface.generation import (
    UNSUPPORTED,
    UNSUPPORTED_SAMPLING,
    WITHOUT_EFFECT,
    ImportedGeneration,
    read_generation,
)

IDS = {"decoder_start_token_id": 3, "eos_token_id": 2}
VOCABULARY, LIMIT = 50, 30


def read(settings: dict[str, Any], *, legacy: bool = False, start: int | None = None) -> ImportedGeneration:
    return read_generation(settings, legacy=legacy, vocabulary=VOCABULARY, pad=1, max_target_length=LIMIT, start=start)


def problems(settings: dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(CheckpointError) as raised:
        read(settings)
    return raised.value.problems


def prepared(folder: Path, settings: dict[str, Any], *, legacy: bool = False) -> Any:
    """Effective settings of transformers' `generate`, with token ids and lengths."""
    name = "config.json" if legacy else "generation_config.json"
    (folder / name).write_text(json.dumps(settings))
    names = ("layers", "attention_heads", "ffn_dim")
    sides: dict[str, Any] = {f"{side}_{name}": 1 for side in ("encoder", "decoder") for name in names}
    config = transformers.BartConfig(vocab_size=VOCABULARY, d_model=4, max_position_embeddings=LIMIT, **sides)
    model: Any = transformers.BartForConditionalGeneration(config)
    with warnings.catch_warnings(action="ignore"):
        model.generation_config = GenerationConfig.from_pretrained(
            folder, config_file_name=name, _from_model_config=legacy
        )
        lengths = model.generation_config.max_length, model.generation_config.min_length
        chosen, _ = model._prepare_generation_config(None)
        model._prepare_special_tokens(chosen, device="cpu")
        return model._prepare_generated_length(chosen, *(length is None for length in lengths), "input_ids", 1, None)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        {"max_length": 20},
        {"max_length": 12, "min_length": 5},
        {"max_new_tokens": 12, "min_new_tokens": 5},
        {"max_new_tokens": 7, "max_length": 25, "min_new_tokens": 0, "min_length": 4},
        {"max_length": 9, "min_length": 1, "num_beams": 4, "num_return_sequences": 3},
        {"max_length": 9, "num_beams": 2, "length_penalty": -0.5, "early_stopping": True},
        {"max_length": 9, "num_beams": 2, "length_penalty": 2, "early_stopping": "never"},
        {"max_length": 9, "num_beams": None, "early_stopping": None, "length_penalty": None, "top_k": None},
        {"max_length": 9, "no_repeat_ngram_size": 3, "repetition_penalty": 1.3, "renormalize_logits": True},
        {"max_length": 9, "bad_words_ids": [[4], [5, 6]], "suppress_tokens": [7, 8], "begin_suppress_tokens": [9]},
        {"max_length": 9, "forced_bos_token_id": 0, "forced_eos_token_id": 2},
        {"max_length": 9, "forced_eos_token_id": [2, 4], "eos_token_id": [2, 4, 6]},
        {"max_length": 9, "do_sample": True, "temperature": 0.7, "top_k": 5, "top_p": 0.9, "num_return_sequences": 4},
        {"max_length": 9, "do_sample": True},
        {"max_length": 9, "do_sample": True, "top_k": 0},
        {"max_length": 9, "decoder_start_token_id": None, "bos_token_id": 6},
        {"max_length": 9, "use_cache": False, "output_scores": True, "return_dict_in_generate": True},
        {"max_length": 9, "cache_implementation": "static", "num_beam_groups": 1, "diversity_penalty": 0.0},
    ],
)
def test_settings_are_those_of_generate(settings: dict[str, Any], legacy: bool, tmp_path: Path) -> None:
    settings = IDS | settings
    theirs = prepared(tmp_path, settings, legacy=legacy)
    imported = read(settings, legacy=legacy)
    ours, special = imported.generation, imported.special_tokens
    assert special.start == theirs._decoder_start_token_tensor.item()
    assert list(special.eos) == theirs._eos_token_tensor.tolist()
    assert list(special.suppress) == (theirs.suppress_tokens or [])
    assert (ours.max_length, ours.min_length) == (theirs.max_length - 1, max(0, (theirs.min_length or 0) - 1))
    assert (ours.beam_size, ours.num_hypotheses) == (theirs.num_beams, theirs.num_return_sequences)
    assert (ours.length_penalty, ours.early_stopping) == (theirs.length_penalty, theirs.early_stopping)
    assert ours.no_repeat_ngram_size == theirs.no_repeat_ngram_size
    assert ours.repetition_penalty == theirs.repetition_penalty
    assert list(ours.begin_suppress_tokens) == (theirs.begin_suppress_tokens or [])
    assert [list(word) for word in ours.bad_words] == (theirs.bad_words_ids or [])
    assert ours.forced_first_token == theirs.forced_bos_token_id
    forced = theirs.forced_eos_token_id
    assert list(ours.forced_last_tokens) == ([forced] if isinstance(forced, int) else forced or [])
    assert ours.renormalize is bool(theirs.renormalize_logits)
    assert (ours.sample, ours.temperature) == (theirs.do_sample, theirs.temperature)
    assert (ours.top_k, ours.top_p) == (theirs.top_k, theirs.top_p)


def test_barts_former_name_of_the_forced_first_token(tmp_path: Path) -> None:
    settings = {**IDS, "max_length": 9, "bos_token_id": 6, "force_bos_token_to_be_generated": True}
    assert prepared(tmp_path, settings, legacy=True).forced_bos_token_id == 6
    assert read(settings, legacy=True).generation.forced_first_token == 6
    assert prepared(tmp_path, settings).forced_bos_token_id is None
    assert read(settings).generation.forced_first_token is None


@pytest.mark.parametrize(
    ("settings", "legacy", "notes"),
    [
        ({}, False, (f"max_length is not given: {LIMIT} tokens, the model's limit, where generate stops after 20",)),
        (
            {"max_length": 100, "min_length": 60},
            False,
            (f"max_length 100 is more than the model has positions for: lowered to {LIMIT} new tokens",),
        ),
        (
            {"max_length": 9, "min_p": 0.1, "alignment_heads": [[1, 1]]},
            False,
            (
                "min_p 0.1 is left out: nothing is sampled by default",
                "generation_config.json has unknown fields, which are ignored: alignment_heads",
            ),
        ),
        (
            {"max_length": 9, "d_model": 4},
            True,
            ("there is no generation_config.json: decoding defaults are those in config.json",),
        ),
    ],
)
def test_notes_name_changed_and_ignored_settings(settings: dict[str, Any], legacy: bool, notes: tuple[str]) -> None:
    imported = read(IDS | settings, legacy=legacy)
    assert imported.notes == notes
    least, most = settings.get("min_length", 1) - 1, settings.get("max_length", 100) - 1
    assert (imported.generation.min_length, imported.generation.max_length) == (min(LIMIT, least), min(LIMIT, most))


def test_a_start_token_that_depends_on_the_language() -> None:
    assert read({"eos_token_id": 2}, start=9).special_tokens.start == 9
    assert read(IDS, start=9).special_tokens.start == 3


def test_tokens_that_cannot_be_written_need_no_suppression() -> None:
    imported = read({**IDS, "suppress_tokens": [4, VOCABULARY], "begin_suppress_tokens": [VOCABULARY + 1]})
    assert imported.special_tokens.suppress == (4,)
    assert imported.generation.begin_suppress_tokens == ()


def test_every_field_of_generate_is_known() -> None:
    """Every field is read, refused, or without effect on the output."""
    read_by_name = set(inspect.getsource(inspect.getmodule(read_generation)).split('"'))  # type: ignore[arg-type]
    known = read_by_name | UNSUPPORTED.keys() | UNSUPPORTED_SAMPLING.keys() | WITHOUT_EFFECT
    fields: dict[str, Any] = GenerationConfig().to_dict()  # type: ignore[no-untyped-call]
    assert fields.keys() - known == set()


UNSUPPORTED_VALUES = {
    "assistant_early_exit": 2,
    "constraints": [[1, 2]],
    "diversity_penalty": 0.5,
    "dola_layers": "high",
    "encoder_no_repeat_ngram_size": 3,
    "encoder_repetition_penalty": 1.2,
    "exponential_decay_length_penalty": [4, 1.1],
    "force_words_ids": [[3]],
    "guidance_scale": 1.5,
    "low_memory": True,
    "max_time": 2.5,
    "num_beam_groups": 2,
    "penalty_alpha": 0.6,
    "prompt_lookup_num_tokens": 3,
    "remove_invalid_values": True,
    "sequence_bias": [[[4], -1.0]],
    "stop_strings": ["."],
    "token_healing": True,
    "use_mtp": True,
    "watermarking_config": {"bias": 2.0},
}


def test_all_unsupported_fields_are_refused_at_once() -> None:
    said = problems({**IDS, **UNSUPPORTED_VALUES})
    assert len(said) == len(UNSUPPORTED_VALUES)
    for (name, value), problem in zip(sorted(UNSUPPORTED_VALUES.items()), said, strict=True):
        assert problem.startswith(f"{name} {value!r} is not supported: ")


def test_unsupported_sampling_is_refused_if_tokens_are_sampled() -> None:
    values = {"epsilon_cutoff": 1e-4, "eta_cutoff": 1e-4, "min_p": 0.1, "top_h": 0.5, "typical_p": 0.9}
    said = problems({**IDS, "do_sample": True, **values})
    assert [problem.split()[0] for problem in said] == sorted(values)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_beams": "4"}, "num_beams must be an integer of at least 1, got '4'"),
        ({"num_beams": 65}, "num_beams must be at most 64, got 65"),
        ({"num_beams": 2, "do_sample": True}, "do_sample with num_beams 2 is not supported: only with 1"),
        ({"num_return_sequences": 2}, "num_return_sequences must be at most num_beams, which is 1, got 2"),
        ({"max_length": 1}, "max_length must be an integer of at least 2, got 1"),
        ({"length_penalty": True}, "length_penalty must be a number from -10 to 10, got True"),
        ({"length_penalty": 400}, "length_penalty must be a number from -10 to 10, got 400"),
        ({"repetition_penalty": 0}, "repetition_penalty must be a number from 1e-06 to 1e+06, got 0"),
        ({"early_stopping": "always"}, "early_stopping must be true, false or \"never\", got 'always'"),
        ({"do_sample": True, "top_p": 1.5}, "top_p must be a number from 1e-06 to 1, got 1.5"),
        ({"do_sample": True, "temperature": 0}, "temperature must be a number from 1e-06 to 1e+06, got 0"),
        ({"eos_token_id": None}, "eos_token_id is not given: translations would never end"),
        ({"eos_token_id": [2, 50]}, "eos_token_id: token 50 lies beyond the vocabulary of 50"),
        ({"eos_token_id": -1}, "eos_token_id must be token ids, got -1"),
        ({"bad_words_ids": [[]]}, "bad_words_ids must be a list of lists of tokens, none empty, got [[]]"),
        ({"bad_words_ids": [[3, 99]]}, "bad_words_ids: token 99 lies beyond the vocabulary of 50"),
        ({"forced_bos_token_id": [1]}, "forced_bos_token_id must be one token, got [1]"),
        ({"decoder_start_token_id": [1, 2]}, "decoder_start_token_id must be one token, got [1, 2]"),
        ({"decoder_start_token_id": None}, "neither decoder_start_token_id nor bos_token_id is given"),
        ({"suppress_tokens": [2, 9]}, "every token of eos_token_id (2) is in suppress_tokens too"),
        ({"suppress_tokens": [9], "forced_bos_token_id": 9}, "every token of forced_bos_token_id (9) is in suppress"),
        ({"cache_implementation": "quantized"}, "cache_implementation 'quantized' is not supported: leave it out"),
    ],
)
def test_invalid_values_are_refused(settings: dict[str, Any], said: str) -> None:
    assert any(problem.startswith(said) for problem in problems({**IDS, **settings}))


HUGE = 10**400


@pytest.mark.parametrize("field", ["num_beams", "max_length", "length_penalty", "top_k", "temperature", "eos_token_id"])
@pytest.mark.parametrize("value", [HUGE, -HUGE, float("inf"), float("nan"), [HUGE], {"a": 1}])
def test_huge_numbers_of_generation_are_problems(field: str, value: Any) -> None:
    sampled = field in {"top_k", "temperature"}
    found = problems({**IDS, "do_sample": sampled, field: value})
    assert any(field in problem and len(problem) < 500 for problem in found)


def test_invalid_sampling_options_do_not_matter_without_sampling() -> None:
    generation = read({**IDS, "temperature": 0.0, "top_p": 7}).generation
    assert (generation.temperature, generation.top_p) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("settings", "bounded", "kept", "notes"),
    [
        ({"max_length": 101}, False, 100, 0),
        ({"max_new_tokens": 90}, False, 90, 0),
        ({"max_length": 101}, True, LIMIT, 1),
        ({"max_length": 11}, False, 10, 0),
        ({}, False, LIMIT, 1),
    ],
)
def test_a_maximum_is_kept_without_bound(settings: dict[str, Any], bounded: bool, kept: int, notes: int) -> None:
    imported = read_generation(
        IDS | settings, legacy=False, vocabulary=VOCABULARY, pad=1, max_target_length=LIMIT, bounded=bounded, start=None
    )
    assert imported.generation.max_length == kept
    assert len(imported.notes) == notes
