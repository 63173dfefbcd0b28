"""Decoding options: ranges and types, what excludes each other, and a model's defaults and limits."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from jumok_serve.manifest.manifest import GenerationDefaults, Limits, SpecialTokens
from jumok_serve.search.options import MAX_TOKEN_LIST, DecodingOptions, Sampling, SearchOptions
from tests.support.refusals import refused


def complete(**changes: Any) -> SearchOptions:
    """Make search options that are valid except for those given."""
    values: dict[str, Any] = {
        "beam_size": 64,
        "num_hypotheses": 1,
        "length_penalty": 1.0,
        "early_stopping": False,
        "min_length": 0,
        "max_length": 9,
        "eos_ids": (1,),
        "suppress_tokens": (),
    }
    return SearchOptions(**values | changes)


WRONG: list[tuple[str, Any, str]] = [
    ("beam_size", 0, "beam_size must be at least 1 and at most 64, got 0"),
    ("beam_size", -3, "beam_size must be at least 1 and at most 64, got -3"),
    ("beam_size", 65, "beam_size must be at least 1 and at most 64, got 65"),
    ("beam_size", "many", "beam_size must be a whole number, got 'many'"),
    ("beam_size", 2.5, "beam_size must be a whole number, got 2.5"),
    ("beam_size", 4.0, "beam_size must be a whole number, got 4.0"),
    ("beam_size", True, "beam_size must be a whole number, got True"),
    ("num_hypotheses", 0, "num_hypotheses must be at least 1 and at most 64, got 0"),
    ("num_hypotheses", 65, "num_hypotheses must be at least 1 and at most 64, got 65"),
    ("num_hypotheses", [1], r"num_hypotheses must be a whole number, got \[1\]"),
    ("length_penalty", math.nan, "length_penalty must be a finite number, got nan"),
    ("length_penalty", math.inf, "length_penalty must be a finite number, got inf"),
    ("length_penalty", -math.inf, "length_penalty must be a finite number, got -inf"),
    ("length_penalty", 10**400, "length_penalty must be a finite number, got 1000"),
    ("length_penalty", 400, "length_penalty must be at least -10 and at most 10, got 400; 0 compares sums"),
    ("length_penalty", -10.001, "length_penalty must be at least -10 and at most 10, got -10.001"),
    ("length_penalty", "1.0", "length_penalty must be a finite number, got '1.0'"),
    ("length_penalty", False, "length_penalty must be a finite number, got False"),
    ("length_penalty", 1j, "length_penalty must be a finite number, got 1j"),
    ("early_stopping", "always", "early_stopping must be True, False or \"never\", got 'always'"),
    ("early_stopping", 1, 'early_stopping must be True, False or "never", got 1'),
    ("min_length", -1, "min_length must be at least 0 and at most 2147483647, got -1"),
    ("min_length", 1.0, "min_length must be a whole number, got 1.0"),
    ("min_length", True, "min_length must be a whole number, got True"),
    ("max_length", 0, "max_length must be at least 1 and at most 2147483647, got 0"),
    ("max_length", 2**31, "max_length must be at least 1 and at most 2147483647, got 2147483648"),
    ("max_length", "long", "max_length must be a whole number, got 'long'"),
    ("no_repeat_ngram_size", -1, "no_repeat_ngram_size must be at least 0 and at most 2147483647, got -1"),
    ("repetition_penalty", 0, "repetition_penalty must be at least 1e-06 and at most 1e\\+06, got 0; 1 is none"),
    ("repetition_penalty", 1e9, "repetition_penalty must be at least 1e-06 and at most 1e\\+06, got 1000000000.0"),
    ("repetition_penalty", math.nan, "repetition_penalty must be a finite number, got nan"),
    ("suppress_tokens", 5, "suppress_tokens must be a sequence of token ids, got 5"),
    ("suppress_tokens", "5", "suppress_tokens must be a sequence of token ids, got '5'"),
    ("suppress_tokens", (4, -1), "suppress_tokens must be at least 0 and at most 2147483647, got -1"),
    ("suppress_tokens", (4, 1.0), "suppress_tokens must be a whole number, got 1.0"),
    ("suppress_tokens", (4, True), "suppress_tokens must be a whole number, got True"),
    ("suppress_tokens", range(MAX_TOKEN_LIST + 1), "suppress_tokens takes at most 4096 tokens, got 4097"),
    ("forced_first_token", -1, "forced_first_token must be at least 0 and at most 2147483647, got -1"),
    ("forced_first_token", "de", "forced_first_token must be a whole number, got 'de'"),
]
WRONG_OF_REQUESTS: list[tuple[str, Any, str]] = [
    ("end_tokens", (), "end_tokens must name at least one token"),
    ("end_tokens", (None,), "end_tokens must be a whole number, got None"),
    ("sample", 1, "sample must be True or False, got 1"),
]
WRONG_OF_SAMPLING: list[tuple[str, Any, str]] = [
    ("temperature", 0, r"temperature must be at least 1e-06 and at most 1e\+06, got 0; 1 leaves"),
    ("temperature", -1.0, r"temperature must be at least 1e-06 and at most 1e\+06, got -1.0"),
    ("temperature", 1e300, r"temperature must be at least 1e-06 and at most 1e\+06, got 1e\+300"),
    ("temperature", math.inf, "temperature must be a finite number, got inf"),
    ("top_k", -1, "top_k must be at least 0 and at most 2147483647, got -1"),
    ("top_k", 2.0, "top_k must be a whole number, got 2.0"),
    ("top_k", 10**30, "top_k must be at least 0 and at most 2147483647, got 1000"),
    ("top_p", 0.0, "top_p must be at least 1e-06 and at most 1, got 0.0; 1 keeps all"),
    ("top_p", 1.01, "top_p must be at least 1e-06 and at most 1, got 1.01"),
    ("seed", -1, "seed must be at least 0 and at most 9223372036854775807, got -1"),
    ("seed", 2**63, "seed must be at least 0 and at most 9223372036854775807, got 9223372036854775808"),
]
WRONG_OF_SEARCHES: list[tuple[str, Any, str]] = [
    ("eos_ids", (2, -1), "eos_ids must be at least 0 and at most 2147483647, got -1"),
    ("begin_suppress_tokens", (2, None), "begin_suppress_tokens must be a whole number, got None"),
    ("bad_words", ((2, 3), ()), r"bad_words must be sequences of token ids, got \(\(2, 3\), \(\)\)"),
    ("bad_words", (2, 3), "bad_words must be a sequence of token ids, got 2"),
    ("bad_words", ((2, -3),), "bad_words must be at least 0 and at most 2147483647, got -3"),
    ("forced_last_tokens", (1.5,), "forced_last_tokens must be a whole number, got 1.5"),
    ("renormalize", 1, "renormalize must be True or False, got 1"),
]


def sampling(**changes: Any) -> Sampling:
    values: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": None}
    return Sampling(**values | changes)


@pytest.mark.parametrize(
    ("make", "name", "value", "message"),
    [
        *((DecodingOptions, *row) for row in [*WRONG, *WRONG_OF_REQUESTS, *WRONG_OF_SAMPLING]),
        *((complete, *row) for row in [*WRONG, *WRONG_OF_SEARCHES]),
        *((sampling, *row) for row in WRONG_OF_SAMPLING),
    ],
)
def test_a_wrong_value_is_refused_by_name(make: Callable[..., object], name: str, value: Any, message: str) -> None:
    with refused(f"options.{name}", message):
        make(**{name: value})


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 1},
        {"beam_size": 64, "num_hypotheses": 64},
        {"num_hypotheses": 64},
        {"length_penalty": -10},
        {"length_penalty": 0},
        {"length_penalty": 10.0},
        {"early_stopping": "never"},
        {"early_stopping": False},
        {"min_length": 0, "max_length": 1},
        {"min_length": 5, "max_length": 5},
        {"no_repeat_ngram_size": 0, "repetition_penalty": 1e-6},
        {"no_repeat_ngram_size": 2**31 - 1, "repetition_penalty": 1e6, "temperature": 1e6},
        {"suppress_tokens": (), "end_tokens": (0,), "forced_first_token": 0},
        {"suppress_tokens": tuple(range(MAX_TOKEN_LIST))},
        {"sample": False, "beam_size": 2},
        {"sample": True, "num_hypotheses": 64, "temperature": 1e-6, "top_k": 0, "top_p": 1.0, "seed": 0},
        {"beam_size": 1, "num_hypotheses": 3},
        {"seed": 2**63 - 1, "top_k": 2**31 - 1, "top_p": 1e-6},
    ],
)
def test_the_ends_of_the_ranges_are_allowed(options: dict[str, Any]) -> None:
    made = DecodingOptions(**options)
    assert {name: getattr(made, name) for name in options} == options


@pytest.mark.parametrize(
    ("make", "values", "field", "message"),
    [
        (DecodingOptions, {"beam_size": 2, "num_hypotheses": 3}, "num_hypotheses", "beam_size, which is 2, got 3"),
        (
            DecodingOptions,
            {"sample": False, "beam_size": 1, "num_hypotheses": 2},
            "num_hypotheses",
            "beam_size, which is 1, got 2",
        ),
        (DecodingOptions, {"min_length": 5, "max_length": 4}, "min_length", "at most max_length, which is 4, got 5"),
        *(
            (
                DecodingOptions,
                {"beam_size": 2, name: value},
                "beam_size",
                "sampling .* excludes a beam_size above 1, got 2",
            )
            for name, value in {"sample": True, "temperature": 0.5, "top_k": 3, "top_p": 0.5, "seed": 1}.items()
        ),
        (complete, {"sampling": sampling()}, "beam_size", "excludes a beam_size above 1, got 64"),
        (complete, {"beam_size": 2, "num_hypotheses": 3}, "num_hypotheses", "at most beam_size, which is 2, got 3"),
        (complete, {"min_length": 10}, "min_length", "at most max_length, which is 9, got 10"),
        (
            complete,
            {"forced_first_token": 5, "suppress_tokens": (4, 5)},
            "forced_first_token",
            "forced_first_token 5 is suppressed at the same time",
        ),
        (complete, {"suppress_tokens": (1, 4)}, "suppress_tokens", r"every end token \(1\): no translation could end"),
        (
            complete,
            {"suppress_tokens": (5, 4), "forced_last_tokens": (4, 5)},
            "suppress_tokens",
            r"hold every forced last token \(4, 5\)",
        ),
    ],
)
def test_values_that_exclude_each_other_are_refused(
    make: Callable[..., object], values: dict[str, Any], field: str, message: str
) -> None:
    with refused(f"options.{field}", message):
        make(**values)


def test_a_search_may_do_without_some_of_its_last_tokens() -> None:
    assert complete(suppress_tokens=(1, 4), eos_ids=(1, 2), forced_last_tokens=(4, 2)).eos_ids == (1, 2)
    assert complete(suppress_tokens=(1, 4), eos_ids=()).eos_ids == ()


def test_whole_length_penalties_become_floats() -> None:
    assert isinstance(DecodingOptions(length_penalty=1).length_penalty, float)


def test_lists_of_tokens_become_tuples_without_repetitions() -> None:
    assert DecodingOptions(suppress_tokens=[5, 3, 5], end_tokens=[1]).suppress_tokens == (5, 3)
    made = complete(bad_words=[[1, 1], [2]], forced_last_tokens=[4, 4])
    assert (made.bad_words, made.forced_last_tokens) == (((1, 1), (2,)), (4,))


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
        asked: dict[str, Any] = {name: 6}
        with refused(f"options.{name}", f"{name} {prefixed}"):
            resolve(DecodingOptions(**asked), max_target_length=20, prefix=(5,) * 15)
    with refused("target_prefix", "has 20 tokens, and the model writes at most 20: there"):
        resolve(DecodingOptions(), max_target_length=20, prefix=(5,) * 20)


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
    with refused(f"options.{field}", message):
        resolve(DecodingOptions(**options))
