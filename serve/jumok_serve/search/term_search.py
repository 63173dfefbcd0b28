"""Beam search in which every hypothesis contains given terms."""

# ruff: noqa: D102 - the contract is documented once, in Search

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from jumok_serve.search.beam import BeamSearch, Ended, by_score
from jumok_serve.search.constraints import NO_CONSTRAINTS, NO_ENTRIES, Constraints, Entries
from jumok_serve.search.options import SearchOptions
from jumok_serve.search.search import DEAD_SCORE, FinishedHypothesis, normalized_score
from jumok_serve.search.term_rows import TermRows
from jumok_serve.search.terms import BOOST, TermAutomaton, Terms, TermState, reachable_terms

_Continuation: TypeAlias = tuple[float, int, int, TermState, float]
"""Negated sum of token scores, row, next token, state after it, and merit; ordered so that the best is first."""
ALL_CONTINUATIONS: Final = 2**31 - 1
TERM_LENGTH: Final = 20
"""Length, in tokens, by which the log-probabilities of terms are normalized in every hypothesis."""
AFTER_TERM: Final = 16
"""More candidates of a row after a term: the best may all continue its last word."""


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
            state = state.next(token)
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
        return self._combined or self._automaton.boosts(self._states)

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
            partial(_most_others, self._options, self._automaton),  # no method: the rows do not hold their search
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
        return max(_most_others(self._options, self._automaton, state) + len(state.boosted) for state in self._states)

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
        at_maximum = length == self._options.max_length
        found = self._continuations(tokens, scores, rows)
        banks: list[list[_Continuation]] = [[] for _ in range(self._automaton.size + 1)]
        ended: list[_Continuation] = []
        for one in found:
            if at_maximum or one[2] in self._eos_ids:
                ended.append(one)
            else:
                banks[one[3].bank].append(one)
        if ended:
            self._keep_ended(ended, found, length)
        chosen = self._allocate(banks)
        if not chosen and not self._ended:
            self._ended = self._fewest_missing([] if found else self._rows_as_ended(length - 1))
        self._states = [one[3] for one in chosen]
        self._run_on([one[2] for one in chosen], [-one[0] for one in chosen], [one[1] for one in chosen])
        self._merits = [one[4] for one in chosen]
        self.scores = [0.0] * len(chosen) + [DEAD_SCORE] * (self.beam_size - len(chosen))
        self.finished = not chosen or (len(self._ended) == self._most_ended and self._stops(length))

    def _continuations(
        self, tokens: Sequence[int], scores: Sequence[float], rows: Sequence[int]
    ) -> list[_Continuation]:
        """Return the continuations that are alive, best first: of each row with boosted tokens and the best others."""
        states, sums, merits, eos_ids = self._states, self._sums, self._merits, self._eos_ids
        forced = self._forced is not None
        # What a batch finds beyond these does not count.
        others = [_most_others(self._options, self._automaton, state) for state in states]
        boosted = [state.boosted for state in states]
        left = sum(others) + sum(map(len, boosted))
        found = []
        for token, score, row in zip(tokens, scores, rows, strict=True):
            if not left or not score > DEAD_SCORE:  # or NaN, as are all that follow
                break
            state = states[row]
            added = score
            if forced:
                added = score - sums[row]
            elif token in boosted[row]:
                added = score / BOOST
                left -= 1
            elif others[row]:
                others[row] -= 1
                left -= 1
            else:
                continue
            after = state if token in eos_ids else state.next(token)
            if not after.surplus:
                merit = merits[row] if after.left < state.left else merits[row] + added
                found.append((-(sums[row] + added), row, token, after, merit))
        found.sort()
        return found

    def _keep_ended(self, ended: Sequence[_Continuation], found: Sequence[_Continuation], length: int) -> None:
        """Keep the best ended hypotheses with all terms, or without if there are none."""
        complete = sorted((self._rank_of(one, length) for one in found if one[3].complete), reverse=True)
        worst = complete[: self._most_ended][-1] if complete else DEAD_SCORE
        for one in ended:
            negated, row, token, state, _ = one
            final = self._rank_of(one, length)
            hypothesis = Ended(final, length - 1, row, (token, -negated))
            if not state.complete:
                self._short.append((state.left, hypothesis))
            elif final >= worst:
                self._ended.append(hypothesis)
        self._ended.sort(key=by_score, reverse=True)  # stable: of equal ones the earlier stays first
        del self._ended[self._most_ended :]
        self._short = [] if self._ended else sorted(self._short, key=_by_missing)[: self.beam_size]

    def _rank_of(self, continuation: _Continuation, length: int) -> float:
        negated, *_, merit = continuation
        return self._ranked(merit, -negated, length)

    def _rank(self, row: int, length: int) -> float:
        return self._ranked(self._merits[row], self._sums[row], length)

    def _rivals(self) -> Iterable[int]:
        if self._options.early_stopping == "never":
            return super()._rivals()
        return [row for row, state in enumerate(self._states) if state.complete]  # the others have yet to pay for terms

    def _ranked(self, merit: float, total: float, length: int) -> float:
        penalty = self._options.length_penalty
        return normalized_score(merit, length, penalty) + normalized_score(total - merit, TERM_LENGTH, penalty)

    def _fewest_missing(self, rows: Sequence[Ended]) -> list[Ended]:
        """Return the hypotheses that need the fewest tokens for their missing terms.

        Args:
            rows: the present rows, if no continuation is alive.
        """
        missing = [*self._short, *((state.left, row) for state, row in zip(self._states, rows, strict=False))]
        return [one for _, one in sorted(missing, key=_by_missing)]

    def _allocate(self, banks: Sequence[Sequence[_Continuation]]) -> list[_Continuation]:
        """Choose the continuations that run on: the best of each bank, and the one that needs the fewest tokens."""
        parts = divide(self.beam_size, [len(bank) for bank in banks])
        chosen = [one for bank, part in zip(banks, parts, strict=True) for one in bank[:part]]
        if not chosen:
            return []
        leader = min((one for bank in banks for one in bank), key=lambda one: (one[3].left, one))
        if leader not in chosen:
            same_bank = [one for one in chosen if one[3].bank == leader[3].bank]
            chosen.remove(same_bank[-1] if same_bank else chosen[0])
            chosen.append(leader)
        return sorted(chosen)

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


def _most_others(options: SearchOptions, automaton: TermAutomaton, state: TermState) -> int:
    """Return the number of candidates that a row needs besides boosted ones."""
    more = AFTER_TERM if state.awaits_end else 0
    return options.beam_size + len(options.eos_ids) + len(automaton.once) + more
