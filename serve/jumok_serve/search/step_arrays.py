"""Arrays by slot that advance many searches at once.

A step of a search is written in one of two places, and only `BatchSearch` moves steps from the second to the first:

    step        0 ............ known_steps[slot] ............ steps
    written in  |   the Search object   |   the ring in here   |

- These arrays are the authority on the inputs of the next step. The attributes of a search object, such as
  ``tokens``, are up to date only if ``known_steps[slot] == steps``.
- A slot has at most ``RING_STEPS - 1`` steps in the ring, because ``steady_steps`` is cut to that. No step is
  overwritten before its search has taken it in.

A C++ function does in one call the work of many NumPy calls, with the same results.
"""

import ctypes
import math
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from jumok_serve.native import address, function, pointer
from jumok_serve.search.constraints import NO_CONSTRAINTS, NO_ENTRIES, Constraints, Entries, concatenate_constraints
from jumok_serve.search.search import DEAD_SCORE, Search
from jumok_serve.search.terms import BOOST

RING_STEPS = 64
"""Steps that the ring holds for each slot."""

_NO_TOKEN = -1

WrittenSteps = tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]
"""Tokens, scores and parents that a search has written, [steps, K] each."""


class Continuations(NamedTuple):
    """Tokens, sums of token scores and parent rows, [B, N] each."""

    tokens: NDArray[np.int64]
    scores: NDArray[np.floating[Any]]
    rows: NDArray[np.int64]

    def first(self, number: int) -> "Continuations":
        """Return the first continuations of each sentence, at most `number`."""
        return Continuations(self.tokens[:, :number], self.scores[:, :number], self.rows[:, :number])

    def of(self, sentences: list[int]) -> "Continuations":
        """Copy the continuations of some sentences."""
        return Continuations(self.tokens[sentences], self.scores[sentences], self.rows[sentences])


