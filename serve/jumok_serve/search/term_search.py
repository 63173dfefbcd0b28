"""Beam search in which every hypothesis contains given terms."""

# ruff: noqa: D102 - the contract is documented once, in Search

import math
from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jumok_serve.search.constraints import NO_CONSTRAINTS, NO_ENTRIES, Constraints, Entries
from jumok_serve.search.options import SearchOptions
from jumok_serve.search.search import (
    DEAD_SCORE,
    BeamSearch,
    Ended,
    FinishedHypothesis,
    Score,
    by_score,
    normalized_score,
)
from jumok_serve.search.term_rows import OutcomeTable, TermRows
from jumok_serve.search.terms import BOOST, TermAutomaton, Terms, TermState, reachable_terms

ALL_CONTINUATIONS: Final = 2**31 - 1
TERM_LENGTH: Final = 20
"""Length, in tokens, by which the log-probabilities of terms are normalized in every hypothesis."""
AFTER_TERM: Final = 16
"""More candidates of a row after a term: the best may all continue its last word."""


class _Continuations(NamedTuple):
    """Continuations, best first, [n].

    Attributes:
        totals: sums of token scores.
        rows, tokens: rows, and next tokens.
        merits: what ended hypotheses are ranked by.
        left, banks: those of the states after the tokens.
        ends: True for EOS.
    """

    totals: NDArray[np.float64]
    rows: NDArray[np.int64]
    tokens: NDArray[np.int64]
    merits: NDArray[np.float64]
    left: NDArray[np.int32]
    banks: NDArray[np.int32]
    ends: NDArray[np.bool_]

    def ended(self, places: NDArray[np.int64], ranks: NDArray[np.float64], length: int) -> list[Ended]:
        """Return some of them as ended hypotheses of rows with `length` tokens."""
        columns = (column[places].tolist() for column in (ranks, self.rows, self.tokens, self.totals))
        return [Ended(rank, length, row, (token, total)) for rank, row, token, total in zip(*columns, strict=True)]


