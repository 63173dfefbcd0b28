"""Intervals over seeds and sentences, against SciPy and sacreBLEU."""

import math

import numpy as np
import pytest
import sacrebleu
from scipy import stats

from benchmarks.quality_measures.seeds import SeedScores, bleu_counts, difference, pooled_noise, score_seeds, spread

REFERENCES = [f"Ein Hund rennt über die {place} und springt." for place in ("Wiese", "Straße", "Brücke", "Treppe")]
GOOD = [line.replace("springt", "bellt") for line in REFERENCES]
POOR = [line.replace("rennt über", "sitzt auf") for line in GOOD]


def scores(by_seed: list[float]) -> SeedScores:
    return SeedScores(np.array(by_seed), np.full(10, np.mean(by_seed)))


def test_scores_are_sacrebleus_and_differences_are_paired() -> None:
    good, poor = (bleu_counts(each, REFERENCES) for each in (GOOD, POOR))
    found = score_seeds([good, poor])
    expected = [sacrebleu.corpus_bleu(each, [REFERENCES]).score for each in (GOOD, POOR)]
    assert found.by_seed.tolist() == pytest.approx(expected)
    middle = spread(found, None)
    assert middle.mean == pytest.approx(sum(expected) / 2)
    low, high = middle.over_sentences
    assert low <= middle.mean <= high
    # Every resample has the same sentences for both models.
    gain = difference(score_seeds([good]), score_seeds([poor]), None)
    assert gain.over_seeds is None
    assert gain.over_sentences[0] > 0
    nothing = difference(found, found, None)
    assert (nothing.mean, nothing.over_sentences) == (0.0, (0.0, 0.0))


def test_intervals_for_other_sentences_are_those_of_resamples() -> None:
    """Half of the sentences are right, so their number decides a resample's score."""
    right, wrong = "ein Hund rennt schnell durch den Park", "zwei Frauen reden heute nicht mit uns"
    counts = bleu_counts([right] * 40, [right] * 20 + [wrong] * 20)
    found = spread(score_seeds([counts, counts]), None)
    assert found.mean == pytest.approx(50, abs=0.1)
    deviation = 100 * math.sqrt(0.25 / 40)  # of the share of right ones, a binomial's
    assert found.over_sentences == pytest.approx((50 - 1.96 * deviation, 50 + 1.96 * deviation), abs=3)


def test_intervals_for_other_seeds_pool_the_noise_of_all_models() -> None:
    one, other, single = [30.0, 31.5, 29.0], [27.0, 27.2, 28.5], [20.0]
    noise = pooled_noise(map(scores, (one, other, single)))
    assert noise is not None
    # With two models of as many seeds it is Student's test of two samples.
    student = stats.ttest_ind(one, other).confidence_interval(0.95)
    assert difference(scores(one), scores(other), noise).over_seeds == pytest.approx((student.low, student.high))
    alone = pooled_noise([scores(one)])
    expected = stats.t.interval(0.95, 2, np.mean(one), stats.sem(one))
    assert spread(scores(one), alone).over_seeds == pytest.approx(expected)
    low, high = spread(scores(single), noise).over_seeds or (0.0, 0.0)
    assert high - low == pytest.approx(2 * stats.t.ppf(0.975, 4) * noise.deviation)
    assert pooled_noise([scores(single)]) is None
    assert spread(scores(single), None).over_seeds is None