def best_continuations(
    tokens: NDArray[np.int64], scores: NDArray[np.floating[Any]], beam_size: int, number: int
) -> Continuations:
    """Merge the candidates of each sentence's rows, best first.

    Equal scores are ordered by row, then by token. NaN comes last.

    Args:
        tokens: candidates of each row, best first, ties by lower token, [B * K, C].
        scores: sums of token scores, [B * K, C].
        number: most continuations of each sentence.
    """
    candidates = tokens.shape[1]
    by_sentence = scores.reshape(-1, beam_size * candidates)
    order = (-by_sentence).argsort(axis=1, kind="stable")[:, :number]  # [B, N]; stable: by row, then by token
    indices = order + _first_indices(*by_sentence.shape)
    return Continuations(tokens.take(indices), scores.take(indices), order // candidates)


@lru_cache(maxsize=256)
def _first_indices(sentences: int, candidates: int) -> NDArray[np.int64]:
    """Return the index of each sentence's first candidate, [B, 1]."""
    return np.arange(0, sentences * candidates, candidates)[:, None]


def best_of_each_row(tokens: NDArray[np.int64], scores: NDArray[np.floating[Any]], beam_size: int) -> Continuations:
    """Return each row's best continuation; arguments as for `best_continuations`."""
    first = tokens[:, 0].reshape(-1, beam_size)
    return Continuations(first, scores[:, 0].reshape(first.shape), _row_numbers(*first.shape))


@lru_cache(maxsize=256)
def _row_numbers(sentences: int, beam_size: int) -> NDArray[np.int64]:
    """Return the rows of each sentence, [B, K]."""
    return np.tile(np.arange(beam_size), (sentences, 1))


class UnsteadySearches(NamedTuple):
    """Searches that must look at the last step themselves, and its continuations.

    Attributes:
        slots: slots of the searches, n.
        ends: end of each search's continuations in the lists, [n].
        tokens: the continuations of one search after the other: best first, or by row for a search that takes the best
            of every row. Of a search with terms, native steps return only those that it keeps.
        scores: sums of token scores.
        rows: the rows that they continue.
        has_nan: True if one of these searches, or a slot without a search, has NaN candidates.
    """

    slots: list[int]
    ends: Sequence[int]
    tokens: list[int]
    scores: list[float]
    rows: list[int]
    has_nan: bool = False


ALL_STEADY = UnsteadySearches([], [], [], [], [])


class StepArrays:
    """Inputs of the next step, and the ring of steps, by slot.

    Attributes:
        steps: steps so far.
        changes: a new number if `num_candidates` may have changed.
        capacity: slots that the arrays hold.
        some_have_terms: True if native steps advance searches with terms.
        tokens: fed at the next step, [slots, K].
        scores: sums of token scores, [slots, K].
        parents: row of the same search that each row continues, [slots, K].
        positions: tokens that the rows have fed so far, [slots].
        num_candidates: candidates needed of each row, [slots].
        draws: True if tokens are drawn, [slots].
        on_logits: True if constraints act on logits, [slots].
        renormalizes: True if a log-softmax follows constraints on log-probabilities, [slots].
    """

    def __init__(self, beam_size: int) -> None:
        self.beam_size = beam_size
        self.steps = self.capacity = self.changes = 0
        self.some_have_terms = False
        self.tokens: NDArray[np.int64] = np.zeros((0, beam_size), np.int64)
        self.scores: NDArray[np.float32] = np.zeros((0, beam_size), np.float32)
        self.parents: NDArray[np.int64] = np.zeros((0, beam_size), np.int64)
        self.positions: NDArray[np.int64] = np.zeros(0, np.int64)
        self.num_candidates: NDArray[np.int64] = np.zeros(0, np.int64)
        self.draws: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self.on_logits: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self.renormalizes: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._occupied: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._num_continuations: NDArray[np.int64] = np.zeros(0, np.int64)
        self._steady_steps: NDArray[np.int64] = np.zeros(0, np.int64)
        self._known_steps: NDArray[np.int64] = np.zeros(0, np.int64)  # those before the search joined too
        self._terms: NDArray[np.int64] = np.zeros(0, np.int64)  # addresses; see `Search.native_rows`
        self._eos_ids: NDArray[np.int64] = np.zeros((0, 0), np.int64)  # [slots, E]
        # The ring, [slots, RING_STEPS, K].
        self._ring_tokens: NDArray[np.int64] = np.zeros((0, RING_STEPS, beam_size), np.int64)
        self._ring_scores: NDArray[np.float32] = np.zeros((0, RING_STEPS, beam_size), np.float32)
        self._ring_parents: NDArray[np.int64] = np.zeros((0, RING_STEPS, beam_size), np.int64)
        self._by_slot = [name for name, value in vars(self).items() if isinstance(value, np.ndarray)]
        self._max_continuations = 0  # of all present searches
        self._some_take_each_row = False
        self._native: NativeStep | None = None
        self._bind_native()

    def reserve(self, slots: int) -> None:
        """Make the arrays hold at least this many slots."""
        more = max(slots - self.capacity, self.capacity)
        if slots > self.capacity:
            for name in self._by_slot:
                array = getattr(self, name)
                setattr(self, name, np.concatenate((array, np.zeros((more, *array.shape[1:]), array.dtype))))
            self.capacity += more
            self._bind_native()

    def join(self, slots: list[int], searches: Sequence[Search]) -> bool:
        """Take in searches that have not begun.

        Returns:
            True if draws changed, or where constraints act.
        """
        at, eos_ids = _index(slots), [search.eos_ids for search in searches]
        most = max(map(len, eos_ids))
        if most > self._eos_ids.shape[1]:
            more = most - self._eos_ids.shape[1]
            self._eos_ids = np.pad(self._eos_ids, ((0, 0), (0, more)), constant_values=_NO_TOKEN)
            self._bind_native()
        self._eos_ids[at] = _NO_TOKEN
        self._eos_ids[at, :most] = [(*ids, *[_NO_TOKEN] * (most - len(ids))) for ids in eos_ids]
        continuations = [search.num_continuations for search in searches]
        self._num_continuations[at] = continuations
        self._some_take_each_row = self._some_take_each_row or not all(continuations)
        if self._native is not None and any(rows := [search.native_rows() for search in searches]):
            self._terms[at] = rows
            self.some_have_terms = True
        self._known_steps[at] = self.steps
        self._occupied[at] = True
        self._max_continuations = max(self._max_continuations, *continuations)
        changed = False
        for column, values in (
            (self.draws, [search.draws is not None for search in searches]),
            (self.on_logits, [search.acts_on_logits for search in searches]),
            (self.renormalizes, [search.renormalizes for search in searches]),
        ):
            if column[at].tolist() != values:
                column[at] = values
                changed = True
        return changed

    def leave(self, slots: Sequence[int]) -> bool:
        """Empty slots, which then take part like searches at their first step.

        Returns:
            True if draws changed.
        """
        at = _index(slots)
        drew = True in self.draws[at].tolist()
        for column in (self.draws, self._occupied, self._steady_steps, self.positions):
            column[at] = 0
        if self.some_have_terms:
            self._terms[at] = 0
            self.some_have_terms = bool(self._terms.any())
        if self._max_continuations:
            self._max_continuations = int((self._num_continuations * self._occupied).max())
        return drew

    def move(self, slots: Sequence[int], to: Sequence[int]) -> None:
        """Move searches to other slots."""
        for name in self._by_slot:
            array = getattr(self, name)
            array[to] = array[slots]
        self._occupied[slots] = False
        self._terms[slots] = 0

    def set_inputs(self, slots: list[int], searches: Sequence[Search]) -> None:
        """Copy the next step's inputs from searches that know all steps."""
        self.changes += 1
        at = _index(slots)
        self.tokens[at] = [search.tokens for search in searches]
        self.scores[at] = [search.scores for search in searches]
        self.parents[at] = [search.parents for search in searches]
        self.positions[at] = [search.position for search in searches]
        self.num_candidates[at] = [search.num_candidates for search in searches]
        self._steady_steps[at] = [min(search.steady_steps, RING_STEPS - 1) for search in searches]

    def take_unknown_steps(self, slot: int, *, except_last: int = 0) -> WrittenSteps | None:
        """Return the steps that a search has not seen, and mark them.

        Args:
            slot: slot of the search, which was steady at all of these steps.
            except_last: number of last steps to leave out.
        """
        first, end = int(self._known_steps[slot]), self.steps - except_last
        self._known_steps[slot] = self.steps
        if first >= end:
            return None
        begin, last = first % RING_STEPS, (end - 1) % RING_STEPS + 1
        places = slice(begin, last) if begin < last else np.arange(begin, last + RING_STEPS) % RING_STEPS
        return self._ring_tokens[slot, places], self._ring_scores[slot, places], self._ring_parents[slot, places]

    def advance_steady(
        self, slots: NDArray[np.int64], tokens: NDArray[np.int64], totals: NDArray[np.float32]
    ) -> UnsteadySearches:
        """Advance the steady searches; the others have to `set_inputs` themselves. See `BatchSearch.advance_steady`."""
        number = min(self._max_continuations, self.beam_size * tokens.shape[1]) or self.beam_size
        native = self._native
        if native is None:
            unsteady = self._advance_steady(slots, tokens, totals, number)
        else:
            native.reserve(len(slots), number)
            unsteady = native.advance_steady(slots, tokens, totals, self.steps, number, with_terms=self.some_have_terms)
            self.changes += self.some_have_terms
        self.steps += 1
        return unsteady

    def boosts(self, slots: NDArray[np.int64]) -> Constraints:
        """Return the boosts of the next step, for the rows in `slots` of searches with `Search.native_rows`."""
        return self._native.boosts(slots) if self._native and self.some_have_terms else NO_CONSTRAINTS

    def _advance_steady(
        self, slots: NDArray[np.int64], tokens: NDArray[np.int64], totals: NDArray[np.float32], number: int
    ) -> UnsteadySearches:
        best = of_rows = best_of_each_row(tokens, totals, self.beam_size)
        if self._max_continuations:
            best = best_continuations(tokens, totals, self.beam_size, number)
        running = best.first(self.beam_size)
        has_nan = math.isnan(totals.sum())  # NaN if any total is
        unsteady = self._unsteady(slots, running, totals, has_nan)
        now = self.steps % RING_STEPS
        self._ring_tokens[slots, now] = self.tokens[slots] = running.tokens
        self._ring_scores[slots, now] = self.scores[slots] = running.scores
        self._ring_parents[slots, now] = self.parents[slots] = running.rows
        self.positions[slots] += 1
        self._steady_steps[slots] -= 1
        self.positions[~self._occupied] = 0  # empty slots stay at the first step
        found = best.of(unsteady)
        if self._max_continuations and self._some_take_each_row and unsteady:
            each_row = self._num_continuations[slots[unsteady]] == 0
            for of_all, of_row in zip(found, of_rows.of(unsteady), strict=True):
                of_all[each_row, : self.beam_size] = of_row[each_row]
        each = found.tokens.shape[1]
        return UnsteadySearches(
            slots[unsteady].tolist(),
            range(each, each * len(unsteady) + 1, each),
            found.tokens.ravel().tolist(),
            found.scores.ravel().tolist(),
            found.rows.ravel().tolist(),
            has_nan,
        )

    def _unsteady(
        self, slots: NDArray[np.int64], running: Continuations, totals: NDArray[np.float32], has_nan: bool
    ) -> list[int]:
        """Return the indices in `slots` of unsteady searches or NaN candidates."""
        steady = self._steady_steps[slots] > 0
        steady &= running.scores[:, -1] > DEAD_SCORE
        for row in running.tokens.T:
            for eos_id in self._eos_ids[slots].T:
                steady &= row != eos_id
        if has_nan:
            steady &= ~np.isnan(totals.reshape(len(slots), -1)).any(axis=1)
        unsteady: list[int] = np.flatnonzero(~steady & self._occupied[slots]).tolist()
        return unsteady

    def _bind_native(self) -> None:
        """Bind the native function, if there is one, to the present arrays."""
        run = _native_function()
        self._native = None if run is None else NativeStep(run, self)


def _index(slots: Sequence[int]) -> slice | Sequence[int]:
    """Return an index of some slots; a slice, which NumPy is faster with, if one follows the other."""
    first, after = slots[0], slots[0] + len(slots)
    return slice(first, after) if list(slots) == list(range(first, after)) else slots


class _Searches(ctypes.Structure):
    """``Searches`` of the native library; pointers to the arrays of `StepArrays`."""

    _fields_ = (
        ("beam_size", ctypes.c_int64),
        ("ring_steps", ctypes.c_int64),
        ("num_eos_ids", ctypes.c_int64),
        *((f"array_{number}", ctypes.c_void_p) for number in range(13)),
    )


_ARRAYS = (
    *("tokens", "scores", "parents", "positions", "_steady_steps", "_num_continuations", "_occupied", "_eos_ids"),
    *("_ring_tokens", "_ring_scores", "_ring_parents", "num_candidates", "_terms"),
)

_ARGUMENTS = (
    *(ctypes.POINTER(_Searches), ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64),
    *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, *[ctypes.c_void_p] * 4),
)
_WITH_TERMS_ARGUMENTS = (*_ARGUMENTS, ctypes.c_void_p)
_BOOSTS_ARGUMENTS = (ctypes.POINTER(_Searches), ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)


