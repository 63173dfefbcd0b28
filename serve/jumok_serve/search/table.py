"""Searches that take part in the same steps: what they ask, and what comes of it, for all of them at once."""

from collections.abc import Collection, Sequence
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
    """

    def __init__(self, beam_size: int) -> None:
        self.beam_size = beam_size
        self.constraints: list[Constraints] = []
        """By slot, what acts on the scores of the next step."""
        self._searches: list[Search | None] = []
        self._asked = np.zeros(0, _asked(beam_size))
        self._kept = np.zeros(0, _kept(beam_size))
        self._ends: NDArray[np.int64] = np.zeros((0, 0), np.int64)  # [slots, E], tokens that end hypotheses

    def join(self, slots: Sequence[int], searches: Sequence[Search]) -> None:
        """Takes in searches that have not begun, each into the slot named for it."""
        self._reserve(max(slots) + 1, max(len(search.eos_ids) for search in searches))
        for slot, search in zip(slots, searches, strict=True):
            self._searches[slot] = search
            self._ends[slot] = _NO_TOKEN
            self._ends[slot, : len(search.eos_ids)] = search.eos_ids
            self._kept[slot]["steps"] = 0
            self._ask(slot, search)

    def leave(self, slots: Sequence[int]) -> None:
        """Takes out searches; until others take their slots, these ask for a first step, again and again."""
        for slot in slots:
            self._searches[slot] = None
        asked = self._asked
        asked["draws"][slots], asked["steady_steps"][slots], asked["position"][slots] = False, 0, 0

    def move(self, slots: Sequence[int], to: Sequence[int]) -> None:
        """Puts the searches of some slots into others, none of which is among them."""
        for slot, place in zip(slots, to, strict=True):
            self._searches[place], self.constraints[place] = self._searches[slot], self.constraints[slot]
        for array in (self._asked, self._kept, self._ends):
            array[to] = array[slots]

    def search(self, slot: int) -> Search:
        """The search in a slot, which has taken in all steps so far."""
        search = self._searches[slot]
        assert search is not None
        if steps := int(self._kept[slot]["steps"]):
            kept = self._kept[slot]
            search.catch_up(*(kept[name][:steps].tolist() for name in ("tokens", "scores", "rows")))
            kept["steps"] = 0
        return search

    def asked(self, searches: int) -> NDArray[Any]:
        """What the first so many ask of the next step, by names of `Search`; it changes when they advance."""
        return self._asked[:searches]

    def advance(
        self, tokens: NDArray[np.int64], totals: NDArray[np.float32], failed: Collection[int] = ()
    ) -> list[int]:
        """Hands the first searches what has come of a step.

        Args:
            tokens: of each row's best candidates, best first, equal ones by lower token, or of what was drawn for it
                [n * K, C].
            totals: their sums of token scores, [n * K, C].
            failed: slots whose searches are to be handed nothing.

        Returns:
            The slots of those that have finished with this step.
        """
        asked = self._asked[: len(tokens) // self.beam_size]
        best = of_rows = None
        if most := int(asked["continuations_needed"].max()):
            best = best_continuations(tokens, totals, self.beam_size, most)
        if not asked["continuations_needed"].all():
            of_rows = each_rows_best(tokens, totals, self.beam_size)
        steady = self._write(asked, best or of_rows)
        steady[list(failed)] = True
        finished = []
        for slot in np.flatnonzero(~steady).tolist():
            if self._searches[slot] is None:
                asked["position"][slot] = 0
                continue
            search, seen = self.search(slot), best if asked["continuations_needed"][slot] else of_rows
            assert seen is not None
            search.advance(*(of_all[slot].tolist() for of_all in seen))
            if search.finished:
                finished.append(slot)
            else:
                self._ask(slot, search)
        return finished

    def _write(self, asked: NDArray[Any], found: Continuations | None) -> NDArray[np.bool_]:
        """Goes on with the best continuations wherever these run on and nothing else happens; says where that is."""
        assert found is not None
        tokens, scores, rows = (of_all[:, : self.beam_size] for of_all in found)
        if tokens.shape[1] < self.beam_size:  # there are not as many tokens
            return np.zeros(len(asked), np.bool_)
        ends = (tokens[:, :, None] == self._ends[: len(asked), None]).any(axis=(1, 2))
        steady: NDArray[np.bool_] = (asked["steady_steps"] > 0) & ~ends & (scores[:, -1] > DEAD_SCORE)
        kept = self._kept[: len(asked)]
        place = np.arange(len(asked)), kept["steps"]
        for name, written, fed in (
            ("tokens", tokens, "tokens"),
            ("scores", scores, "scores"),
            ("rows", rows, "parents"),
        ):
            kept[name][place] = written
            asked[fed] = written
        asked["position"] += 1
        asked["steady_steps"] -= 1
        kept["steps"] += steady
        return steady

    def _ask(self, slot: int, search: Search) -> None:
        """Takes note of what a search that knows all steps asks of the next one."""
        self._asked[slot] = (
            search.tokens,
            search.scores,
            search.parents,
            search.position,
            search.candidates_needed,
            min(search.steady_steps, MOST_KEPT),
            search.continuations_needed,
            search.draws is not None,
            search.acts_on_logits,
            search.renormalizes,
        )
        self.constraints[slot] = search.constraints

    def _reserve(self, slots: int, ends: int) -> None:
        """Makes room for slots, and for the tokens that end hypotheses of a search."""
        more, wider = max(0, slots - len(self._searches)), max(0, ends - self._ends.shape[1])
        if more:
            more = max(more, len(self._searches))
            self._searches += [None] * more
            self.constraints += [NO_CONSTRAINTS] * more
            self._asked, self._kept = (
                np.concatenate((array, np.zeros(more, array.dtype))) for array in (self._asked, self._kept)
            )
        if more or wider:
            self._ends = np.pad(self._ends, ((0, more), (0, wider)), constant_values=_NO_TOKEN)


def _asked(beam_size: int) -> np.dtype[np.void]:
    """What a search asks of a step; the names are those of `Search`."""
    return np.dtype(
        [
            ("tokens", np.int64, (beam_size,)),
            ("scores", np.float32, (beam_size,)),
            ("parents", np.int64, (beam_size,)),
            ("position", np.int64),
            ("candidates_needed", np.int64),
            ("steady_steps", np.int64),
            ("continuations_needed", np.int64),
            ("draws", np.bool_),  # whether there are any
            ("acts_on_logits", np.bool_),
            ("renormalizes", np.bool_),
        ]
    )


def _kept(beam_size: int) -> np.dtype[np.void]:
    """How many steps a search has still to take in, and what was written at each: see `Search.catch_up`."""
    return np.dtype(
        [
            ("steps", np.int64),
            ("tokens", np.int64, (MOST_KEPT + 1, beam_size)),
            ("scores", np.float32, (MOST_KEPT + 1, beam_size)),
            ("rows", np.int64, (MOST_KEPT + 1, beam_size)),
        ]
    )
