"""Outcomes of each token for the states of a search with terms, in arrays."""

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jumok_serve.search.constraints import NO_CONSTRAINTS, NO_ENTRIES, Constraints, Entries
from jumok_serve.search.options import MAX_BEAM_SIZE
from jumok_serve.search.terms import BOOST, FEW_READINGS, Reading, TermAutomaton, TermState

_NO_TOKEN: Final = -1
_KEPT_BYTES: Final = 2**22
"""Outcomes that a table keeps at least; those of the oldest states go when it has twice as many."""
_FAR: Final = 2**30
"""More tokens than any way to all terms takes."""


class Outcomes(NamedTuple):
    """States after all tokens, by column of `OutcomeTable`.

    Attributes:
        boosted: True for the tokens of `TermAutomaton.boosted`.
        left, bank, surplus: those of the states.
        known: False as long as a state has not been looked at.
    """

    boosted: NDArray[np.bool_]
    left: NDArray[np.int32]
    bank: NDArray[np.int32]
    surplus: NDArray[np.bool_]
    known: NDArray[np.bool_]


_OUTCOME_BYTES: Final = 11
"""Bytes of a token's outcome."""


class OutcomeTable:
    """Outcomes of the states of an automaton.

    There is a column for each token of the terms and each EOS id, then one for all other tokens, and one for those of
    them that continue a word. EOS leaves a state as it is. Most tokens that begin a term need no state of their own:
    what counts of it follows from the readings before it.
    """

    def __init__(self, automaton: TermAutomaton) -> None:
        self._automaton = automaton
        self._eos = frozenset(automaton.eos_ids)
        tokens = sorted({*automaton.tokens, *self._eos})
        self._tokens = np.array([*tokens, _NO_TOKEN], np.int64)
        self._columns = {token: column for column, token in enumerate(tokens)}
        joins = automaton.terms.joins
        self._joins = np.frombuffer(joins, np.uint8) != 0
        self._joined = np.array([*map(automaton.terms.continues_word, tokens), False, True])
        self._of_eos = [self._columns[token] for token in self._eos]
        self.ends = np.zeros(len(tokens) + 2, np.bool_)
        self.ends[self._of_eos] = True
        # By first token: the terms that it begins, one after the other, and what each adds to the shortest way.
        firsts = sorted(automaton.first_tokens().items())
        self._firsts = [self._columns[token] for token, _ in firsts]
        self._terms = [term for _, added in firsts for term in added]
        self._added = np.array([more for _, added in firsts for more in added.values()], np.int32)
        self._begins = np.cumsum([0, *(len(added) for _, added in firsts)], dtype=np.int64)[:-1]
        self._once = np.array([token in automaton.once_tokens for token, _ in firsts], np.bool_)
        of_token = [{automaton.terms.alternatives[term] for term in added} for _, added in firsts]
        self._alike = np.array([len(terms) == 1 for terms in of_token], np.bool_)
        self._known: dict[TermState, Outcomes] = {}
        self._older: dict[TermState, Outcomes] = {}
        self._most_known = max(MAX_BEAM_SIZE, _KEPT_BYTES // (_OUTCOME_BYTES * len(self._joined)))
        self._boosts: tuple[Sequence[TermState], Constraints] = ((), NO_CONSTRAINTS)

    def columns_of(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the columns of tokens."""
        places = self._tokens[:-1].searchsorted(tokens)
        joined = np.zeros(len(tokens), np.bool_)
        inside = tokens < len(self._joins)
        joined[inside] = self._joins[tokens[inside]]
        return np.where(self._tokens[places] == tokens, places, len(self._columns) + joined)

    def of(self, states: Sequence[TermState], rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Outcomes:
        """Return the outcomes of states, [n], by row and column, [N]."""
        outcomes = [self._outcomes(state) for state in states]
        known = np.stack([one.known for one in outcomes])[rows, columns]
        for place in np.flatnonzero(~known).tolist():
            self._look_at(states[rows[place]], outcomes[rows[place]], columns[place])
        return Outcomes(*(np.stack(of_states)[rows, columns] for of_states in zip(*outcomes, strict=True)))

    def boosts(self, states: Sequence[TermState]) -> Constraints:
        """Return the factors that raise the boosted tokens, for rows in these states; the last object if equal."""
        last, boosts = self._boosts
        if last != states:
            boosted = np.stack([self._outcomes(state).boosted for state in states])
            rows, columns = np.nonzero(boosted)
            places = np.stack((rows, self._tokens[columns]), axis=1)
            factors = Entries(places, np.full(len(places), BOOST, np.float32))
            boosts = Constraints(factors, NO_ENTRIES) if len(places) else NO_CONSTRAINTS
            self._boosts = [*states], boosts
        return boosts

    def _outcomes(self, state: TermState) -> Outcomes:
        """Return the outcomes of a state, which are found once as long as they are kept."""
        outcomes = self._known.get(state)
        if outcomes is None:
            outcomes = self._older.get(state) or self._find(state)
            if len(self._known) >= self._most_known:
                self._known, self._older = {}, self._known
            self._known[state] = outcomes
        return outcomes

    def _find(self, state: TermState) -> Outcomes:
        size = len(self._joined)
        boosted, surplus, known = np.zeros((3, size), np.bool_)
        boosted[[self._columns[token] for token in self._automaton.boosted(state)]] = True
        left, bank = np.zeros((2, size), np.int32)
        known[:] = True
        for joins in (False, True) if state.awaits_end else (None,):
            chosen = slice(None) if joins is None else self._joined == joins
            left[chosen], bank[chosen], known[chosen] = (
                found[chosen] for found in self._after_any(state.readings, joins=bool(joins))
            )
        known[[self._columns[token] for token in self._automaton.going_on(state.readings)]] = False
        left[self._of_eos], bank[self._of_eos], surplus[self._of_eos] = state.left, state.bank, state.surplus
        outcomes = Outcomes(boosted, left, bank, surplus, known)
        for column in np.flatnonzero(boosted & ~known).tolist():
            self._look_at(state, outcomes, column)
        return outcomes

    def _after_any(
        self, readings: Collection[Reading], *, joins: bool
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_]]:
        """Return left, bank and known after tokens that go on with no pending ones."""
        automaton = self._automaton
        idle = [*{unmet for reading in readings for unmet, _ in automaton.idle(reading, joins=joins)}]
        missing = np.array([automaton.left(Reading(unmet, ())) for unmet in idle], np.int32)
        met = np.array([automaton.size - unmet.bit_count() for unmet in idle], np.int32)
        left, bank = np.full(len(self._joined), missing.min()), np.full(len(self._joined), met.max())
        known = np.ones(len(self._joined), np.bool_)
        if self._firsts:
            added = np.stack([self._added_by_firsts(unmet) for unmet in idle])
            begins = added < _FAR
            # Few readings are all followed, except one whose pending tokens another has too, which has met more.
            for number, unmet in enumerate(idle):
                more = [other for other, rest in enumerate(idle) if rest != unmet and rest & unmet == rest]
                added[number, begins[more].any(axis=0)] = _FAR
            begun = added < _FAR
            left[self._firsts] = np.minimum(left[self._firsts], (missing[:, None] + added).min(axis=0))
            bank[self._firsts] = np.maximum(bank[self._firsts], ((met[:, None] + 1) * begun).max(axis=0))
            few = 2 * len(idle) <= FEW_READINGS and not automaton.is_exhausted
            known[self._firsts] = few & (~self._once | (self._alike & begins.all(axis=0)))
        return left, bank, known

    def _added_by_firsts(self, unmet: int) -> NDArray[np.int32]:
        """Return by first token what it adds to the shortest way at least, if it begins an unmet term."""
        is_unmet = np.array([unmet >> term & 1 for term in self._terms], np.bool_)
        least: NDArray[np.int32] = np.minimum.reduceat(np.where(is_unmet, self._added, _FAR), self._begins)
        return least

    def _look_at(self, state: TermState, outcomes: Outcomes, column: int) -> None:
        """Find the outcome of one token by its state."""
        after = self._automaton.next(state, int(self._tokens[column]))
        outcomes.left[column], outcomes.bank[column], outcomes.surplus[column] = after.left, after.bank, after.surplus
        outcomes.known[column] = True
