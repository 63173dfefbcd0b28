"""Outcomes of states in arrays: equal to the states after each token."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from jumok_serve.search import Terms
from jumok_serve.search.term_outcomes import OutcomeTable
from jumok_serve.search.terms import TermAutomaton
from tests.serve.search.test_terms import random_terms
from tests.support.reference_terms import follow

EOS = (0, 1)


def shared_terms(rng: np.random.Generator, vocabulary: int) -> Terms:
    """Make terms that draw from few token sequences: several begin alike, and some are equal."""
    pool = random_terms(rng, vocabulary=vocabulary, most=6).alternatives
    groups = tuple(pool[rng.integers(len(pool))] + pool[rng.integers(len(pool))] for _ in range(rng.integers(1, 7)))
    return Terms(tuple(tuple(dict.fromkeys(group)) for group in groups))


@pytest.mark.parametrize("vocabulary", [5, 9, 30])
@pytest.mark.parametrize("seed", range(4))
def test_equal_the_states_after_all_tokens(vocabulary: int, seed: int) -> None:
    """Over terms that overlap, repeat, may not be repeated, and are parts of words."""
    rng = np.random.default_rng(100 * vocabulary + seed)
    tokens = np.arange(vocabulary + 2)
    seen = surplus = joined = 0
    for _ in range(60):
        terms = shared_terms(rng, vocabulary) if rng.random() < 0.5 else random_terms(rng, vocabulary=vocabulary)
        terms = replace(
            terms,
            joins=bytes((rng.random(vocabulary) < 0.4).tolist()) if rng.random() < 0.5 else b"",
            once=tuple((rng.random(len(terms.alternatives)) < 0.5).tolist()) if rng.random() < 0.5 else (),
        )
        automaton = TermAutomaton(terms, EOS)
        table = OutcomeTable(automaton)
        states = [automaton.start]
        for _ in range(12):
            states.append(automaton.next(states[-1], int(rng.choice(tokens[2:]))))
        columns = table.columns_of(tokens)
        for state in states:
            found = table.of([state], np.zeros(len(tokens), np.int64), columns)
            after = [state if token in EOS else automaton.next(state, token) for token in tokens.tolist()]
            expected = [(one.left, one.bank, one.surplus) for one in after]
            assert list(zip(found.left, found.bank, found.surplus, strict=True)) == expected, (terms, state.readings)
            assert set(tokens[found.boosted].tolist()) == automaton.boosted(state)
            assert table.ends[columns].tolist() == [token in EOS for token in tokens.tolist()]
            seen += 1
            surplus += bool(found.surplus.any())
            joined += state.awaits_end
    assert seen == 60 * 13
    assert joined > 5
    assert surplus > 5 or vocabulary > 10


def test_few_outcomes_are_kept_of_terms_with_many_tokens() -> None:
    """A long search meets thousands of states, each with an outcome for each token."""
    terms = Terms(tuple(((30_000 + one,), tuple(range(400 * one, 400 * one + 400))) for one in range(50)))
    automaton = TermAutomaton(terms, EOS)
    table = OutcomeTable(automaton)
    columns = table.columns_of(np.arange(5))
    states, sizes = [automaton.start], []
    tracemalloc.start()
    try:
        for token in range(600):
            states.append(automaton.next(states[-1], token))
            table.of(states[-1:], np.zeros(5, np.int64), columns)
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert len(set(states)) > 500
    assert max(sizes) < 1.2 * max(sizes[:300])
    found = table.of([automaton.start], np.zeros(5, np.int64), columns)
    assert found.left.tolist() == [automaton.next(automaton.start, token).left for token in range(5)]


def test_boosts_are_those_of_the_states_by_row_and_token() -> None:
    automaton = TermAutomaton(Terms((((7, 5),), ((6,), (3,))), joins=bytes([0] * 9 + [1])), EOS)
    states = [follow(automaton, tokens) for tokens in ((), (7,), (6, 2, 7, 5))]
    places = OutcomeTable(automaton).boosts(states).factors.places.tolist()
    expected = [(0, (3, 6, 7)), (1, (3, 5, 6, 7)), (2, (0, 1, 7))]
    assert places == [[row, token] for row, boosted in expected for token in boosted]


def test_no_terms_have_no_boosts() -> None:
    automaton = TermAutomaton(Terms(((), ())))
    table = OutcomeTable(automaton)
    assert not len(table.boosts([automaton.start, automaton.start]).factors.values)
    assert table.columns_of(np.array([0, 5])).tolist() == [0, 0]
