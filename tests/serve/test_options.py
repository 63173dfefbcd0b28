"""Decoding options: ranges, types, and how they meet a model's defaults and limits."""

import math
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from jumok_serve.errors import InvalidRequest
from jumok_serve.manifest import GenerationDefaults, Limits, SpecialTokens
from jumok_serve.options import MAX_TOKEN_LIST, DecodingOptions, Sampling, SearchOptions

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


def complete(**changes: Any) -> SearchOptions:
    """A search's options, all of which are right but those that are given."""
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
    ("beam_size", 0, "beam_size must be at least 1, got 0"),
    ("beam_size", -3, "beam_size must be at least 1, got -3"),
    ("beam_size", 65, "beam_size must be at most 64, got 65"),
    ("beam_size", "many", "beam_size must be a whole number, got 'many'"),
    ("beam_size", 2.5, "beam_size must be a whole number, got 2.5"),
    ("beam_size", 4.0, "beam_size must be a whole number, got 4.0"),
    ("beam_size", True, "beam_size must be a whole number, got True"),
    ("num_hypotheses", 0, "num_hypotheses must be at least 1, got 0"),
    ("num_hypotheses", 65, "num_hypotheses must be at most"),
    ("num_hypotheses", [1], r"num_hypotheses must be a whole number, got \[1\]"),
    ("length_penalty", math.nan, "length_penalty must be a finite number, got nan"),
    ("length_penalty", math.inf, "length_penalty must be a finite number, got inf"),
    ("length_penalty", -math.inf, "length_penalty must be a finite number, got -inf"),
    ("length_penalty", 10**400, "length_penalty must be a finite number, got 1000"),
    ("length_penalty", "1.0", "length_penalty must be a finite number, got '1.0'"),
    ("length_penalty", False, "length_penalty must be a finite number, got False"),
    ("length_penalty", 1j, "length_penalty must be a finite number, got 1j"),
    ("early_stopping", "always", "early_stopping must be True, False or \"never\", got 'always'"),
    ("early_stopping", 1, 'early_stopping must be True, False or "never", got 1'),
    ("min_length", -1, "min_length must be at least 0, got -1"),
    ("min_length", 1.0, "min_length must be a whole number, got 1.0"),
    ("min_length", True, "min_length must be a whole number, got True"),
    ("max_length", 0, "max_length must be at least 1, got 0"),
    ("max_length", "long", "max_length must be a whole number, got 'long'"),
    ("no_repeat_ngram_size", -1, "no_repeat_ngram_size must be at least 0, got -1"),
    ("repetition_penalty", 0, "repetition_penalty must be at least 1e-06 and at most 1e\\+06, got 0; 1 is none"),
    ("repetition_penalty", 1e9, "repetition_penalty must be at least 1e-06 and at most 1e\\+06, got 1000000000.0"),
    ("repetition_penalty", math.nan, "repetition_penalty must be a finite number, got nan"),
    ("suppress_tokens", 5, "suppress_tokens must be a sequence of token ids, got 5"),
    ("suppress_tokens", "5", "suppress_tokens must be a sequence of token ids, got '5'"),
    ("suppress_tokens", (4, -1), "suppress_tokens must be at least 0, got -1"),
    ("suppress_tokens", (4, 1.0), "suppress_tokens must be a whole number, got 1.0"),
    ("suppress_tokens", (4, True), "suppress_tokens must be a whole number, got True"),
    ("suppress_tokens", range(MAX_TOKEN_LIST + 1), "suppress_tokens takes at most 4096 tokens, got 4097"),
    ("forced_first_token", -1, "forced_first_token must be at least 0, got -1"),
    ("forced_first_token", "de", "forced_first_token must be a whole number, got 'de'"),
]
WRONG_OF_REQUESTS: list[tuple[str, Any, str]] = [
    ("end_tokens", (), "end_tokens must name at least one token"),
    ("end_tokens", (None,), "end_tokens must be a whole number, got None"),
    ("sample", 1, "sample must be True or False, got 1"),
]
WRONG_OF_SAMPLING: list[tuple[str, Any, str]] = [
    ("temperature", 0, "temperature must be above 0, got 0; 1 leaves"),
    ("temperature", -1.0, "temperature must be above 0, got -1.0"),
    ("temperature", math.inf, "temperature must be a finite number, got inf"),
    ("top_k", -1, "top_k must be at least 0, got -1"),
    ("top_k", 2.0, "top_k must be a whole number, got 2.0"),
    ("top_k", 10**30, "top_k must be at most 2147483647, got 1000"),
    ("top_p", 0.0, "top_p must be above 0 and at most 1, got 0.0; 1 keeps all"),
    ("top_p", 1.01, "top_p must be above 0 and at most 1, got 1.01"),
    ("seed", -1, "seed must be at least 0, got -1"),
    ("seed", 2**63, "seed must be at most 9223372036854775807, got 9223372036854775808"),
]
WRONG_OF_SEARCHES: list[tuple[str, Any, str]] = [
    ("eos_ids", (2, -1), "eos_ids must be at least 0, got -1"),
    ("begin_suppress_tokens", (2, None), "begin_suppress_tokens must be a whole number, got None"),
    ("bad_words", ((2, 3), ()), r"bad_words must be sequences of token ids, got \(\(2, 3\), \(\)\)"),
    ("bad_words", (2, 3), "bad_words must be a sequence of token ids, got 2"),
    ("bad_words", ((2, -3),), "bad_words must be at least 0, got -3"),
    ("forced_last_tokens", (1.5,), "forced_last_tokens must be a whole number, got 1.5"),
    ("renormalize", 1, "renormalize must be True or False, got 1"),
]


