"""Training curves: a picture of a run's metrics."""

import csv
from pathlib import Path

from matplotlib.figure import Figure


def plot_curves(run: Path) -> Path:
    """Draws loss and validation BLEU by epoch from the run's `metrics.csv` into its `curves.png`.

    Returns:
        The picture's file.
    """
    with (run / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))

    def series(name: str) -> tuple[list[int], list[float]]:
        present = [row for row in rows if row.get(name)]
        return [int(row["epoch"]) + 1 for row in present], [float(row[name]) for row in present]

    figure = Figure(figsize=(10, 4), layout="constrained")
    losses, scores = figure.subplots(1, 2)
    losses.plot(*series("train_loss"), label="training, smoothed labels")
    losses.plot(*series("validation_loss"), label="validation")
    losses.set(xlabel="epoch", ylabel="cross-entropy (nats a token)", title="Loss")
    losses.legend()
    scores.plot(*series("validation_bleu"), color="tab:green")
    scores.set(xlabel="epoch", ylabel="BLEU, greedy", title="Validation score")
    for axes in (losses, scores):
        axes.grid(alpha=0.3)
    path = run / "curves.png"
    figure.savefig(path, dpi=120)
    return path
