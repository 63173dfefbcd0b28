"""What the candidates of many rows come to for the searches that have these rows."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Continuations(NamedTuple):
    """What ``Search.advance`` takes, of several sentences: tokens, scores and rows, [B][N] each."""

    tokens: list[list[int]]
    scores: list[list[float]]
    rows: list[list[int]]


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
    order = np.argsort(-by_sentence, axis=1, kind="stable")[:, :number]  # [B, N]; stable: by row, then by token
    places = order + np.arange(0, scores.size, by_sentence.shape[1])[:, None]
    return Continuations(
        tokens.ravel()[places].tolist(), scores.ravel()[places].tolist(), (order // candidates).tolist()
    )


def each_rows_best(tokens: NDArray[np.int64], scores: NDArray[np.floating[Any]], beam_size: int) -> Continuations:
    """The best continuation of every row, by row; tokens and scores are as for ``best_continuations``."""
    first = tokens[:, 0].reshape(-1, beam_size)
    return Continuations(first.tolist(), scores[:, 0].reshape(first.shape).tolist(), [[*range(beam_size)]] * len(first))
