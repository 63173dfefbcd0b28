"""Reports of measurements under load: figures, ratios, tables, plots."""

import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.common.closed_loop import Answer, Measured
from benchmarks.common.ratios import CellResult, Ratio, aligned, ratio

MANY = 64
"""Outstanding requests at which most goals apply."""
JUMOK, BARE, PLAIN, BATCHING, OFFLINE = "jumok", "bare engine", "plain peer", "batching peer", "offline engine"

COLOURS = ("#1f77b4", "#d95f02", "#2ca02c", "#9467bd", "#8c564b")

_RELATIONS: dict[str, Callable[[float, float], bool]] = {">=": operator.ge, "<=": operator.le, "<": operator.lt}


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One contender with one number of outstanding requests.

    Latencies, queueing and tokens are over the answers of all rounds, rates are medians of the rounds. Values that an
    offline engine lacks are None.

    Attributes:
        model: name of the model.
        contender: name of the contender.
        outstanding: outstanding requests.
        setting: thread setting, or None.
        sentences_a_second: throughput.
        tokens_a_second: throughput in tokens, end tokens included.
        tokens_a_sentence: tokens per sentence, end token included.
        p50_ms: median latency at the client.
        p95_ms: 95th percentile.
        p99_ms: 99th percentile.
        queue_ms: mean time from arrival to the start of decoding, reported by the server.
        decoding: mean number of sentences that are decoded together, by Little's law (1961): throughput times mean time
            in encoder and decoder.
        cpu_s: median processor time of the server in a round.
        sentences_a_cpu_second: sentences per second of processor time.
        cores: processor time over time.
        client_cores: cores of the clients.
        peak_rss_mib: peak memory of the server.
    """

    model: str
    contender: str
    outstanding: int
    setting: str | None
    sentences_a_second: float
    tokens_a_second: float | None
    tokens_a_sentence: float | None
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    queue_ms: float | None
    decoding: float | None
    cpu_s: float
    sentences_a_cpu_second: float
    cores: float
    client_cores: float | None
    peak_rss_mib: float | None


@dataclass(frozen=True, kw_only=True)
class Comparison(Ratio):
    """The ratio of jumok to another contender, over the rounds.

    Attributes:
        model: the model that is served.
        what: the quantity.
        contender: the other contender.
        outstanding: outstanding requests.
        goal: bound of the median, or None.
    """

    model: str
    what: str
    contender: str
    outstanding: int
    goal: str | None

    @property
    def reached(self) -> bool | None:
        """True if the goal is reached; None without a goal."""
        if self.goal is None:
            return None
        relation, bound = self.goal.split()
        return _RELATIONS[relation](self.median, float(bound))


def figures(
    model: str,
    outstanding: int,
    contender: str,
    rounds: Sequence[Measured],
    *,
    setting: str | None,
    peak_rss_mib: float | None,
) -> Figures:
    """Summarize a contender's rounds."""
    answers = [answer for measured in rounds for answer in measured.answers]

    def median(value: Callable[[Measured], float]) -> float:
        return statistics.median(map(value, rounds))

    def of_answers(value: Callable[[Sequence[Answer]], float]) -> float | None:
        return value(answers) if answers else None

    def percentile(percent: int) -> float | None:
        return of_answers(lambda answers: 1e3 * _percentile([answer.latency_s for answer in answers], percent))

    return Figures(
        model=model,
        contender=contender,
        outstanding=outstanding,
        setting=setting,
        sentences_a_second=median(_throughput),
        tokens_a_second=of_answers(
            lambda _: median(lambda measured: sum(answer.tokens for answer in measured.answers) / measured.wall_s)
        ),
        tokens_a_sentence=of_answers(lambda answers: statistics.mean(answer.tokens for answer in answers)),
        p50_ms=percentile(50),
        p95_ms=percentile(95),
        p99_ms=percentile(99),
        queue_ms=of_answers(lambda answers: 1e3 * statistics.mean(answer.queue_s for answer in answers)),
        decoding=of_answers(
            lambda _: median(lambda measured: sum(answer.busy_s for answer in measured.answers) / measured.wall_s)
        ),
        cpu_s=median(lambda measured: measured.cpu_s),
        sentences_a_cpu_second=median(_efficiency),
        cores=median(lambda measured: measured.cpu_s / measured.wall_s),
        client_cores=of_answers(lambda _: median(lambda measured: measured.client_cpu_s / measured.wall_s)),
        peak_rss_mib=peak_rss_mib,
    )


