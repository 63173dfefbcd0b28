"""Token alignment: planted permutations, and sentence pairs in any number of blocks."""

import numpy as np
import pytest

from jumok_export.shortlists import token_alignment
from jumok_export.shortlists.token_alignment import Links, align_tokens

WORDS = 40


def permuted(count: int, seed: int) -> tuple[list[tuple[np.ndarray, np.ndarray]], list[np.ndarray]]:
    """Sentences of different words, and translations word for word in another order."""
    random = np.random.default_rng(seed)
    pairs, orders = [], []
    for _ in range(count):
        source = random.choice(WORDS, size=random.integers(3, 9), replace=False).astype(np.int32)
        order = np.arange(len(source))
        swapped = random.integers(len(source) - 1)
        order[[swapped, swapped + 1]] = order[[swapped + 1, swapped]]
        pairs.append((source, (source[order] * 7 + 3) % WORDS))
        orders.append(order)
    return pairs, orders


def links_of(pairs: list[tuple[np.ndarray, np.ndarray]]) -> Links:
    return align_tokens(pairs, source_vocabulary=WORDS, target_vocabulary=WORDS)


def test_a_planted_order_is_found() -> None:
    pairs, orders = permuted(300, seed=4)
    links = links_of(pairs)
    for index, order in enumerate(orders):
        mine = links.pairs == index
        np.testing.assert_array_equal(links.targets[mine], np.arange(len(order)))
        np.testing.assert_array_equal(links.sources[mine], order)
    assert links.weights.min() > 0.5


@pytest.mark.parametrize("block", [1, 100])
def test_links_do_not_depend_on_the_blocks(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs, _ = permuted(60, seed=5)
    expected = links_of(pairs)
    monkeypatch.setattr(token_alignment, "BLOCK", block)
    found = links_of(pairs)
    for name in ("pairs", "sources", "targets"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-5)


def test_a_word_without_translation_has_no_link() -> None:
    pairs, orders = permuted(300, seed=6)
    # A word that every target begins with translates none.
    links = align_tokens(
        [(source, np.concatenate([[WORDS], target]).astype(np.int32)) for source, target in pairs],
        source_vocabulary=WORDS,
        target_vocabulary=WORDS + 1,
    )
    firsts = links.targets == 0
    assert firsts.sum() < 0.2 * len(pairs)
    for index in range(20):
        mine = (links.pairs == index) & ~firsts
        np.testing.assert_array_equal(links.sources[mine], orders[index])
