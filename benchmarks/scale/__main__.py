"""Show what many servers give and cost, from the figures of one, and simulate them under random load.

Prints the tables of docs/scale.md. The simulations are of Poisson arrivals; ``--plot`` draws them.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.common.progress import progress
from benchmarks.scale.autoscaling import by_cpu, by_most, by_waiting
from benchmarks.scale.capacity import (
    Figures,
    Model,
    bottleneck_table,
    capacity_table,
    cost_table,
    front_table,
    read_figures,
    server_table,
)
from benchmarks.scale.simulation import Outcome, Plan, Scale, simulate

LOADS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
SENTENCES = 20_000
"""Simulated sentences for each load."""
LEAST, MOST, TARGET = 2, 8, 32
"""Bounds and target of deploy/kubernetes/operators/scaled-object.yaml."""
START_S = 30.0
"""Time until a new pod is ready: scheduling, image and model."""
CALM_S, BUSY_S, SECONDS = 300.0, 1200.0, 2700.0
CALM, BUSY = 0.8, 4.0
"""Load before and after, and within the busy time, in full servers."""


def latencies(model: Model, seed: int = 1) -> dict[float, tuple[float, float]]:
    """Simulate one server at several loads; returns p50 and p99 of the latency in seconds, by load."""
    found = {}
    for load in LOADS:
        arrivals = load * model.rate
        outcome = simulate(
            Plan(
                rate=model.curve,
                slots=model.slots,
                arrivals=lambda _, arrivals=arrivals: arrivals,  # type: ignore[misc]
                peak=arrivals,
                seconds=SENTENCES / arrivals,
                servers=1,
                work=_work,
                seed=seed,
            )
        )
        found[load] = (outcome.quantile(0.5), outcome.quantile(0.99))
    return found


def _work(generator: random.Random) -> float:
    return generator.gammavariate(4.0, 0.25)  # deviates by half of the mean, about as lengths of sentences do


def autoscalers() -> dict[str, Scale | None]:
    """Make the autoscalers to compare, by name; None is a fixed number of servers."""
    bounds = {"least": LEAST, "most": MOST}
    return {
        "CPU use (autoscaler.yaml)": by_cpu(**bounds),
        "waiting sentences alone": by_waiting(TARGET, **bounds),
        "both (scaled-object.yaml)": by_most(by_cpu(**bounds), by_waiting(TARGET, **bounds)),
        f"{MOST} servers": None,
    }


def busy_hour(model: Model, seed: int = 1) -> dict[str, Outcome]:
    """Simulate each autoscaler with a load that rises at once, and falls at once later."""
    found = {}
    for name, scale in autoscalers().items():
        plan = Plan(
            rate=model.curve,
            slots=model.slots,
            arrivals=lambda now: model.rate * (BUSY if CALM_S <= now < CALM_S + BUSY_S else CALM),
            peak=BUSY * model.rate,
            seconds=SECONDS,
            servers=LEAST if scale else MOST,
            work=_work,
            seed=seed,
        )
        found[name] = simulate(plan, scale, start_s=START_S)
        progress(name)
    return found


def latency_table(found: dict[str, dict[float, tuple[float, float]]]) -> str:
    """Format latencies by load and model."""
    rows = [
        "| load | " + " | ".join(f"{title}, p50 | {title}, p99" for title in found) + " |",
        f"| --- |{' --- | --- |' * len(found)}",
    ]
    for load in LOADS:
        cells = [f"{seconds:.2f} s" for by_load in found.values() for seconds in by_load[load]]
        rows.append(f"| {load:.0%} | {' | '.join(cells)} |")
    return "\n".join(rows)


def autoscaler_table(outcomes: dict[str, Outcome]) -> str:
    """Format latencies and server hours of autoscalers."""
    rows = [
        "| scaled by | server hours | most servers | p50 | p99 | p99 of the last ten busy minutes |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    end = CALM_S + BUSY_S
    for name, outcome in outcomes.items():
        most = max(sample.servers for sample in outcome.samples)
        settled = outcome.quantile(0.99, after=end - 600, before=end)
        rows.append(
            f"| {name} | {outcome.server_s / 3600:.1f} | {most} | {outcome.quantile(0.5):.1f} s | "
            f"{outcome.quantile(0.99):.1f} s | {settled:.1f} s |"
        )
    return "\n".join(rows)


def plot(
    found: dict[str, dict[float, tuple[float, float]]], outcomes: dict[str, Outcome], title: str, path: Path
) -> None:
    """Plot latency by load, and servers and latency over time."""
    figure = Figure(figsize=(14, 4.2), layout="constrained")
    by_load, servers, over_time = figure.subplots(1, 3)
    for index, (name, latency) in enumerate(found.items()):
        for quantile, style in ((0, "o-"), (1, "x--")):
            by_load.plot(
                [*latency],
                [each[quantile] for each in latency.values()],
                style,
                color=f"C{index}",
                label=name if quantile == 0 else None,
            )
    by_load.set(title="one server", xlabel="load", ylabel="latency, s; p50 solid, p99 dashed", yscale="log")
    by_load.legend()
    for index, (name, outcome) in enumerate(outcomes.items()):
        minutes = [sample.time / 60 for sample in outcome.samples]
        servers.plot(minutes, [sample.servers for sample in outcome.samples], color=f"C{index}", label=name)
        worst = [
            (start / 60, outcome.quantile(0.99, after=start, before=start + 60))
            for start in range(0, int(SECONDS) - 60, 60)
        ]
        over_time.plot([time for time, _ in worst], [seconds for _, seconds in worst], color=f"C{index}")
    servers.set(title=f"servers, {title}", xlabel="minutes", ylim=(0, None))
    over_time.set(title="p99 of each minute", xlabel="minutes", ylabel="latency, s", yscale="log")
    for axes in (by_load, servers, over_time):
        axes.grid(alpha=0.3)
    figure.legend(*servers.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=110)


def tables(figures: Figures) -> str:
    """Format the tables that need no simulation."""
    formats = (server_table, front_table, capacity_table, bottleneck_table, cost_table)
    return "\n\n".join(each(figures) for each in formats)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables, and draw the picture; returns the exit status."""
    parser = argparse.ArgumentParser(description="Show what many servers give and cost.")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the simulations: a .png, .svg or .pdf")
    parser.add_argument("--seed", type=int, default=1, help="of the simulations; default: %(default)s")
    options = parser.parse_args(arguments)
    figures = read_figures()
    print(tables(figures))
    found = {model.title: latencies(model, options.seed) for model in figures.models.values()}
    print("", latency_table(found), sep="\n")
    chosen = next(iter(figures.models.values()))
    outcomes = busy_hour(chosen, options.seed)
    print("", autoscaler_table(outcomes), sep="\n")
    if options.plot:
        plot(found, outcomes, chosen.title, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
