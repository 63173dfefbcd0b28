"""Rows of a search with terms, in arrays that native steps read and advance."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jumok_serve.native import address
from jumok_serve.search.options import SearchOptions
from jumok_serve.search.terms import TermAutomaton, TermState

_FIELDS: Final = 7
"""Numbers of a state in the table before those by token: left, bank, surplus, others, boosted, and two next states."""
_AFTER_OTHER: Final = 5
"""Column of the next state after a token of no term; the next column is for tokens that continue a word."""
_UNKNOWN: Final = -1
_FIRST_STATES: Final = 16
_FEW: Final = 4
"""Boosted tokens of a state up to which the states after the next are looked up too."""


class _Fields(ctypes.Structure):
    """``TermRows`` of the native library."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("num_tokens", "num_joins", "banks", "most_ended", "prompt")),
        *((name, ctypes.c_int64) for name in ("max_length", "writes", "keeps_short")),
        *((name, ctypes.c_double) for name in ("length_penalty", "term_divisor")),
        *((name, ctypes.c_void_p) for name in ("tokens", "joins", "table", "states", "sums", "merits")),
    )


class TermRows:
    """States, sums and merits of a search's rows, and the table of their states.

    A row of the table has a state's numbers, then by token of `TermAutomaton.tokens` and EOS ids the next state, then
    1 for each boosted token. States enter the table as rows reach them.

    Args:
        most_others: number of candidates that a row in a state needs besides boosted ones.
        term_divisor: divisor of the log-probabilities of terms.
        prompt: length of the prompt.
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
        self._automaton = automaton
        self._most_others = most_others
        self._tokens = tokens = sorted({*automaton.tokens, *automaton.eos_ids})
        self._states: list[TermState] = []
        self._numbers: dict[TermState, int] = {}
        self._ready: set[TermState] = set()
        self._table: NDArray[np.int32] = np.zeros((0, _FIELDS + 2 * len(tokens)), np.int32)
        self._of_rows: NDArray[np.int64] = np.zeros(options.beam_size, np.int64)
        self._scores: NDArray[np.float64] = np.zeros((2, options.beam_size), np.float64)  # sums and merits
        self._token_ids: NDArray[np.int64] = np.array(tokens, np.int64)
        self._joins: NDArray[np.uint8] = np.frombuffer(automaton.terms.joins or b"\0", np.uint8)
        self._fields = _Fields(
            num_tokens=len(tokens),
            num_joins=len(self._joins),
            banks=automaton.size + 1,
            most_ended=most_ended,
            prompt=prompt,
            max_length=options.max_length,
            length_penalty=options.length_penalty,
            term_divisor=term_divisor,
            tokens=address(self._token_ids),
            joins=address(self._joins),
            states=address(self._of_rows),
            sums=address(self._scores),
            merits=address(self._scores[1:]),
        )
        self.address = ctypes.addressof(self._fields)

    def read(self) -> tuple[list[TermState], list[float]]:
        """Return states and merits of the rows, all of them alive, after native steps."""
        return [self._states[number] for number in self._of_rows.tolist()], self._scores[1].tolist()

    def write(
        self, states: Sequence[TermState], sums: Sequence[float], merits: Sequence[float], *, keeps_short: bool
    ) -> None:
        """Set the live rows.

        Args:
            states, sums, merits: of the live rows; none if the next step writes no token, or a forced one.
            keeps_short: True if ended hypotheses with missing terms count.
        """
        live = len(states)
        self._fields.writes, self._fields.keeps_short = live > 0, keeps_short
        if live:
            for state in {*states} - self._ready:
                self._look_ahead(state)
            self._of_rows[:live] = [self._numbers[state] for state in states]
            self._scores[:, :live] = sums[:live], merits[:live]

    def _look_ahead(self, state: TermState) -> None:
        """Put the states into the table that a row can reach in one step, or in two if there are few."""
        self._ready.add(state)
        self._expand(state)
        if len(state.boosted) <= _FEW:
            self._expand(state.after_other(False))
            for token in state.boosted:
                self._expand(state.next(token))

    def _number(self, state: TermState) -> int:
        """Return a state's row in the table."""
        number = self._numbers.get(state)
        if number is not None:
            return number
        number = self._numbers[state] = len(self._states)
        self._states.append(state)
        if number == len(self._table):
            more = np.full((max(number, _FIRST_STATES), self._table.shape[1]), _UNKNOWN, np.int32)
            self._table = np.concatenate((self._table, more))
            self._fields.table = address(self._table)
        row = self._table[number]
        others, boosted = self._most_others(state), len(state.boosted)
        row[:_AFTER_OTHER] = state.left, state.bank, state.surplus, others, boosted
        row[_FIELDS + len(self._tokens) :] = [token in state.boosted for token in self._tokens]
        return number

    def _expand(self, state: TermState) -> None:
        """Put the next states of a state into the table."""
        number = self._number(state)
        if self._table[number, _AFTER_OTHER] != _UNKNOWN:
            return
        others = [self._number(state.after_other(joins)) for joins in (False, True)]
        after = [self._after(state, token, others) for token in self._tokens]
        self._table[number, _AFTER_OTHER : _FIELDS + len(after)] = [*others, *after]

    def _after(self, state: TermState, token: int, others: Sequence[int]) -> int:
        """Return the number of the next state, given those after tokens of no term."""
        automaton = self._automaton
        if token in state.boosted:
            return self._number(state.next(token))
        # Of tokens that are not boosted, only these may change the state. Python looks at the few such steps.
        return _UNKNOWN if token in automaton.once_tokens else others[automaton.terms.continues_word(token)]