@pytest.mark.parametrize(("name", "value", "message"), [*WRONG, *WRONG_OF_REQUESTS, *WRONG_OF_SAMPLING])
def test_a_wrong_value_is_refused_by_name(name: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        DecodingOptions(**{name: value})
    assert caught.value.field == f"options.{name}"


@pytest.mark.parametrize(("name", "value", "message"), [*WRONG, *WRONG_OF_SEARCHES])
def test_a_search_is_not_made_with_a_wrong_value_either(name: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        complete(**{name: value})
    assert caught.value.field == f"options.{name}"


@pytest.mark.parametrize(("name", "value", "message"), WRONG_OF_SAMPLING)
def test_nothing_is_drawn_with_a_wrong_value(name: str, value: Any, message: str) -> None:
    values: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": None, name: value}
    with pytest.raises(InvalidRequest, match=message) as caught:
        Sampling(**values)
    assert caught.value.field == f"options.{name}"


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 1},
        {"beam_size": 64, "num_hypotheses": 64},
        {"num_hypotheses": 64},
        {"length_penalty": -2.5},
        {"length_penalty": 0},
        {"early_stopping": "never"},
        {"early_stopping": False},
        {"min_length": 0, "max_length": 1},
        {"min_length": 5, "max_length": 5},
        {"no_repeat_ngram_size": 0, "repetition_penalty": 1e-6},
        {"suppress_tokens": (), "end_tokens": (0,), "forced_first_token": 0},
        {"suppress_tokens": tuple(range(MAX_TOKEN_LIST))},
        {"sample": False, "beam_size": 2},
        {"sample": True, "num_hypotheses": 64, "temperature": 1e-300, "top_k": 0, "top_p": 1.0, "seed": 0},
        {"beam_size": 1, "num_hypotheses": 3},
        {"seed": 2**63 - 1, "top_k": 2**31 - 1, "top_p": 5e-324},
    ],
)
def test_the_ends_of_the_ranges_are_in(options: dict[str, Any]) -> None:
    made = DecodingOptions(**options)
    assert {name: getattr(made, name) for name in options} == options


