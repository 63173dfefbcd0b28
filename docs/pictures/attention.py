"""Draw the pictures of docs/attention.md from the committed models: `python -m docs.pictures.attention`."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.studies.homonyms import ALONE, CONTEXT, Homonyms, measure
from jumok_serve import Translator

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs/attention"
TEXT, TARGET = "Two young women with red hats.", "Zwei junge Frauen mit roten Hüten."
SCORES = (15.0, 60.0, 15.0, 35.0)
"""Scores of the worked example."""
SPREAD = 10.0
"""Divisor of the scores in the example's last panel."""


def softmax(scores: np.ndarray) -> np.ndarray:
    """Weights of scores, [S]."""
    powers = np.exp(scores - scores.max())
    weights: np.ndarray = powers / powers.sum()
    return weights


def draw_example() -> Figure:
    """The worked example: scores, their softmax, and the softmax of a tenth of them."""
    figure = Figure(figsize=(9, 2.6), layout="constrained")
    scores = np.array(SCORES)
    panels = (
        ("scores", scores, "{:.0f}"),
        ("softmax of the scores", softmax(scores), "{:.2g}"),
        ("softmax of a tenth of the scores", softmax(scores / SPREAD), "{:.3f}"),
    )
    names = [f"h{place}" for place in range(1, len(SCORES) + 1)]
    for axes, (title, values, form) in zip(figure.subplots(1, 3), panels, strict=True):
        bars = axes.bar(names, values, color="C0")
        axes.bar_label(bars, [form.format(value) for value in values], fontsize=8)
        axes.margins(y=0.15)
        axes.set_title(title, fontsize=9)
    return figure


def show(axes: Axes, weights: np.ndarray, rows: list[str], columns: list[str], title: str) -> None:
    """Show weights, queries in rows and keys in columns."""
    axes.imshow(weights, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(columns)), columns, rotation=60, ha="right", fontsize=7)
    axes.set_yticks(range(len(rows)), rows, fontsize=7)
    axes.set_title(title, fontsize=9)


def draw_cross() -> Figure:
    """Cross-attention of the LSTM and of the Transformer for one translation, by words."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("lstm", "transformer"), strict=True):
        with Translator(ROOT / f"models/multi30k-en-de-{name}") as translator:
            found = translator.align(TEXT, TARGET).words()
        rows, columns = ([token.text for token in side] for side in (found.target_tokens, found.source_tokens))
        assert found.cross is not None
        show(axes, np.array(found.cross.mean), rows, columns, f"{name}: a target word's weights over the source")
    return figure


def draw_heads() -> Figure:
    """The heads of the encoder's second layer for one text, by words."""
    with Translator(ROOT / "models/multi30k-en-de-transformer") as translator:
        found = translator.align(TEXT, TARGET, kinds=["encoder"], each_head=True).words()
    assert found.encoder is not None
    assert found.encoder.by_head is not None
    heads = np.array(found.encoder.by_head)[1]
    names = [token.text for token in found.source_tokens]
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    for number, axes in enumerate(figure.subplots(1, len(heads))):
        show(axes, heads[number], names if number == 0 else [""] * len(names), names, f"layer 1, head {number}")
    return figure


def draw_homonyms(found: Homonyms) -> Figure:
    """Shift of words with two meanings by what encoder and decoder see, and each head's part in it."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    bars, heads = figure.subplots(1, 2, width_ratios=(3, 2))
    labels = [
        f"{'with' if encoder == CONTEXT else 'no'} context in the word's state,\n"
        f"decoder reads {'all' if decoder == CONTEXT else 'the word alone'}"
        for encoder in (CONTEXT, ALONE)
        for decoder in (CONTEXT, ALONE)
    ]
    values = [found.shifts[encoder][decoder] for encoder in (CONTEXT, ALONE) for decoder in (CONTEXT, ALONE)]
    drawn = bars.barh(labels, values, color=["C0", "C0", "C7", "C7"])
    bars.bar_label(drawn, [f" {value:.1f}" for value in values], fontsize=8)
    bars.invert_yaxis()
    bars.margins(x=0.12)
    bars.tick_params(axis="y", labelsize=8)
    bars.set_xlabel("mean shift to the right meaning, nats", fontsize=8)
    losses = np.array(found.heads)
    largest = float(np.abs(losses).max())
    heads.imshow(losses, cmap="RdBu_r", vmin=-largest, vmax=largest)
    for layer, head in np.ndindex(losses.shape):
        loss = losses[layer, head]
        colour = "white" if abs(loss) > 0.6 * largest else "black"
        heads.text(head, layer, f"{loss:+.1f}", ha="center", va="center", fontsize=8, color=colour)
    heads.set_xticks(range(losses.shape[1]), [f"head {head}" for head in range(losses.shape[1])], fontsize=8)
    heads.set_yticks(range(losses.shape[0]), [f"layer {layer}" for layer in range(losses.shape[0])], fontsize=8)
    heads.set_title("shift lost without one head", fontsize=9)
    return figure


def main() -> None:
    """Draw all pictures."""
    FOLDER.mkdir(exist_ok=True)
    figures = {
        "example": draw_example(),
        "cross": draw_cross(),
        "heads": draw_heads(),
        "homonyms": draw_homonyms(measure()),
    }
    for name, figure in figures.items():
        FigureCanvasAgg(figure)
        figure.savefig(FOLDER / f"{name}.png", dpi=100)


if __name__ == "__main__":
    main()
