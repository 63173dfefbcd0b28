"""Callbacks of a training run: averaged weights, progress bar, metrics and curves."""

import contextlib
import csv
import sys
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Checkpoint, TQDMProgressBar, WeightAveraging
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm
from matplotlib.figure import Figure
from torch.optim.swa_utils import get_ema_multi_avg_fn

from jumok_export.training.configuration import SCORES

METRICS = "metrics.csv"
CURVES = "curves.png"
LINE_EVERY_S = 30.0
"""Time between lines on an epoch's progress, off a terminal."""


class MovingAverage(WeightAveraging):
    """Validate and keep an exponential moving average of the weights.

    The first update takes the weights as they are; the average of random initial weights would be a poor start.
    """

    def __init__(self, decay: float) -> None:
        super().__init__(use_buffers=False, multi_avg_fn=get_ema_multi_avg_fn(decay))  # type: ignore[no-untyped-call]

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Keep the average on the device that the model is going to be moved to."""
        self._device = trainer.strategy.root_device
        super().setup(trainer, pl_module, stage)


class Bar(TQDMProgressBar):
    """Lightning's progress bar on standard error, if that is a terminal."""

    def __init__(self) -> None:
        super().__init__(refresh_rate=10 if sys.stderr.isatty() else 0)

    def init_train_tqdm(self) -> Tqdm:
        """Make the bar of an epoch."""
        with contextlib.redirect_stdout(sys.stderr):
            return super().init_train_tqdm()

    def on_train_epoch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        """Count epochs from 1, as the lines between the bars do."""
        super().on_train_epoch_start(trainer)
        self.train_progress_bar.set_description(f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}")

    def init_validation_tqdm(self) -> Tqdm:
        """Make the bar of a validation."""
        with contextlib.redirect_stdout(sys.stderr):
            return super().init_validation_tqdm()


class Record(Checkpoint):
    """Write each epoch's metrics to `metrics.csv`, and draw `curves.png`.

    The metrics also go to standard error.

    Epochs are counted from 1; their seconds are of training and validation together. A resumed run keeps the rows of
    earlier epochs. As the last `Checkpoint` callback it reports an epoch after its checkpoint was written.

    Args:
        score: name of the validation's score, of `SCORES`.
    """

    def __init__(self, run: Path, score: str) -> None:
        self._run, self._score = run, score
        self._started = self._said = 0.0
        self._validated = False

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock."""
        self._started, self._validated = time.monotonic(), False
        self._said = self._started

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Say now and then how far the epoch is, if no progress bar does."""
        now = time.monotonic()
        if sys.stderr.isatty() or not trainer.is_global_zero or now - self._said < LINE_EVERY_S:
            return
        self._said = now
        done, batches = trainer.fit_loop.batch_idx + 1, int(trainer.num_training_batches)
        line = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}: {done} of {batches} batches"
        Tqdm.write(f"{line}; {now - self._started:.0f} s", file=sys.stderr)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note that the validation metrics are of this epoch."""
        self._validated = True

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the epoch's row."""
        if not trainer.is_global_zero:
            return
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        row = {
            "epoch": trainer.current_epoch + 1,
            "step": trainer.global_step,
            "learning_rate": trainer.optimizers[0].param_groups[0]["lr"],
            "train_loss": metrics["train_loss"],
            "seconds": round(time.monotonic() - self._started, 1),
        }
        line = f"epoch {row['epoch']}/{trainer.max_epochs}: training loss {row['train_loss']:.3f}"
        guided = ("alignment_loss",) if "alignment_loss" in metrics else ()
        for name in guided:
            row[name] = metrics[name]
            line += f", alignment loss {row[name]:.3f}"
        if self._validated:
            row |= {name: metrics[name] for name in ("validation_loss", self._score)}
            line += f", validation loss {row['validation_loss']:.3f}, {SCORES[self._score]} {row[self._score]:.2f}"
        earlier = [other for other in read_metrics(self._run) if int(other["epoch"]) < row["epoch"]]
        part = self._run / f"{METRICS}.part"
        with part.open("w", newline="", encoding="utf-8") as file:
            losses = ("train_loss", *guided, "validation_loss")
            columns = ("epoch", "step", "learning_rate", *losses, self._score, "seconds")
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows([*earlier, row])
        part.replace(self._run / METRICS)  # whole, also if Ctrl-C comes meanwhile
        Tqdm.write(f"{line}; {row['seconds']:.0f} s", file=sys.stderr)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draw the curves."""
        if trainer.is_global_zero:
            plot_curves(self._run, self._score)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Draw the curves of an interrupted run."""
        if read_metrics(self._run):
            self.on_train_end(trainer, pl_module)


def read_metrics(run: Path) -> list[dict[str, str]]:
    """Read the rows of a run's `metrics.csv`; none if missing."""
    path = run / METRICS
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["epoch"]]


def plot_curves(run: Path, score: str) -> None:
    """Draw losses and the validation's score by epoch from `metrics.csv` to `curves.png`."""
    rows = read_metrics(run)

    def series(name: str) -> tuple[list[int], list[float]]:
        present = [row for row in rows if row.get(name)]
        return [int(row["epoch"]) for row in present], [float(row[name]) for row in present]

    figure = Figure(figsize=(10, 4), layout="constrained")
    losses, scores = figure.subplots(1, 2)
    losses.plot(*series("train_loss"), marker=".", label="training, smoothed labels")
    losses.plot(*series("validation_loss"), marker=".", label="validation")
    losses.set(xlabel="epoch", ylabel="cross-entropy (nats a token)", title="Loss")
    losses.legend()
    scores.plot(*series(score), marker=".", color="tab:green")
    scores.set(xlabel="epoch", ylabel=f"{SCORES[score]}, greedy", title="Validation score")
    for axes in (losses, scores):
        axes.grid(alpha=0.3)
        axes.xaxis.get_major_locator().set_params(integer=True)
    figure.savefig(run / CURVES, dpi=120)
