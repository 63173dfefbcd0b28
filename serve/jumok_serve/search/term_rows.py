"""Rows of a search with terms, in arrays that native steps read and advance."""

import ctypes
from array import array
from collections.abc import Callable, Sequence
from typing import Final

from jumok_serve.search.options import SearchOptions
from jumok_serve.search.search import Ended
from jumok_serve.search.step_arrays import RING_STEPS
from jumok_serve.search.terms import TermAutomaton, TermState

_FIELDS: Final = 7
"""Numbers of a state in the table before those by token: left, bank, surplus, others, boosted, and two next states."""
_AFTER_OTHER: Final = 5
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
            self._table.extend((state.left, state.bank, state.surplus, self._most_others(state), len(boosted)))
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
        # Of tokens that are not boosted, only these may change the state. Python looks at the few such steps.
        return _UNKNOWN if token in automaton.once_tokens else others[automaton.terms.continues_word(token)]


def _hypothesis(one: _Ended) -> Ended:
    return Ended(one.score, one.length, one.row, (one.token, one.total))


def _numbers_of(one: Ended, missing: int) -> _Ended:
    token, total = one.last or (0, 0.0)
    return _Ended(one.score, total, one.length, one.row, token, missing)
