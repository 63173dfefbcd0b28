"""`jumok train`: from a configuration and a corpus to a checkpoint, resumable, on PyTorch Lightning."""

import contextlib
import logging
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint

from jumok_export.training.callbacks import Bar, Record
from jumok_export.training.checkpoint import BEST, LAST
from jumok_export.training.configuration import (
    Configuration,
    ConfigurationError,
    load_configuration,
    parse_configuration,
)
from jumok_export.training.datamodule import TranslationData, is_first_process
from jumok_export.training.module import TranslationTraining

CONFIGURATION = "config.toml"
"""Name of the configuration's copy in a run's folder."""


def train(
    configuration_path: Path, out: Path, *, data: Path | None = None, progress: Callable[[str], None] = lambda _: None
) -> Path:
    """Trains the model of a configuration; goes on where it stopped if `out` holds a run.

    Args:
        configuration_path: TOML file; see `Configuration`.
        out: the run's folder: checkpoints, metrics and curves.
        data: folder that the configuration's file names are relative to; default: the configuration's own.
        progress: told what is being done, by the first of several processes only.

    Returns:
        The best checkpoint's file.

    Raises:
        ConfigurationError: the configuration cannot be used, or is not the one that the run in `out` began with.
        CorpusError: the corpus cannot be used.
        KeyboardInterrupt: the user stopped it; the run can be resumed from its last complete epoch.
    """
    configuration = load_configuration(configuration_path)
    check_run(configuration, out)
    if is_first_process():
        out.mkdir(parents=True, exist_ok=True)
        (out / CONFIGURATION).write_bytes(configuration_path.read_bytes())
    pl.seed_everything(configuration.training.seed, verbose=False)
    corpus = TranslationData(configuration, data or configuration_path.parent, out)
    module = TranslationTraining(configuration, *corpus.vocabularies, corpus.files)
    last = out / LAST
    say = progress if is_first_process() else lambda _: None
    say(corpus.description)
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
    """Fits, from `last` if it exists; Ctrl-C is a KeyboardInterrupt, where Lightning would exit."""
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
            out, BEST.removesuffix(".ckpt"), monitor="validation_bleu", mode="max", enable_version_counter=False
        ),
        # At an epoch's very end, so that a resumed run begins with the next one.
        ModelCheckpoint(
            out,
            LAST.removesuffix(".ckpt"),
            every_n_epochs=1,
            save_on_train_epoch_end=True,
            enable_version_counter=False,
        ),
        Record(out),
        Bar(),
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
        logger=False,
        callbacks=callbacks,
        enable_model_summary=False,
    )


def check_run(configuration: Configuration, out: Path) -> None:
    """Refuses to go on with a run that began with another configuration.

    The number of epochs may change: that is how a run is made longer. So may what it runs on, and the bundle.

    Args:
        configuration: what to go on with.
        out: the run's folder; it need not exist.

    Raises:
        ConfigurationError: the run began with another.
    """
    kept = out / CONFIGURATION
    if not kept.exists():
        return

    def essence(configuration: Configuration) -> dict[str, Any]:
        return configuration.model_dump(exclude={"training": {"max_epochs", "devices", "accelerator"}, "bundle": True})

    before = parse_configuration(kept.read_text(encoding="utf-8"), str(kept))
    if essence(before) != essence(configuration):
        raise ConfigurationError(
            f"{out} holds a run with another configuration (see its {CONFIGURATION}): name another folder for this one"
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps to itself what Lightning says to those who write programs with it."""
    libraries = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [library.level for library in libraries]
    for library in libraries:
        library.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            # Workers that load data would only copy it: a batch is made in less time than it takes to hand it over.
            warnings.simplefilter("ignore", PossibleUserWarning)
            warnings.filterwarnings("ignore", "Checkpoint directory .* exists and is not empty", UserWarning)
            warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated")
            yield
    finally:
        for library, level in zip(libraries, levels, strict=True):
            library.setLevel(level)
