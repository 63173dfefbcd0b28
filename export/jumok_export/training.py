"""`jumok train`: from a configuration and a corpus to a checkpoint, resumable, on PyTorch Lightning."""

import ctypes
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import EMAWeightAveraging, LearningRateMonitor, ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

from jumok_export.checkpoint import BEST, LAST
from jumok_export.configuration import Configuration, ConfigurationError, load_configuration, parse_configuration
from jumok_export.corpus import Batch, ParallelCorpus, TokenBudgetSampler, read_files
from jumok_export.curves import plot_curves
from jumok_export.lightning_module import TranslationTraining
from jumok_export.vocabulary import Vocabulary, train_vocabulary
from jumok_serve.parallel_text import CorpusError


def train(configuration_path: Path, out: Path, *, data: Path | None = None) -> Path:
    """Trains the model of a configuration; goes on where it stopped if `out` holds a run.

    Args:
        configuration_path: TOML file; see `Configuration`.
        out: the run's folder: checkpoints, metrics and curves.
        data: folder that the configuration's file names are relative to; default: the configuration's own.

    Returns:
        The best checkpoint's file.

    Raises:
        ConfigurationError: the configuration cannot be used, or is not the one that the run in `out` began with.
        CorpusError: the corpus cannot be used.
    """
    text = configuration_path.read_text(encoding="utf-8")
    configuration = load_configuration(configuration_path)
    _keep_configuration(text, configuration, out)
    corpus = Corpus(configuration, data or configuration_path.parent, out)
    pl.seed_everything(configuration.training.seed, verbose=False)
    if sys.platform == "linux":
        _keep_freed_memory()
    module = TranslationTraining(configuration, *corpus.vocabularies)
    trainer = _trainer(configuration, out)
    last = out / LAST
    trainer.fit(module, corpus, ckpt_path=str(last) if last.exists() else None, weights_only=True)
    plot_curves(out)
    return out / BEST


class Corpus(pl.LightningDataModule):
    """The training and validation batches of a configuration, and the vocabularies trained on them.

    Args:
        configuration: names the files.
        folder: what they are relative to.
        out: the run's folder, where the vocabularies are kept.
    """

    def __init__(self, configuration: Configuration, folder: Path, out: Path) -> None:
        super().__init__()
        self.configuration = configuration
        data = configuration.data
        sources, targets = read_files(
            [folder / name for name in data.train_source], [folder / name for name in data.train_target]
        )
        self.sources, self.targets = sources, targets
        self.vocabularies = _vocabularies(configuration, sources, targets, out)
        self.validation = ParallelCorpus(
            *read_files([folder / data.validation_source], [folder / data.validation_target]), *self.vocabularies
        )
        print(
            f"{len(sources)} sentence pairs to train on, {len(self.validation)} to validate on; vocabulary of "
            + " and ".join(str(len(vocabulary)) for vocabulary in dict.fromkeys(self.vocabularies)),
            file=sys.stderr,
        )

    def _loader(self, corpus: ParallelCorpus, seed: int, *, shuffle: bool) -> DataLoader[Any]:
        assert self.trainer is not None
        sampler = TokenBudgetSampler(
            corpus.lengths,
            self.configuration.training.batch_tokens,
            seed=seed,
            rank=self.trainer.global_rank,
            devices=self.trainer.world_size,
            shuffle=shuffle,
        )
        return DataLoader(corpus, batch_sampler=sampler, collate_fn=ParallelCorpus.collate)

    def train_dataloader(self) -> DataLoader[Batch]:
        """This epoch's batches: segmented and shuffled anew, within the token budget."""
        assert self.trainer is not None
        seed = self.configuration.training.seed + 2 * self.trainer.current_epoch
        corpus = ParallelCorpus(
            self.sources,
            self.targets,
            *self.vocabularies,
            sampling_alpha=self.configuration.tokenizer.sampling_alpha,
            seed=seed,
            max_length=self.configuration.data.max_length,
        )
        if not len(corpus):
            raise CorpusError(
                f"every sentence pair is longer than data.max_length = {self.configuration.data.max_length}"
            )
        return self._loader(corpus, seed, shuffle=True)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Validation batches in order of length."""
        return self._loader(self.validation, 0, shuffle=False)


def _trainer(configuration: Configuration, out: Path) -> pl.Trainer:
    training = configuration.training
    callbacks: list[pl.Callback] = [
        ModelCheckpoint(
            out, BEST.removesuffix(".ckpt"), monitor="validation_bleu", mode="max", enable_version_counter=False
        ),
        ModelCheckpoint(out, LAST.removesuffix(".ckpt"), every_n_epochs=1, enable_version_counter=False),
        LearningRateMonitor("epoch"),
        TQDMProgressBar(refresh_rate=10),
    ]
    if training.ema_decay:
        # The first update takes the weights as they are; the average of random initial weights would be a poor start.
        callbacks.insert(0, EMAWeightAveraging(decay=training.ema_decay, use_buffers=False))
    return pl.Trainer(
        accelerator=training.accelerator,
        devices=training.devices,
        precision=training.precision,
        max_epochs=training.max_epochs,
        accumulate_grad_batches=training.accumulate_batches,
        gradient_clip_val=training.gradient_clip,
        check_val_every_n_epoch=training.validate_every_epochs,
        num_sanity_val_steps=0,
        reload_dataloaders_every_n_epochs=1,
        use_distributed_sampler=False,
        logger=CSVLogger(out, name="", version=""),
        callbacks=callbacks,
        enable_model_summary=False,
    )


def _vocabularies(
    configuration: Configuration, sources: list[str], targets: list[str], out: Path
) -> tuple[Vocabulary, Vocabulary]:
    section = configuration.tokenizer
    texts: Mapping[str, list[str]] = (
        {"shared": sources + targets} if section.shared else {"source": sources, "target": targets}
    )
    vocabularies = []
    for name, lines in texts.items():
        path = out / f"{name}.model"
        if not path.exists():
            model = train_vocabulary(
                lines,
                size=section.vocabulary_size,
                kind=section.kind,
                character_coverage=section.character_coverage,
                seed=configuration.training.seed,
            )
            path.write_bytes(model)
        vocabularies.append(Vocabulary(path.read_bytes()))
    return vocabularies[0], vocabularies[-1]


def _keep_configuration(text: str, configuration: Configuration, out: Path) -> None:
    """Writes the configuration into the run's folder; a run goes on only with what it began with.

    The number of epochs may change: that is how a run is made longer.
    """
    out.mkdir(parents=True, exist_ok=True)
    kept = out / "config.toml"
    if kept.exists():

        def essence(configuration: Configuration) -> dict[str, Any]:
            return configuration.model_dump(
                exclude={"training": {"max_epochs", "devices", "accelerator"}, "bundle": True}
            )

        before = parse_configuration(kept.read_text(encoding="utf-8"), str(kept))
        if essence(before) != essence(configuration):
            raise ConfigurationError(
                f"{out} holds a run with another configuration (see its config.toml): name another folder for this one"
            )
    kept.write_text(text, encoding="utf-8")


def _keep_freed_memory() -> None:
    """Asks the C library to keep freed memory for reuse instead of giving it back to the system.

    A training step on a CPU frees and takes hundreds of megabytes; page faults were half of its time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc; other C libraries have no such call
        m_trim_threshold, m_top_pad, m_mmap_max = -1, -2, -4
        mallopt(m_mmap_max, 0)
        mallopt(m_trim_threshold, 2**31 - 1)
        mallopt(m_top_pad, 64 * 2**20)
