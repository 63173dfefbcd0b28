"""Lightning data module: vocabularies of a run, and batches of every epoch and device."""

import hashlib
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only
from torch.utils.data import DataLoader

from jumok_export.training.alignment import Alignment
from jumok_export.training.configuration import Configuration
from jumok_export.training.corpus import Batch, ParallelCorpus, TokenBudgetSampler, read_files
from jumok_export.training.vocabulary import Vocabulary, train_vocabulary
from jumok_serve.evaluation.parallel_text import CorpusError

VOCABULARIES = ("shared", "source", "target")
"""Names of vocabulary files, without ending."""
ALIGNMENT = "alignment.npz"
"""File name of the training pairs' alignment, with guided alignment."""
TIMEOUT_S = 3600.0
"""Longest wait of a process for a file that the first process makes."""


class TranslationData(pl.LightningDataModule):
    """The training and validation batches of a configuration, and the vocabularies trained on them.

    Args:
        out: the run's folder, for the vocabularies and the alignment.
        progress: function that is called with messages.

    Raises:
        CorpusError: an invalid file, or a corpus too small for its vocabulary.
    """

    def __init__(
        self, configuration: Configuration, folder: Path, out: Path, progress: Callable[[str], None] = lambda _: None
    ) -> None:
        super().__init__()
        self._configuration = configuration
        data = configuration.data
        self._sources, self._targets = read_files(
            [folder / name for name in data.train_source], [folder / name for name in data.train_target]
        )
        validation = read_files([folder / data.validation_source], [folder / data.validation_target])
        self.vocabularies = self._load_vocabularies(out)
        self._alignment = None if configuration.guided_head is None else self._load_alignment(out, progress)
        self._validation = ParallelCorpus(*validation, *self.vocabularies)
        self.files = corpus_files(configuration, folder)
        self._thread = ThreadPoolExecutor(1)
        self._prepared: tuple[int, Future[ParallelCorpus]] | None = None

    @property
    def description(self) -> str:
        """Sizes of corpus and vocabulary, for a message."""
        sizes = " and ".join(str(len(vocabulary)) for vocabulary in dict.fromkeys(self.vocabularies))
        return (
            f"{len(self._sources)} sentence pairs to train on, {len(self._validation)} to validate on; "
            f"vocabulary of {sizes} tokens"
        )

    def train_dataloader(self) -> DataLoader[Batch]:
        """Make this epoch's batches: newly segmented and shuffled, within the token budget.

        A thread segments the next epoch meanwhile.
        """
        assert self.trainer is not None
        epoch = self.trainer.current_epoch
        if self._prepared is not None and self._prepared[0] == epoch:
            corpus = self._prepared[1].result()
        else:
            corpus = self._segmented(epoch)
        self._prepared = None
        if epoch + 1 < self._configuration.training.max_epochs:
            self._prepared = epoch + 1, self._thread.submit(self._segmented, epoch + 1)
        return self._loader(corpus, self._seed(epoch), shuffle=True)

    def teardown(self, stage: str) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)

    def _seed(self, epoch: int) -> int:
        return self._configuration.training.seed + 2 * epoch

    def _segmented(self, epoch: int) -> ParallelCorpus:
        longest = self._configuration.data.max_length
        corpus = ParallelCorpus(
            self._sources,
            self._targets,
            *self.vocabularies,
            sampling_alpha=self._configuration.tokenizer.sampling_alpha,
            seed=self._seed(epoch),
            max_length=longest,
            alignment=self._alignment,
        )
        if not len(corpus):
            raise CorpusError(f"every sentence pair is longer than data.max_length = {longest}")
        return corpus

    def val_dataloader(self) -> DataLoader[Batch]:
        """Make validation batches in order of length."""
        return self._loader(self._validation, 0, shuffle=False)

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """Move a batch, which is a dataclass of tensors."""
        return batch.to(device)

    def _loader(self, corpus: ParallelCorpus, seed: int, *, shuffle: bool) -> DataLoader[Any]:
        assert self.trainer is not None
        sampler = TokenBudgetSampler(
            corpus.lengths,
            self._configuration.training.batch_tokens,
            seed=seed,
            rank=self.trainer.global_rank,
            devices=self.trainer.world_size,
            shuffle=shuffle,
        )
        # A loader draws a number when it begins; from PyTorch's default generator this would change later dropout.
        generator = torch.Generator()
        return DataLoader(corpus, batch_sampler=sampler, collate_fn=ParallelCorpus.collate, generator=generator)

    def _load_vocabularies(self, out: Path) -> tuple[Vocabulary, Vocabulary]:
        section = self._configuration.tokenizer
        shared, source, target = VOCABULARIES
        texts = (
            {shared: self._sources + self._targets}
            if section.shared
            else {source: self._sources, target: self._targets}
        )

        def trained(lines: list[str]) -> bytes:
            try:
                return train_vocabulary(
                    lines,
                    size=section.vocabulary_size,
                    kind=section.kind,
                    character_coverage=section.character_coverage,
                    seed=self._configuration.training.seed,
                    symbols=section.symbols,
                )
            except ValueError as error:
                raise CorpusError(str(error)) from error

        models = [
            _made_by_first_process(out / f"{name}.model", lambda lines=lines: trained(lines))  # type: ignore[misc]
            for name, lines in texts.items()
        ]
        vocabularies = [Vocabulary(model, section.symbols) for model in models]
        return vocabularies[0], vocabularies[-1]

    def _load_alignment(self, out: Path, progress: Callable[[str], None]) -> Alignment:
        def made() -> bytes:
            longest = self._configuration.data.max_length
            return Alignment.of_texts(
                self._sources, self._targets, *self.vocabularies, max_length=longest, progress=progress
            ).to_bytes()

        return Alignment.from_bytes(_made_by_first_process(out / ALIGNMENT, made))


def corpus_files(configuration: Configuration, folder: Path) -> dict[str, str]:
    """Compute the SHA-256 of a configuration's training files, by name.

    Raises:
        CorpusError: an unreadable file.
    """
    data = configuration.data
    digests = {}
    for name in (*data.train_source, *data.train_target):
        try:
            with (folder / name).open("rb") as file:
                digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise CorpusError(f"{folder / name} cannot be read: {error.strerror}") from error
    return digests


def is_first_process() -> bool:
    """True if this is the only or first process of a run."""
    return not getattr(rank_zero_only, "rank", 0)


def remove_made_files(out: Path) -> None:
    """Remove the vocabularies and the alignment of a run's folder, if any."""
    for name in (*(f"{name}.model" for name in VOCABULARIES), ALIGNMENT):
        (out / name).unlink(missing_ok=True)


def _made_by_first_process(path: Path, make: Callable[[], bytes]) -> bytes:
    """Read a file that the first process makes if it is missing."""
    if is_first_process() and not path.exists():
        partial = path.with_suffix(".partial")
        partial.write_bytes(make())
        os.replace(partial, path)
    deadline = time.monotonic() + TIMEOUT_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise CorpusError(f"{path} was not made within {TIMEOUT_S:.0f} s by the first process")
        time.sleep(0.1)
    return path.read_bytes()
