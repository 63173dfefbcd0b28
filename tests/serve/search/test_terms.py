"""Terms: reading of hypotheses, states of rows, their outcomes, and terms out of reach."""

import gc
import itertools
import math
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jumok_proto.errors import InvalidArgumentError
from jumok_serve.search.options import Sampling
from jumok_serve.search.plan import SearchPlan
from jumok_serve.search.term_rows import OutcomeTable
from jumok_serve.search.terms import TermAutomaton, Terms, TermSpan, options_with_terms, reachable_terms, read_terms
from tests.support.memory import memory_of
from tests.support.reference_terms import follow, missing_terms, state_after
from tests.support.search_cases import make_options

VOCABULARY = 4


def random_terms(rng: np.random.Generator, *, vocabulary: int = VOCABULARY, most: int = 3) -> Terms:
    """Make terms of few tokens: they overlap, repeat, and begin alike."""

    def sequence() -> tuple[int, ...]:
        return tuple(rng.integers(2, vocabulary, size=int(rng.integers(1, 4))).tolist())

    alternatives = tuple(
        tuple(sequence() for _ in range(rng.integers(1, 3))) for _ in range(int(rng.integers(1, most + 1)))
    )
    joins = bytes((rng.random(vocabulary) < 0.3).tolist()) if rng.random() < 0.5 else b""
    return Terms(alternatives, joins)


@pytest.mark.parametrize(
    ("alternatives", "tokens", "spans"),
    [
        ([[(5,)]], (3, 5, 4), [(1, 2)]),
        ([[(5, 6)]], (5, 5, 6), [(1, 3)]),
        ([[(5, 5, 6)]], (5, 5, 5, 6), [(1, 4)]),
        ([[(5,)], [(5,)]], (5, 4, 5), [(0, 1), (2, 3)]),
        ([[(5,)], [(5,)]], (5, 4), [(0, 1), None]),
        ([[(5, 6)], [(6, 7)]], (5, 6, 7), [(0, 2), None]),  # terms share no token
        ([[(5, 6)], [(6, 7)]], (5, 6, 7, 5, 6), [(3, 5), (1, 3)]),
        ([[(5,)], [(5, 6)]], (5, 6, 3, 5), [(3, 4), (0, 2)]),
        ([[(5,)], [(5, 6)]], (5, 5, 6), [(0, 1), (1, 3)]),
        ([[(5,), (6,)], [(6,), (7,)]], (6, 5), [(1, 2), (0, 1)]),  # the same word could meet the first
        ([[(5,)], [(5, 6, 7)]], (5, 6, 3), [(0, 1), None]),
        ([[(3,), (5, 6)]], (4, 5, 6), [(1, 3)]),
        ([[(5,)]], (5, 9), [None]),  # 9 continues a word
        ([[(5,)]], (5, 9, 5, 4), [(2, 3)]),
        ([[(5,), (5, 9)]], (5, 9, 4), [(0, 2)]),
        ([[]], (5,), [None]),
    ],
)
def test_spans_of_terms(
    alternatives: list[list[tuple[int, ...]]], tokens: tuple[int, ...], spans: list[tuple[int, int] | None]
) -> None:
    terms = Terms(tuple(map(tuple, alternatives)), joins=bytes([0] * 9 + [1]))
    expected = [None if span is None else TermSpan(*span) for span in spans]
    assert read_terms(tokens, terms) == expected
    assert missing_terms(tokens, terms) == spans.count(None)


def all_sequences(longest: int) -> Iterator[tuple[int, ...]]:
    for length in range(longest + 1):
        yield from itertools.product(range(1, VOCABULARY), repeat=length)


def test_states_know_if_a_hypothesis_is_complete() -> None:
    """All sequences of 3 tokens up to a length, token by token and as a whole."""
    rng = np.random.default_rng(1)
    complete = 0
    for _ in range(60):
        terms = random_terms(rng)
        for tokens in all_sequences(5):
            missing = missing_terms(tokens, terms)
            assert read_terms(tokens, terms).count(None) == missing
            assert state_after(terms, tokens).complete is (not missing), (terms, tokens)
            complete += not missing
    assert complete > 500


def test_spans_are_occurrences_that_share_no_token() -> None:
    rng = np.random.default_rng(5)
    for _ in range(300):
        terms = random_terms(rng, most=4)
        tokens = tuple(rng.integers(1, VOCABULARY, size=10).tolist())
        spans = read_terms(tokens, terms)
        used = [position for span in spans if span for position in range(*span)]
        assert len(set(used)) == len(used)
        for span, alternatives in zip(spans, terms.alternatives, strict=True):
            assert span is None or tokens[slice(*span)] in alternatives


