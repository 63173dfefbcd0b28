"""Decoding options as they meet a model's defaults and limits."""

from typing import Any

import pytest

from jumok_proto.errors import InvalidArgumentError
from jumok_serve.manifest.manifest import GenerationDefaults, Limits, SpecialTokens
from jumok_serve.search.options import DecodingOptions, Sampling, SearchOptions
from tests.serve.search.test_options import complete

DEFAULTS = GenerationDefaults(
    beam_size=4, num_hypotheses=2, length_penalty=0.6, early_stopping=True, min_length=3, max_length=50
)
SPECIAL = SpecialTokens(pad=0, start=2, eos=(1,), suppress=(0, 7))
VOCABULARY = 30


def resolve(
    options: DecodingOptions,
    defaults: GenerationDefaults = DEFAULTS,
    *,
    max_target_length: int = 60,
    forced_first: int | None = None,
    prefix: tuple[int, ...] = (),
) -> SearchOptions:
    limits = Limits(max_source_length=60, max_target_length=max_target_length)
    return options.resolve(defaults, SPECIAL, limits, vocabulary=VOCABULARY, forced_first=forced_first, prefix=prefix)


def test_no_options_give_the_defaults() -> None:
    assert resolve(DecodingOptions()) == complete(
        beam_size=4,
        num_hypotheses=2,
        length_penalty=0.6,
        early_stopping=True,
        min_length=3,
        max_length=50,
        suppress_tokens=(0, 7),
    )


def test_all_defaults_of_a_model_reach_the_search() -> None:
    defaults: dict[str, Any] = {
        "beam_size": 3,
        "no_repeat_ngram_size": 2,
        "repetition_penalty": 1.5,
        "begin_suppress_tokens": (4, 5),
        "bad_words": ((6,), (8, 9)),
        "forced_first_token": 10,
        "forced_last_tokens": (11, 12),
        "renormalize": True,
    }
    found = resolve(DecodingOptions(), GenerationDefaults(max_length=9, **defaults))
    assert found == complete(suppress_tokens=(0, 7), **defaults)


def test_requested_values_win_even_if_zero_or_false() -> None:
    defaults = DEFAULTS.model_copy(update={"no_repeat_ngram_size": 3, "repetition_penalty": 2.0})
    asked: dict[str, Any] = {
        "beam_size": 5,
        "num_hypotheses": 5,
        "length_penalty": 0.0,
        "early_stopping": False,
        "min_length": 0,
        "max_length": 60,
        "no_repeat_ngram_size": 0,
        "repetition_penalty": 1.0,
    }
    found = resolve(DecodingOptions(**asked, end_tokens=(9,)), defaults)
    assert found == SearchOptions(**asked, eos_ids=(9,), suppress_tokens=(0, 7))


def test_requested_suppression_adds_to_the_models() -> None:
    assert resolve(DecodingOptions(suppress_tokens=(8, 7))).suppress_tokens == (0, 7, 8)


def test_forced_first_token_of_request_then_language_then_default() -> None:
    defaults = DEFAULTS.model_copy(update={"forced_first_token": 10})
    assert resolve(DecodingOptions(), defaults).forced_first_token == 10
    assert resolve(DecodingOptions(), defaults, forced_first=11).forced_first_token == 11
    assert resolve(DecodingOptions(forced_first_token=12), defaults, forced_first=11).forced_first_token == 12
    # After a prefix, which includes the forced token, nothing is forced.
    assert resolve(DecodingOptions(), defaults, forced_first=11, prefix=(11, 5)).forced_first_token is None


def test_a_prefix_shortens_the_maximum_length() -> None:
    for options in (DecodingOptions(), DecodingOptions(max_length=5)):
        assert resolve(options, max_target_length=20, prefix=(5,) * 15).max_length == 5
    prefixed = "must be at most 5 with this model after a target prefix of 15 tokens, got 6"
    for name in ("max_length", "min_length"):
        with pytest.raises(InvalidArgumentError, match=f"{name} {prefixed}") as caught:
            resolve(DecodingOptions(**{name: 6}), max_target_length=20, prefix=(5,) * 15)
        assert caught.value.field == f"options.{name}"
    with pytest.raises(InvalidArgumentError, match="has 20 tokens, and the model writes at most 20: there") as caught:
        resolve(DecodingOptions(), max_target_length=20, prefix=(5,) * 20)
    assert caught.value.field == "target_prefix"