def _native_function() -> Any:
    return function("jumok_run_on", _ARGUMENTS)


_KnownStep: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32], tuple[Any, ...]]


class NativeStep:
    """`StepArrays.advance_steady` in C++.

    Args:
        run: the native function.
        arrays: arrays to work on, until one of them is replaced.
    """

    def __init__(self, run: Any, arrays: StepArrays) -> None:
        self._run = run
        self._kept_alive = [getattr(arrays, name) for name in _ARRAYS]  # addresses keep nothing alive
        ring_steps, num_eos_ids = arrays._ring_tokens.shape[1], arrays._eos_ids.shape[1]
        self._searches = _Searches(arrays.beam_size, ring_steps, num_eos_ids, *map(address, self._kept_alive))
        self._slots = arrays.capacity
        self._allocate(0)
        self._run_with_terms = function("jumok_run_on_with_terms", _WITH_TERMS_ARGUMENTS)
        self._list_boosts = function("jumok_boosts", _BOOSTS_ARGUMENTS)
        self._known: deque[_KnownStep] = deque(maxlen=2)  # slots, tokens, totals, arguments
        self._boosted: NDArray[np.int64] = np.zeros((0, 2), np.int64)
        self._last_boosts = NO_CONSTRAINTS

    def reserve(self, slots: int, number: int) -> None:
        """Make room for `number` continuations of as many slots, if there is less."""
        if slots * number > len(self._tokens):
            self._allocate(number)

    def _allocate(self, number: int) -> None:
        self._unsteady: NDArray[np.int64] = np.zeros(self._slots, np.int64)
        self._tokens: NDArray[np.int64] = np.zeros(self._slots * number, np.int64)
        self._scores: NDArray[np.float32] = np.zeros(self._slots * number, np.float32)
        self._rows: NDArray[np.int64] = np.zeros(self._slots * number, np.int64)
        self._found = [address(array) for array in (self._unsteady, self._tokens, self._scores, self._rows)]

    def advance_steady(
        self,
        slots: NDArray[np.int64],
        tokens: NDArray[np.int64],
        totals: NDArray[np.float32],
        steps: int,
        number: int,
        *,
        with_terms: bool,
    ) -> UnsteadySearches:
        """Advance steady searches, and find `number` continuations for the others; at most, if some have terms.

        After `reserve` of these slots and this number, whose arrays the results are written into.
        """
        arguments = self._arguments(slots, tokens, totals)
        count: int
        if with_terms:
            unsteady, *found = self._found
            ends: NDArray[np.int64] = np.empty(len(slots), np.int64)
            count = self._run_with_terms(*arguments, steps, number, unsteady, pointer(ends), *found)
            return self._unsteady_searches(count, ends[: abs(count)].tolist()) if count else ALL_STEADY
        count = self._run(*arguments, steps, number, *self._found)
        return self._unsteady_searches(count, range(number, abs(count) * number + 1, number)) if count else ALL_STEADY

    def _arguments(
        self, slots: NDArray[np.int64], tokens: NDArray[np.int64], totals: NDArray[np.float32]
    ) -> tuple[Any, ...]:
        """Return the first arguments of a step; most steps have arrays of earlier steps."""
        for known_slots, known_tokens, known_totals, known in self._known:
            if slots is known_slots and tokens is known_tokens and totals is known_totals:
                return known
        contiguous = np.ascontiguousarray(tokens, np.int64), np.ascontiguousarray(totals, np.float32)
        arguments = (self._searches, pointer(slots), len(slots), tokens.shape[1], *map(pointer, contiguous))
        if contiguous[0] is tokens and contiguous[1] is totals:  # copies hold for one step
            self._known.append((slots, tokens, totals, arguments))
        return arguments

    def _unsteady_searches(self, count: int, ends: Sequence[int]) -> UnsteadySearches:
        """Return the unsteady searches that a function has written; a negative count means NaN candidates."""
        has_nan, count = count < 0, abs(count)
        end = ends[-1]
        return UnsteadySearches(
            self._unsteady[:count].tolist(),
            ends,
            self._tokens[:end].tolist(),
            self._scores[:end].tolist(),
            self._rows[:end].tolist(),
            has_nan,
        )

    def boosts(self, slots: NDArray[np.int64]) -> Constraints:
        """Return the boosts of the next step, for the rows in `slots`; the last object if they are equal."""
        most = len(self._boosted)
        count = self._list_boosts(self._searches, pointer(slots), len(slots), address(self._boosted), most)
        if count > most:
            self._boosted = np.zeros((2 * count, 2), np.int64)
            return self.boosts(slots)
        places, last = self._boosted[:count], self._last_boosts.factors.places
        if len(places) != len(last) or not np.logical_and.reduce(places == last, axis=None):
            boosts = Entries(places.copy(), np.full(count, BOOST, np.float32))
            self._last_boosts = Constraints(boosts, NO_ENTRIES) if count else NO_CONSTRAINTS
        return self._last_boosts


