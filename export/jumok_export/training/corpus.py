"""Training corpus: sentence pairs from parallel files, in batches within a token budget."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, Sampler

from jumok_export.training.alignment import Alignment
from jumok_export.training.vocabulary import PAD, Vocabulary
from jumok_serve.evaluation.parallel_text import read_parallel


def read_files(sources: Sequence[Path], targets: Sequence[Path]) -> tuple[list[str], list[str]]:
    """Read source and target lines of several pairs of parallel files, in order.

    Raises:
        CorpusError: an unreadable file, or files with different numbers of lines.
    """
    pairs = [read_parallel(source, target) for source, target in zip(sources, targets, strict=True)]
    return [line for lines, _ in pairs for line in lines], [line for _, lines in pairs for line in lines]


@dataclass(frozen=True)
class BatchLinks:
    """Links of a batch's target tokens to source tokens.

    Attributes:
        sentences, targets, sources: indices of each link into attention [B, T, S], [N] each.
        weights: share of each link among those of its target token, [N].
    """

    sentences: Tensor
    targets: Tensor
    sources: Tensor
    weights: Tensor

    def to(self, device: torch.device) -> "BatchLinks":
        """Copy the links to another device."""
        return BatchLinks(
            self.sentences.to(device), self.targets.to(device), self.sources.to(device), self.weights.to(device)
        )


@dataclass(frozen=True)
class Batch:
    """Padded sentence pairs.

    Attributes:
        source_ids: [B, S].
        source_lengths: [B].
        target_ids: [B, T], each ending with the end token.
        target_lengths: [B].
        references: target texts, for validation scores.
        links: links of tokens, for guided alignment; None without.
    """

    source_ids: Tensor
    source_lengths: Tensor
    target_ids: Tensor
    target_lengths: Tensor
    references: tuple[str, ...] = ()
    links: BatchLinks | None = None

    def to(self, device: torch.device) -> "Batch":
        """Copy the batch to another device."""
        return Batch(
            self.source_ids.to(device),
            self.source_lengths.to(device),
            self.target_ids.to(device),
            self.target_lengths.to(device),
            self.references,
            None if self.links is None else self.links.to(device),
        )


class Example(NamedTuple):
    """A sentence pair.

    Attributes:
        source_ids: token ids, [S].
        target_ids: token ids, [T].
        text: the target.
        links: target token, source token and weight of each link, [N, 3]; None without guided alignment.
    """

    source_ids: Tensor
    target_ids: Tensor
    text: str
    links: Tensor | None = None


def pad(sequences: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Pad token ids to the longest, int64 [B, T]; also returns their lengths [B]."""
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    return pad_sequence(list(sequences), batch_first=True, padding_value=PAD).long(), lengths


class ParallelCorpus(Dataset[Example]):
    """Sentence pairs as token ids.

    Args:
        sampling_alpha: smoothing of random segmentations (Kudo, 2018), smaller is more even; 0: the most likely ones.
        max_length: most tokens of a sentence; longer pairs are left out; None keeps all.
        alignment: alignment of all pairs, for guided alignment; None without.
    """

    def __init__(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        source_vocabulary: Vocabulary,
        target_vocabulary: Vocabulary,
        *,
        sampling_alpha: float = 0.0,
        seed: int = 0,
        max_length: int | None = None,
        alignment: Alignment | None = None,
    ) -> None:
        source_ids = source_vocabulary.encode_all(sources, sampling_alpha, seed)
        target_ids = target_vocabulary.encode_all(targets, sampling_alpha, seed + 1)
        lengths = np.array([(len(source), len(target)) for source, target in zip(source_ids, target_ids, strict=True)])
        kept = [index for index, longer in enumerate(lengths.max(axis=1)) if max_length is None or longer <= max_length]
        links = [None] * len(sources) if alignment is None else alignment.of_tokens(source_ids, target_ids)
        self.pairs = [Example(source_ids[index], target_ids[index], targets[index], links[index]) for index in kept]
        self.lengths = lengths[kept]  # [N, 2]
        self.left_out = len(sources) - len(self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Example:
        return self.pairs[index]

    @staticmethod
    def collate(pairs: Sequence[Example]) -> Batch:
        """Pad some pairs to a batch."""
        sources, targets, texts, links = zip(*pairs, strict=True)
        batch = Batch(*pad(sources), *pad(targets), references=tuple(texts))
        present = [of_pair for of_pair in links if of_pair is not None]
        if not present:
            return batch
        sentences = torch.repeat_interleave(torch.tensor([len(of_pair) for of_pair in present]))
        target_tokens, source_tokens, weights = torch.cat(present).unbind(dim=1)
        return replace(batch, links=BatchLinks(sentences, target_tokens.long(), source_tokens.long(), weights))


class TokenBudgetSampler(Sampler[list[int]]):
    """Batches of similar length within a token budget, divided among devices.

    Args:
        lengths: source and target tokens of each pair, [N, 2].
        batch_tokens: most pairs * tokens of the longest sentence, padding included.
        seed: seed of shuffling; another one every epoch.
        rank: number of this device, from 0.
        devices: number of devices. If shuffled, all devices get the same number of batches; up to `devices` - 1
            batches are repeated for this.
        shuffle: True to shuffle; else batches are in order of length.
    """

    def __init__(
        self, lengths: np.ndarray, batch_tokens: int, *, seed: int = 0, rank: int = 0, devices: int = 1, shuffle: bool
    ) -> None:
        self.longest = lengths.max(axis=1)
        self.batch_tokens = batch_tokens
        self.seed, self.rank, self.devices, self.shuffle = seed, rank, devices, shuffle

    def batches(self) -> list[list[int]]:
        """Make the batches of all devices."""
        random = np.random.default_rng(self.seed)
        # Noise on the lengths puts a sentence into a batch with others every epoch.
        noise = random.uniform(0, 2, len(self.longest)) if self.shuffle else np.zeros(len(self.longest))
        batches: list[list[int]] = []
        batch: list[int] = []
        widest = 0
        for index in np.argsort(self.longest + noise, kind="stable"):
            wider = max(widest, int(self.longest[index]))
            if batch and wider * (len(batch) + 1) > self.batch_tokens:
                batches.append(batch)
                batch, wider = [], int(self.longest[index])
            batch.append(int(index))
            widest = wider
        batches.append(batch)
        if self.shuffle:
            random.shuffle(batches)
        # In training devices wait for each other after every batch, in validation only at the end.
        missing = -len(batches) % self.devices if self.shuffle else max(0, self.devices - len(batches))
        return batches + list(itertools.islice(itertools.cycle(batches), missing))

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches()[self.rank :: self.devices])

    def __len__(self) -> int:
        return len(self.batches()[self.rank :: self.devices])
