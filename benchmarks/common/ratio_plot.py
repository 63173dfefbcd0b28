"""The ratios as a picture: a panel for each model and precision, cells from left to right, lines at the goals."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.common.ratios import Played

COLOURS = ("#1f77b4", "#d95f02", "#2ca02c", "#9467bd", "#8c564b")


def save_plot(played: Sequence[Played], path: Path, title: str) -> None:
    """Writes a picture of the ratios to CTranslate2's best settings, with their ranges."""
    panels = list(dict.fromkeys((each.cell.model, each.precision) for each in played))
    figure = Figure(figsize=(1.5 + 4.2 * len(panels), 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axis, (model, precision) in zip(axes, panels, strict=True):
        _draw(axis, [each for each in played if (each.cell.model, each.precision) == (model, precision)])
        axis.set_title(f"{model}, {precision}", fontsize=10)
    axes[0].set_ylabel("times as fast as CTranslate2's best setting")
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=130)


def _draw(axis: Axes, played: Sequence[Played]) -> None:
    batches = list(dict.fromkeys(each.cell.batch for each in played))
    beams = list(dict.fromkeys(each.cell.beam for each in played))
    width = 0.8 / len(beams)
    for index, beam in enumerate(beams):
        chosen = [each for each in played if each.cell.beam == beam]
        places = [batches.index(each.cell.batch) + (index - (len(beams) - 1) / 2) * width for each in chosen]
        ratios = [each.to_peer for each in chosen]
        medians = [each.median for each in ratios]
        below = [each.median - each.lowest for each in ratios]
        above = [each.highest - each.median for each in ratios]
        axis.bar(places, medians, width * 0.9, color=COLOURS[index % len(COLOURS)], label=f"beam {beam}", zorder=2)
        axis.errorbar(places, medians, [below, above], fmt="none", ecolor="black", capsize=2, lw=1, zorder=4)
        for place, each in zip(places, ratios, strict=True):
            axis.annotate(f"{each.median:.2f}", (place, 0.04), rotation=90, ha="center", color="white", fontsize=8)
    goals = {each.cell.batch: each.goal for each in played if each.goal is not None}
    for number, (batch, goal) in enumerate(goals.items()):
        place = batches.index(batch)
        label = "goal" if number == 0 else None
        axis.plot([place - 0.45, place + 0.45], [goal, goal], color="crimson", lw=1.8, zorder=3, label=label)
    axis.axhline(1.0, color="gray", lw=1, ls=":", zorder=1)
    axis.set_xticks(range(len(batches)), [str(batch) for batch in batches])
    axis.set_xlabel("sentences at once")
    axis.grid(axis="y", alpha=0.3, zorder=0)
    axis.legend(fontsize=8, loc="upper right")
