"""Links between the tokens of sentence pairs, by two models that agree."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from jumok_export.shortlists.ibm_model1 import Ids, align
from jumok_export.shortlists.lexicon import Lexicon

ITERATIONS = 3
"""Iterations of both models together, after each was fitted alone."""
DIAGONAL = 4.0
"""Preference of links near the diagonal: lambda of Dyer et al. (2013) as it starts there."""
UNALIGNED = 0.08
"""Prior probability that a token translates none of the other side (Dyer et al., 2013)."""
LEAST_POSTERIOR = 0.1
"""Least product of a link's posterior probabilities in the two models."""
BLOCK = 2**20
"""Token pairs in one NumPy operation, which bounds memory."""

Floats: TypeAlias = NDArray[np.float32]
Integers: TypeAlias = NDArray[np.int64]


class Links(NamedTuple):
    """Links of tokens, ordered by sentence pair and target token.

    Attributes:
        pairs: index of each link's sentence pair, [N].
        sources: index of the token in its source, [N].
        targets: index of the token in its target, [N].
        weights: posterior probability, [N].
    """

    pairs: Integers
    sources: Integers
    targets: Integers
    weights: Floats


def align_tokens(
    pairs: Sequence[tuple[Ids, Ids]],
    *,
    source_vocabulary: int,
    target_vocabulary: int,
    progress: Callable[[str], None] = lambda _: None,
) -> Links:
    """Align tokens by "Alignment by Agreement" (Liang et al., 2006) of two models, one in each direction.

    Both begin as IBM Model 1. Then each link's expected count is the product of its posteriors in the two models, whose
    priors prefer the diagonal as in "A Simple, Fast, and Effective Reparameterization of IBM Model 2" (Dyer et al.,
    2013). Links are those of the largest products: about the intersection of both models' best links, and more where
    neither is certain.

    Args:
        pairs: token ids of sentences and of their translations, none empty.
    """
    forward = align(pairs, source_vocabulary=source_vocabulary, target_vocabulary=target_vocabulary, progress=progress)
    backward = align(
        [(target, source) for source, target in pairs],
        source_vocabulary=target_vocabulary,
        target_vocabulary=source_vocabulary,
        progress=progress,
    )
    corpus = _TokenPairs(pairs, target_vocabulary)
    table = _Table.of(forward, backward, source_vocabulary, target_vocabulary)
    for iteration in range(ITERATIONS):
        counts = np.zeros(len(table.keys))
        for block in corpus.blocks():
            entries, posteriors = table.posteriors(block)
            counts += np.bincount(entries, weights=posteriors, minlength=len(counts))
        table = table.maximized(counts)
        progress(f"aligned {len(pairs):,} sentence pairs in both directions, {iteration + 1} of {ITERATIONS} times")
    found = []
    for block in corpus.blocks():
        _, posteriors = table.posteriors(block)
        kept = posteriors >= LEAST_POSTERIOR
        found.append((block.pairs[kept], block.sources[kept], block.targets[kept], posteriors[kept]))
    return Links(*map(np.concatenate, zip(*found, strict=True)))


class _Block(NamedTuple):
    """All token pairs of some sentence pairs.

    Attributes:
        pairs, sources, targets: as in `Links`.
        keys: source id * target vocabulary + target id.
        rows, columns: consecutive numbers of the target tokens and of the source tokens in the block.
        closeness: 0 on the diagonal, -1 in the farthest corners.
    """

    pairs: Integers
    sources: Integers
    targets: Integers
    keys: Integers
    rows: Integers
    columns: Integers
    closeness: Floats


