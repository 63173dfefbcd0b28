"""Alignment of training pairs: made once on likely tokens, and mapped to the tokens of each epoch."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jumok_export.shortlists.token_alignment import align_tokens
from jumok_export.training.vocabulary import Vocabulary

Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """Links between parts of sources and of targets, by their characters.

    Characters are counted in normalised text, which is the same in all segmentations of a sentence.

    Attributes:
        pairs: index of each link's sentence pair, ascending, [N].
        source_starts, source_ends: characters of the source, [N].
        target_starts, target_ends: characters of the target, [N].
        weights: certainty of each link, [N].
        source_pieces, target_pieces: number of characters of each token, [vocabulary].
    """

    pairs: Integers
    source_starts: Integers
    source_ends: Integers
    target_starts: Integers
    target_ends: Integers
    weights: NDArray[np.float32]
    source_pieces: Integers
    target_pieces: Integers

    @classmethod
    def of_texts(
        cls,
        sources: Sequence[str],
        targets: Sequence[str],
        source_vocabulary: Vocabulary,
        target_vocabulary: Vocabulary,
        *,
        max_length: int,
        progress: Callable[[str], None] = lambda _: None,
    ) -> Self:
        """Align the most likely tokens of sentence pairs; see `align_tokens`.

        Pairs of more tokens than `max_length`, or with unknown tokens, have no links.
        """
        source_ids = source_vocabulary.encode_all(sources, 0.0, 0)
        target_ids = target_vocabulary.encode_all(targets, 0.0, 0)
        source_pieces, target_pieces = source_vocabulary.piece_lengths, target_vocabulary.piece_lengths
        pairs = [
            (source[:-1].numpy(), target[:-1].numpy()) for source, target in zip(source_ids, target_ids, strict=True)
        ]
        kept = [
            index
            for index, (source, target) in enumerate(pairs)
            if min(len(source), len(target)) > 0
            and max(len(source), len(target)) < max_length
            and source_pieces[source].min() > 0
            and target_pieces[target].min() > 0
        ]
        if not kept:
            empty = np.zeros(0, np.int64)
            return cls(
                **dict.fromkeys(("pairs", "source_starts", "source_ends", "target_starts", "target_ends"), empty),
                weights=np.zeros(0, np.float32),
                source_pieces=source_pieces,
                target_pieces=target_pieces,
            )
        links = align_tokens(
            [pairs[index] for index in kept],
            source_vocabulary=len(source_vocabulary),
            target_vocabulary=len(target_vocabulary),
            progress=progress,
        )
        spans = []
        for side, lengths, tokens in ((0, source_pieces, links.sources), (1, target_pieces, links.targets)):
            sizes = [len(pairs[index][side]) for index in kept]
            of_tokens = lengths[np.concatenate([pairs[index][side] for index in kept])]
            ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(of_tokens)])
            firsts = np.cumsum(sizes) - sizes
            place = firsts[links.pairs] + tokens
            before = ends[firsts[links.pairs]]
            spans.append((ends[place] - before, ends[place + 1] - before))
        return cls(
            pairs=np.array(kept, np.int64)[links.pairs],
            source_starts=spans[0][0],
            source_ends=spans[0][1],
            target_starts=spans[1][0],
            target_ends=spans[1][1],
            weights=links.weights,
            source_pieces=source_pieces,
            target_pieces=target_pieces,
        )

    def to_bytes(self) -> bytes:
        """Write the alignment as a file's content."""
        content = io.BytesIO()
        np.savez_compressed(content, **{field.name: getattr(self, field.name) for field in fields(self)})
        return content.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read an alignment from a file's content."""
        with np.load(io.BytesIO(content)) as arrays:
            return cls(**{field.name: arrays[field.name] for field in fields(cls)})

    def of_tokens(self, source_ids: Sequence[Tensor], target_ids: Sequence[Tensor]) -> list[Tensor]:
        """Map the links to the tokens of any segmentation.

        A link becomes those of all tokens that have characters of its parts.

        Args:
            source_ids: token ids of all sources, with the end token.
            target_ids: token ids of all targets, with the end token.

        Returns:
            Target token, source token and weight of each pair's links, float32 [n, 3]; the weights of a target token's
            links sum to 1.
        """
        source_first, source_count, source_firsts = _tokens_of(
            source_ids, self.source_pieces, self.pairs, self.source_starts, self.source_ends
        )
        target_first, target_count, target_firsts = _tokens_of(
            target_ids, self.target_pieces, self.pairs, self.target_starts, self.target_ends
        )
        counts = source_count * target_count
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        down, across = np.divmod(within, np.repeat(source_count, counts))
        targets, sources = np.repeat(target_first, counts) + down, np.repeat(source_first, counts) + across
        # A target token and a source token of its pair, as one key.
        longest = max(map(len, source_ids), default=1)
        of_pairs = np.repeat(self.pairs, counts)
        keys, inverse = np.unique(targets * longest + sources - source_firsts[of_pairs], return_inverse=True)
        weights = np.bincount(inverse, weights=np.repeat(self.weights / np.maximum(counts, 1), counts))
        targets, sources = np.divmod(keys, longest)
        sums = np.bincount(targets, weights=weights)
        bounds = np.searchsorted(targets, target_firsts)
        sentences = np.searchsorted(target_firsts, targets, side="right") - 1
        found = torch.from_numpy(
            np.stack((targets - target_firsts[sentences], sources, weights / sums[targets]), axis=1).astype(np.float32)
        )
        return list(torch.split(found, np.diff(bounds, append=len(keys)).tolist()))


def _tokens_of(
    token_ids: Sequence[Tensor], pieces: Integers, pairs: Integers, starts: Integers, ends: Integers
) -> tuple[Integers, Integers, Integers]:
    """Find the tokens that have characters of parts of their sentences.

    Returns:
        First token of each part among all tokens, the number of its tokens, and the first token of each sentence. Parts
        of sentences with an unknown token have no tokens, because it is not known what the token spells.
    """
    firsts = np.cumsum([0, *map(len, token_ids)])[:-1]
    lengths = pieces[torch.cat(list(token_ids)).numpy()]
    unknown = np.bitwise_or.reduceat(lengths < 0, firsts)
    token_ends = np.cumsum(np.maximum(lengths, 0))
    before = np.concatenate([np.zeros(1, np.int64), token_ends])[firsts[pairs]]
    first = np.searchsorted(token_ends, before + starts, side="right")
    last = np.searchsorted(token_ends, before + ends - 1, side="right")
    return first, np.where(unknown[pairs], 0, last - first + 1), firsts
