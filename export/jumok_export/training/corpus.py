"""A training corpus: parallel files as sentence pairs, and batches of a bounded number of tokens."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, Sampler

from jumok_export.training.vocabulary import PAD, Vocabulary
from jumok_serve.evaluation.parallel_text import read_parallel


def read_files(sources: Sequence[Path], targets: Sequence[Path]) -> tuple[list[str], list[str]]:
    """Source and target lines of several pairs of parallel files, one pair after the other.

    Raises:
        CorpusError: a file cannot be read, or a pair is not parallel.
    """
    pairs = [read_parallel(source, target) for source, target in zip(sources, targets, strict=True)]
    return [line for lines, _ in pairs for line in lines], [line for _, lines in pairs for line in lines]


@dataclass(frozen=True)
class Batch:
    """Padded sentence pairs, on axis 0.

    Attributes:
        source_ids: [B, S].
        source_lengths: [B].
        target_ids: [B, T], each ending with the end token.
        target_lengths: [B].
        references: the target texts, for validation scores.
    """

    source_ids: Tensor
    source_lengths: Tensor
    target_ids: Tensor
    target_lengths: Tensor
    references: tuple[str, ...] = ()

    def to(self, device: torch.device) -> "Batch":
        """The batch on another device."""
        return Batch(
            self.source_ids.to(device),
            self.source_lengths.to(device),
            self.target_ids.to(device),
            self.target_lengths.to(device),
            self.references,
        )


def pad(sequences: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Token ids padded to the longest, int64 [B, T], and their lengths, [B]."""
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    return pad_sequence(list(sequences), batch_first=True, padding_value=PAD).long(), lengths


class ParallelCorpus(Dataset[tuple[Tensor, Tensor, str]]):
    """Sentence pairs as token ids; an index gives (source ids, target ids, target text).

    Args:
        sources: source sentences.
        targets: their translations.
        source_vocabulary: segments sources.
        target_vocabulary: segments targets.
        sampling_alpha: segment at random (Kudo, 2018), the smaller the more evenly; 0: the best segmentation.
        seed: of the random segmentations.
        max_length: pairs with a longer side, in tokens, are left out; None keeps all.
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
    ) -> None:
        source_ids = source_vocabulary.encode_all(sources, sampling_alpha, seed)
        target_ids = target_vocabulary.encode_all(targets, sampling_alpha, seed + 1)
        lengths = np.array([(len(source), len(target)) for source, target in zip(source_ids, target_ids, strict=True)])
        kept = [index for index, longer in enumerate(lengths.max(axis=1)) if max_length is None or longer <= max_length]
        self.pairs = [(source_ids[index], target_ids[index], targets[index]) for index in kept]
        self.lengths = lengths[kept]  # [N, 2]
        self.left_out = len(sources) - len(self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, str]:
        return self.pairs[index]

    @staticmethod
    def collate(pairs: Sequence[tuple[Tensor, Tensor, str]]) -> Batch:
        """The padded batch of some pairs."""
        sources, targets, texts = zip(*pairs, strict=True)
        return Batch(*pad(sources), *pad(targets), references=tuple(texts))


class TokenBudgetSampler(Sampler[list[int]]):
    """Batches of similar length within a token budget, shuffled anew each epoch; one part of them for each device.

    Args:
        lengths: [N, 2], source and target tokens of each pair.
        batch_tokens: bound on pairs * tokens of the longest side, padding included.
        seed: of the shuffling; another one every epoch.
        rank: which device this is.
        devices: how many there are; when shuffled, every device gets the same number of batches, for which up to
            `devices` - 1 of them are taken twice.
        shuffle: False: in order of length.
    """

    def __init__(
        self, lengths: np.ndarray, batch_tokens: int, *, seed: int = 0, rank: int = 0, devices: int = 1, shuffle: bool
    ) -> None:
        self.longest = lengths.max(axis=1)
        self.batch_tokens = batch_tokens
        self.seed, self.rank, self.devices, self.shuffle = seed, rank, devices, shuffle

    def batches(self) -> list[list[int]]:
        """Every device's batches."""
        random = np.random.default_rng(self.seed)
        # A little noise on the lengths mixes the company that a sentence keeps from epoch to epoch.
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
        # Devices wait for each other after every batch that they train on, but only after all that they validate on.
        missing = -len(batches) % self.devices if self.shuffle else max(0, self.devices - len(batches))
        return batches + list(itertools.islice(itertools.cycle(batches), missing))

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches()[self.rank :: self.devices])

    def __len__(self) -> int:
        return len(self.batches()[self.rank :: self.devices])
