"""Searches that take part in the same steps: what they ask, and what comes of it, for all of them at once."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jumok_serve.search.constraints import NO_CONSTRAINTS, Constraints
from jumok_serve.search.continuations import Continuations, best_continuations, each_rows_best
from jumok_serve.search.protocol import DEAD_SCORE, Search

MOST_KEPT = 32
"""How many steps are kept for a search before it takes them in."""

_NO_TOKEN = -1


class SearchTable:
    """Searches by slot, with K rows each, which advance together.

    At most steps nothing happens in most searches: their best continuations run on, and the next step is asked for the
    same. Such a step costs a search no Python: arrays keep what was written, and it takes it all in
    (`Search.catch_up`) before it is at a step that it has to look at itself (`Search.steady_steps`), or that may end a
    hypothesis. What comes of it is the same as if it had advanced at every step.

    Args:
        beam_size: K.

    Attributes:
        tokens: by slot and row, what is fed at the next step, [slots, K].
        scores: likewise, sums of token scores, [slots, K].
        parents: likewise, the row of the same search that each continues, [slots, K].
        positions: by slot, tokens that the rows have fed so far, [slots].
        candidates: likewise, how many are needed of each row, [slots].
        draws: likewise, whether tokens are drawn, [slots].
        on_logits: likewise, whether constraints act on logits, [slots].
        renormalizes: likewise, whether a log-softmax follows constraints on log-probabilities, [slots].
        constraints: likewise.
        changes: another number whenever some constraint, or where it acts, is another than before.
    """

    def __init__(self, beam_size: int) -> None:
        self.beam_size = beam_size
        self.constraints: list[Constraints] = []
        self.changes = 0
        self._searches: list[Search | None] = []
        self._ends: NDArray[np.int64] = np.zeros((0, 0), np.int64)  # [slots, E], tokens that end hypotheses
        self._asked = np.zeros(0, _asked_columns(beam_size))
        self._kept = np.zeros((0, MOST_KEPT), _kept_columns(beam_size))  # of each step in turn
        self._name_columns()
        self._time = 0  # steps so far
        self._most_needed, self._some_need_none = 0, False  # continuations, of all that have ever joined
        self._found: tuple[Continuations | None, Continuations | None] = (None, None)  # best, and best of every row

    def join(self, slots: Sequence[int], searches: Sequence[Search]) -> None:
        """Takes in searches that have not begun, each into the slot named for it."""
        self._make_room(max(slots) + 1, max(len(search.eos_ids) for search in searches))
        at = list(slots)
        for slot, search in zip(at, searches, strict=True):
            self._searches[slot] = search
        ends = max(len(search.eos_ids) for search in searches)
        self._ends[at] = _NO_TOKEN
        self._ends[at, :ends] = [(*search.eos_ids, *[_NO_TOKEN] * (ends - len(search.eos_ids))) for search in searches]
        needed = [search.continuations_needed for search in searches]
        self._needed[at] = needed
        self._most_needed = max(self._most_needed, *needed)
        self._some_need_none = self._some_need_none or not all(needed)
        self._seen[at] = self._time
        for column, values in (
            (self.draws, [search.draws is not None for search in searches]),
            (self.on_logits, [search.acts_on_logits for search in searches]),
            (self.renormalizes, [search.renormalizes for search in searches]),
        ):
            if column[at].tolist() != values:
                column[at] = values
                self.changes += 1
        self._ask(at)

    def leave(self, slots: Sequence[int]) -> None:
        """Takes out searches; until others take their slots, these ask for a first step, again and again."""
        for slot in slots:
            self._searches[slot] = None
        if self.draws[slots].any():
            self.draws[slots] = False
            self.changes += 1
        self._steady[slots], self.positions[slots] = 0, 0

    def move(self, slots: Sequence[int], to: Sequence[int]) -> None:
        """Puts the searches of some slots into others, none of which is among them."""
        for slot, place in zip(slots, to, strict=True):
            self._searches[place], self.constraints[place] = self._searches[slot], self.constraints[slot]
            self._searches[slot] = None
        for array in (self._asked, self._kept, self._ends):
            array[to] = array[slots]
        self.changes += 1

    def search(self, slot: int) -> Search:
        """The search in a slot, which has taken in all steps so far."""
        search = self._searches[slot]
        assert search is not None
        if (missed := self._time - int(self._seen[slot])) > 0:
            end = (self._time - 1) % MOST_KEPT + 1

            def last(kept: NDArray[Any]) -> list[list[Any]]:
                lists: list[list[Any]] = kept[slot, max(0, end - missed) : end].tolist()
                return lists if missed <= end else kept[slot, end - missed :].tolist() + lists

            search.catch_up(last(self._tokens_kept), last(self._scores_kept), last(self._rows_kept))
            self._seen[slot] = self._time
        return search

    def run_on(self, tokens: NDArray[np.int64], totals: NDArray[np.float32]) -> list[int]:
        """Takes in what has come of a step of the first searches, wherever their best continuations run on.

        Args:
            tokens: of each row's best candidates, best first, equal ones by lower token, or of what was drawn for it
                [n * K, C].
            totals: their sums of token scores, [n * K, C].

        Returns:
            The slots of the others: they are to be handed to `look`, except for what was computed wrong.
        """
        searches = len(tokens) // self.beam_size
        best = of_rows = None
        if self._most_needed:
            best = best_continuations(tokens, totals, self.beam_size, self._most_needed)
        if self._some_need_none:
            of_rows = each_rows_best(tokens, totals, self.beam_size)
        self._found = best, of_rows
        found = best or of_rows
        assert found is not None
        running = found.first(self.beam_size)
        others = self._others(running, totals)
        for slot in others:
            self.search(slot)
        place = self._time % MOST_KEPT
        self._tokens_kept[:searches, place] = self.tokens[:searches] = running.tokens
        self._scores_kept[:searches, place] = self.scores[:searches] = running.scores
        if self.beam_size > 1:  # otherwise each continues the only one
            self._rows_kept[:searches, place] = self.parents[:searches] = running.rows
        self.positions[:searches] += 1
        self._steady[:searches] -= 1
        self._time += 1
        if others:
            self._seen[others] = self._time
        return others

    def _others(self, running: Continuations, totals: NDArray[np.float32]) -> list[int]:
        """The slots of the searches that cannot just run on, or have candidates without numbers."""
        searches = len(running.tokens)
        steady = self._steady[:searches] > 0
        steady &= running.scores[:, -1] > DEAD_SCORE
        for row in running.tokens.T:
            for end in self._ends[:searches].T:
                steady &= row != end
        if math.isnan(totals.sum()):  # as it is if any of them is
            steady &= ~np.isnan(totals.reshape(searches, -1)).any(axis=1)
        others = []
        for slot in (~steady).nonzero()[0].tolist():
            if self._searches[slot] is None:
                self.positions[slot] = -1  # the step to come is the first one again
            else:
                others.append(slot)
        return others

    def look(self, slots: Sequence[int]) -> list[int]:
        """Has searches that could not just run on take in the last step.

        Returns:
            The slots of those that have finished with it.
        """
        best, of_rows = self._found
        finished: list[int] = []
        running: list[int] = []
        for slot in slots:
            search, seen = self._searches[slot], best if self._needed[slot] else of_rows
            assert search is not None
            assert seen is not None
            search.advance(*(of_all[slot].tolist() for of_all in seen))
            (finished if search.finished else running).append(slot)
        if running:
            self._ask(running)
        return finished

    def _ask(self, slots: list[int]) -> None:
        """Takes note of what searches that know all steps ask of the next one."""
        asking = [search for slot in slots if (search := self._searches[slot]) is not None]
        self.tokens[slots] = [search.tokens for search in asking]
        self.scores[slots] = [search.scores for search in asking]
        self.parents[slots] = [search.parents for search in asking]
        self.positions[slots] = [search.position for search in asking]
        self.candidates[slots] = [search.candidates_needed for search in asking]
        self._steady[slots] = [min(search.steady_steps, MOST_KEPT) for search in asking]
        for slot, search in zip(slots, asking, strict=True):
            if search.constraints is not self.constraints[slot]:
                self.constraints[slot] = search.constraints
                self.changes += 1

    def _make_room(self, slots: int, ends: int) -> None:
        """Has so many slots, and as many places for the tokens that end hypotheses of a search."""
        more, wider = max(0, slots - len(self._searches)), max(0, ends - self._ends.shape[1])
        if not more and not wider:
            return
        if more:
            more = max(more, len(self._searches))
        self._ends = np.pad(self._ends, ((0, more), (0, wider)), constant_values=_NO_TOKEN)
        self._searches += [None] * more
        self.constraints += [NO_CONSTRAINTS] * more
        self._asked, self._kept = (
            np.concatenate((array, np.zeros((more, *array.shape[1:]), array.dtype)))
            for array in (self._asked, self._kept)
        )
        self._name_columns()

    def _name_columns(self) -> None:
        """Has the columns at hand: to look one up takes as long as to add something to all of it."""
        asked = self._asked
        self.tokens, self.scores, self.parents = asked["tokens"], asked["scores"], asked["parents"]
        self.positions, self.candidates, self.draws = asked["position"], asked["candidates"], asked["draws"]
        self.on_logits, self.renormalizes = asked["on_logits"], asked["renormalizes"]
        self._needed, self._steady, self._seen = asked["needed"], asked["steady"], asked["seen"]
        self._tokens_kept, self._scores_kept = self._kept["tokens"], self._kept["scores"]
        self._rows_kept = self._kept["rows"]


def _asked_columns(beam_size: int) -> np.dtype[np.void]:
    """What a search asks of the next step, and what is known of it; see `SearchTable` and `Search`."""
    return np.dtype(
        [
            ("tokens", np.int64, (beam_size,)),
            ("scores", np.float32, (beam_size,)),
            ("parents", np.int64, (beam_size,)),
            ("position", np.int64),
            ("candidates", np.int64),
            ("draws", np.bool_),
            ("on_logits", np.bool_),
            ("renormalizes", np.bool_),
            ("needed", np.int64),  # continuations
            ("steady", np.int64),  # steps
            ("seen", np.int64),  # steps of the table that it knows of, those before it joined among them
        ]
    )


def _kept_columns(beam_size: int) -> np.dtype[np.void]:
    """What was written at a step; see `Search.catch_up`."""
    return np.dtype(
        [
            ("tokens", np.int64, (beam_size,)),
            ("scores", np.float32, (beam_size,)),
            ("rows", np.int64, (beam_size,)),
        ]
    )