@pytest.mark.parametrize("asked", [{"sample": True}, {"temperature": 1.0}, {"top_k": 0}, {"top_p": 1.0}, {"seed": 4}])
def test_any_sampling_option_turns_sampling_on(asked: dict[str, Any]) -> None:
    defaults = DEFAULTS.model_copy(update={"temperature": 0.5, "top_k": 7, "top_p": 0.75})
    made = resolve(DecodingOptions(**asked, num_hypotheses=9), defaults)
    assert (made.beam_size, made.num_hypotheses) == (1, 9)
    chosen: dict[str, Any] = {"temperature": 0.5, "top_k": 7, "top_p": 0.75, "seed": None, **asked}
    chosen.pop("sample", None)
    assert made.sampling == Sampling(**chosen)


def test_a_beam_turns_default_sampling_off() -> None:
    defaults = GenerationDefaults(sample=True, num_hypotheses=64, top_k=50, max_length=9)
    made = resolve(DecodingOptions(), defaults)
    assert made.num_hypotheses == 64
    assert made.sampling == Sampling(temperature=1.0, top_k=50, top_p=1.0, seed=None)
    assert resolve(DecodingOptions(beam_size=1), defaults).sampling is not None
    assert resolve(DecodingOptions(beam_size=1, num_hypotheses=3), defaults).num_hypotheses == 3
    assert resolve(DecodingOptions(sample=False), defaults).sampling is None
    assert resolve(DecodingOptions(beam_size=2), defaults).sampling is None


def test_the_defaults_may_be_requested() -> None:
    values = {name: getattr(DEFAULTS, name) for name in ("temperature", "top_k", "top_p")}
    asked = DecodingOptions(sample=False, beam_size=DEFAULTS.beam_size, **values)
    assert resolve(asked) == resolve(DecodingOptions())


def test_defaults_yield_to_requested_values() -> None:
    assert resolve(DecodingOptions(beam_size=1)).num_hypotheses == 1
    assert resolve(DecodingOptions(max_length=2)).min_length == 2
    assert resolve(DecodingOptions(min_length=55)).max_length == 55
    assert resolve(DecodingOptions(), max_target_length=20).max_length == 20
    assert resolve(DecodingOptions(), max_target_length=2).min_length == 2


BEYOND = "lies beyond the model's vocabulary of 30"


@pytest.mark.parametrize(
    ("options", "field", "message"),
    [
        ({"sample": False, "top_p": 0.5}, "top_p", "no meaning without sampling: leave it out, or set"),
        ({"sample": False, "seed": 1}, "seed", "seed has no meaning without sampling"),
        ({"num_hypotheses": 5}, "num_hypotheses", "which is 4 by the model's default, got 5; ask"),
        ({"suppress_tokens": (1,)}, "suppress_tokens", "hold every end token"),
        ({"suppress_tokens": (3, 30)}, "suppress_tokens", f"suppress_tokens: token 30 {BEYOND}"),
        ({"end_tokens": (31,)}, "end_tokens", f"end_tokens: token 31 {BEYOND}"),
        ({"end_tokens": (7,)}, "end_tokens", r"such as the model never writes \(7\)"),
        ({"forced_first_token": 30}, "forced_first_token", f"forced_first_token: token 30 {BEYOND}"),
        ({"forced_first_token": 7}, "forced_first_token", "7 is one that the model never writes"),
        (
            {"forced_first_token": 8, "suppress_tokens": (8,)},
            "forced_first_token",
            "8 is suppressed at the same time; leave it out of suppress_tokens",
        ),
        ({"max_length": 61}, "max_length", "max_length must be at most 60 with this model, got 61"),
        ({"min_length": 61}, "min_length", "min_length must be at most 60 with this model, got 61"),
    ],
)
def test_options_that_do_not_fit_the_model_are_refused(options: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        resolve(DecodingOptions(**options))
    assert caught.value.field == f"options.{field}"
