"""Corpus scores of translations with 95 % intervals by the paired bootstrap."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.base import Metric

RESAMPLES = 1000
SEED = 12345

Interval = tuple[float, float]


@dataclass(frozen=True)
class Scores:
    """A metric of one system on a test set.

    Attributes:
        value: score of the test set.
        resampled: scores of resampled test sets, [RESAMPLES]. Resample n of all systems has the same sentences.
    """

    value: float
    resampled: NDArray[np.float64]

    @property
    def interval(self) -> Interval:
        """95 % interval of the score."""
        return _middle(self.resampled)

    def over(self, other: "Scores") -> tuple[float, Interval]:
        """Return the difference from another system's score, and its 95 % interval."""
        return self.value - other.value, _middle(self.resampled - other.resampled)


def score(metric: Metric, translations: Sequence[str], references: Sequence[str]) -> Scores:
    """Score translations with one reference each."""
    # As sacrebleu.significance does, which gives no interval of a difference.
    counts = np.array(metric._extract_corpus_statistics(translations, [references]), np.float64)
    drawn = np.random.default_rng(SEED).integers(0, len(counts), (RESAMPLES, len(counts)))
    times = np.stack([np.bincount(row, minlength=len(counts)) for row in drawn])

    def corpus_score(summed: NDArray[np.float64]) -> float:
        return float(metric._compute_score_from_stats(summed.astype(int).tolist()).score)

    return Scores(corpus_score(counts.sum(axis=0)), np.array([corpus_score(row) for row in times @ counts]))


def _middle(values: NDArray[np.float64]) -> Interval:
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)