class TermSearch(BeamSearch):
    """Dynamic beam allocation (Post and Vilar, 2018): the beam is divided among rows by their number of terms.

    Bank b holds the rows that have met or begun b terms. Each bank gets an equal part of the beam. The row that needs
    the fewest tokens for its missing terms always runs on, so after that number of steps all terms are met. Only a
    hypothesis with all terms ends, if it is one of the best k continuations with all terms. The search may stop with k
    ended hypotheses, by ``early_stopping``. Here k is the part of the last bank, at least ``num_hypotheses``.

    Ended hypotheses are ranked by their merit, the sum of token scores without those of terms, divided by
    length^penalty, plus the scores of terms, divided by TERM_LENGTH^penalty. So an unlikely term costs equally at any
    length, and neither short nor long hypotheses gain by it; but where it stands counts.

    The candidates of a row are those of beam search, and all tokens that go on with a term: `boosts` bring these among
    the best. Totals of candidates are log-probabilities, because ``scores`` are 0.

    If no hypothesis with all terms can be written, the result has as few missing terms as were found.
    """

    def __init__(self, options: SearchOptions, prompt: Sequence[int], terms: Terms) -> None:
        _, *prefix = prompt
        self._automaton = TermAutomaton(reachable_terms(terms, options, prefix), options.eos_ids)
        state = self._automaton.start
        for token in prefix:
            state = self._automaton.next(state, token)
        self._states = [state]
        size = self._automaton.size
        last_part = options.beam_size - size * (options.beam_size // (size + 1))
        self._short: list[tuple[int, Ended]] = []  # ended with missing terms, and the tokens these need; best first
        self._rows: TermRows | None = None  # of a search that native steps advance
        self._combined: Constraints | None = None  # boosts that take in other factors
        super().__init__(options, prompt)
        self._least_live, self._most_steady = 1, ALL_CONTINUATIONS
        self._enough_ended = self._most_ended = max(last_part, options.num_hypotheses)
        self.num_continuations = ALL_CONTINUATIONS
        self._prepare_rows()

    @cached_property
    def _table(self) -> OutcomeTable:
        """Outcomes of tokens for the states; searches that native steps advance to their end need none."""
        return OutcomeTable(self._automaton)

    @property
    def _writes(self) -> bool:
        """True if the next step writes tokens that are not forced."""
        return self._forced is None and self.position + 1 >= len(self._prompt)

    @property
    def _is_native(self) -> bool:
        """True if native steps know the rows."""
        return self._rows is not None and not self._rows.full

    @property
    def boosts(self) -> Constraints:
        if self._is_native or not self._writes:
            return NO_CONSTRAINTS
        return self._combined or self._table.boosts(self._states)

    def _prepare_step(self) -> None:
        super()._prepare_step()
        self._combined = None
        if len(self.constraints.factors.values) and (boosts := self.boosts) is not NO_CONSTRAINTS:
            self.constraints, self._combined = _combine(self.constraints, boosts)

    def _prepare_rows(self) -> None:
        """Ask for the candidates that the rows need, and hand the rows to native steps."""
        if self._writes:
            self.num_candidates = self._most_candidates()
        if self._rows is not None and not self._rows.full:
            states = self._states if self._writes else ()
            self._rows.write(states, self._sums, self._merits, self._ended, self._short)

    def native_rows(self) -> int:
        # With a repetition penalty, boosts take in other factors.
        if self._options.repetition_penalty != 1.0 or not TermRows.suit(self._automaton):
            return 0
        self._rows = TermRows(
            self._automaton,
            self._options,
            partial(_most_others, self._options),  # no method: the rows do not hold their search
            most_ended=self._most_ended,
            term_divisor=math.pow(TERM_LENGTH, self._options.length_penalty),
            prompt=len(self._prompt),
        )
        self._prepare_rows()
        return self._rows.address

    def advance(self, tokens: Sequence[int], scores: Sequence[float], rows: Sequence[int]) -> None:
        super().advance(tokens, scores, rows)
        if not self.finished:
            self._prepare_rows()

    def _most_candidates(self) -> int:
        """Return the number of candidates that the rows need."""
        automaton = self._automaton
        return max(_most_others(self._options, one) + len(automaton.boosted(one)) for one in self._states)

    @property
    def steady_steps(self) -> int:
        return super().steady_steps if self._is_native else 0

    def catch_up(self, tokens: NDArray[np.int64], scores: NDArray[np.float32], rows: NDArray[np.int64]) -> None:
        assert self._rows is not None
        sums, self._states, self._merits = self._rows.read()
        self._steps.extend(zip(tokens.tolist(), sums, rows.tolist(), strict=True))
        self.tokens, self._sums, self.parents = self._steps[-1]
        self._ended, self._short = self._rows.ended()
        self.position += len(tokens)
        self._live_rows = self.beam_size
        self.scores = [0.0] * self.beam_size
        self.num_candidates = self._most_candidates()

    def _write(self, tokens: Sequence[int], scores: Sequence[float], rows: Sequence[int]) -> None:
        length = self.position + 1 - len(self._prompt)
        found = self._continuations(tokens, scores, rows)
        ends = found.ends | (length == self._options.max_length)
        if ends.any():
            self._keep_ended(found, ends, length)
        chosen = self._allocate(found, np.flatnonzero(~ends))
        if not len(chosen) and not self._ended:
            self._ended = self._fewest_missing([] if len(ends) else self._rows_as_ended(length - 1))
        chosen_tokens, parents = found.tokens[chosen].tolist(), found.rows[chosen].tolist()
        before = [self._states[row] for row in parents]
        self._states = [*map(self._automaton.next, before, chosen_tokens)]
        self._run_on(chosen_tokens, found.totals[chosen].tolist(), parents)
        self._merits = found.merits[chosen].tolist()
        self.scores = [0.0] * len(chosen) + [DEAD_SCORE] * (self.beam_size - len(chosen))
        self.finished = not len(chosen) or (len(self._ended) == self._most_ended and self._stops(length))

    def _continuations(self, tokens: Sequence[int], scores: Sequence[float], rows: Sequence[int]) -> _Continuations:
        """Return the continuations that are alive, best first: of each row with boosted tokens and the best others."""
        states, table = self._states, self._table
        added = np.array(scores, np.float64)
        alive = np.logical_and.accumulate(added > DEAD_SCORE)  # after a dead one or NaN all are
        of_token, of_row, added = np.array(tokens, np.int64)[alive], np.array(rows, np.int64)[alive], added[alive]
        columns, sums, merits = table.columns_of(of_token), np.array(self._sums)[of_row], np.array(self._merits)[of_row]
        after = table.of(states, of_row, columns)
        kept = np.ones(len(added), np.bool_)
        if self._forced is not None:
            added = added - sums
        else:
            added = np.where(after.boosted, added / BOOST, added)
            # What a batch finds beyond these does not count.
            others = np.array([_most_others(self._options, state) for state in states])
            kept = after.boosted | (_ranks(2 * of_row + after.boosted) < others[of_row])
        nearer = after.left < np.array([state.left for state in states])[of_row]
        totals, merits = sums + added, np.where(nearer, merits, merits + added)
        order = np.lexsort((of_token, of_row, -totals))
        order = order[kept[order]]
        return _Continuations(
            totals=totals[order],
            rows=of_row[order],
            tokens=of_token[order],
            merits=merits[order],
            left=after.left[order],
            banks=after.bank[order],
            ends=table.ends[columns[order]],
        )

    def _keep_ended(self, found: _Continuations, ends: NDArray[np.bool_], length: int) -> None:
        """Keep the best ended hypotheses with all terms, or without if there are none."""
        ranks, complete = self._ranked(found.merits, found.totals, length), found.left == 0
        best = np.sort(ranks[complete])[-self._most_ended :]
        kept = np.flatnonzero(ends & complete & (ranks >= (best[0] if len(best) else DEAD_SCORE)))
        self._ended += found.ended(kept, ranks, length - 1)
        self._ended.sort(key=by_score, reverse=True)  # stable: of equal ones the earlier stays first
        del self._ended[self._most_ended :]
        short = np.flatnonzero(ends & ~complete)
        short = short[np.lexsort((-ranks[short], found.left[short]))][: self.beam_size]
        self._short += zip(found.left[short].tolist(), found.ended(short, ranks, length - 1), strict=True)
        self._short = [] if self._ended else sorted(self._short, key=_by_missing)[: self.beam_size]

    def _rank(self, row: int, length: int) -> float:
        return self._ranked(self._merits[row], self._sums[row], length)

    def _rivals(self) -> Iterable[int]:
        if self._options.early_stopping == "never":
            return super()._rivals()
        return [row for row, state in enumerate(self._states) if state.complete]  # the others have yet to pay for terms

    def _ranked(self, merit: Score, total: Score, length: int) -> Score:
        penalty = self._options.length_penalty
        return normalized_score(merit, length, penalty) + normalized_score(total - merit, TERM_LENGTH, penalty)

    def _fewest_missing(self, rows: Sequence[Ended]) -> list[Ended]:
        """Return the hypotheses that need the fewest tokens for their missing terms.

        Args:
            rows: the present rows, if no continuation is alive.
        """
        missing = [*self._short, *((state.left, row) for state, row in zip(self._states, rows, strict=False))]
        return [one for _, one in sorted(missing, key=_by_missing)]

    def _allocate(self, found: _Continuations, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Choose the continuations that run on: the best of each bank, and the one that needs the fewest tokens."""
        if not len(places):
            return places
        banks = found.banks[places]
        parts = divide(self.beam_size, np.bincount(banks).tolist())
        chosen = _ranks(banks) < np.array(parts)[banks]
        leader = found.left[places].argmin()
        if not chosen[leader]:
            same_bank, lowest = chosen & (banks == banks[leader]), chosen & (banks == banks[chosen].min())
            replaced = np.flatnonzero(same_bank)[-1] if same_bank.any() else np.flatnonzero(lowest)[0]
            chosen[[replaced, leader]] = False, True
        return places[chosen]

    def stable_tokens(self) -> list[int]:
        if self.finished or self._ended:
            return super().stable_tokens()
        return self._shared_tokens(set(range(self._live_rows)), [one for _, one in self._short])

    def _trace(self, ended: Ended) -> FinishedHypothesis:
        hypothesis = super()._trace(ended)
        _, *prefix = self._prompt
        total, length = sum(hypothesis.token_scores), len(hypothesis.token_ids)
        return hypothesis._replace(
            score=normalized_score(total, length, self._options.length_penalty),
            terms=tuple(self._automaton.read((*prefix, *hypothesis.token_ids))),
        )


def divide(places: int, wanted: Sequence[int]) -> list[int]:
    """Divide the places of a beam equally among banks; the highest get the rest, and what others do not want.

    Args:
        wanted: most places of each bank.
    """
    parts = [0] * len(wanted)
    unfilled = [bank for bank in reversed(range(len(wanted))) if wanted[bank]]
    while places and unfilled:
        each = max(1, places // len(unfilled))
        for bank in unfilled:
            given = min(each, wanted[bank] - parts[bank], places)
            parts[bank] += given
            places -= given
        unfilled = [bank for bank in unfilled if wanted[bank] > parts[bank]]
    return parts


def _ranks(groups: NDArray[np.int64] | NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the place of each element among those of its group."""
    order = np.argsort(groups, kind="stable")
    in_order = groups[order]
    ranks = np.empty(len(groups), np.int64)
    ranks[order] = np.arange(len(groups)) - in_order.searchsorted(in_order)
    return ranks


def _combine(constraints: Constraints, boosts: Constraints) -> tuple[Constraints, Constraints]:
    """Move the factors of boosted tokens into the boosts: no place may have two factors."""
    factors, boosted = constraints.factors, boosts.factors
    of_place = dict(zip(map(tuple, factors.places.tolist()), factors.values.tolist(), strict=True))
    values = [of_place.pop(tuple(place), 1.0) * BOOST for place in boosted.places.tolist()]
    left = Entries(np.array([*of_place], np.int64).reshape(-1, 2), np.array([*of_place.values()], np.float32))
    combined = Entries(boosted.places, np.array(values, np.float32))
    return Constraints(left, constraints.biases), Constraints(combined, NO_ENTRIES)


def _by_missing(short: tuple[int, Ended]) -> tuple[int, float]:
    missing, hypothesis = short
    return missing, -hypothesis.score


def _most_others(options: SearchOptions, state: TermState) -> int:
    """Return the number of candidates that a row needs besides boosted ones."""
    more = AFTER_TERM if state.awaits_end else 0
    return options.beam_size + len(options.eos_ids) + more
