"""Teacher forcing: scores and attention of given targets, in one pass over each."""

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jumok_proto.attention import ATTENTION_KINDS, AttentionKind
from jumok_serve.interrupts import Deadline, finished
from jumok_serve.manifest.manifest import PrecisionVariant
from jumok_serve.manifest.parts import AlignmentHeads
from jumok_serve.runtime.graphs import ATTENTION_OUTPUTS, Floats, Graphs, Integers, Pairs

MAX_BATCH_LOGITS = 2**25
"""Logits of one run of the scorer; a longer target is scored alone."""
MAX_BATCH_WEIGHTS = 2**24
"""Attention weights of one run of the aligner, all layers and heads included."""
MAX_BATCH_TOKENS = 8192
"""Tokens of sources and targets of one run of the scorer, padding included."""
MAX_ALIGNED_TOKENS = 1024
"""Tokens of one run of the aligner; 8,192 take a third more processor time (3 and 3 layers of 256; November 2026)."""


class GivenTarget(NamedTuple):
    """A target with its source and the decoder's start token.

    Attributes:
        source_ids: source token ids, [S].
        target_ids: target token ids, [T].
    """

    source_ids: Sequence[int]
    start: int
    target_ids: Sequence[int]


@dataclass(frozen=True, eq=False)
class TeacherForcing:
    """Runs scorer and aligner over targets, in limited batches of similar lengths.

    Attributes:
        aligning: heads that align tokens; None: those of the layer before the last, which aligns best in most models
            (Garg et al. 2019).
    """

    graphs: Graphs
    variant: PrecisionVariant
    pad: int
    vocabulary: int
    aligning: AlignmentHeads | None = None

    @property
    def can_score(self) -> bool:
        """True if the model has a scorer."""
        return "scorer" in self.variant.graphs

    @property
    def can_align(self) -> bool:
        """True if the model has an aligner."""
        return "aligner" in self.variant.graphs

    @property
    def can_place(self) -> bool:
        """True if the model can place terms: it aligns and scores."""
        return self.can_align and self.can_score

    def heads(self, kind: AttentionKind) -> tuple[int, int]:
        """Return the numbers of layers and of heads each; 0, 0 without attention."""
        return self.variant.attention(ATTENTION_OUTPUTS[kind]) or (0, 0)

    def alignments(self, given: Sequence[GivenTarget], deadline: Deadline) -> list[Floats]:
        """Compute the mean attention of the heads that align the tokens of each target, [T, S].

        No target may be empty. Layers after those of the heads do not run.

        Raises:
            DeadlineExceededError, CancelledError: the deadline passed, or the request was cancelled, between batches.
        """
        if self.aligning is None:
            number, heads = self.heads("cross")
            named = [(max(0, number - 2), head) for head in range(heads)]
        else:
            named = [(one.layer, one.head) for one in self.aligning.heads]
        layers = sorted({layer for layer, _ in named})
        places, heads_of = [layers.index(layer) for layer, _ in named], [head for _, head in named]

        def run(pairs: Pairs) -> list[Floats]:
            weights = self.graphs.cross_attention(layers, pairs)[:, places, heads_of]  # [B, heads, T, S]
            averaged: Floats = weights.mean(axis=1, dtype=np.float32)
            return [averaged]

        return [cross for (cross,) in self._in_batches(("cross",), given, run, deadline)]

    def scores(self, given: Sequence[GivenTarget], deadline: Deadline) -> Generator[int, None, list[list[float]]]:
        """Compute the log-probability of every token of every target, given the tokens before it.

        Yields:
            Before each batch: its tokens, padding included.

        Raises:
            DeadlineExceededError, CancelledError: the deadline passed, or the request was cancelled, between batches.
        """

        def cost(source: int, target: int) -> float:
            return max(target * self.vocabulary / MAX_BATCH_LOGITS, (source + target) / MAX_BATCH_TOKENS)

        scores: list[list[float]] = [[] for _ in given]
        for batch in _batches(given, cost):
            pairs = self._padded([given[index] for index in batch])
            yield pairs.source_ids.size + pairs.target_ids.size
            deadline.check("the targets were scored")
            results = self.graphs.score(pairs)  # [B, T]
            for index, row in zip(batch, results, strict=True):
                scores[index] = row[: len(given[index].target_ids)].tolist()
        return scores

    def all_scores(self, given: Sequence[GivenTarget], deadline: Deadline) -> list[list[float]]:
        """Compute the log-probabilities of `scores` in this thread, without turns for others."""
        return finished(self.scores(given, deadline))

    def attention(self, given: Sequence[GivenTarget], deadline: Deadline) -> list[Floats]:
        """Compute the mean cross-attention of each target, [T, S].

        No target may be empty.

        Raises:
            DeadlineExceededError, CancelledError: the deadline passed, or the request was cancelled, between batches.
        """

        def mean(weights: Floats) -> Floats:
            averaged: Floats = weights.mean(axis=(1, 2), dtype=np.float32)  # [B, T, S]
            return averaged

        return [cross for (cross,) in self.attention_of(("cross",), given, mean, deadline)]

    def attention_of(
        self,
        kinds: Sequence[AttentionKind],
        given: Sequence[GivenTarget],
        reduce: Callable[[Floats], Floats],
        deadline: Deadline,
    ) -> list[list[Floats]]:
        """Compute attention of several kinds for every target.

        Args:
            kinds: kinds that the model has, in the order of the results.
            given: targets, none empty.
            reduce: function from weights [B, layers, heads, rows, columns] to [B, ..., rows, columns]; only its
                results stay in memory until all batches are done.

        Returns:
            Attention of every target by kind: cross [..., T, S], encoder [..., S, S], decoder [..., T, T].

        Raises:
            DeadlineExceededError, CancelledError: the deadline passed, or the request was cancelled, between batches.
        """

        def run(pairs: Pairs) -> list[Floats]:
            return [reduce(weights) for weights in self.graphs.attention(kinds, pairs)]

        return self._in_batches(kinds, given, run, deadline)

    def _in_batches(
        self,
        kinds: Sequence[AttentionKind],
        given: Sequence[GivenTarget],
        run: Callable[[Pairs], list[Floats]],
        deadline: Deadline,
    ) -> list[list[Floats]]:
        """Run an aligner in batches, and cut the attention of each target out of theirs."""
        cross, encoder, decoder = (math.prod(self.heads(kind)) for kind in ATTENTION_KINDS)

        def cost(source: int, target: int) -> float:  # the aligner computes all kinds
            weights = cross * target * source + encoder * source**2 + decoder * target**2
            return max(weights / MAX_BATCH_WEIGHTS, (source + target) / MAX_ALIGNED_TOKENS)

        attention: list[list[Floats]] = [[] for _ in given]
        for batch in _batches(given, cost):
            deadline.check("attention was computed")
            found = run(self._padded([given[index] for index in batch]))
            for kind, of_kind in zip(kinds, found, strict=True):
                for index, kept in zip(batch, of_kind, strict=True):
                    source, target = len(given[index].source_ids), len(given[index].target_ids)
                    rows = source if kind == "encoder" else target
                    columns = target if kind == "decoder" else source
                    attention[index].append(kept[..., :rows, :columns].copy())  # a view would keep the padding
        return attention

    def _padded(self, given: Sequence[GivenTarget]) -> Pairs:
        source_ids, source_lengths = _rectangle([one.source_ids for one in given], self.pad)
        # The padding token may be in the source vocabulary only; any token can pad a target.
        target_ids, target_lengths = _rectangle([one.target_ids for one in given], 0)
        starts = np.array([one.start for one in given])
        return Pairs(source_ids, source_lengths, starts, target_ids, target_lengths)


def _rectangle(rows: Sequence[Sequence[int]], fill: int) -> tuple[Integers, Integers]:
    lengths = np.array([len(row) for row in rows])
    ids = np.full((len(rows), int(lengths.max())), fill)
    for padded, row in zip(ids, rows, strict=True):
        padded[: len(row)] = row
    return ids, lengths


def _batches(given: Sequence[GivenTarget], cost: Callable[[int, int], float]) -> Iterator[list[int]]:
    """Yield the indices of targets to run together, of similar lengths.

    ``cost`` of S and T is the fraction of a full batch that one target takes.
    """
    batch: list[int] = []
    longest_source = longest_target = 0
    for index in sorted(
        range(len(given)), key=lambda index: (len(given[index].target_ids), len(given[index].source_ids))
    ):
        source = max(longest_source, len(given[index].source_ids))
        target = max(longest_target, len(given[index].target_ids))
        if batch and (len(batch) + 1) * cost(source, target) > 1:
            yield batch
            batch = []
            source, target = len(given[index].source_ids), len(given[index].target_ids)
        batch.append(index)
        longest_source, longest_target = source, target
    if batch:
        yield batch
