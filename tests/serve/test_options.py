"""Decoding options: ranges, types, and how they meet a model's defaults and limits."""

import math
from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import pytest

from jumok_serve.errors import InvalidRequest
from jumok_serve.options import DecodingOptions, EarlyStopping, SearchOptions


@dataclass(frozen=True)
class Defaults:
    beam_size: int = 4
    num_hypotheses: int = 2
    length_penalty: float = 0.6
    early_stopping: EarlyStopping = True
    min_length: int = 3
    max_length: int = 50


def resolve(
    options: DecodingOptions, defaults: Defaults | None = None, *, max_target_length: int = 60
) -> SearchOptions:
    return options.resolve(
        defaults or Defaults(), max_target_length=max_target_length, eos_ids=(1,), suppress_tokens=(0, 7)
    )


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
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_a_wrong_value_is_refused_by_name(name: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        DecodingOptions(**{name: value})
    assert caught.value.field == f"options.{name}"


@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_a_search_is_not_made_with_a_wrong_value_either(name: str, value: Any, message: str) -> None:
    complete: dict[str, Any] = {
        "beam_size": 64,
        "num_hypotheses": 1,
        "length_penalty": 1.0,
        "early_stopping": False,
        "min_length": 0,
        "max_length": 9,
        "eos_ids": (1,),
        "suppress_tokens": (),
    }
    with pytest.raises(InvalidRequest, match=message) as caught:
        SearchOptions(**complete | {name: value})
    assert caught.value.field == f"options.{name}"


@pytest.mark.parametrize("name", ["eos_ids", "suppress_tokens"])
@pytest.mark.parametrize("token", [-1, 1.0, None])
def test_token_ids_of_a_search_are_checked(name: str, token: Any) -> None:
    ids: dict[str, Any] = {"eos_ids": (1,), "suppress_tokens": (), name: (2, token)}
    with pytest.raises(InvalidRequest, match=name):
        SearchOptions(
            beam_size=1,
            num_hypotheses=1,
            length_penalty=1.0,
            early_stopping=False,
            min_length=0,
            max_length=9,
            **ids,
        )


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


def test_options_are_frozen_and_keyword_only() -> None:
    options: Any = DecodingOptions(beam_size=2)
    with pytest.raises(FrozenInstanceError):
        options.beam_size = 3
    make: Any = DecodingOptions
    with pytest.raises(TypeError):
        make(2)


def test_whole_length_penalties_become_floats() -> None:
    assert isinstance(DecodingOptions(length_penalty=1).length_penalty, float)


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


def test_what_is_asked_for_wins_even_where_it_is_zero_or_false() -> None:
    asked = DecodingOptions(
        beam_size=5, num_hypotheses=5, length_penalty=0.0, early_stopping=False, min_length=0, max_length=60
    )
    assert resolve(asked) == SearchOptions(
        beam_size=5,
        num_hypotheses=5,
        length_penalty=0.0,
        early_stopping=False,
        min_length=0,
        max_length=60,
        eos_ids=(1,),
        suppress_tokens=(0, 7),
    )


def test_defaults_give_way_to_what_was_asked_for() -> None:
    assert resolve(DecodingOptions(beam_size=1)).num_hypotheses == 1
    assert resolve(DecodingOptions(max_length=2)).min_length == 2
    assert resolve(DecodingOptions(min_length=55)).max_length == 55
    assert resolve(DecodingOptions(), max_target_length=20).max_length == 20
    assert resolve(DecodingOptions(), max_target_length=2).min_length == 2


@pytest.mark.parametrize(
    ("options", "field", "message"),
    [
        (DecodingOptions(num_hypotheses=5), "options.num_hypotheses", "which is 4 by the model's default, got 5"),
        (DecodingOptions(max_length=61), "options.max_length", "max_length must be at most 60 with this model, got 61"),
        (DecodingOptions(min_length=61), "options.min_length", "min_length must be at most 60 with this model, got 61"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(options: DecodingOptions, field: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        resolve(options)
    assert caught.value.field == field
