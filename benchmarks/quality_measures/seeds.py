"""BLEU over several seeds: intervals over seeds and over test sentences, of models and of their differences."""

from collections.abc import Sequence
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
        over_seeds: 95 % interval of the mean for other seeds by Student's t, for differences by Welch's; None with
            one seed.
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


def spread(scores: SeedScores) -> Spread:
    """Mean and intervals of a model."""
    return _spread([scores.by_seed], float(scores.by_seed.mean()), scores.resampled)


def difference(scores: SeedScores, other: SeedScores) -> Spread:
    """Mean and intervals of a model's scores less another model's."""
    mean = float(scores.by_seed.mean() - other.by_seed.mean())
    return _spread([scores.by_seed, other.by_seed], mean, scores.resampled - other.resampled)


def _spread(groups: Sequence[NDArray[np.float64]], mean: float, resampled: NDArray[np.float64]) -> Spread:
    return Spread(mean=mean, over_seeds=_over_seeds(groups, mean), over_sentences=_middle(resampled))


def _over_seeds(groups: Sequence[NDArray[np.float64]], mean: float) -> Interval | None:
    """Interval of a sum or difference of means by Student's t, with Welch's degrees of freedom."""
    if min(map(len, groups)) < 2:
        return None
    variances = np.array([group.var(ddof=1) / len(group) for group in groups])
    if not variances.sum():
        return mean, mean
    freedom = variances.sum() ** 2 / sum(variances**2 / [len(group) - 1 for group in groups])
    half = float(stats.t.ppf(0.975, freedom) * np.sqrt(variances.sum()))
    return mean - half, mean + half


def _middle(values: NDArray[np.float64]) -> Interval:
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)