def test_every_state_has_a_token_that_comes_nearer() -> None:
    """The row that needs the fewest tokens can always go on, unless a term begins within a word."""
    rng = np.random.default_rng(2)
    seen = 0
    for _ in range(200):
        terms = random_terms(rng)
        first = {sequence[0] for group in terms.alternatives for sequence in group}
        if any(terms.continues_word(token) for token in first):
            continue
        for tokens in itertools.chain(all_sequences(3), map(tuple, rng.integers(1, VOCABULARY, size=(20, 8)).tolist())):
            automaton = TermAutomaton(terms)
            state = follow(automaton, tokens)
            if not state.complete:
                seen += 1
                boosted = automaton.boosted(state)
                assert boosted
                assert min(automaton.next(state, token).left for token in boosted) < state.left, (terms, tokens)
    assert seen > 500


def test_terms_that_share_alternatives_have_a_state_after_any_token() -> None:
    """They have more readings than are followed, and more than are followed in all."""
    rng = np.random.default_rng(31)
    for count, shared in ((8, 8), (64, 5)):
        longer = [tuple([2] * length) for length in range(1, shared + 1)]
        alternatives = tuple((*longer[: index % shared + 1], (3, index)) for index in range(count))
        automaton = TermAutomaton(terms := Terms(alternatives, joins=bytes([0] * 5 + [1])))
        tokens = [2] * 20 + rng.integers(1, 7, size=30).tolist()
        state = follow(automaton, tokens)
        spans = read_terms(tokens, terms)
        assert state.bank >= count - spans.count(None)
        assert spans.count(None) < count


def test_left_is_the_length_of_the_shortest_way_to_all_terms() -> None:
    rng = np.random.default_rng(3)
    for _ in range(30):
        terms = Terms(random_terms(rng, most=2).alternatives)
        for tokens in all_sequences(2):
            ways = (len(more) for more in all_sequences(6) if not missing_terms((*tokens, *more), terms))
            assert state_after(terms, tokens).left == next(ways), (terms, tokens)


def test_equal_states_are_one_object() -> None:
    automaton = TermAutomaton(Terms((((5, 6),), ((7,),))))
    assert follow(automaton, [3]) is automaton.start
    assert follow(automaton, [5, 3, 5]) is follow(automaton, [5])
    assert follow(automaton, [7]).bank == 1
    table = OutcomeTable(automaton)
    assert table.boosts([automaton.start]) is table.boosts([follow(automaton, [3])])


def test_a_search_is_freed_without_the_garbage_collector() -> None:
    """A collection that finds all states of long searches would stop the server."""
    automaton = TermAutomaton(Terms((((5, 6), (5,)), ((7,), (8, 9))), joins=bytes([0] * 9 + [1])))
    table = OutcomeTable(automaton)
    table.boosts([follow(automaton, tokens) for tokens in itertools.product([3, 5, 6, 7, 8, 9], repeat=3)])
    left = weakref.ref(automaton)
    gc.disable()
    try:
        del automaton, table
        assert left() is None
    finally:
        gc.enable()


# --- reach ---


def lost(terms: Terms, prefix: Sequence[int] = (), **options: Any) -> list[int]:
    """Indices of terms out of reach."""
    found = reachable_terms(terms, make_options(**options), prefix)
    return [index for index, group in enumerate(found.alternatives) if not group]


@pytest.mark.parametrize(
    ("alternatives", "options", "expected"),
    [
        ([[(5, 6, 7)]], {"max_length": 3}, []),
        ([[(5, 6, 7)]], {"max_length": 2}, [0]),
        ([[(5, 6, 7), (5,)]], {"max_length": 2}, []),
        ([[(5, 6)], [(7, 8)], [(9,)]], {"max_length": 4}, [2]),
        ([[(5, 6)], [(7, 8)], [(9,)]], {"max_length": 3}, [1]),
        ([[(5, 6)]], {"max_length": 2, "forced_last_tokens": (1,)}, [0]),
        ([[(5, 6)]], {"max_length": 2, "forced_first_token": 3}, [0]),
        ([[(5,)], [(6,)]], {"suppress_tokens": (6,)}, [1]),
        ([[(5, 1)]], {}, [0]),  # 1 is EOS
        ([[(5, 6)], [(6, 5)]], {"bad_words": ((5, 6),)}, [0]),
        ([[(5,)], [(5,)]], {}, []),
        ([[(5,)], [(5,)]], {"no_repeat_ngram_size": 1}, [1]),
        ([[(5, 5)]], {"no_repeat_ngram_size": 1}, [0]),
        ([[()]], {}, [0]),
        ([[]], {}, [0]),
    ],
)
def test_terms_out_of_reach(
    alternatives: list[list[tuple[int, ...]]], options: dict[str, Any], expected: list[int]
) -> None:
    assert lost(Terms(tuple(map(tuple, alternatives))), **options) == expected


