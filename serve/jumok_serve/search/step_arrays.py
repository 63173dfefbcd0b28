"""What searches ask of the next step, and what the last ones have written, by slot: arrays that advance together."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from jumok_serve.search.native_step import NativeStep, Others, native_step
from jumok_serve.search.search import DEAD_SCORE, Search
from jumok_serve.search.topk import Continuations, best_continuations, each_rows_best

MOST_KEPT = 64
"""How many steps are kept. Searches take them in when there is one fewer, so that the next step overwrites none."""

_NO_TOKEN = -1

Kept = tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]
"""What a search has written at some steps: tokens, scores and rows, [steps, K] each."""


class Asked:
    """What searches in slots with K rows each ask, beside constraints.

    Args:
        beam_size: K.

    Attributes:
        time: steps so far.
        slots: that there is room for.
        tokens: by slot and row, what is fed at the next step, [slots, K].
        scores: likewise, sums of token scores, [slots, K].
        parents: likewise, the row of the same search that each continues, [slots, K].
        positions: by slot, tokens that the rows have fed so far, [slots].
        candidates: likewise, how many are needed of each row, [slots].
        draws: likewise, whether tokens are drawn, [slots].
        on_logits: likewise, whether constraints act on logits, [slots].
        renormalizes: likewise, whether a log-softmax follows constraints on log-probabilities, [slots].
    """

    def __init__(self, beam_size: int) -> None:
        self.beam_size = beam_size
        self.time = self.slots = 0
        self.tokens: NDArray[np.int64] = np.zeros((0, beam_size), np.int64)
        self.scores: NDArray[np.float32] = np.zeros((0, beam_size), np.float32)
        self.parents: NDArray[np.int64] = np.zeros((0, beam_size), np.int64)
        self.positions: NDArray[np.int64] = np.zeros(0, np.int64)
        self.candidates: NDArray[np.int64] = np.zeros(0, np.int64)
        self.draws: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self.on_logits: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self.renormalizes: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._present: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._needed: NDArray[np.int64] = np.zeros(0, np.int64)  # continuations
        self._steady: NDArray[np.int64] = np.zeros(0, np.int64)  # steps
        self._seen: NDArray[np.int64] = np.zeros(0, np.int64)  # steps that it knows of, those before it joined too
        self._ends: NDArray[np.int64] = np.zeros((0, 0), np.int64)  # [slots, E], tokens that end hypotheses
        # What was written at the last steps, [slots, MOST_KEPT, K].
        self._kept_tokens: NDArray[np.int64] = np.zeros((0, MOST_KEPT, beam_size), np.int64)
        self._kept_scores: NDArray[np.float32] = np.zeros((0, MOST_KEPT, beam_size), np.float32)
        self._kept_rows: NDArray[np.int64] = np.zeros((0, MOST_KEPT, beam_size), np.int64)
        self._by_slot = [name for name, value in vars(self).items() if isinstance(value, np.ndarray)]
        self._most_needed, self._some_need_none = 0, False  # continuations, of all that have ever joined
        self._native: NativeStep | None = None
        self._rename()

    def reserve(self, slots: int) -> None:
        """Has room for so many."""
        more = max(slots - self.slots, self.slots)
        if slots > self.slots:
            for name in self._by_slot:
                array = getattr(self, name)
                setattr(self, name, np.concatenate((array, np.zeros((more, *array.shape[1:]), array.dtype))))
            self.slots += more
            self._rename()

    def join(self, slots: list[int], searches: Sequence[Search]) -> bool:
        """Takes note of searches that have not begun.

        Returns:
            Whether draws, or where constraints act, are others than before.
        """
        ends = [search.eos_ids for search in searches]
        most = max(map(len, ends))
        if most > self._ends.shape[1]:
            more = most - self._ends.shape[1]
            self._ends = np.pad(self._ends, ((0, 0), (0, more)), constant_values=_NO_TOKEN)
            self._rename()
        self._ends[slots] = _NO_TOKEN
        self._ends[slots, :most] = [(*of_search, *[_NO_TOKEN] * (most - len(of_search))) for of_search in ends]
        needed = [search.continuations_needed for search in searches]
        self._needed[slots] = needed
        self._most_needed = max(self._most_needed, *needed)
        self._some_need_none = self._some_need_none or not all(needed)
        self._seen[slots] = self.time
        self._present[slots] = True
        changed = False
        for column, values in (
            (self.draws, [search.draws is not None for search in searches]),
            (self.on_logits, [search.acts_on_logits for search in searches]),
            (self.renormalizes, [search.renormalizes for search in searches]),
        ):
            if column[slots].tolist() != values:
                column[slots] = values
                changed = True
        return changed

    def leave(self, slots: Sequence[int]) -> bool:
        """Has nobody in some slots, which ask for a first step from now on; whether draws are others than before."""
        drew = True in self.draws[slots].tolist()
        for column in (self.draws, self._present, self._steady, self.positions):
            column[slots] = 0
        return drew

    def move(self, slots: Sequence[int], to: Sequence[int]) -> None:
        """Puts what is asked in some slots into others."""
        for name in self._by_slot:
            array = getattr(self, name)
            array[to] = array[slots]
        self._present[slots] = False

    def ask(self, slots: list[int], searches: Sequence[Search]) -> None:
        """Takes note of what searches that know all steps ask of the next one."""
        self.tokens[slots] = [search.tokens for search in searches]
        self.scores[slots] = [search.scores for search in searches]
        self.parents[slots] = [search.parents for search in searches]
        self.positions[slots] = [search.position for search in searches]
        self.candidates[slots] = [search.candidates_needed for search in searches]
        self._steady[slots] = [min(search.steady_steps, MOST_KEPT - 1) for search in searches]

    def missed(self, slot: int, *, before: int = 0) -> Kept | None:
        """What was written at the steps that the search in a slot does not know; then it does.

        Args:
            slot: of the search, which has run on at all of these.
            before: how many of the last steps are not meant.
        """
        first, end = int(self._seen[slot]), self.time - before
        self._seen[slot] = self.time
        if first >= end:
            return None
        begin, last = first % MOST_KEPT, (end - 1) % MOST_KEPT + 1
        places = slice(begin, last) if begin < last else np.arange(begin, last + MOST_KEPT) % MOST_KEPT
        return self._kept_tokens[slot, places], self._kept_scores[slot, places], self._kept_rows[slot, places]

    def run_on(self, slots: NDArray[np.int64], tokens: NDArray[np.int64], totals: NDArray[np.float32]) -> Others:
        """See `SearchTable.run_on`; the others have not taken in the step, and are to `ask` anew."""
        number = min(self._most_needed, self.beam_size * tokens.shape[1]) or self.beam_size
        if self._native is None:
            others = self._run_on(slots, tokens, totals, number)
        else:
            others = self._native.run_on(slots, tokens, totals, self.time, number)
        self.time += 1
        return others

    def _run_on(
        self, slots: NDArray[np.int64], tokens: NDArray[np.int64], totals: NDArray[np.float32], number: int
    ) -> Others:
        best = of_rows = each_rows_best(tokens, totals, self.beam_size)
        if self._most_needed:
            best = best_continuations(tokens, totals, self.beam_size, number)
        running = best.first(self.beam_size)
        undefined = math.isnan(totals.sum())  # as it is if any of them is
        others = self._others(slots, running, totals, undefined)
        now = self.time % MOST_KEPT
        self._kept_tokens[slots, now] = self.tokens[slots] = running.tokens
        self._kept_scores[slots, now] = self.scores[slots] = running.scores
        self._kept_rows[slots, now] = self.parents[slots] = running.rows
        self.positions[slots] += 1
        self._steady[slots] -= 1
        self.positions[~self._present] = 0  # the step to come is the first one again
        found = best.of(others)
        if self._most_needed and self._some_need_none and others:
            without = self._needed[slots[others]] == 0
            for of_all, of_row in zip(found, of_rows.of(others), strict=True):
                of_all[without, : self.beam_size] = of_row[without]
        return Others(
            slots[others].tolist(),
            found.tokens.shape[1],
            found.tokens.ravel().tolist(),
            found.scores.ravel().tolist(),
            found.rows.ravel().tolist(),
            undefined,
        )

    def _others(
        self, slots: NDArray[np.int64], running: Continuations, totals: NDArray[np.float32], undefined: bool
    ) -> list[int]:
        """Which of the searches cannot just run on, or have candidates without numbers."""
        steady = self._steady[slots] > 0
        steady &= running.scores[:, -1] > DEAD_SCORE
        for row in running.tokens.T:
            for end in self._ends[slots].T:
                steady &= row != end
        if undefined:
            steady &= ~np.isnan(totals.reshape(len(slots), -1)).any(axis=1)
        others: list[int] = np.flatnonzero(~steady & self._present[slots]).tolist()
        return others

    def _rename(self) -> None:
        """Has the native step, where there is one, work on arrays that have taken the place of others."""
        self._native = native_step(self.beam_size, {name: getattr(self, name) for name in self._by_slot})
