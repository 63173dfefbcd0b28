"""IBM Model 1: how likely each target token is as the translation of each source token, from parallel text."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from jumok_export.shortlists.lexicon import Lexicon

ITERATIONS = 5
LEAST_PROBABILITY = 1e-6
"""What is less likely as a translation of a token is forgotten: it takes no memory, and no part any more."""
BLOCK = 2**20
"""Target tokens that are looked at together, which bounds memory."""

Ids = NDArray[np.int32]
Integers = NDArray[np.int64]


def align(
    pairs: Sequence[tuple[Ids, Ids]],
    *,
    source_vocabulary: int,
    target_vocabulary: int,
    iterations: int = ITERATIONS,
    progress: Callable[[str], None] = lambda _: None,
) -> Lexicon:
    """Fits Model 1 of "The mathematics of statistical machine translation" (Brown et al., 1993), section 4.1.

    Expectation maximisation, from equal probabilities. As in the paper, every source sentence has one more token, which
    is nobody's and from which whatever has no other origin can come.

    Args:
        pairs: token ids of sentences and of their translations, none of them empty.
        source_vocabulary: number of source tokens.
        target_vocabulary: number of target tokens.
        iterations: of expectation maximisation.
        progress: told how far it is.
    """
    corpus = _Corpus(pairs, source_vocabulary)
    rows: list[tuple[Ids, NDArray[np.float32]]] = [_no_row()] * (source_vocabulary + 1)
    # Where all probabilities are equal, a target token comes from each source token of its sentence alike.
    mass = np.repeat(corpus.source_lengths + 1, corpus.target_lengths).astype(np.float32)  # [all target tokens]
    places = np.zeros(target_vocabulary, np.int64)  # of target tokens in a row, from 1; 0: it has none
    for iteration in range(iterations):
        for source in corpus.sources:
            rows[source] = _maximised(corpus, source, rows[source], mass, places)
        mass[:] = 0
        for source in corpus.sources if iteration + 1 < iterations else ():
            ids, probabilities = rows[source]
            padded = np.concatenate(([np.float32(0)], probabilities))
            places[ids] = np.arange(1, len(padded))
            for positions, words, times in corpus.company(source):
                mass[positions] += padded[places[words]] * times
            places[ids] = 0
        progress(f"aligned {len(pairs):,} sentence pairs, {iteration + 1} of {iterations} times")
    rows.pop()  # nobody's
    return Lexicon(
        offsets=np.cumsum([0, *(len(ids) for ids, _ in rows)]),
        targets=np.concatenate([ids for ids, _ in rows]),
        probabilities=np.concatenate([probabilities for _, probabilities in rows]),
        frequencies=np.bincount(corpus.targets, minlength=target_vocabulary).astype(np.float64),
    )


def _no_row() -> tuple[Ids, NDArray[np.float32]]:
    return np.zeros(0, np.int32), np.zeros(0, np.float32)


class _Corpus:
    """Sentence pairs by source token. The last source token, beyond the vocabulary, is the one that is nobody's.

    Args:
        pairs: of `align`.
        vocabulary: number of source tokens.
    """

    def __init__(self, pairs: Sequence[tuple[Ids, Ids]], vocabulary: int) -> None:
        self.source_lengths = np.array([len(source) for source, _ in pairs])
        self.target_lengths = np.array([len(target) for _, target in pairs])
        self.targets: Ids = np.concatenate([target for _, target in pairs])
        self._starts = np.cumsum(self.target_lengths) - self.target_lengths
        every = np.arange(len(pairs))
        tokens = np.concatenate([*(source for source, _ in pairs), np.full(len(pairs), vocabulary)])
        sentences = np.concatenate((np.repeat(every, self.source_lengths), every))
        keys, times = np.unique(tokens * len(pairs) + sentences, return_counts=True)
        self._times = times.astype(np.float32)
        self._sentences = keys % len(pairs)
        self._bounds = np.searchsorted(keys, np.arange(vocabulary + 2) * len(pairs))
        self.sources: list[int] = np.flatnonzero(np.diff(self._bounds)).tolist()
        """Source tokens that occur."""

    def company(self, source: int) -> Iterator[tuple[Integers, Ids, NDArray[np.float32]]]:
        """The target tokens of all sentences with a source token: positions, ids, and how often it is beside them."""
        here = slice(self._bounds[source], self._bounds[source + 1])
        sentences, times = self._sentences[here], self._times[here]
        blocks = np.cumsum(self.target_lengths[sentences]) // BLOCK
        cuts = np.flatnonzero(np.diff(blocks)) + 1
        for some, often in zip(np.split(sentences, cuts), np.split(times, cuts), strict=True):
            lengths = self.target_lengths[some]
            ends = np.cumsum(lengths)
            positions = np.arange(ends[-1]) + np.repeat(self._starts[some] - ends + lengths, lengths)
            yield positions, self.targets[positions], np.repeat(often, lengths)


def _maximised(
    corpus: _Corpus,
    source: int,
    row: tuple[Ids, NDArray[np.float32]],
    mass: NDArray[np.float32],
    places: Integers,
) -> tuple[Ids, NDArray[np.float32]]:
    """A source token's probabilities from expected counts; in a first iteration it has no row yet.

    Args:
        corpus: the text.
        source: the token.
        row: the probabilities before.
        mass: for every target token of the text, the sum of its probabilities given each source token beside it.
        places: all 0, as it is again afterwards.
    """
    ids, probabilities = row
    if not len(ids):
        beside = np.zeros(len(places), np.bool_)
        for _, words, _ in corpus.company(source):
            beside[words] = True
        ids = np.flatnonzero(beside).astype(np.int32)
        probabilities = np.ones(len(ids), np.float32)
    padded = np.concatenate(([np.float32(0)], probabilities))
    counts = np.zeros(len(padded))
    places[ids] = np.arange(1, len(padded))
    for positions, words, times in corpus.company(source):
        found = places[words]
        # A target token may have lost all origins that it had: then it counts for none, and nothing is divided by 0.
        share = padded[found] * times / np.maximum(mass[positions], LEAST_PROBABILITY**2)
        counts += np.bincount(found, weights=share, minlength=len(padded))
    places[ids] = 0
    shares = (counts[1:] / counts[1:].sum()).astype(np.float32)
    kept = shares >= LEAST_PROBABILITY
    return ids[kept], shares[kept]
