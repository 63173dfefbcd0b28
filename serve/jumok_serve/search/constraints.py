"""What a search may not choose, must choose, or chooses less gladly: Hugging Face's logits processors, as sparse lists.

They are made from the tokens of a row in Python and applied where the scores lie, so that no array of the size of the
vocabulary reaches Python. As in ``generate``, the repetition penalty comes first, then everything that forbids, and a
forced token overrules both, but for tokens that are suppressed.
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
    """Values at some places of a matrix of scores: rows and tokens [N, 2], and values [N]."""

    places: NDArray[np.int64]
    values: NDArray[np.float32]


NO_ENTRIES: Final = Entries(np.zeros((0, 2), np.int64), np.zeros(0, np.float32))


class Constraints(NamedTuple):
    """What acts on the scores of one step, rows counted within the sentence.

    Attributes:
        factors: a score below 0 is multiplied by the value, one above 0 is divided by it; no place twice.
        biases: the value is added, after that.
    """

    factors: Entries
    biases: Entries


NO_CONSTRAINTS: Final = Constraints(NO_ENTRIES, NO_ENTRIES)


def joined(parts: Iterable[tuple[int, Constraints]]) -> Constraints:
    """The constraints of several searches in one; each comes with its first row."""
    present = [part for part in parts if part[1] is not NO_CONSTRAINTS]
    if not present:
        return NO_CONSTRAINTS
    firsts, constraints = zip(*present, strict=True)
    factors, biases = zip(*constraints, strict=True)
    return Constraints(_joined(firsts, factors), _joined(firsts, biases))


def _joined(firsts: Sequence[int], parts: Sequence[Entries]) -> Entries:
    places = np.concatenate([part.places for part in parts])
    places[:, 0] += np.repeat(np.array(firsts), [len(part.values) for part in parts])
    return Entries(places, np.concatenate([part.values for part in parts]))


class ConstraintRules:
    """The constraints of searches with the same options; see `rules_of`.

    Args:
        options: of the searches.
        prompt: tokens before the new ones: the start token and the target prefix.
        rows: of a search.
    """

    def __init__(self, options: SearchOptions, prompt: int, rows: int) -> None:
        self._options = options
        self._prompt = prompt
        self._rows = rows
        self._barred = {
            *options.suppress_tokens,
            *(word[0] for word in options.bad_words if len(word) == 1 and word[0] not in options.eos_ids),
        }
        self._longer_bad_words = [(word[:-1], word[-1]) for word in options.bad_words if len(word) > 1]
        # Where the first token is forced, the second is the first that is free to choose.
        self._begin = self._prompt + (self._prompt == 1 and options.forced_first_token is not None)
        self._before_last = self._prompt + options.max_length - 1
        self.need_history = bool(
            self._longer_bad_words or options.no_repeat_ngram_size or options.repetition_penalty != 1.0
        )
        """Whether what is forbidden depends on the tokens before."""
        self._general: dict[tuple[bool, bool], Constraints] = {}
        turns: set[int] = set()
        if options.forced_first_token is not None:
            turns.add(self._begin)
        if options.begin_suppress_tokens:
            turns |= {self._begin, self._begin + 1}
        if options.min_length:
            turns.add(self._prompt + options.min_length)
        if options.forced_last_tokens:
            turns.add(self._before_last)
        self._turns = sorted(turns)

    def next_change(self, length: int) -> int:
        """The first length above ``length`` at which something else may be allowed than at the length before.

        Lengths are those of what has been written, prompt included.
        """
        return length + 1 if self.need_history else next((turn for turn in self._turns if turn > length), sys.maxsize)

    def forced(self, length: int) -> tuple[int, ...] | None:
        """The only tokens, all equally likely, that can follow ``length`` tokens, prompt included; None: any can."""
        options = self._options
        tokens: tuple[int, ...] = ()
        if length == 1 and options.forced_first_token is not None:
            tokens = (options.forced_first_token,)
        if options.forced_last_tokens and length == self._before_last:
            tokens = options.forced_last_tokens
        if not tokens:
            return None
        barred = {*options.suppress_tokens, *(options.begin_suppress_tokens if length == self._begin else ())}
        return tuple(sorted({*tokens} - barred))

    def at(self, length: int, histories: Sequence[Sequence[int]]) -> Constraints:
        """The constraints on a token that is free to choose, after ``length`` tokens, prompt included.

        Args:
            length: number of tokens before it.
            histories: the tokens of every row that is alive, prompt included; not looked at unless ``need_history``.
        """
        options = self._options
        general = self._at_any_history(length)
        if not self.need_history:
            return general
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
            _joined((0, 0), (general.biases, _entries(completing, -math.inf))),
        )

    def _at_any_history(self, length: int) -> Constraints:
        """What is forbidden in every row after ``length`` tokens, whatever these are."""
        options = self._options
        key = (length - self._prompt < options.min_length, length == self._begin)
        if key not in self._general:
            barred = {*self._barred, *(options.eos_ids if key[0] else ())}
            barred |= {*(options.begin_suppress_tokens if key[1] else ())}
            self._general[key] = _barring(tuple(sorted(barred)), self._rows) if barred else NO_CONSTRAINTS
        return self._general[key]


rules_of = lru_cache(maxsize=64)(ConstraintRules)
"""The rules for some options, a prompt of some length and some rows: most searches share theirs."""


@lru_cache(maxsize=16)
def _barring(tokens: Sequence[int], rows: int) -> Constraints:
    """The tokens are forbidden in all rows. Most searches share theirs, as they come from the same options."""
    return Constraints(NO_ENTRIES, _entries([tokens] * rows, -math.inf))


def _entries(tokens: Sequence[Iterable[int]], value: float) -> Entries:
    """One value at the given tokens of every row."""
    ordered = [sorted(of_row) for of_row in tokens]
    rows = np.repeat(np.arange(len(ordered)), [len(of_row) for of_row in ordered])
    ids = np.array([token for of_row in ordered for token in of_row], np.int64)
    return Entries(np.stack((rows, ids), axis=1), np.full(len(ids), value, np.float32))


def _completing(history: Sequence[int], size: int) -> list[int]:
    """The tokens that would complete a sequence of ``size`` tokens that has occurred in ``history`` before."""
    if not size or len(history) < size:
        return []
    last = history[len(history) + 1 - size :]
    return [history[end] for end in range(size - 1, len(history)) if history[end + 1 - size : end] == last]
