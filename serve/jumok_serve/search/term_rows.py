"""States of a search with terms in arrays: the rows that native steps advance, and the outcomes of each token."""

import ctypes
from array import array
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jumok_serve.search.constraints import NO_CONSTRAINTS, NO_ENTRIES, Constraints, Entries
from jumok_serve.search.options import MAX_BEAM_SIZE, SearchOptions
from jumok_serve.search.search import Ended
from jumok_serve.search.step_arrays import RING_STEPS
from jumok_serve.search.terms import BOOST, FEW_READINGS, Reading, TermAutomaton, TermState

_FIELDS: Final = 6
"""Numbers of a state in the table before those by token: left, bank, others, boosted, and two next states."""
_AFTER_OTHER: Final = 4
"""Column of the next state after a token of no term; the next column is for tokens that continue a word."""
_UNKNOWN: Final = -1
_FEW: Final = 24
"""States up to which a table holds all that rows can reach in later steps too."""
_MOST_TOKENS: Final = 64
"""Different tokens of terms up to which a table pays."""
_MOST_STATES: Final = 1024
"""States up to which a table grows by those that rows reach."""
_STOPPING: Final = {False: 0, True: 1, "never": 2}


class _Ended(ctypes.Structure):
    """``EndedRow`` of the native library: an ended hypothesis, and the tokens that its missing terms need."""

    _fields_ = (
        *((name, ctypes.c_double) for name in ("score", "total")),
        *((name, ctypes.c_int64) for name in ("length", "row", "token", "missing")),
    )


class _Fields(ctypes.Structure):
    """``TermRows`` of the native library."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("num_tokens", "num_joins", "banks", "most_ended", "prompt")),
        *((name, ctypes.c_int64) for name in ("max_length", "writes", "stopping")),
        *((name, ctypes.c_double) for name in ("length_penalty", "term_divisor")),
        ("tokens", ctypes.c_void_p),
        ("joins", ctypes.c_char_p),
        *((name, ctypes.c_void_p) for name in ("table", "states", "sums", "merits", "kept_sums", "ended", "shorts")),
        *((name, ctypes.c_int64) for name in ("kept", "num_ended", "num_shorts")),
    )


class TermRows:
    """States, sums and merits of a search's rows, its ended hypotheses, and the table of the states.

    A row of the table has a state's numbers, then by token of `TermAutomaton.tokens` and EOS ids the next state, then
    1 for each boosted token. States enter the table as rows reach them.

    Args:
        most_others: number of candidates that a row in a state needs besides boosted ones.
        term_divisor: divisor of the log-probabilities of terms.
        prompt: length of the prompt.

    Attributes:
        address: address of the ``TermRows`` of the native library.
        full: True if the table has too many states, or states with many readings: Python takes all further steps.
    """

    def __init__(
        self,
        automaton: TermAutomaton,
        options: SearchOptions,
        most_others: Callable[[TermState], int],
        *,
        most_ended: int,
        term_divisor: float,
        prompt: int,
    ) -> None:
        size = options.beam_size
        self._automaton = automaton
        self._most_others = most_others
        self._size = size
        self._tokens = array("q", sorted({*automaton.tokens, *automaton.eos_ids}))
        self._states: list[TermState] = []
        self._numbers: dict[TermState, int] = {}
        self._ready: set[TermState] = set()  # all states after them are in the table
        self._table = array("i")
        self._of_rows = array("q", bytes(8 * size))
        self._scores = array("d", bytes(16 * size))  # sums and merits
        self._kept_sums = array("d", bytes(8 * RING_STEPS * size))
        self._ended, self._shorts = (_Ended * most_ended)(), (_Ended * size)()
        scores, _ = self._scores.buffer_info()
        self._fields = _Fields(
            *(len(self._tokens), len(automaton.terms.joins), automaton.size + 1, most_ended, prompt),
            *(options.max_length, 0, _STOPPING[options.early_stopping]),
            *(options.length_penalty, term_divisor),
            *(self._tokens.buffer_info()[0], automaton.terms.joins, 0, self._of_rows.buffer_info()[0]),
            *(scores, scores + 8 * size, self._kept_sums.buffer_info()[0]),
            *(ctypes.addressof(self._ended), ctypes.addressof(self._shorts)),
        )
        self.address = ctypes.addressof(self._fields)
        self.full = False

    @staticmethod
    def suit(automaton: TermAutomaton) -> bool:
        """True if the terms are few enough for a table."""
        return len(automaton.tokens) <= _MOST_TOKENS

    def read(self) -> tuple[list[list[float]], list[TermState], list[float]]:
        """Return the sums of all native steps since the last call, and states and merits of the rows, all alive."""
        size = self._size
        sums = [self._kept_sums[size * step : size * (step + 1)].tolist() for step in range(self._fields.kept)]
        self._fields.kept = 0
        return sums, [self._states[number] for number in self._of_rows], self._scores[size:].tolist()

    def ended(self) -> tuple[list[Ended], list[tuple[int, Ended]]]:
        """Return the ended hypotheses, and if there are none, those with missing terms and the tokens these need."""
        ended = [_hypothesis(one) for one in self._ended[: self._fields.num_ended]]
        return ended, [(one.missing, _hypothesis(one)) for one in self._shorts[: self._fields.num_shorts]]

    def write(
        self,
        states: Sequence[TermState],
        sums: Sequence[float],
        merits: Sequence[float],
        ended: Sequence[Ended],
        short: Sequence[tuple[int, Ended]],
    ) -> None:
        """Set the live rows and the ended hypotheses.

        Args:
            states, sums, merits: of the live rows; none if the next step writes no token, or a forced one.
            ended, short: as `ended` returns them.
        """
        for state in states:
            if not self.full and state not in self._ready:
                self._look_ahead(state)
                self.full = len(self._states) > _MOST_STATES or self._automaton.is_ambiguous
        live = 0 if self.full else len(states)
        fields, size = self._fields, self._size
        fields.writes = live > 0
        self._of_rows[:live] = array("q", [self._numbers[state] for state in states[:live]])
        self._scores[:live], self._scores[size : size + live] = array("d", sums[:live]), array("d", merits[:live])
        fields.num_ended, fields.num_shorts = len(ended), len(short)
        self._ended[: len(ended)] = [_numbers_of(one, 0) for one in ended]
        self._shorts[: len(short)] = [_numbers_of(one, missing) for missing, one in short]

    def _look_ahead(self, state: TermState) -> None:
        """Put the states into the table that a row can reach in one step, or in any number if there are few."""
        self._expand(state)
        for reached in self._states:  # grows meanwhile
            if len(self._states) > _FEW or self._automaton.is_ambiguous:
                break
            self._expand(reached)

    def _number(self, state: TermState) -> int:
        """Return a state's row in the table."""
        number = self._numbers.get(state)
        if number is None:
            number = self._numbers[state] = len(self._states)
            self._states.append(state)
            boosted = self._automaton.boosted(state)
            self._table.extend((state.left, state.bank, self._most_others(state), len(boosted)))
            self._table.extend([_UNKNOWN] * (_FIELDS - _AFTER_OTHER + len(self._tokens)))
            self._table.extend([token in boosted for token in self._tokens])
            self._fields.table, _ = self._table.buffer_info()
        return number

    def _expand(self, state: TermState) -> None:
        """Put the next states of a state into the table."""
        if state in self._ready:
            return
        self._ready.add(state)
        first = self._number(state) * (_FIELDS + 2 * len(self._tokens)) + _AFTER_OTHER
        others = [self._number(self._automaton.after_other(state, joins=joins)) for joins in (False, True)]
        after = array("i", others)
        for token in self._tokens:
            if self._automaton.is_ambiguous:
                return
            after.append(self._after(state, token, others))
        self._table[first : first + len(after)] = after

    def _after(self, state: TermState, token: int, others: Sequence[int]) -> int:
        """Return the number of the next state, given those after tokens of no term."""
        automaton = self._automaton
        if token in automaton.boosted(state):
            return self._number(automaton.next(state, token))
        return others[automaton.terms.continues_word(token)]


