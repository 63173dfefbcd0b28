"""Stable tokens: no continuation takes one back, and no more could be promised."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

import numpy as np
import pytest

from jumok_serve.search.plan import SearchPlan
from jumok_serve.search.search import FinishedHypothesis, Search
from jumok_serve.search.terms import options_with_terms
from tests.serve.search.test_terms import random_terms
from tests.support.files import THOROUGH
from tests.support.reference_search import START, Scores, StepFunction, drive, toy_model
from tests.support.search_cases import Case, constrained, make_options, random_case


def begins_with(tokens: Sequence[int], prefix: Sequence[int]) -> bool:
    return tuple(tokens[: len(prefix)]) == tuple(prefix)


def snapshots(case: Case) -> Iterator[tuple[Search, list[FinishedHypothesis]]]:
    """Yield a copy of the search after every step, with the final hypotheses."""
    copies: list[Search] = []

    class Watched:
        """The search, which is copied whenever it advances."""

        def __init__(self, search: Search) -> None:
            self._search = search

        def __getattr__(self, name: str) -> object:
            return getattr(self._search, name)

        def advance(self, *seen: Sequence[float]) -> None:
            self._search.advance(*seen)  # type: ignore[arg-type]
            copies.append(copy.deepcopy(self._search))

    hypotheses = drive(Watched(case.search()), case.step)  # type: ignore[arg-type]  # it has all that a search has
    for each in copies:
        yield each, hypotheses


@pytest.mark.parametrize(
    ("with_terms", "cases", "most"), [(False, *((1500, 1000) if THOROUGH else (600, 400))), (True, 150, 50)]
)
def test_stable_tokens_grow_until_they_are_the_hypothesis(with_terms: bool, cases: int, most: int) -> None:
    rng = np.random.default_rng(3)
    early = 0
    for _ in range(cases):
        case = random_case(rng, least_tokens=8 if with_terms else 4)
        if rng.random() < 0.5:
            case = constrained(rng, case)
        if with_terms:
            case = replace(case, terms=(terms := random_terms(rng, vocabulary=8)))
            if case.options.renormalize:
                case = replace(case, options=replace(case.options, repetition_penalty=1.0))
            case = replace(case, options=options_with_terms(case.options, terms))
        before: list[int] = []
        for search, hypotheses in snapshots(case):
            sure = search.stable_tokens()
            assert begins_with(sure, before)
            assert begins_with(hypotheses[0].token_ids if hypotheses else (), sure)
            before = sure
            early += bool(sure) and not search.finished
        assert tuple(before) == (hypotheses[0].token_ids if hypotheses else ())
    assert early > most


def first_after(case: Case, cut: int, then: StepFunction) -> tuple[int, ...]:
    """Return the first hypothesis if another model takes over at token number ``cut``."""

    def step(prefix: tuple[int, ...]) -> Scores:
        return case.step(prefix) if len(prefix) <= cut else then(prefix)

    return drive(case.search(), step)[0].token_ids


VOCABULARY = 400


def few_likely(rng: np.random.Generator) -> StepFunction:
    """Make a model in which 8 of many tokens are likely, so that a row spread over all of them cannot win."""
    small = toy_model(rng, 8, 1)

    def step(prefix: tuple[int, ...]) -> Scores:
        logits = np.full(VOCABULARY, -9.0)
        logits[:8] = small(tuple(token % 8 for token in prefix))
        return logits

    return step


def in_common(sequences: Sequence[tuple[int, ...]]) -> list[int]:
    """The longest prefix of all."""
    return [several[0] for several in takewhile(lambda several: len({*several}) == 1, zip(*sequences, strict=False))]


def favouring(row: tuple[int, ...], token: int) -> StepFunction:
    """Make a model in which one token alone can follow one row, and any token the others."""

    def step(prefix: tuple[int, ...]) -> Scores:
        logits = np.zeros(VOCABULARY)
        logits[token] = 1e4 * begins_with(prefix, row)
        return logits

    return step


def test_stable_tokens_are_common_to_all_continuations() -> None:
    """Nearly all common tokens are stable: the bound on scores is not tight for every row."""
    rng = np.random.default_rng(4)
    undecided = exact = steps = 0
    for _ in range(150 if THOROUGH else 75):
        options = make_options(
            beam_size=int(rng.integers(2, 5)),
            length_penalty=float(rng.choice([-1.0, 0.0, 0.6, 1.0, 2.0])),
            early_stopping="never",  # or a search may end before what could win has
            max_length=int(rng.integers(3, 9)),
        )
        case = Case(few_likely(rng), options)
        rows: dict[int, set[tuple[int, ...]]] = {}

        def noting(prefix: tuple[int, ...], case: Case = case, rows: Any = rows) -> Scores:
            rows.setdefault(len(prefix) - 1, set()).add(prefix)
            return case.step(prefix)

        for cut, (search, _) in enumerate(snapshots(Case(noting, options)), start=1):
            if search.finished:
                break
            others = [few_likely(rng) for _ in range(3)]
            others += [favouring(row, token) for row in rows[cut] for token in (1, 2)]
            firsts = [first_after(case, cut, other) for other in others]
            sure, shared = search.stable_tokens(), in_common(firsts)
            assert begins_with(shared, sure)
            exact += len(sure) == len(shared)
            steps += 1
            undecided += len({*firsts}) > 1
    assert undecided > (400 if THOROUGH else 200)
    assert exact > 0.8 * steps


def test_all_tokens_of_greedy_search_are_stable() -> None:
    case = Case(toy_model(np.random.default_rng(5), 9, 1), make_options(max_length=12, eos_ids=()))
    lengths = [len(search.stable_tokens()) for search, _ in snapshots(case)]
    assert lengths == list(range(1, 13))


def test_stable_tokens_leave_out_the_target_prefix() -> None:
    search = SearchPlan(make_options(beam_size=2), START, (5, 6)).begin()
    assert search.stable_tokens() == []
    search.advance([3, 4], [-1.0, -2.0], [0, 0])
    assert search.stable_tokens() == []
