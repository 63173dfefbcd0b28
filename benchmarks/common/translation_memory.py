"""Translation memory: the translation of the training source that is nearest by chrF."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

ORDERS = 6
"""Longest n-grams of characters."""
BETA_SQUARED = 4.0
"""chrF2: recall counts twice."""

Gram = tuple[str, int]
"""An n-gram with the number of its earlier occurrences in the text: shared ones are the matches of chrF."""


def grams(text: str, order: int) -> Iterator[Gram]:
    """Yield the n-grams of a text without white space."""
    spelled = "".join(text.split())
    seen: Counter[str] = Counter()
    for start in range(len(spelled) - order + 1):
        gram = spelled[start : start + order]
        yield gram, seen[gram]
        seen[gram] += 1


def nearest(
    texts: Sequence[str], sources: Sequence[str], advance: Callable[[int], None] = lambda _: None
) -> NDArray[np.int64]:
    """Find the most similar source of each text by sacreBLEU's chrF, the source being the reference.

    Args:
        texts: texts to look up, N.
        sources: sources of the memory.
        advance: function that is called with the number of further texts.

    Returns:
        Indices of the sources, [N]; the first of equal ones.
    """
    indexes = [_index(texts, sources, order) for order in range(1, ORDERS + 1)]
    lengths = np.array([len("".join(source.split())) for source in sources])
    found = np.empty(len(texts), np.int64)
    for number, text in enumerate(texts):
        found[number] = int(_similarities(text, indexes, lengths).argmax())
        advance(1)
    return found


def _index(texts: Sequence[str], sources: Sequence[str], order: int) -> dict[Gram, NDArray[np.int32]]:
    """List the sources that have each n-gram of the texts."""
    listed: dict[Gram, list[int]] = {gram: [] for text in texts for gram in grams(text, order)}
    for number, source in enumerate(sources):
        for gram in grams(source, order):
            if (having := listed.get(gram)) is not None:
                having.append(number)
    return {gram: np.array(having, np.int32) for gram, having in listed.items()}


def _similarities(
    text: str, indexes: Sequence[dict[Gram, NDArray[np.int32]]], lengths: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Compute chrF of a text with each source, between 0 and 1, [sources]."""
    precision, recall, effective = (np.zeros(len(lengths)) for _ in range(3))
    for order, index in enumerate(indexes, start=1):
        having = [index[gram] for gram in grams(text, order)]
        if not having:
            break
        matches = np.bincount(np.concatenate(having), minlength=len(lengths))
        totals = np.maximum(lengths - order + 1, 0)
        # An order counts if both texts have such n-grams.
        precision += np.where(totals > 0, matches / len(having), 0.0)
        recall += matches / np.maximum(totals, 1)
        effective += totals > 0
    effective = np.maximum(effective, 1)
    precision, recall = precision / effective, recall / effective
    weighted = BETA_SQUARED * precision + recall
    similar: NDArray[np.float64] = (1 + BETA_SQUARED) * precision * recall / np.where(weighted > 0, weighted, 1.0)
    return similar
