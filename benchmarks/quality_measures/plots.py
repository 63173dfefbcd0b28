"""Plots of the page: BLEU by length, gradients by position, entropies of attention."""

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.quality_measures.figures import ALL, Figures
from benchmarks.quality_measures.gradients import PARTS
from benchmarks.quality_measures.translations import BEST_SETTING

LENGTHS, GRADIENTS, ENTROPIES = "lengths.png", "gradients.png", "entropies.png"


def save_plots(figures: Figures, folder: Path) -> list[str]:
    """Save the plots that have data; returns their names."""
    folder.mkdir(parents=True, exist_ok=True)
    plots = {LENGTHS: _plot_lengths(figures), ENTROPIES: _plot_entropies(figures)}
    if figures.gradients:
        plots[GRADIENTS] = _plot_gradients(figures)
    for name, figure in plots.items():
        FigureCanvasAgg(figure)
        figure.savefig(folder / name, dpi=100)
    return list(plots)


def shown(figures: Figures) -> list[str]:
    """Models of the plot by length: those without attention or in one direction, Transformers, the best of the others.

    More lines could not be told apart.
    """
    kept = [
        name
        for name, each in figures.models.items()
        if each.family == "transformer" or each.attention == "none" or not each.bidirectional
    ]
    others = [name for name in figures.models if name not in kept]
    best = sorted(others, key=lambda name: figures.models[name].spreads[ALL].mean)[-1:]
    return [name for name in figures.models if name in kept or name in best]


def _plot_lengths(figures: Figures) -> Figure:
    figure = Figure(figsize=(8.5, 4.6), layout="constrained")
    axes = figure.subplots()
    bins = [name for name in figures.sentences if name != ALL]
    names = shown(figures)
    for number, name in enumerate(names):
        spreads = [figures.models[name].spreads[each] for each in bins]
        means = [each.mean for each in spreads]
        shifted = [place + 0.06 * (number - (len(names) - 1) / 2) for place in range(len(bins))]
        axes.plot(shifted, means, color=f"C{number}", marker="o", markersize=4, lw=1.4, label=name)
        for place, each in zip(shifted, spreads, strict=True):
            axes.plot([place] * 2, each.over_sentences, color=f"C{number}", lw=0.8)
            if each.over_seeds:
                axes.plot([place] * 2, each.over_seeds, color=f"C{number}", lw=2.4, alpha=0.5)
    axes.set_xticks(range(len(bins)), [f"{name}\n({figures.sentences[name]} sentences)" for name in bins])
    axes.set(
        xlabel="words of the source",
        ylabel=f"BLEU, {BEST_SETTING.key}",
        title="Means and 95 % intervals: thick for other seeds, thin for other sentences",
        ylim=(0, None),
    )
    axes.title.set_fontsize(9)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=8)
    return figure


def _plot_gradients(figures: Figures) -> Figure:
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    trained = [name for name in figures.gradients if name in figures.models]
    for name, values in figures.gradients.items():
        origin = name.partition(",")[0]
        style = "-" if name in trained else ":"
        places = [(part + 0.5) / PARTS for part in range(PARTS)]
        colour = f"C{trained.index(origin)}"
        axes.plot(places, values, style, color=colour, marker="o", markersize=3, label=name)
    axes.axhline(1.0, color="gray", lw=0.8)
    axes.set_yscale("log")
    axes.set(
        xlabel="place in the source, in the order of reading",
        ylabel="norm of the gradient, over an even share",
        title="Gradient of the loss at the embedded source tokens",
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def _plot_entropies(figures: Figures) -> Figure:
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    random, trained = figure.subplots(1, 2, width_ratios=(2, 3))
    widths = [each["width"] for each in figures.random_entropies]
    for key, label in (("scaled_entropy", "divided by sqrt(d)"), ("entropy", "not divided")):
        random.plot(widths, [each[key] for each in figures.random_entropies], marker="o", label=label)
    random.set_xscale("log", base=2)
    random.set_xticks(widths, [f"{width:.0f}" for width in widths])
    random.set(xlabel="width d of random vectors", ylabel="entropy over that of even weights", ylim=(0, 1))
    random.set_title("Random queries and keys", fontsize=10)
    bars = entropy_rows(figures)
    trained.barh([name for name, _ in bars], [value for _, value in bars], color="C0", height=0.6)
    for place, (_, value) in enumerate(bars):
        trained.annotate(f" {value:.2f}", (value, place), va="center", fontsize=8)
    trained.invert_yaxis()
    trained.tick_params(axis="y", labelsize=8)
    trained.set(xlabel="entropy over that of even weights", xlim=(0, 1))
    trained.set_title("Cross-attention of trained models", fontsize=10)
    random.legend(fontsize=8, loc="center right")
    for axes in (random, trained):
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
    return figure


def entropy_rows(figures: Figures) -> list[tuple[str, float]]:
    """The trained models' entropies, each Transformer's without division after its own."""
    return [
        row
        for name, entropy in figures.entropies.items()
        for row in (
            (name, entropy),
            *(
                [(f"{name}, not divided", figures.undivided_entropies[name])]
                if name in figures.undivided_entropies
                else []
            ),
        )
    ]