def _hypothesis(one: _Ended) -> Ended:
    return Ended(one.score, one.length, one.row, (one.token, one.total))


def _numbers_of(one: Ended, missing: int) -> _Ended:
    token, total = one.last or (0, 0.0)
    return _Ended(one.score, total, one.length, one.row, token, missing)


_NO_TOKEN: Final = -1
_KEPT_BYTES: Final = 2**22
"""Outcomes that a table keeps at least; those of the oldest states go when it has twice as many."""
_FAR: Final = 2**30
"""More tokens than any way to all terms takes."""


class Outcomes(NamedTuple):
    """States after all tokens, by column of `OutcomeTable`.

    Attributes:
        boosted: True for the tokens of `TermAutomaton.boosted`.
        left, bank: those of the states.
        known: False as long as a state has not been looked at.
    """

    boosted: NDArray[np.bool_]
    left: NDArray[np.int32]
    bank: NDArray[np.int32]
    known: NDArray[np.bool_]


_OUTCOME_BYTES: Final = 10
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
        boosted, known = np.zeros((2, size), np.bool_)
        boosted[[self._columns[token] for token in self._automaton.boosted(state)]] = True
        left, bank = np.zeros((2, size), np.int32)
        known[:] = True
        for joins in (False, True) if state.awaits_end else (None,):
            chosen = slice(None) if joins is None else self._joined == joins
            left[chosen], bank[chosen], known[chosen] = (
                found[chosen] for found in self._after_any(state.readings, joins=bool(joins))
            )
        known[[self._columns[token] for token in self._automaton.going_on(state.readings)]] = False
        left[self._of_eos], bank[self._of_eos] = state.left, state.bank
        outcomes = Outcomes(boosted, left, bank, known)
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
            known[self._firsts] = 2 * len(idle) <= FEW_READINGS and not automaton.is_exhausted
        return left, bank, known

    def _added_by_firsts(self, unmet: int) -> NDArray[np.int32]:
        """Return by first token what it adds to the shortest way at least, if it begins an unmet term."""
        is_unmet = np.array([unmet >> term & 1 for term in self._terms], np.bool_)
        least: NDArray[np.int32] = np.minimum.reduceat(np.where(is_unmet, self._added, _FAR), self._begins)
        return least

    def _look_at(self, state: TermState, outcomes: Outcomes, column: int) -> None:
        """Find the outcome of one token by its state."""
        after = self._automaton.next(state, int(self._tokens[column]))
        outcomes.left[column], outcomes.bank[column] = after.left, after.bank
        outcomes.known[column] = True