class _TokenPairs:
    """Sentence pairs as flat arrays."""

    def __init__(self, pairs: Sequence[tuple[Ids, Ids]], target_vocabulary: int) -> None:
        self._lengths = np.array([(len(source), len(target)) for source, target in pairs], np.int64)
        self._starts = np.cumsum(self._lengths, axis=0) - self._lengths
        self._sources = np.concatenate([source for source, _ in pairs]).astype(np.int64)
        self._targets = np.concatenate([target for _, target in pairs]).astype(np.int64)
        self._vocabulary = target_vocabulary

    def blocks(self) -> Iterator[_Block]:
        sizes = self._lengths.prod(axis=1)
        cuts = np.flatnonzero(np.diff(np.cumsum(sizes) // BLOCK)) + 1
        for some in np.split(np.arange(len(sizes)), cuts):
            pairs = np.repeat(some, sizes[some])
            within = np.arange(len(pairs)) - np.repeat(np.cumsum(sizes[some]) - sizes[some], sizes[some])
            source_lengths, target_lengths = self._lengths[pairs].T
            targets, sources = np.divmod(within, source_lengths)
            source_starts, target_starts = self._starts[pairs].T
            closeness = -np.abs((sources + 0.5) / source_lengths - (targets + 0.5) / target_lengths)
            yield _Block(
                pairs,
                sources,
                targets,
                self._sources[source_starts + sources] * self._vocabulary + self._targets[target_starts + targets],
                target_starts + targets - target_starts[0],
                source_starts + sources - source_starts[0],
                closeness.astype(np.float32),
            )


@dataclass(frozen=True, kw_only=True)
class _Table:
    """Translation probabilities of both directions, by sorted keys of source and target tokens.

    Attributes:
        forward: probability of the target token given the source token.
        backward: probability of the source token given the target token.
        source_shares, target_shares: relative frequencies of tokens, for tokens that translate none.
    """

    keys: Integers
    forward: Floats
    backward: Floats
    source_shares: Floats
    target_shares: Floats

    @classmethod
    def of(cls, forward: Lexicon, backward: Lexicon, sources: int, targets: int) -> "_Table":
        """Take the token pairs that both lexicons have."""
        sources_of = np.repeat(np.arange(sources), np.diff(forward.offsets))
        mine = sources_of * targets + forward.targets
        targets_of = np.repeat(np.arange(targets), np.diff(backward.offsets))
        others = backward.targets.astype(np.int64) * targets + targets_of
        keys, of_mine, of_others = np.intersect1d(mine, others, assume_unique=True, return_indices=True)
        return cls(
            keys=keys,
            forward=forward.probabilities[of_mine],
            backward=backward.probabilities[of_others],
            source_shares=_shares(backward.frequencies),
            target_shares=_shares(forward.frequencies),
        )

    def posteriors(self, block: _Block) -> tuple[Integers, Floats]:
        """Compute the product of both models' posteriors of each token pair, and its index in the table."""
        entries = np.searchsorted(self.keys, block.keys)
        entries[entries == len(self.keys)] = 0
        known = self.keys[entries] == block.keys
        near = np.exp(DIAGONAL * block.closeness)
        sources, targets = np.divmod(block.keys, len(self.target_shares))
        product = known.astype(np.float32)
        for probabilities, by, nulls in (
            (self.forward, block.rows, self.target_shares[targets]),
            (self.backward, block.columns, self.source_shares[sources]),
        ):
            prior = near / np.bincount(by, weights=near)[by]
            joint = np.where(known, (1 - UNALIGNED) * prior * probabilities[entries], 0.0)
            product *= (joint / (np.bincount(by, weights=joint)[by] + UNALIGNED * nulls)).astype(np.float32)
        return entries, product

    def maximized(self, counts: NDArray[np.float64]) -> "_Table":
        """Compute both models' probabilities from expected counts."""
        sources, targets = np.divmod(self.keys, len(self.target_shares))
        of_source = np.bincount(sources, weights=counts, minlength=len(self.source_shares))
        of_target = np.bincount(targets, weights=counts, minlength=len(self.target_shares))
        return _Table(
            keys=self.keys,
            forward=(counts / np.maximum(of_source[sources], 1e-30)).astype(np.float32),
            backward=(counts / np.maximum(of_target[targets], 1e-30)).astype(np.float32),
            source_shares=self.source_shares,
            target_shares=self.target_shares,
        )


def _shares(frequencies: NDArray[np.float64]) -> Floats:
    shares: Floats = (frequencies / frequencies.sum()).astype(np.float32)
    return shares
