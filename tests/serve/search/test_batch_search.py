"""Searches in a batch equal searches alone, while others join, leave and move."""

import gc
import operator
import weakref
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from jumok_serve.native import library
from jumok_serve.search import step_arrays
from jumok_serve.search.constraints import Constraints, concatenate_constraints
from jumok_serve.search.options import Sampling
from jumok_serve.search.plan import SearchPlan
from jumok_serve.search.search import Search
from jumok_serve.search.step_arrays import BatchSearch, Continuations, best_continuations, best_of_each_row
from tests.serve.search.test_terms import random_terms
from tests.support.reference_search import candidates, toy_model
from tests.support.search_cases import EARLY_STOPPING, Case, constrained, make_options, random_case

LEAST_TOKENS = 12


@pytest.fixture(autouse=True, params=["native", "numpy"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Implementation of a step."""
    if request.param == "numpy":
        monkeypatch.setattr(step_arrays, "_native_function", lambda: None)
    elif library() is None:
        pytest.skip("no kernels of these sources, or an old processor")
    return str(request.param)


@dataclass(eq=False)
class Pair:
    """A search in a batch, and the same search alone."""

    case: Case
    together: Search
    alone: Search
    prefixes: list[tuple[int, ...]] = field(default_factory=lambda: [()])

    def feed(self) -> None:
        self.prefixes = [
            (*self.prefixes[parent], token) for token, parent in zip(self.alone.tokens, self.alone.parents, strict=True)
        ]


def random_pair(rng: np.random.Generator, beam_size: int) -> Pair:
    case = random_case(rng, least_tokens=LEAST_TOKENS)
    hypotheses = int(rng.integers(1, beam_size + 1))
    case = replace(case, options=replace(case.options, beam_size=beam_size, num_hypotheses=hypotheses))
    if rng.random() < 0.5:
        case = constrained(rng, case)
    elif beam_size > 1 and rng.random() < 0.5:
        terms = random_terms(rng, vocabulary=LEAST_TOKENS, most=beam_size - 1)
        case = replace(case, terms=terms)
    return Pair(case, case.search(), case.search())


@pytest.mark.parametrize("ring_steps", [3, step_arrays.RING_STEPS])
@pytest.mark.parametrize("beam_size", [1, 2, 4])
def test_searches_in_a_batch_equal_searches_alone(
    beam_size: int, ring_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_arrays, "RING_STEPS", ring_steps)
    rng = np.random.default_rng(17 + beam_size)
    table, slots = BatchSearch(beam_size), list[Pair | None]()
    finished = moved = left = 0
    for turn in range(120):
        joining = [random_pair(rng, beam_size) for _ in range(rng.integers(0, 4) if turn else 3)]
        places = [slot for slot, pair in enumerate(slots) if pair is None][: len(joining)]
        places += range(len(slots), len(slots) + len(joining) - len(places))
        slots += [None] * (max([-1, *places]) + 1 - len(slots))
        if joining:
            table.join(places, [new.together for new in joining])
        for place, new in zip(places, joining, strict=True):
            slots[place] = new
        step(table, slots, with_empty=bool(rng.random() < 0.5))
        for slot, pair in enumerate(slots):
            if pair is None:
                continue
            if pair.alone.finished:
                assert pair.together.finished
                assert pair.together.hypotheses() == pair.alone.hypotheses()
                finished += 1
            elif rng.random() < 0.05:
                left += 1
            else:
                if rng.random() < 0.1:
                    assert table.search(slot).stable_tokens() == pair.alone.stable_tokens()
                continue
            slots[slot] = None
            table.leave([slot])
        if rng.random() < 0.3:
            full = sum(pair is not None for pair in slots)
            free = [slot for slot in range(full) if slots[slot] is None]
            last = [slot for slot in range(full, len(slots)) if slots[slot] is not None]
            table.move(last, free)
            for slot, place in zip(last, free, strict=True):
                slots[place] = slots[slot]
            moved += len(last)
            del slots[full:]
    assert finished > 40
    assert moved > 10
    assert left > 5


def pair_with_terms(rng: np.random.Generator, beam_size: int) -> Pair:
    """Make searches with terms that often run on without an ended hypothesis."""
    vocabulary = 60
    terms = random_terms(rng, vocabulary=vocabulary, most=min(3, beam_size - 1))
    options = make_options(
        beam_size=beam_size,
        num_hypotheses=int(rng.integers(1, beam_size + 1)),
        length_penalty=float(rng.choice([-1.0, 0.0, 0.6, 1.0])),
        early_stopping=EARLY_STOPPING[rng.integers(3)],
        min_length=int(rng.choice([0, 6])),
        max_length=14,
        no_repeat_ngram_size=int(rng.choice([0, 0, 3])),
        suppress_tokens=(2, 3),
    )
    prefix = tuple(rng.integers(4, vocabulary, size=int(rng.choice([0, 0, 3]))).tolist())
    step = toy_model(rng, vocabulary, 1, spread=float(rng.choice([1.0, 3.0])), positions=32)
    case = Case(step, options, prefix, terms)
    return Pair(case, case.search(), case.search())


def advance_to_the_end(table: BatchSearch, pairs: list[Pair], rng: np.random.Generator) -> tuple[int, int, int]:
    """Return how often a search was advanced, and looked at the step itself, and hypotheses with all terms."""
    slots: list[Pair | None] = [*pairs]
    advanced = looked = met = 0
    table.join(range(len(pairs)), [pair.together for pair in pairs])
    while any(slots):
        advanced += sum(map(bool, slots))
        looked += step(table, slots, with_empty=False)
        for slot, pair in enumerate(slots):
            if pair and rng.random() < 0.1:
                assert table.search(slot).stable_tokens() == pair.alone.stable_tokens()
            if pair and pair.alone.finished:
                assert pair.together.hypotheses() == pair.alone.hypotheses()
                met += sum(None not in one.terms for one in pair.alone.hypotheses())
                table.leave([slot])
                slots[slot] = None
    return advanced, looked, met


@pytest.mark.parametrize("beam_size", [2, 4, 7])
def test_searches_with_terms_in_a_batch_equal_searches_alone(beam_size: int, implementation: str) -> None:
    """Native steps advance most of them without Python, with the same scores bit by bit."""
    rng = np.random.default_rng(beam_size)
    table = BatchSearch(beam_size)
    counts = [advance_to_the_end(table, [pair_with_terms(rng, beam_size) for _ in range(5)], rng) for _ in range(12)]
    advanced, looked, met = map(sum, zip(*counts, strict=True))
    assert met > 60
    assert looked < 0.8 * advanced if implementation == "native" else looked == advanced
    assert not table.has_boosts  # searches without terms take steps of their own


def test_a_search_with_terms_ends_with_its_last_reference() -> None:
    """Cycles would stay until a collection, which servers put off."""
    table, pair = BatchSearch(4), pair_with_terms(np.random.default_rng(9), 4)
    table.join([0], [pair.together])
    table.leave([0])
    ended = weakref.ref(pair.together)
    gc.collect()
    gc.disable()
    try:
        del pair
        assert ended() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("bound", "most"),
    [
        ("term_rows._MOST_TOKENS", 0),
        ("term_rows._MOST_STATES", 0),
        ("term_rows._MOST_STATES", 28),
        ("terms.FEW_READINGS", 0),
    ],
)
def test_searches_with_too_many_terms_for_a_table_are_advanced_in_python(
    bound: str, most: int, implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"jumok_serve.search.{bound}", most)
    rng = np.random.default_rng(8)
    advanced, looked, _ = advance_to_the_end(BatchSearch(4), [pair_with_terms(rng, 4) for _ in range(6)], rng)
    assert looked < advanced if most and implementation == "native" else looked == advanced


def step(table: BatchSearch, slots: list[Pair | None], *, with_empty: bool) -> int:
    """Advance both by a step with the same candidates; empty slots take part if `with_empty` is true.

    Returns:
        Number of searches that looked at the step themselves.
    """
    beam_size, changes = table.beam_size, table.constraints_version
    taking_part = [slot for slot, pair in enumerate(slots) if with_empty or pair is not None]
    if not taking_part:
        return 0
    number = int(table.arrays.num_candidates[taking_part].max())
    tokens = np.zeros((len(taking_part) * beam_size, number), np.int64)
    totals = np.full(tokens.shape, -1.0, np.float32)
    for slot, pair in enumerate(slots):
        if pair is None:
            assert table.arrays.positions[slot] == 0
            continue
        asks = pair.alone
        assert (table.arrays.tokens[slot].tolist(), table.arrays.positions[slot]) == ([*asks.tokens], asks.position)
        assert table.arrays.scores[slot].tolist() == [np.float32(score) for score in asks.scores]
        assert table.arrays.parents[slot].tolist() == [*asks.parents]
        assert table.arrays.num_candidates[slot] == asks.num_candidates
        assert table.arrays.on_logits[slot] == asks.acts_on_logits
        assert table.arrays.renormalizes[slot] == asks.renormalizes
        for mine, other in zip(table.constraints[slot], asks.constraints, strict=True):
            assert [array.tolist() for array in mine] == [array.tolist() for array in other]
        boosted = table.boosts(np.array([slot])).factors
        assert [array.tolist() for array in boosted] == [array.tolist() for array in asks.boosts.factors]
        pair.feed()
        rows = slice(taking_part.index(slot) * beam_size, (taking_part.index(slot) + 1) * beam_size)
        found, sums = candidates(asks, pair.case.step, pair.prefixes, number)  # a vocabulary may have fewer
        totals[rows] = -np.inf
        tokens[rows, : found.shape[1]], totals[rows, : found.shape[1]] = found, sums
    own = [(slot, pair.alone) for slot, pair in enumerate(slots) if pair is not None]
    asked_alike = {(id(table.constraints[slot]), one.acts_on_logits, one.renormalizes) for slot, one in own}
    shared = table.shared_constraints(np.array([slot for slot, _ in own])) if own else None
    if len(asked_alike) == 1 and not any(one.draws for _, one in own):
        assert shared is not None
        assert (id(shared.constraints), *shared[1:]) in asked_alike
    else:
        assert shared is None
    constraints = [*table.constraints]
    parts = ((taking_part.index(slot) * beam_size, one.boosts) for slot, one in own)
    assert in_order(table.boosts(np.array(taking_part))) == in_order(concatenate_constraints(parts))
    needed, before = table.arrays.num_candidates.copy(), table.arrays.changes
    others = table.advance_steady(np.array(taking_part), tokens, totals)
    table.advance(others)
    assert table.arrays.changes > before or np.array_equal(table.arrays.num_candidates, needed)
    assert table.constraints_version > changes or all(map(operator.is_, table.constraints, constraints))
    for slot, pair in enumerate(slots):
        if pair is not None:
            rows = slice(taking_part.index(slot) * beam_size, (taking_part.index(slot) + 1) * beam_size)
            pair.alone.advance(*(of_all[0].tolist() for of_all in seen(pair.alone, tokens[rows], totals[rows])))
    return len(others)


def in_order(boosts: Constraints) -> list[tuple[list[int], float]]:
    return sorted(zip(boosts.factors.places.tolist(), boosts.factors.values.tolist(), strict=True))


def seen(search: Search, tokens: np.ndarray, totals: np.ndarray) -> Continuations:
    if not search.num_continuations:
        return best_of_each_row(tokens, totals, search.beam_size)
    return best_continuations(tokens, totals, search.beam_size, search.num_continuations)


def test_shared_constraints_are_those_of_the_given_slots() -> None:
    rng = np.random.default_rng(6)
    case = random_case(rng, least_tokens=LEAST_TOKENS)
    plain = replace(case.options, beam_size=1, num_hypotheses=1, max_length=15, min_length=0)
    drawing = replace(plain, sampling=Sampling(temperature=1.0, top_k=0, top_p=1.0, seed=5))
    limited = replace(plain, min_length=10)
    table = BatchSearch(1)
    searches = [replace(case, options=options).search() for options in (plain, plain, drawing, limited)]
    table.join([0, 1, 2, 3], searches)
    for slots, constraints in (([0, 1], searches[0].constraints), ([3], searches[3].constraints), ([2], None)):
        shared = table.shared_constraints(np.array(slots))
        assert (shared and shared.constraints) is constraints
    assert searches[3].constraints is not searches[0].constraints
    assert table.shared_constraints(np.array([0, 3])) is None
    assert table.shared_constraints(np.array([1, 2])) is None
    table.leave([1])
    table.move([3], [1])
    moved = table.shared_constraints(np.array([1]))
    assert moved is not None
    assert moved.constraints is searches[3].constraints
    assert table.shared_constraints(np.array([0, 1])) is None


@pytest.mark.parametrize("beam_size", [1, 2])
def test_a_search_with_nan_candidates_is_unsteady(beam_size: int) -> None:
    """The batch must see NaN even if enough other candidates remain."""
    rng = np.random.default_rng(6)
    case = random_case(rng, least_tokens=LEAST_TOKENS)
    options = replace(case.options, beam_size=beam_size, num_hypotheses=1, max_length=15, min_length=0, eos_ids=(1,))
    table = BatchSearch(beam_size)
    table.join([0, 1], [replace(case, options=options).search() for _ in range(2)])
    tokens = np.tile(np.arange(3, 8), (2 * beam_size, 1))
    totals = np.tile(-np.arange(1, 6, dtype=np.float32), (2 * beam_size, 1))
    slots = np.arange(2)
    table.advance(table.advance_steady(slots, tokens, totals))
    assert table.advance_steady(slots, tokens, totals) == []
    assert not table.has_nan
    totals[-1] = np.nan
    assert table.advance_steady(slots, tokens, totals) == [1]
    assert table.has_nan
    totals[-1] = -1
    assert not table.advance_steady(slots[:1], tokens[:beam_size], totals[:beam_size])
    assert not table.has_nan


@pytest.mark.parametrize("beam_size", [1, 2])
@pytest.mark.parametrize("sampling", [None, Sampling(temperature=1.0, top_k=0, top_p=1.0, seed=5)])
def test_an_unsteady_search_that_does_not_advance_stays_as_it_is(beam_size: int, sampling: Sampling | None) -> None:
    """For example, a search with NaN candidates whose progress is read."""
    case = random_case(np.random.default_rng(6), least_tokens=LEAST_TOKENS)
    options = replace(case.options, num_hypotheses=beam_size, max_length=15, min_length=0, eos_ids=(1,))
    options = replace(options, beam_size=1 if sampling else beam_size, sampling=sampling)
    search = replace(case, options=options).search()
    table = BatchSearch(beam_size)
    table.join([0], [search])
    tokens = np.tile(np.arange(3, 8), (beam_size, 1))
    totals = np.tile(-np.arange(1, 6, dtype=np.float32), (beam_size, 1))
    for _ in range(3):
        table.advance(table.advance_steady(np.zeros(1, np.int64), tokens, totals))
    before, position = table.search(0).stable_tokens(), table.search(0).position
    assert table.advance_steady(np.zeros(1, np.int64), tokens, np.full_like(totals, np.nan)) == [0]
    assert table.advance([]) == []
    assert table.search(0) is search
    assert (search.stable_tokens(), search.position) == (before, position)


def test_a_steady_search_costs_no_python() -> None:
    rng = np.random.default_rng(5)
    for beam_size in (1, 4):
        case = random_case(rng, least_tokens=LEAST_TOKENS)
        options = replace(
            case.options, beam_size=beam_size, num_hypotheses=1, max_length=15, min_length=0, eos_ids=(1,)
        )
        case = replace(case, options=options)
        table = BatchSearch(beam_size)
        table.join([0], [case.search()])
        looked = []
        for time in range(14):
            tokens = np.tile(np.arange(3, 8), (beam_size, 1))
            totals = table.arrays.scores[0][:, None] - np.arange(1, 6, dtype=np.float32)
            others = table.advance_steady(np.zeros(1, np.int64), tokens, totals)
            looked += [time] * len(others)
            table.advance(others)
        assert looked == ([] if beam_size == 1 else [0])  # the first step of a beam has one row alone
        assert table.search(0).position == 14


def test_arrays_of_earlier_steps_may_come_back_with_other_values() -> None:
    table = BatchSearch(1)
    search = SearchPlan(
        make_options(beam_size=1, num_hypotheses=1, max_length=20, min_length=0, eos_ids=(1,)), 0
    ).begin()
    table.join([0], [search])
    slots = np.zeros(1, np.int64)
    turns = [(np.zeros((1, 1), np.int64), np.zeros((1, 1), np.float32)) for _ in range(3)]
    for step_number in range(12):
        tokens, totals = turns[step_number % (2 if step_number < 6 else 3)]
        tokens[:], totals[:] = 2 + step_number, -step_number
        assert not table.advance_steady(slots, tokens, totals)
    assert table.search(0).stable_tokens() == list(range(2, 14))
