"""Hugging Face's logits processors as sparse constraints on scores.

Python makes them from the tokens of a row, and the decoder's device applies them. No array of vocabulary size reaches
Python. As in ``generate``, the repetition penalty comes first, then all that forbids tokens. A forced token overrules
both, unless it is suppressed.
"""

import math
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jumok_serve.search.options import SearchOptions


class Entries(NamedTuple):
    """Sparse entries of a score matrix: (row, token) [N, 2], values [N]."""

    places: NDArray[np.int64]
    values: NDArray[np.float32]


NO_ENTRIES: Final = Entries(np.zeros((0, 2), np.int64), np.zeros(0, np.float32))


class Constraints(NamedTuple):
    """Constraints on the scores of one step; rows count within the sentence.

    Attributes:
        factors: multiply a score below 0, divide one above 0; no place twice.
        biases: added after the factors.
    """

    factors: Entries
    biases: Entries


NO_CONSTRAINTS: Final = Constraints(NO_ENTRIES, NO_ENTRIES)


def concatenate_constraints(parts: Iterable[tuple[int, Constraints]]) -> Constraints:
    """Concatenate the constraints of several searches, each given with its first row."""
    present = [part for part in parts if part[1] is not NO_CONSTRAINTS]
    if not present:
        return NO_CONSTRAINTS
    if len(present) == 1 and present[0][0] == 0:
        return present[0][1]
    firsts, constraints = zip(*present, strict=True)
    factors, biases = zip(*constraints, strict=True)
    return Constraints(_concatenated(firsts, factors), _concatenated(firsts, biases))


def with_boosts(constraints: Constraints, boosts: Constraints) -> Constraints:
    """Add boosts to the constraints on log-probabilities of the same rows."""
    if boosts is NO_CONSTRAINTS:
        return constraints
    if constraints.factors is NO_ENTRIES:  # boosts are nothing but factors
        return Constraints(boosts.factors, constraints.biases) if constraints is not NO_CONSTRAINTS else boosts
    return concatenate_constraints([(0, constraints), (0, boosts)])


def _concatenated(firsts: Sequence[int], parts: Sequence[Entries]) -> Entries:
    places = np.concatenate([part.places for part in parts])
    places[:, 0] += np.repeat(np.array(firsts), [len(part.values) for part in parts])
    return Entries(places, np.concatenate([part.values for part in parts]))


class ConstraintRules:
    """Makes the constraints of searches with the same options; see `rules_of`.

    A length counts all tokens of a row, prompt included.

    Args:
        prompt: length of the prompt: start token and target prefix.

    Attributes:
        need_history: True if constraints depend on the tokens of a row.
    """

    def __init__(self, options: SearchOptions, prompt: int, rows: int) -> None:
        self._options = options
        self._prompt = prompt
        self._rows = rows
        self._forbidden = {
            *options.suppress_tokens,
            *(word[0] for word in options.bad_words if len(word) == 1 and word[0] not in options.eos_ids),
        }
        self._longer_bad_words = [(word[:-1], word[-1]) for word in options.bad_words if len(word) > 1]
        # If the first token is forced, the second is the first free one.
        self._begin = self._prompt + (self._prompt == 1 and options.forced_first_token is not None)
        self._before_last = self._prompt + options.max_length - 1
        self.need_history = bool(
            self._longer_bad_words or options.no_repeat_ngram_size or options.repetition_penalty != 1.0
        )
        self._cached: dict[tuple[bool, bool], Constraints] = {}
        changes: set[int] = set()
        if options.forced_first_token is not None:
            changes.add(self._begin)
        if options.begin_suppress_tokens:
            changes |= {self._begin, self._begin + 1}
        if options.min_length:
            changes.add(self._prompt + options.min_length)
        if options.forced_last_tokens:
            changes.add(self._before_last)
        self._changes = sorted(changes)

    def next_change(self, length: int) -> int:
        """Return the next length above ``length`` at which constraints may change."""
        return (
            length + 1
            if self.need_history
            else next((change for change in self._changes if change > length), sys.maxsize)
        )

    def forced(self, length: int) -> tuple[int, ...] | None:
        """Return the tokens forced after ``length`` tokens, equally likely, or None."""
        options = self._options
        tokens: tuple[int, ...] = ()
        if length == 1 and options.forced_first_token is not None:
            tokens = (options.forced_first_token,)
        if options.forced_last_tokens and length == self._before_last:
            tokens = options.forced_last_tokens
        if not tokens:
            return None
        forbidden = {*options.suppress_tokens, *(options.begin_suppress_tokens if length == self._begin else ())}
        return tuple(sorted({*tokens} - forbidden))

    def at(self, length: int, histories: Sequence[Sequence[int]]) -> Constraints:
        """Make the constraints on the next token, if none is forced.

        Args:
            length: tokens before it.
            histories: tokens of every live row, prompt included; unused unless ``need_history``.
        """
        options = self._options
        fixed = self._without_history(length)
        if not self.need_history:
            return fixed
        seen: list[set[int]] = []
        if options.repetition_penalty != 1.0:
            seen = [set(history) for history in histories]
        completing = [
            {
                *(last for start, last in self._longer_bad_words if tuple(history[-len(start) :]) == start),
                *_completing(history, options.no_repeat_ngram_size),
            }
            for history in histories
        ]
        return Constraints(
            _entries(seen, options.repetition_penalty),
            _concatenated((0, 0), (fixed.biases, _entries(completing, -math.inf))) if any(completing) else fixed.biases,
        )

    def _without_history(self, length: int) -> Constraints:
        """Make the constraints that do not depend on a row's tokens."""
        options = self._options
        key = (length - self._prompt < options.min_length, length == self._begin)
        if key not in self._cached:
            forbidden = {*self._forbidden, *(options.eos_ids if key[0] else ())}
            forbidden |= {*(options.begin_suppress_tokens if key[1] else ())}
            self._cached[key] = _forbidding(tuple(sorted(forbidden)), self._rows) if forbidden else NO_CONSTRAINTS
        return self._cached[key]


rules_of = lru_cache(maxsize=16)(ConstraintRules)
"""Return the rules for options, prompt length and rows; most searches share theirs."""


@lru_cache(maxsize=16)
def _forbidding(tokens: Sequence[int], rows: int) -> Constraints:
    """Forbid tokens in all rows; cached, because most searches share options."""
    return Constraints(NO_ENTRIES, _entries([tokens] * rows, -math.inf))


def _entries(tokens: Sequence[Iterable[int]], value: float) -> Entries:
    ordered = [sorted(of_row) for of_row in tokens]
    rows = np.repeat(np.arange(len(ordered)), [len(of_row) for of_row in ordered])
    ids = np.array([token for of_row in ordered for token in of_row], np.int64)
    return Entries(np.stack((rows, ids), axis=1), np.full(len(ids), value, np.float32))


def _completing(history: Sequence[int], size: int) -> list[int]:
    """Return the tokens that would repeat an n-gram of ``history``."""
    if not size or len(history) < size:
        return []
    last = history[len(history) + 1 - size :]
    return [history[end] for end in range(size - 1, len(history)) if history[end + 1 - size : end] == last]