def test_values_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="num_hypotheses must be at most beam_size, which is 2, got 3") as caught:
        DecodingOptions(beam_size=2, num_hypotheses=3)
    assert caught.value.field == "options.num_hypotheses"
    with pytest.raises(InvalidRequest, match="min_length must be at most max_length, which is 4, got 5") as caught:
        DecodingOptions(min_length=5, max_length=4)
    assert caught.value.field == "options.min_length"
    for options in ({"sample": True}, {"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.5}, {"seed": 1}):
        asked: dict[str, Any] = {"beam_size": 2, **options}
        with pytest.raises(InvalidRequest, match=r"sampling .* excludes a beam_size above 1, got 2") as caught:
            DecodingOptions(**asked)
        assert caught.value.field == "options.beam_size"
    with pytest.raises(InvalidRequest, match="num_hypotheses must be at most beam_size, which is 1, got 2"):
        DecodingOptions(sample=False, beam_size=1, num_hypotheses=2)


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        (
            {"sampling": Sampling(temperature=1.0, top_k=0, top_p=1.0, seed=None)},
            "options.beam_size",
            "excludes a beam_size above 1, got 64",
        ),
        ({"beam_size": 2, "num_hypotheses": 3}, "options.num_hypotheses", "at most beam_size, which is 2, got 3"),
        ({"min_length": 10}, "options.min_length", "at most max_length, which is 9, got 10"),
        (
            {"forced_first_token": 5, "suppress_tokens": (4, 5)},
            "options.forced_first_token",
            "forced_first_token 5 is suppressed at the same time",
        ),
        (
            {"suppress_tokens": (1, 4)},
            "options.suppress_tokens",
            r"hold every end token \(1\): no translation could end",
        ),
        (
            {"suppress_tokens": (5, 4), "forced_last_tokens": (4, 5)},
            "options.suppress_tokens",
            r"hold every forced last token \(4, 5\)",
        ),
    ],
)
def test_a_search_is_not_made_of_options_that_exclude_each_other(
    changes: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        complete(**changes)
    assert caught.value.field == field


def test_a_search_may_do_without_some_of_its_last_tokens() -> None:
    assert complete(suppress_tokens=(1, 4), eos_ids=(1, 2), forced_last_tokens=(4, 2)).eos_ids == (1, 2)
    assert complete(suppress_tokens=(1, 4), eos_ids=()).eos_ids == ()


def test_options_are_frozen_and_keyword_only() -> None:
    options: Any = DecodingOptions(beam_size=2)
    with pytest.raises(FrozenInstanceError):
        options.beam_size = 3
    make: Any = DecodingOptions
    with pytest.raises(TypeError):
        make(2)


def test_whole_length_penalties_become_floats() -> None:
    assert isinstance(DecodingOptions(length_penalty=1).length_penalty, float)


def test_lists_of_tokens_become_tuples_without_repetitions() -> None:
    assert DecodingOptions(suppress_tokens=[5, 3, 5], end_tokens=[1]).suppress_tokens == (5, 3)
    made = complete(bad_words=[[1, 1], [2]], forced_last_tokens=[4, 4])
    assert (made.bad_words, made.forced_last_tokens) == (((1, 1), (2,)), (4,))


def test_nothing_asked_for_gives_the_defaults() -> None:
    assert resolve(DecodingOptions()) == SearchOptions(
        beam_size=4,
        num_hypotheses=2,
        length_penalty=0.6,
        early_stopping=True,
        min_length=3,
        max_length=50,
        eos_ids=(1,),
        suppress_tokens=(0, 7),
    )


def test_all_defaults_of_a_model_reach_the_search() -> None:
    defaults = GenerationDefaults(
        beam_size=3,
        max_length=9,
        no_repeat_ngram_size=2,
        repetition_penalty=1.5,
        begin_suppress_tokens=(4, 5),
        bad_words=((6,), (8, 9)),
        forced_first_token=10,
        forced_last_tokens=(11, 12),
        renormalize=True,
    )
    assert resolve(DecodingOptions(), defaults) == complete(
        beam_size=3,
        suppress_tokens=(0, 7),
        no_repeat_ngram_size=2,
        repetition_penalty=1.5,
        begin_suppress_tokens=(4, 5),
        bad_words=((6,), (8, 9)),
        forced_first_token=10,
        forced_last_tokens=(11, 12),
        renormalize=True,
    )


def test_what_is_asked_for_wins_even_where_it_is_zero_or_false() -> None:
    defaults = DEFAULTS.model_copy(update={"no_repeat_ngram_size": 3, "repetition_penalty": 2.0})
    asked = DecodingOptions(
        beam_size=5,
        num_hypotheses=5,
        length_penalty=0.0,
        early_stopping=False,
        min_length=0,
        max_length=60,
        no_repeat_ngram_size=0,
        repetition_penalty=1.0,
        end_tokens=(9,),
    )
    assert resolve(asked, defaults) == SearchOptions(
        beam_size=5,
        num_hypotheses=5,
        length_penalty=0.0,
        early_stopping=False,
        min_length=0,
        max_length=60,
        eos_ids=(9,),
        suppress_tokens=(0, 7),
    )


def test_tokens_are_suppressed_besides_those_that_the_model_never_writes() -> None:
    assert resolve(DecodingOptions(suppress_tokens=(8, 7))).suppress_tokens == (0, 7, 8)


def test_the_request_forces_before_the_language_and_that_before_the_default() -> None:
    defaults = DEFAULTS.model_copy(update={"forced_first_token": 10})
    assert resolve(DecodingOptions(), defaults).forced_first_token == 10
    assert resolve(DecodingOptions(), defaults, forced_first=11).forced_first_token == 11
    assert resolve(DecodingOptions(forced_first_token=12), defaults, forced_first=11).forced_first_token == 12
    # Behind a prefix, of which the forced token is a part, nothing is forced.
    assert resolve(DecodingOptions(), defaults, forced_first=11, prefix=(11, 5)).forced_first_token is None


def test_a_prefix_leaves_less_room() -> None:
    assert resolve(DecodingOptions(), max_target_length=20, prefix=(5,) * 15).max_length == 5
    assert resolve(DecodingOptions(max_length=5), max_target_length=20, prefix=(5,) * 15).max_length == 5
    behind = "with this model behind a target prefix of 15 tokens, got 6"
    with pytest.raises(InvalidRequest, match=f"max_length must be at most 5 {behind}") as caught:
        resolve(DecodingOptions(max_length=6), max_target_length=20, prefix=(5,) * 15)
    assert caught.value.field == "options.max_length"
    with pytest.raises(InvalidRequest, match=f"min_length must be at most 5 {behind}") as caught:
        resolve(DecodingOptions(min_length=6), max_target_length=20, prefix=(5,) * 15)
    assert caught.value.field == "options.min_length"
    with pytest.raises(InvalidRequest, match="prefix has 20 tokens, and the model writes at most 20: there") as caught:
        resolve(DecodingOptions(), max_target_length=20, prefix=(5,) * 20)
    assert caught.value.field == "target_prefix"


@pytest.mark.parametrize("asked", [{"sample": True}, {"temperature": 1.0}, {"top_k": 0}, {"top_p": 1.0}, {"seed": 4}])
def test_asking_for_what_shapes_samples_asks_for_samples(asked: dict[str, Any]) -> None:
    defaults = DEFAULTS.model_copy(update={"temperature": 0.5, "top_k": 7, "top_p": 0.75})
    made = resolve(DecodingOptions(**asked, num_hypotheses=9), defaults)
    assert (made.beam_size, made.num_hypotheses) == (1, 9)
    chosen: dict[str, Any] = {"temperature": 0.5, "top_k": 7, "top_p": 0.75, "seed": None, **asked}
    chosen.pop("sample", None)
    assert made.sampling == Sampling(**chosen)


def test_a_model_that_samples_by_default_gives_way_to_a_beam() -> None:
    defaults = GenerationDefaults(sample=True, num_hypotheses=70, top_k=50, max_length=9)
    made = resolve(DecodingOptions(), defaults)
    assert made.num_hypotheses == 64
    assert made.sampling == Sampling(temperature=1.0, top_k=50, top_p=1.0, seed=None)
    assert resolve(DecodingOptions(beam_size=1), defaults).sampling is not None
    assert resolve(DecodingOptions(beam_size=1, num_hypotheses=3), defaults).num_hypotheses == 3
    assert resolve(DecodingOptions(sample=False), defaults).sampling is None
    assert resolve(DecodingOptions(beam_size=2), defaults).sampling is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            DecodingOptions(suppress_tokens=(3, 30)),
            "suppress_tokens: token 30 lies beyond the model's vocabulary of 30",
        ),
        (DecodingOptions(end_tokens=(31,)), "end_tokens: token 31 lies beyond the model's vocabulary of 30"),
        (DecodingOptions(forced_first_token=30), "forced_first_token: token 30 lies beyond the model's vocabulary"),
    ],
)
def test_tokens_beyond_the_vocabulary_are_refused(options: DecodingOptions, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        resolve(options)
    assert caught.value.field == f"options.{message.partition(':')[0]}"


def test_the_defaults_themselves_may_be_asked_for() -> None:
    values = {name: getattr(DEFAULTS, name) for name in ("temperature", "top_k", "top_p")}
    asked = DecodingOptions(sample=False, beam_size=DEFAULTS.beam_size, **values)
    assert resolve(asked) == resolve(DecodingOptions())


def test_defaults_give_way_to_what_was_asked_for() -> None:
    assert resolve(DecodingOptions(beam_size=1)).num_hypotheses == 1
    assert resolve(DecodingOptions(max_length=2)).min_length == 2
    assert resolve(DecodingOptions(min_length=55)).max_length == 55
    assert resolve(DecodingOptions(), max_target_length=20).max_length == 20
    assert resolve(DecodingOptions(), max_target_length=2).min_length == 2


@pytest.mark.parametrize(
    ("options", "field", "message"),
    [
        (
            DecodingOptions(sample=False, top_p=0.5),
            "options.top_p",
            "no meaning without sampling: leave it out, or set",
        ),
        (DecodingOptions(sample=False, seed=1), "options.seed", "seed has no meaning without sampling"),
        (DecodingOptions(num_hypotheses=5), "options.num_hypotheses", "which is 4 by the model's default, got 5; ask"),
        (DecodingOptions(suppress_tokens=(1,)), "options.suppress_tokens", "hold every end token"),
        (DecodingOptions(forced_first_token=7), "options.forced_first_token", "7 is one that the model never writes"),
        (
            DecodingOptions(forced_first_token=8, suppress_tokens=(8,)),
            "options.forced_first_token",
            "8 is suppressed at the same time; leave it out of suppress_tokens",
        ),
        (DecodingOptions(end_tokens=(7,)), "options.end_tokens", r"such as the model never writes \(7\)"),
        (DecodingOptions(max_length=61), "options.max_length", "max_length must be at most 60 with this model, got 61"),
        (DecodingOptions(min_length=61), "options.min_length", "min_length must be at most 60 with this model, got 61"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(options: DecodingOptions, field: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        resolve(options)
    assert caught.value.field == field
