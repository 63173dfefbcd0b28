"""`jumok train`: resumable training by a configuration, on PyTorch Lightning."""

import contextlib
import logging
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch.callbacks import ModelCheckpoint

from jumok_export.training.callbacks import Bar, MovingAverage, Record
from jumok_export.training.checkpoint import BEST, LAST
from jumok_export.training.configuration import Configuration
from jumok_export.training.configuration_file import ConfigurationError, load_configuration, parse_configuration
from jumok_export.training.datamodule import TranslationData, is_first_process, remove_made_files
from jumok_export.training.module import TranslationTraining
from jumok_serve.evaluation.parallel_text import described_score

CONFIGURATION = "config.toml"
"""File name of the configuration in a run's folder."""


def train(
    configuration_path: Path, out: Path, *, data: Path | None = None, progress: Callable[[str], None] = lambda _: None
) -> Path:
    """Train the model of a configuration, or resume the run in `out`.

    Args:
        configuration_path: TOML file; see `Configuration`.
        out: the run's folder, for checkpoints, metrics and curves.
        data: folder of the training files that the configuration names; default: the configuration's own.
        progress: function that is called with messages, in the first of several processes only.

    Returns:
        The best checkpoint's file.

    Raises:
        ConfigurationError: an invalid configuration, or another one than that of the run in `out`.
        CorpusError: an invalid corpus.
        KeyboardInterrupt: the user stopped the run, which can be resumed from its last complete epoch.
    """
    configuration = load_configuration(configuration_path)
    check_run(configuration, out)
    if is_first_process():
        out.mkdir(parents=True, exist_ok=True)
        if not (out / LAST).exists():
            remove_made_files(out)  # those of a failed start may be of another configuration
        (out / CONFIGURATION).write_bytes(configuration_path.read_bytes())
    pl.seed_everything(configuration.training.seed, verbose=False)
    say = progress if is_first_process() else lambda _: None
    say("reading the corpus and making the vocabulary")
    corpus = TranslationData(configuration, data or configuration_path.parent, out, say)
    module = TranslationTraining(configuration, *corpus.vocabularies, corpus.files)
    last = out / LAST
    say(corpus.description)
    score = described_score(configuration.bleu_tokenizer, configuration.data.target_language)
    say(f"the best checkpoint is the one with the highest {score}")
    if last.exists():
        say(f"going on with the run in {out}")
    try:
        with _quiet():
            _fit(_trainer(configuration, out), module, corpus, last)
    except KeyboardInterrupt:
        say("stopped; training again into the same folder goes on from the last complete epoch")
        raise
    say(f"the best checkpoint is {out / BEST}")
    return out / BEST


def _fit(trainer: pl.Trainer, module: TranslationTraining, corpus: TranslationData, last: Path) -> None:
    """Fit, from `last` if it exists; Ctrl-C raises KeyboardInterrupt, on which Lightning would exit."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        trainer.fit(module, corpus, ckpt_path=str(last) if last.exists() else None, weights_only=True)
    except SystemExit:
        if not trainer.interrupted:
            raise
        raise KeyboardInterrupt from None
    finally:
        signal.signal(signal.SIGINT, handler)


def _trainer(configuration: Configuration, out: Path) -> pl.Trainer:
    training = configuration.training
    callbacks: list[pl.Callback] = [
        ModelCheckpoint(
            out,
            BEST.removesuffix(".ckpt"),
            monitor=configuration.validation_score,
            mode="max",
            enable_version_counter=False,
        ),
        # At an epoch's end, so that a resumed run begins with the next epoch.
        ModelCheckpoint(
            out,
            LAST.removesuffix(".ckpt"),
            every_n_epochs=1,
            save_on_train_epoch_end=True,
            enable_version_counter=False,
        ),
        Record(out, configuration.validation_score),
        Bar(),
    ]
    if training.ema_decay:
        callbacks.insert(0, MovingAverage(training.ema_decay))
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
        logger=False,
        callbacks=callbacks,
        enable_model_summary=False,
    )


def check_run(configuration: Configuration, out: Path) -> None:
    """Check that a run can be resumed by a configuration.

    The number of epochs, the devices, their precision and the bundle's section may have changed.

    Args:
        out: the run's folder; it need not exist.

    Raises:
        ConfigurationError: another configuration than that of a run with a checkpoint.
    """
    kept = out / CONFIGURATION
    # A run that failed before its first checkpoint holds nothing.
    if not kept.exists() or not any((out / name).exists() for name in (BEST, LAST)):
        return

    def fixed(configuration: Configuration) -> dict[str, Any]:
        free = {"max_epochs", "devices", "accelerator", "precision"}
        return configuration.model_dump(exclude={"training": free, "bundle": True})

    before = parse_configuration(kept.read_text(encoding="utf-8"), str(kept))
    if fixed(before) != fixed(configuration):
        raise ConfigurationError(
            f"{out} holds a run with another configuration (see its {CONFIGURATION}): name another folder for this one"
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    libraries = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [library.level for library in libraries]
    for library in libraries:
        library.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            # Data-loading workers do not pay: a batch is made in less time than its copy between processes takes.
            warnings.simplefilter("ignore", PossibleUserWarning)
            warnings.filterwarnings("ignore", "Checkpoint directory .* exists and is not empty", UserWarning)
            warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated")
            # Cells keep their gates in ONNX's order, so cuDNN gets weights that were put together for each batch.
            warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk", UserWarning)
            yield
    finally:
        for library, level in zip(libraries, levels, strict=True):
            library.setLevel(level)
