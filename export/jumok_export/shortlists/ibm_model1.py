"""IBM Model 1: translation probabilities of tokens from parallel text."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from jumok_export.shortlists.lexicon import Lexicon

ITERATIONS = 5
LEAST_PROBABILITY = 1e-6
"""Less likely translations of a token are dropped, which bounds memory."""
BLOCK = 2**20
"""Target tokens in one NumPy operation, which bounds memory."""

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
    """Fit Model 1 of "The mathematics of statistical machine translation" (Brown et al., 1993), section 4.1.

    Expectation maximisation starts from equal probabilities. As in the paper, every source sentence has a NULL token,
    which aligns with target tokens that translate no other source token.

    Args:
        pairs: token ids of sentences and of their translations, none empty.
    """
    corpus = _Corpus(pairs, source_vocabulary)
    rows: list[tuple[Ids, NDArray[np.float32]]] = [_no_row()] * (source_vocabulary + 1)
    # With equal probabilities, a target token comes equally likely from each source token of its sentence.
    mass = np.repeat(corpus.source_lengths + 1, corpus.target_lengths).astype(np.float32)  # [all target tokens]
    columns = np.zeros(target_vocabulary, np.int64)  # index of target tokens in a row, from 1; 0: not in the row
    for iteration in range(iterations):
        for source in corpus.sources:
            rows[source] = _maximized(corpus, source, rows[source], mass, columns)
        mass[:] = 0
        for source in corpus.sources if iteration + 1 < iterations else ():
            ids, probabilities = rows[source]
            padded = np.concatenate(([np.float32(0)], probabilities))
            columns[ids] = np.arange(1, len(padded))
            for positions, words, counts in corpus.cooccurrences(source):
                mass[positions] += padded[columns[words]] * counts
            columns[ids] = 0
        progress(f"aligned {len(pairs):,} sentence pairs, {iteration + 1} of {iterations} times")
    rows.pop()  # NULL
    return Lexicon(
        offsets=np.cumsum([0, *(len(ids) for ids, _ in rows)]),
        targets=np.concatenate([ids for ids, _ in rows]),
        probabilities=np.concatenate([probabilities for _, probabilities in rows]),
        frequencies=np.bincount(corpus.targets, minlength=target_vocabulary).astype(np.float64),
    )


def _no_row() -> tuple[Ids, NDArray[np.float32]]:
    return np.zeros(0, np.int32), np.zeros(0, np.float32)


class _Corpus:
    """Sentence pairs indexed by source token; NULL is the token after the vocabulary.

    Attributes:
        sources: source tokens that occur.
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

    def cooccurrences(self, source: int) -> Iterator[tuple[Integers, Ids, NDArray[np.float32]]]:
        """Target tokens of all sentences with a source token, in blocks.

        Yields:
            Positions in `targets`, ids, and occurrences of the source token in the sentence.
        """
        here = slice(self._bounds[source], self._bounds[source + 1])
        sentences, times = self._sentences[here], self._times[here]
        blocks = np.cumsum(self.target_lengths[sentences]) // BLOCK
        cuts = np.flatnonzero(np.diff(blocks)) + 1
        for some, often in zip(np.split(sentences, cuts), np.split(times, cuts), strict=True):
            lengths = self.target_lengths[some]
            ends = np.cumsum(lengths)
            positions = np.arange(ends[-1]) + np.repeat(self._starts[some] - ends + lengths, lengths)
            yield positions, self.targets[positions], np.repeat(often, lengths)


def _maximized(
    corpus: _Corpus,
    source: int,
    row: tuple[Ids, NDArray[np.float32]],
    mass: NDArray[np.float32],
    columns: Integers,
) -> tuple[Ids, NDArray[np.float32]]:
    """Compute a source token's probabilities from expected counts.

    Args:
        row: ids and previous probabilities; empty in the first iteration.
        mass: sum of each target token's probabilities over the source tokens of its sentence, [all target tokens].
        columns: zeros, [target vocabulary]; zeros again on return.
    """
    ids, probabilities = row
    if not len(ids):
        cooccurs = np.zeros(len(columns), np.bool_)
        for _, words, _ in corpus.cooccurrences(source):
            cooccurs[words] = True
        ids = np.flatnonzero(cooccurs).astype(np.int32)
        probabilities = np.ones(len(ids), np.float32)
    padded = np.concatenate(([np.float32(0)], probabilities))
    counts = np.zeros(len(padded))
    columns[ids] = np.arange(1, len(padded))
    for positions, words, times in corpus.cooccurrences(source):
        found = columns[words]
        # All translations to a target token may have been dropped: its mass is 0 then, and its share must be 0.
        share = padded[found] * times / np.maximum(mass[positions], LEAST_PROBABILITY**2)
        counts += np.bincount(found, weights=share, minlength=len(padded))
    columns[ids] = 0
    shares = (counts[1:] / counts[1:].sum()).astype(np.float32)
    kept = shares >= LEAST_PROBABILITY
    return ids[kept], shares[kept]
