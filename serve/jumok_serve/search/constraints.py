"""What a search may not choose, must choose, or chooses less gladly: Hugging Face's logits processors, as sparse lists.

They are made from the tokens of a row in Python and applied where the scores lie, so that no array of the size of the
vocabulary reaches Python. As in ``generate``, the repetition penalty comes first, then everything that forbids, and a
forced token overrules both.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from jumok_serve.options import SearchOptions

Entries = list[tuple[int, int, float]]
"""Sparse values: (row, token, value)."""


class Constraints(NamedTuple):
    """What acts on the scores of one step, rows counted within the sentence.

    Attributes:
        factors: a score below 0 is multiplied by the value, one above 0 is divided by it; no place twice.
        biases: the value is added, after that.
    """

    factors: Entries
    biases: Entries


class ConstraintRules:
    """The constraints of one search.

    Args:
        options: of the search.
        prompt: what stands before the new tokens: the start token, then the target prefix.
        rows: of the search.
    """

    def __init__(self, options: SearchOptions, prompt: Sequence[int], *, rows: int) -> None:
        self._options = options
        self._prompt = len(prompt)
        self._rows = rows
        self._barred = {
            *options.suppress_tokens,
            *(word[0] for word in options.bad_words if len(word) == 1 and word[0] not in options.eos_ids),
        }
        self._longer_bad_words = [(word[:-1], word[-1]) for word in options.bad_words if len(word) > 1]
        # Where the first token is forced, the second is the first that is free to choose.
        self._begin = len(prompt) + (len(prompt) == 1 and options.forced_first_token is not None)
        self.needs_history = bool(
            self._longer_bad_words or options.no_repeat_ngram_size or options.repetition_penalty != 1.0
        )
        self._shared: dict[tuple[bool, bool], tuple[set[int], Constraints]] = {}

    def forced(self, length: int) -> tuple[int, ...] | None:
        """The only tokens, all equally likely, that can follow ``length`` tokens, prompt included; None: any can."""
        options = self._options
        tokens: tuple[int, ...] = ()
        if length == 1 and options.forced_first_token is not None:
            tokens = (options.forced_first_token,)
        if options.forced_last_tokens and length == self._prompt + options.max_length - 1:
            tokens = options.forced_last_tokens
        if not tokens:
            return None
        barred = {*options.suppress_tokens, *(options.begin_suppress_tokens if length == self._begin else ())}
        return tuple(sorted({*tokens} - barred))

    def at(self, length: int, histories: Sequence[Sequence[int]]) -> Constraints:
        """The constraints on the token after ``length`` tokens, prompt included.

        Args:
            length: number of tokens before it.
            histories: the tokens of every row that is alive, prompt included; not looked at unless ``needs_history``.
        """
        options = self._options
        barred, shared = self._general(length)
        if not self.needs_history:
            return shared
        factors: Entries = []
        biases: Entries = []
        for row, history in enumerate(histories):
            if options.repetition_penalty != 1.0:
                factors += [(row, token, options.repetition_penalty) for token in sorted(set(history))]
            completing = {
                last
                for start, last in self._longer_bad_words
                if len(start) <= len(history) and tuple(history[-len(start) :]) == start
            }
            completing.update(_completing(history, options.no_repeat_ngram_size))
            biases += [(row, token, -math.inf) for token in sorted(barred | completing)]
        return Constraints(factors, biases)

    def _general(self, length: int) -> tuple[set[int], Constraints]:
        """What is forbidden after ``length`` tokens whatever these are, and that in every row."""
        options = self._options
        key = (length - self._prompt < options.min_length, length == self._begin)
        if key not in self._shared:
            barred = {*self._barred, *(options.eos_ids if key[0] else ())}
            barred |= {*(options.begin_suppress_tokens if key[1] else ())}
            biases = [(row, token, -math.inf) for row in range(self._rows) for token in sorted(barred)]
            self._shared[key] = barred, Constraints([], biases)
        return self._shared[key]


def _completing(history: Sequence[int], size: int) -> list[int]:
    """The tokens that would complete a sequence of ``size`` tokens that has occurred in ``history`` before."""
    if not size or len(history) < size:
        return []
    last = tuple(history[len(history) + 1 - size :])
    return [
        history[start + size - 1]
        for start in range(len(history) - size + 1)
        if tuple(history[start : start + size - 1]) == last
    ]
