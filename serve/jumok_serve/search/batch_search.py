"""Searches that take part in the same steps: what they ask, and what comes of it, for all of them at once."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jumok_serve.search.constraints import NO_CONSTRAINTS, Constraints
from jumok_serve.search.native_step import NO_OTHERS
from jumok_serve.search.search import Search
from jumok_serve.search.step_arrays import Asked

_ON_LOGITS, _RENORMALIZES = 1, 2


class Shared(NamedTuple):
    """What several searches that draw nothing ask alike: constraints, where they act, and what follows."""

    constraints: Constraints
    on_logits: bool
    renormalizes: bool

    def same(self, other: "Shared | None") -> bool:
        """Whether others ask for it too, in the same object."""
        if other is self:
            return True
        return other is not None and self.constraints is other.constraints and self[1:] == other[1:]


class SearchTable:
    """Searches by slot, with K rows each, which advance together.

    At most steps nothing happens in most searches: their best continuations run on, and the next step is asked for the
    same. Such a step costs a search no Python: arrays keep what was written, and it takes it all in
    (`Search.catch_up`) before it is at a step that it has to look at itself (`Search.steady_steps`), or that may end a
    hypothesis. What comes of it is the same as if it had advanced at every step.

    Args:
        beam_size: K.

    Attributes:
        asked: what they ask of the next step, by slot, beside constraints.
        constraints: what acts on the scores of the next step, by slot.
        changes: another number whenever some constraint, or where it acts, is another than before.
    """

    def __init__(self, beam_size: int) -> None:
        self.beam_size = beam_size
        self.asked = Asked(beam_size)
        self.constraints: list[Constraints] = []
        self.changes = 0
        self._searches: list[Search | None] = []
        self._kinds: NDArray[np.int64] = np.zeros(0, np.int64)  # by slot, equal where one is `Shared`; below 0: draws
        self._shared = 0, Shared(NO_CONSTRAINTS, on_logits=False, renormalizes=False)  # the last, after its kind
        self._others = NO_OTHERS

    def join(self, slots: Sequence[int], searches: Sequence[Search]) -> None:
        """Takes in searches that have not begun, each into the slot named for it."""
        at = list(slots)
        self.asked.reserve(max(at) + 1)
        more = self.asked.slots - len(self._searches)
        self._searches += [None] * more
        self.constraints += [NO_CONSTRAINTS] * more
        self._kinds = np.concatenate((self._kinds, np.zeros(more, np.int64)))
        for slot, search in zip(at, searches, strict=True):
            self._searches[slot] = search
        self.changes += self.asked.join(at, searches)
        self._ask(at, searches)

    def leave(self, slots: Sequence[int]) -> None:
        """Takes out searches; until others take their slots, these ask for a first step, again and again."""
        for slot in slots:
            self._searches[slot] = None
        self._kinds[list(slots)] = np.abs(self._kinds[list(slots)])
        self.changes += self.asked.leave(slots)

    def move(self, slots: Sequence[int], to: Sequence[int]) -> None:
        """Puts the searches of some slots into others, none of which is among them."""
        for slot, place in zip(slots, to, strict=True):
            self._searches[place], self.constraints[place] = self._searches[slot], self.constraints[slot]
            self._searches[slot] = None
        self._kinds[list(to)] = self._kinds[list(slots)]
        self.asked.move(slots, to)
        self.changes += 1

    def shared(self, slots: NDArray[np.int64]) -> Shared | None:
        """What the searches in some slots have in common; None if any of them draws, or has constraints of its own."""
        kinds = self._kinds[slots]
        kind = int(kinds[0])
        if kind < 0 or np.logical_or.reduce(kinds != kind):
            return None
        if kind != self._shared[0]:  # a kind means the same as long as its constraints are kept
            constraints = self.constraints[int(slots[0])]
            self._shared = kind, Shared(constraints, bool(kind & _ON_LOGITS), bool(kind & _RENORMALIZES))
        return self._shared[1]

    @property
    def undefined(self) -> bool:
        """Whether some have candidates without numbers; see `Others`."""
        return self._others.undefined

    def search(self, slot: int) -> Search:
        """The search in a slot, which has taken in all steps so far, but for one that it was not to `look` at."""
        return self._search(slot)

    def _search(self, slot: int, *, before: int = 0) -> Search:
        """The same, of which some of the last steps are no concern."""
        search = self._searches[slot]
        assert search is not None
        missed = self.asked.missed(slot, before=before)
        if missed is not None:
            search.catch_up(*missed)
        return search

    def run_on(self, slots: NDArray[np.int64], tokens: NDArray[np.int64], totals: NDArray[np.float32]) -> list[int]:
        """Takes in what has come of a step of some searches, wherever their best continuations run on.

        Args:
            slots: of all searches, and maybe others, [n].
            tokens: of each row's best candidates, best first, equal ones by lower token, or of what was drawn for it
                [n * K, C].
            totals: their sums of token scores, [n * K, C].

        Returns:
            The slots of the others: they are to be handed to `look`, except for what was computed wrong.
        """
        self._others = self.asked.run_on(slots, tokens, totals)
        return self._others.slots

    def look(self, slots: Sequence[int]) -> list[int]:
        """Has searches that could not just run on take in the last step; the others of them stay where they were.

        Returns:
            The slots of those that have finished with it.
        """
        finished: list[int] = []
        running: list[int] = []
        asking: list[Search] = []
        others, number, tokens, scores, rows, _ = self._others
        chosen = frozenset(slots)
        for place, slot in enumerate(others):
            search = self._search(slot, before=1)
            if slot not in chosen:
                continue
            seen = slice(place * number, (place + 1) * number)
            search.advance(tokens[seen], scores[seen], rows[seen])
            if search.finished:
                finished.append(slot)
            else:
                running.append(slot)
                asking.append(search)
        if running:
            self._ask(running, asking)
        return finished

    def _ask(self, slots: list[int], searches: Sequence[Search]) -> None:
        """Takes note of what searches that know all steps ask of the next one."""
        self.asked.ask(slots, searches)
        for slot, search in zip(slots, searches, strict=True):
            if search.constraints is not self.constraints[slot]:
                self.constraints[slot] = search.constraints
                self.changes += 1
        self._kinds[slots] = [_kind(search) for search in searches]


def _kind(search: Search) -> int:
    """A number, equal for searches that have a `Shared` in common; below 0 where tokens are drawn."""
    kind = 4 * id(search.constraints) + _ON_LOGITS * search.acts_on_logits + _RENORMALIZES * search.renormalizes
    return kind if search.draws is None else -kind