def comparisons(model: str, outstanding: int, rounds: Mapping[str, Sequence[Measured]]) -> list[Comparison]:
    """Compare jumok with the other contenders, by rounds."""

    def compare(what: str, contender: str, value: Callable[[Measured], float], goal: str | None) -> Comparison:
        ours, theirs = (list(map(value, rounds[name])) for name in (JUMOK, contender))
        return Comparison(
            **asdict(ratio(theirs, ours)),
            model=model,
            what=what,
            contender=contender,
            outstanding=outstanding,
            goal=goal,
        )

    many = outstanding == MANY
    return [
        compare("sentences per CPU-second", OFFLINE, _efficiency, ">= 0.9" if many else None),
        compare("CPU time a sentence", BARE, lambda measured: 1 / _efficiency(measured), "<= 1.05" if many else None),
        compare("sentences per second", PLAIN, _throughput, ">= 5" if many else None),
        compare("sentences per second", BATCHING, _throughput, ">= 1.4" if many else None),
        *(
            compare(f"p{percent} latency", contender, _latency(percent), "< 1" if percent in wanted else None)
            for wanted in [(99,) if many else (50,) if outstanding == 1 else ()]
            for contender in (PLAIN, BATCHING)
            for percent in (50, 99)
        ),
    ]


def _throughput(measured: Measured) -> float:
    return measured.sentences / measured.wall_s


def _efficiency(measured: Measured) -> float:
    return measured.sentences / measured.cpu_s


def _latency(percent: int) -> Callable[[Measured], float]:
    return lambda measured: _percentile([answer.latency_s for answer in measured.answers], percent)