def test_a_term_in_the_target_prefix_needs_no_room() -> None:
    terms = Terms((((5, 6),), ((7,),)))
    assert lost(terms, (5, 6), max_length=1) == []
    assert lost(terms, (5, 4), max_length=1) == [0]


# --- options ---


@pytest.mark.parametrize(
    ("beam_size", "count", "expected"),
    [(1, 1, 4), (1, 2, 8), (4, 1, 4), (4, 3, 8), (4, 4, 16), (5, 1, 5), (2, 100, 64), (64, 9, 64)],
)
def test_a_beam_has_two_places_for_each_number_of_terms(beam_size: int, count: int, expected: int) -> None:
    options = make_options(beam_size=beam_size, num_hypotheses=1)
    found = options_with_terms(options, Terms((((5,),),) * count))
    assert (found.beam_size, found.num_hypotheses) == (expected, 1)


def test_no_terms_change_nothing() -> None:
    options = make_options()
    assert options_with_terms(options, Terms(())) is options


def test_options_that_exclude_terms() -> None:
    terms = Terms((((5,),),))
    sampling = Sampling(temperature=1.0, top_k=0, top_p=1.0, seed=1)
    with pytest.raises(InvalidArgumentError, match="terms need a search"):
        options_with_terms(make_options(sampling=sampling), terms)
    with pytest.raises(InvalidArgumentError, match="repetition_penalty and terms"):
        options_with_terms(make_options(renormalize=True, repetition_penalty=1.5), terms)


def test_terms_count_as_work() -> None:
    """In row steps, by measurements; terms beyond the largest beam cost no more, but further alternatives do."""

    def work(number: int, beam_size: int = 64, alternatives: int = 1) -> int:
        terms = Terms(tuple(tuple((index, of_term) for of_term in range(alternatives)) for index in range(number)))
        return SearchPlan(make_options(beam_size=beam_size), 2, terms=terms).step_work

    assert [work(number, 16) for number in (0, 1, 16, 20, 64)] == [16, math.ceil(16 * 1.2), math.ceil(16 * 4.2), 80, 80]
    # Terms come with wide beams, so only the larger weight of the two counts.
    assert [work(number) for number in (0, 1, 16, 20, 64)] == [83, 83, math.ceil(64 * 4.2), 320, 320]
    assert [work(number, 64, 8) for number in (1, 30)] == [math.ceil(64 * 1.375), 64 * 10.25]


EOS = (0, 1)


def shared_terms(rng: np.random.Generator, vocabulary: int) -> Terms:
    """Make terms that draw from few token sequences: several begin alike, and some are equal."""
    pool = random_terms(rng, vocabulary=vocabulary, most=6).alternatives
    groups = tuple(pool[rng.integers(len(pool))] + pool[rng.integers(len(pool))] for _ in range(rng.integers(1, 7)))
    return Terms(tuple(tuple(dict.fromkeys(group)) for group in groups))


@pytest.mark.parametrize("vocabulary", [5, 9, 30])
@pytest.mark.parametrize("seed", range(4))
def test_equal_the_states_after_all_tokens(vocabulary: int, seed: int) -> None:
    """Over terms that overlap, repeat, and are parts of words."""
    rng = np.random.default_rng(100 * vocabulary + seed)
    tokens = np.arange(vocabulary + 2)
    seen = joined = 0
    for _ in range(60):
        terms = shared_terms(rng, vocabulary) if rng.random() < 0.5 else random_terms(rng, vocabulary=vocabulary)
        terms = replace(
            terms,
            joins=bytes((rng.random(vocabulary) < 0.4).tolist()) if rng.random() < 0.5 else b"",
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
            expected = [(one.left, one.bank) for one in after]
            assert list(zip(found.left, found.bank, strict=True)) == expected, (terms, state.readings)
            assert set(tokens[found.boosted].tolist()) == automaton.boosted(state)
            assert table.ends[columns].tolist() == [token in EOS for token in tokens.tolist()]
            seen += 1
            joined += state.awaits_end
    assert seen == 60 * 13
    assert joined > 5


def test_few_outcomes_are_kept_of_terms_with_many_tokens() -> None:
    """A long search meets thousands of states, each with an outcome for each token."""
    terms = Terms(tuple(((30_000 + one,), tuple(range(400 * one, 400 * one + 400))) for one in range(50)))
    automaton = TermAutomaton(terms, EOS)
    states = [automaton.start]
    for token in range(600):
        states.append(automaton.next(states[-1], token))
    assert len(set(states)) > 500

    def searched(tokens: int) -> OutcomeTable:
        table = OutcomeTable(automaton)
        columns = table.columns_of(np.arange(5))
        for state in states[:tokens]:
            table.of([state], np.zeros(5, np.int64), columns)
        return table

    assert memory_of(lambda: searched(600))[1] < 1.2 * memory_of(lambda: searched(300))[1]
    table = searched(600)
    columns = table.columns_of(np.arange(5))
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
