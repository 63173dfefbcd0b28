"""BLEU over several seeds: intervals over seeds and over test sentences, of models and of their differences."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU
from scipy import stats

from benchmarks.quality_measures.translations import RESAMPLES

SEED = 12345
ORDERS = 4
"""n-grams of BLEU."""

Interval = tuple[float, float]
Counts = NDArray[np.int64]
"""Counts that BLEU is made of, by sentence: matching n-grams, n-grams, and lengths, [N, 2 * ORDERS + 2]."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Mean BLEU of a model's seeds, or the difference of two models' means.

    Attributes:
        mean: mean over seeds.
        over_seeds: 95 % interval for other seeds, by the noise of all models; None without noise.
        over_sentences: 95 % interval for other test sentences and these seeds, by the bootstrap. Both models of a
            difference translate the same sentences.
    """

    mean: float
    over_seeds: Interval | None
    over_sentences: Interval


@dataclass(frozen=True)
class SeedScores:
    """BLEU of a model on some sentences.

    Attributes:
        by_seed: BLEU of each seed, [seeds].
        resampled: mean over seeds on resampled sentences, [RESAMPLES].
    """

    by_seed: NDArray[np.float64]
    resampled: NDArray[np.float64]


def bleu_counts(translations: Sequence[str], references: Sequence[str]) -> Counts:
    """Count what BLEU is made of, for every sentence."""
    metric = BLEU(effective_order=True)
    found = [metric.sentence_score(*pair) for pair in zip(translations, ([each] for each in references), strict=True)]
    return np.array([[*each.counts, *each.totals, each.sys_len, each.ref_len] for each in found], dtype=np.int64)


def score_seeds(counts: Sequence[Counts]) -> SeedScores:
    """Score a model's seeds on the same sentences.

    Args:
        counts: one array for each seed, in the order of the sentences.
    """
    sentences = len(counts[0])
    # The same resamples for every model, so that differences are paired.
    drawn = np.random.default_rng(SEED).integers(0, sentences, (RESAMPLES, sentences))
    times = np.stack([np.bincount(row, minlength=sentences) for row in drawn])  # [RESAMPLES, N]
    return SeedScores(
        by_seed=np.array([_bleu(each.sum(axis=0)) for each in counts]),
        resampled=np.mean([[_bleu(row) for row in times @ each] for each in counts], axis=0),
    )


def _bleu(summed: Counts) -> float:
    matching, total = summed[:ORDERS].tolist(), summed[ORDERS : 2 * ORDERS].tolist()
    return float(BLEU.compute_bleu(matching, total, int(summed[-2]), int(summed[-1]), smooth_method="exp").score)


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Difference between seeds, taken to be alike in all models, as in an analysis of variance.

    Attributes:
        deviation: standard deviation of BLEU between seeds of a model.
        freedom: degrees of freedom: seeds less models.
    """

    deviation: float
    freedom: int

    def interval(self, mean: float, *seeds: int) -> Interval:
        """95 % interval, by Student's t, of a mean over seeds or the difference of two means.

        Args:
            seeds: number of seeds of each mean.
        """
        error = self.deviation * math.sqrt(sum(1 / each for each in seeds))
        half = float(stats.t.ppf(0.975, self.freedom)) * error
        return mean - half, mean + half


def pooled_noise(models: Iterable[SeedScores]) -> Noise | None:
    """Noise of the models with several seeds; None if all have one."""
    several = [each.by_seed for each in models if len(each.by_seed) > 1]
    if not several:
        return None
    freedom = sum(len(each) - 1 for each in several)
    squares = sum(float(((each - each.mean()) ** 2).sum()) for each in several)
    return Noise(deviation=math.sqrt(squares / freedom), freedom=freedom)


def spread(scores: SeedScores, noise: Noise | None) -> Spread:
    """Mean and intervals of a model."""
    mean = float(scores.by_seed.mean())
    over_seeds = None if noise is None else noise.interval(mean, len(scores.by_seed))
    return Spread(mean=mean, over_seeds=over_seeds, over_sentences=_middle(scores.resampled))


def difference(scores: SeedScores, other: SeedScores, noise: Noise | None) -> Spread:
    """Mean and intervals of a model's scores less another model's."""
    mean = float(scores.by_seed.mean() - other.by_seed.mean())
    over_seeds = None if noise is None else noise.interval(mean, len(scores.by_seed), len(other.by_seed))
    return Spread(mean=mean, over_seeds=over_seeds, over_sentences=_middle(scores.resampled - other.resampled))


def _middle(values: NDArray[np.float64]) -> Interval:
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)