def _percentile(values: Sequence[float], percent: int) -> float:
    """The nearest-rank percentile: at least `percent` percent of the values are not above it."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]


def serving_table(found: Sequence[Figures], compared: Sequence[Comparison]) -> str:
    """Two tables: figures, and ratios with their goals."""
    reached = {None: "", True: "reached", False: "missed"}
    upper = [
        {
            "model": one.model,
            "outstanding": str(one.outstanding),
            "contender": one.contender,
            "threads": one.setting or "",
            "sent/s": _cell(one.sentences_a_second, 1),
            "tokens/s": _cell(one.tokens_a_second),
            "tokens": _cell(one.tokens_a_sentence, 1),
            "p50 ms": _cell(one.p50_ms),
            "p95 ms": _cell(one.p95_ms),
            "p99 ms": _cell(one.p99_ms),
            "queue ms": _cell(one.queue_ms),
            "decoding": _cell(one.decoding, 1),
            "CPU s": _cell(one.cpu_s, 2),
            "sent/CPU-s": _cell(one.sentences_a_cpu_second, 1),
            "cores": _cell(one.cores, 2),
            "peak MiB": _cell(one.peak_rss_mib),
        }
        for one in found
    ]
    lower = [
        {
            "model": one.model,
            "outstanding": str(one.outstanding),
            "jumok's": one.what,
            "to that of": one.contender,
            "ratio": _cell(one.median, 2),
            "lowest": _cell(one.lowest, 2),
            "highest": _cell(one.highest, 2),
            "goal": one.goal or "",
            "": reached[one.reached],
        }
        for one in compared
    ]
    return f"{_aligned(upper)}\n\n{_aligned(lower)}" if lower else _aligned(upper)


def _cell(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _aligned(found: Sequence[Mapping[str, str]]) -> str:
    return aligned([list(found[0]), *(list(row.values()) for row in found)])


def save_serving_plot(found: Sequence[Figures], title: str, path: Path) -> None:
    """Plot throughput, CPU cost and latency by outstanding requests."""
    models = list(dict.fromkeys(one.model for one in found))
    ticks = sorted({one.outstanding for one in found})
    figure = Figure(figsize=(14, 0.5 + 3.5 * len(models)), layout="constrained")
    figure.suptitle(title)
    for model, pictures in zip(models, figure.subplots(len(models), 3, squeeze=False), strict=True):
        throughput, cost, latency = pictures
        for index, contender in enumerate((JUMOK, BATCHING, PLAIN, OFFLINE, BARE)):
            own = [one for one in found if (one.model, one.contender) == (model, contender)]
            outstanding, color = [one.outstanding for one in own], f"C{index}"
            for axes, rates in (
                (throughput, [one.sentences_a_second for one in own]),
                (cost, [one.sentences_a_cpu_second for one in own]),
            ):
                axes.plot(outstanding, rates, ":" if contender == OFFLINE else "o-", color=color, label=contender)
            if contender == OFFLINE:
                continue
            latency.plot(outstanding, [one.p50_ms for one in own], "o-", color=color)
            latency.plot(outstanding, [one.p99_ms for one in own], "x--", color=color)
        throughput.set(title=model, ylabel="sentences per second", ylim=(0, None))
        cost.set(title=model, ylabel="sentences per CPU-second", ylim=(0, None))
        latency.set(title=model, ylabel="latency, ms; p50 solid, p99 dashed", yscale="log")
        for axes in pictures:
            axes.set(xlabel="outstanding requests", xscale="log")
            axes.set_xticks(ticks, labels=[str(tick) for tick in ticks])
            axes.minorticks_off()
            axes.grid(alpha=0.3)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.savefig(path)


def save_ratio_plot(results: Sequence[CellResult], path: Path, title: str) -> None:
    """Plot the ratios to CTranslate2's best settings, with ranges."""
    panels = list(dict.fromkeys((each.cell.model, each.precision) for each in results))
    figure = Figure(figsize=(1.5 + 4.2 * len(panels), 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axis, (model, precision) in zip(axes, panels, strict=True):
        _draw_ratios(axis, [each for each in results if (each.cell.model, each.precision) == (model, precision)])
        axis.set_title(f"{model}, {precision}", fontsize=10)
    axes[0].set_ylabel("times as fast as CTranslate2's best setting")
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=130)


def _draw_ratios(axis: Axes, results: Sequence[CellResult]) -> None:
    batches = list(dict.fromkeys(each.cell.batch for each in results))
    beams = list(dict.fromkeys(each.cell.beam for each in results))
    width = 0.8 / len(beams)
    for index, beam in enumerate(beams):
        chosen = [each for each in results if each.cell.beam == beam]
        places = [batches.index(each.cell.batch) + (index - (len(beams) - 1) / 2) * width for each in chosen]
        ratios = [each.to_peer for each in chosen]
        medians = [each.median for each in ratios]
        below = [each.median - each.lowest for each in ratios]
        above = [each.highest - each.median for each in ratios]
        axis.bar(places, medians, width * 0.9, color=COLOURS[index % len(COLOURS)], label=f"beam {beam}", zorder=2)
        axis.errorbar(places, medians, [below, above], fmt="none", ecolor="black", capsize=2, lw=1, zorder=4)
        for place, each in zip(places, ratios, strict=True):
            axis.annotate(f"{each.median:.2f}", (place, 0.04), rotation=90, ha="center", color="white", fontsize=8)
    goals = {each.cell.batch: each.goal for each in results if each.goal is not None}
    for number, (batch, goal) in enumerate(goals.items()):
        place = batches.index(batch)
        label = "goal" if number == 0 else None
        axis.plot([place - 0.45, place + 0.45], [goal, goal], color="crimson", lw=1.8, zorder=3, label=label)
    axis.axhline(1.0, color="gray", lw=1, ls=":", zorder=1)
    axis.set_xticks(range(len(batches)), [str(batch) for batch in batches])
    axis.set_xlabel("sentences at once")
    axis.grid(axis="y", alpha=0.3, zorder=0)
    axis.legend(fontsize=8, loc="upper right")
