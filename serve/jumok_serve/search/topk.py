"""What the candidates of many rows come to for the searches that have these rows."""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Continuations(NamedTuple):
    """What ``Search.advance`` takes, of several sentences: tokens, scores and rows, [B, N] each."""

    tokens: NDArray[np.int64]
    scores: NDArray[np.floating[Any]]
    rows: NDArray[np.int64]

    def first(self, number: int) -> "Continuations":
        """So many of each sentence, or as many as there are."""
        return Continuations(self.tokens[:, :number], self.scores[:, :number], self.rows[:, :number])

    def of(self, sentences: list[int]) -> "Continuations":
        """A copy of those of some sentences."""
        return Continuations(self.tokens[sentences], self.scores[sentences], self.rows[sentences])


def best_continuations(
    tokens: NDArray[np.int64], scores: NDArray[np.floating[Any]], beam_size: int, number: int
) -> Continuations:
    """The best continuations of all rows of a sentence, of many sentences at once.

    Best first; equal ones by lower row, then by lower token. NaN comes last.

    Args:
        tokens: the candidates of each row [B * K, C], best first, equal ones by lower token.
        scores: their sums.
        beam_size: K.
        number: how many are wanted of each sentence, if it has as many.
    """
    candidates = tokens.shape[1]
    by_sentence = scores.reshape(-1, beam_size * candidates)
    order = (-by_sentence).argsort(axis=1, kind="stable")[:, :number]  # [B, N]; stable: by row, then by token
    places = order + _firsts(*by_sentence.shape)
    return Continuations(tokens.take(places), scores.take(places), order // candidates)


@lru_cache(maxsize=256)
def _firsts(sentences: int, candidates: int) -> NDArray[np.int64]:
    """Where the candidates of each sentence begin, [B, 1]."""
    return np.arange(0, sentences * candidates, candidates)[:, None]


def each_rows_best(tokens: NDArray[np.int64], scores: NDArray[np.floating[Any]], beam_size: int) -> Continuations:
    """The best continuation of every row, by row; tokens and scores are as for ``best_continuations``."""
    first = tokens[:, 0].reshape(-1, beam_size)
    return Continuations(first, scores[:, 0].reshape(first.shape), _each_row(*first.shape))


@lru_cache(maxsize=256)
def _each_row(sentences: int, beam_size: int) -> NDArray[np.int64]:
    """The rows of each sentence, [B, K]."""
    return np.tile(np.arange(beam_size), (sentences, 1))
