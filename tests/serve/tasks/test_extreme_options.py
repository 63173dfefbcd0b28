"""Options at the ends of their ranges: every combination gives finite scores or a clear refusal."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import jumok
from jumok_proto.errors import InvalidArgumentError
from jumok_proto.options import OPTIONS, Option
from jumok_serve.translator import Translator
from tests.support.servers.in_process_server import serving

TEXT = "A bird sings. Two men read a book! The dog sleeps.\n\nA child."
SETTINGS = settings(
    deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


NUMBERS = {name: option for name, option in OPTIONS.items() if option.is_number}


def ends(option: Option) -> list[float]:
    """Return both ends of a range, values beyond them, and ordinary ones."""
    least, most = option.least, option.most
    step = 1 if option.kind == "integer" else 1e-9
    return [least, most, least - step, most + step, 1, 2]


def value_of(name: str) -> st.SearchStrategy[Any]:
    if name in NUMBERS:
        return st.sampled_from(ends(NUMBERS[name]))
    if OPTIONS[name].kind == "early_stopping":
        return st.sampled_from([True, False, "never"])
    if OPTIONS[name].kind == "flag":
        return st.booleans()
    return st.lists(st.sampled_from([0, 1, 2, 3, 4, 5, 60, 2**31 - 1]), min_size=1, max_size=6)


ANY_OPTIONS = st.fixed_dictionaries({}, optional={name: value_of(name) for name in OPTIONS})


@pytest.fixture(scope="module")
def client(translator: Translator) -> Iterator[jumok.Client]:
    with serving(translator) as address, jumok.Client(address) as opened:
        yield opened


def within_range(options: dict[str, Any]) -> bool:
    return all(one.least <= options.get(name, one.least) <= one.most for name, one in NUMBERS.items())


def refusal(call: Callable[[], Any]) -> InvalidArgumentError | None:
    """Call; return None for a finite result, and the error of a refusal."""
    try:
        result = call()
    except InvalidArgumentError as error:
        return error
    json.dumps(asdict(result), allow_nan=False, default=str)
    return None


def check(translate: Callable[..., Any], options: dict[str, Any], *, split: bool) -> None:
    """Translate a text: a finite result, or a refusal that names an option and a wrong value."""
    error = refusal(lambda: translate(TEXT, split_sentences=split, **options))
    if error is None:
        assert within_range(options)
        return
    name = error.field.removeprefix("options.")
    assert name in OPTIONS  # a default may contradict an option
    if not within_range({name: options[name]} if name in options else {}):
        assert str(options[name]) in str(error)


@pytest.mark.parametrize("over_the_wire", [False, True])
@given(options=ANY_OPTIONS, split=st.booleans())
@example(options={"length_penalty": 400}, split=True)
@example(options={"length_penalty": 10}, split=True)
@example(options={"length_penalty": -10, "beam_size": 64, "num_hypotheses": 64, "early_stopping": "never"}, split=False)
@example(options={"repetition_penalty": 1e6, "beam_size": 64, "length_penalty": 10, "min_length": 40}, split=True)
@example(options={"repetition_penalty": 1e-6, "beam_size": 4, "length_penalty": -10}, split=True)
@example(options={"temperature": 1e-6, "top_p": 1e-6, "repetition_penalty": 1e6, "length_penalty": -10}, split=True)
@settings(SETTINGS, max_examples=150)
def test_every_combination_is_finite_or_refused(
    translator: Translator, client: jumok.Client, options: dict[str, Any], split: bool, over_the_wire: bool
) -> None:
    check(client.translate if over_the_wire else translator.translate, options, split=split)


@pytest.mark.parametrize("length_penalty", ends(OPTIONS["length_penalty"]))
def test_scores_of_targets_are_finite_or_refused(
    translator: Translator, client: jumok.Client, length_penalty: float
) -> None:
    within = within_range({"length_penalty": length_penalty})
    for score in (translator.score, client.score):
        error = refusal(partial(score, TEXT, "Ein Vogel singt.", length_penalty=length_penalty))
        assert (error is None) == within
        if error is not None:
            assert error.field == "length_penalty"
            assert "at least -10 and at most 10" in str(error)
