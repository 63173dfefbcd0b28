"""IBM Model 1 against a plain implementation."""

from collections.abc import Sequence

import numpy as np
import pytest

from jumok_export.shortlists import ibm_model1 as model1
from jumok_export.shortlists.ibm_model1 import align
from jumok_export.shortlists.lexicon import Lexicon

Pairs = Sequence[tuple[Sequence[int], Sequence[int]]]
HOUSES: Pairs = [([0, 1], [0, 1]), ([0, 2], [0, 2]), ([3, 2], [3, 2])]
"""The house, the book, a book."""


def model1_by_eye(pairs: Pairs, iterations: int) -> dict[tuple[int | None, int], float]:
    """t(target | source) of all cooccurring pairs after some iterations; None is the NULL token."""
    together = {(s, t) for source, target in pairs for s in (*source, None) for t in target}
    table = dict.fromkeys(together, 1.0)
    for _ in range(iterations):
        counts = dict.fromkeys(together, 0.0)
        for source, target in pairs:
            for t in target:
                everyone = sum(table[s, t] for s in (*source, None))
                for s in (*source, None):
                    counts[s, t] += table[s, t] / everyone
        totals: dict[int | None, float] = {}
        for (s, _), count in counts.items():
            totals[s] = totals.get(s, 0.0) + count
        table = {(s, t): count / totals[s] for (s, t), count in counts.items()}
    return table


def random_pairs(seed: int) -> Pairs:
    random = np.random.default_rng(seed)

    def side(vocabulary: int) -> list[int]:
        return [int(token) for token in random.integers(vocabulary, size=random.integers(1, 9))]

    return [(side(12), side(15)) for _ in range(60)]


def fit(pairs: Pairs, iterations: int) -> Lexicon:
    arrays = [(np.array(source, np.int32), np.array(target, np.int32)) for source, target in pairs]
    return align(arrays, source_vocabulary=12, target_vocabulary=15, iterations=iterations)


@pytest.mark.parametrize("block", [1, 7, 2**20])
@pytest.mark.parametrize("pairs", [HOUSES, random_pairs(1), random_pairs(2)], ids=["houses", "random", "more random"])
def test_probabilities_are_those_of_the_oracle(pairs: Pairs, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model1, "BLOCK", block)
    for iterations in (1, 2, 5):
        lexicon = fit(pairs, iterations)
        expected = {key: value for key, value in model1_by_eye(pairs, iterations).items() if key[0] is not None}
        sources = np.repeat(np.arange(12), np.diff(lexicon.offsets)).tolist()
        pairs_found = zip(sources, lexicon.targets.tolist(), strict=True)
        found: dict[tuple[int | None, int], float] = dict(zip(pairs_found, lexicon.probabilities.tolist(), strict=True))
        for key, probability in expected.items():
            assert found.pop(key, 0.0) == pytest.approx(probability, abs=2e-6)
        assert not found
    assert lexicon.frequencies.tolist() == np.bincount([t for _, ts in pairs for t in ts], minlength=15).tolist()


def test_unlikely_translations_are_dropped_and_the_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model1, "LEAST_PROBABILITY", 0.1)
    lexicon, whole = fit(random_pairs(1), 6), model1_by_eye(random_pairs(1), 6)
    assert 12 < len(lexicon.targets) < len([key for key in whole if key[0] is not None])
    sums = np.add.reduceat(lexicon.probabilities, lexicon.offsets[:-1])
    assert (sums > 0.8).all()
    assert (sums < 1.001).all()
