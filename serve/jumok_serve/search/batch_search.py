"""Searches that take part in the same steps, advanced together."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jumok_serve.search.constraints import NO_CONSTRAINTS, Constraints, concatenate_constraints
from jumok_serve.search.search import Search
from jumok_serve.search.step_arrays import ALL_STEADY, StepArrays

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

    def search(self, slot: int) -> Search:
        """Return the search in a slot, with all its finished steps."""
        return self._caught_up(slot)

    def _caught_up(self, slot: int, *, except_last: int = 0) -> Search:
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
            search = self._caught_up(slot, except_last=1)
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
