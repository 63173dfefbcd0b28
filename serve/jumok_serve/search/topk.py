"""Best continuations of sentences, from the best candidates of their rows."""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Continuations(NamedTuple):
    """Tokens, sums of token scores and parent rows, [B, N] each."""

    tokens: NDArray[np.int64]
    scores: NDArray[np.floating[Any]]
    rows: NDArray[np.int64]

    def first(self, number: int) -> "Continuations":
        """Return the first continuations of each sentence, at most `number`."""
        return Continuations(self.tokens[:, :number], self.scores[:, :number], self.rows[:, :number])

    def of(self, sentences: list[int]) -> "Continuations":
        """Copy the continuations of some sentences."""
        return Continuations(self.tokens[sentences], self.scores[sentences], self.rows[sentences])


def best_continuations(
    tokens: NDArray[np.int64], scores: NDArray[np.floating[Any]], beam_size: int, number: int
) -> Continuations:
    """Merge the candidates of each sentence's rows, best first.

    Equal scores are ordered by row, then by token. NaN comes last.

    Args:
        tokens: candidates of each row, best first, ties by lower token, [B * K, C].
        scores: sums of token scores, [B * K, C].
        number: most continuations of each sentence.
    """
    candidates = tokens.shape[1]
    by_sentence = scores.reshape(-1, beam_size * candidates)
    order = (-by_sentence).argsort(axis=1, kind="stable")[:, :number]  # [B, N]; stable: by row, then by token
    indices = order + _first_indices(*by_sentence.shape)
    return Continuations(tokens.take(indices), scores.take(indices), order // candidates)


@lru_cache(maxsize=256)
def _first_indices(sentences: int, candidates: int) -> NDArray[np.int64]:
    """Return the index of each sentence's first candidate, [B, 1]."""
    return np.arange(0, sentences * candidates, candidates)[:, None]


def best_of_each_row(tokens: NDArray[np.int64], scores: NDArray[np.floating[Any]], beam_size: int) -> Continuations:
    """Return each row's best continuation; arguments as for `best_continuations`."""
    first = tokens[:, 0].reshape(-1, beam_size)
    return Continuations(first, scores[:, 0].reshape(first.shape), _row_numbers(*first.shape))


@lru_cache(maxsize=256)
def _row_numbers(sentences: int, beam_size: int) -> NDArray[np.int64]:
    """Return the rows of each sentence, [B, K]."""
    return np.tile(np.arange(beam_size), (sentences, 1))