_ON_LOGITS, _RENORMALIZES = 1, 2


class SharedConstraints(NamedTuple):
    """Constraints of several searches without sampling."""

    constraints: Constraints
    on_logits: bool
    renormalizes: bool

    def equals(self, other: "SharedConstraints | None") -> bool:
        """True if the other has the same constraints object and effect."""
        if other is self:
            return True
        return other is not None and self.constraints is other.constraints and self[1:] == other[1:]


class BatchSearch:
    """Searches by slot, K rows each, that advance together.

    At most steps most searches only run on with their best continuations, and the next step has the same constraints.
    Such a steady step costs no Python for each search: arrays take it in (see `step_arrays`). A search object catches
    up (`Search.catch_up`) before a step that it must look at itself (`Search.steady_steps`), or that may end a
    hypothesis. The result is the same as if the object advanced at every step.

    Attributes:
        arrays: inputs of the next step, by slot.
        constraints: constraints of the next step, by slot.
        constraints_version: a new number if any constraint changes, or where it acts.
    """

    def __init__(self, beam_size: int) -> None:
        self.beam_size = beam_size
        self.arrays = StepArrays(beam_size)
        self.constraints: list[Constraints] = []
        self.constraints_version = 0
        self._searches: list[Search | None] = []
        self._kinds: NDArray[np.int64] = np.zeros(0, np.int64)  # by slot; see `_kind`
        self._shared = 0, SharedConstraints(NO_CONSTRAINTS, on_logits=False, renormalizes=False)  # the last, and kind
        self._boosts: dict[int, Constraints] = {}  # by slot; only those of searches with terms
        self._unsteady = ALL_STEADY

    def join(self, slots: Sequence[int], searches: Sequence[Search]) -> None:
        """Put searches that have not begun into empty slots."""
        at = list(slots)
        self.arrays.reserve(max(at) + 1)
        more = self.arrays.capacity - len(self._searches)
        self._searches += [None] * more
        self.constraints += [NO_CONSTRAINTS] * more
        self._kinds = np.concatenate((self._kinds, np.zeros(more, np.int64)))
        for slot, search in zip(at, searches, strict=True):
            self._searches[slot] = search
        self.constraints_version += self.arrays.join(at, searches)
        self._set_inputs(at, searches)

    def leave(self, slots: Sequence[int]) -> None:
        """Empty slots, which then take part like searches at their first step."""
        for slot in slots:
            self._searches[slot] = None
            self._boosts.pop(slot, None)
        self._kinds[list(slots)] = np.abs(self._kinds[list(slots)])
        self.constraints_version += self.arrays.leave(slots)

    def move(self, slots: Sequence[int], to: Sequence[int]) -> None:
        """Move searches to other slots."""
        for slot, place in zip(slots, to, strict=True):
            self._searches[place], self.constraints[place] = self._searches[slot], self.constraints[slot]
            self._searches[slot] = None
            if slot in self._boosts:
                self._boosts[place] = self._boosts.pop(slot)
        self._kinds[list(to)] = self._kinds[list(slots)]
        self.arrays.move(slots, to)
        self.constraints_version += 1

    def shared_constraints(self, slots: NDArray[np.int64]) -> SharedConstraints | None:
        """Return the constraints that all searches in `slots` share, or None."""
        kinds = self._kinds[slots]
        kind = int(kinds[0])
        if kind < 0 or np.logical_or.reduce(kinds != kind):
            return None
        if kind != self._shared[0]:  # a kind keeps its meaning while its constraints are alive
            constraints = self.constraints[int(slots[0])]
            self._shared = kind, SharedConstraints(constraints, bool(kind & _ON_LOGITS), bool(kind & _RENORMALIZES))
        return self._shared[1]

    @property
    def has_boosts(self) -> bool:
        """True if the next step may have boosts."""
        return self.arrays.some_have_terms or bool(self._boosts)

    def boosts(self, slots: NDArray[np.int64]) -> Constraints:
        """Return the boosts of the next step for the rows in `slots`, which are numbered together."""
        boosts = self.arrays.boosts(slots)
        if not self._boosts:
            return boosts
        of_slots = ((index, self._boosts.get(slot, NO_CONSTRAINTS)) for index, slot in enumerate(slots.tolist()))
        return concatenate_constraints([(0, boosts), *((index * self.beam_size, own) for index, own in of_slots)])

    @property
    def has_nan(self) -> bool:
        """True if an unsteady search, or an empty slot, has NaN candidates."""
        return self._unsteady.has_nan

    def search(self, slot: int, *, except_last: int = 0) -> Search:
        """Return the search in a slot, which has taken in all steps but the last `except_last`."""
        search = self._searches[slot]
        assert search is not None
        steps = self.arrays.take_unknown_steps(slot, except_last=except_last)
        if steps is not None:
            search.catch_up(*steps)
        return search

    def advance_steady(
        self, slots: NDArray[np.int64], tokens: NDArray[np.int64], totals: NDArray[np.float32]
    ) -> list[int]:
        """Advance the steady searches by a step.

        Args:
            slots: slots of all searches, maybe with empty ones, [n].
            tokens: best candidates of each row, best first, equal ones by lower token, or the token drawn, [n * K, C].
            totals: sums of token scores, [n * K, C].

        Returns:
            Slots of the unsteady searches, to be handed to `advance` unless the model computed them wrong.
        """
        self._unsteady = self.arrays.advance_steady(slots, tokens, totals)
        return self._unsteady.slots

    def advance(self, slots: Sequence[int]) -> list[int]:
        """Advance the unsteady searches in `slots` by the last step.

        Returns:
            Slots of the searches that finished.
        """
        finished: list[int] = []
        running: list[int] = []
        searches: list[Search] = []
        unsteady, ends, tokens, scores, rows, _ = self._unsteady
        chosen = frozenset(slots)
        end = 0
        for slot, next_end in zip(unsteady, ends, strict=True):
            first, end = end, next_end
            search = self.search(slot, except_last=1)
            if slot not in chosen:
                continue
            found = slice(first, end)
            search.advance(tokens[found], scores[found], rows[found])
            if search.finished:
                finished.append(slot)
            else:
                running.append(slot)
                searches.append(search)
        if running:
            self._set_inputs(running, searches)
        return finished

    def _set_inputs(self, slots: list[int], searches: Sequence[Search]) -> None:
        self.arrays.set_inputs(slots, searches)
        for slot, search in zip(slots, searches, strict=True):
            if search.constraints is not self.constraints[slot]:
                self.constraints[slot] = search.constraints
                self.constraints_version += 1
            if search.boosts is not self._boosts.get(slot, NO_CONSTRAINTS):
                self._boosts[slot] = search.boosts
        self._kinds[slots] = [_kind(search) for search in searches]


def _kind(search: Search) -> int:
    """Return a number for equal `SharedConstraints`, negative if tokens are drawn."""
    kind = 4 * id(search.constraints) + _ON_LOGITS * search.acts_on_logits + _RENORMALIZES * search.renormalizes
    return kind if search.draws is None else -kind
