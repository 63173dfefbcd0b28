"""Show what many servers give and cost, from the figures of one, and simulate them under random load.

Prints the tables of docs/scale.md from the figures in `scale.toml`. The simulations are of Poisson arrivals. A server
holds sentences. Those in its batch, up to a bound, share its rate, which depends on their number: the service curve.
Others wait. ``--plot`` draws the simulations.
"""

import argparse
import heapq
import math
import random
import tomllib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.common.progress import progress
from benchmarks.common.ratios import markdown

MEASURED = Path(__file__).with_suffix(".toml")
MACHINES = (1, 10, 100)
LOAD = 0.7
"""Share of a server's rate that leaves room for peaks."""
GIGABIT = 1e9 / 8
"""Bytes per second."""
LOADS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
SENTENCES = 20_000
"""Simulated sentences for each load."""
LEAST, MOST, TARGET = 2, 8, 32
"""Bounds and target of deploy/kubernetes/operators/scaled-object.yaml."""
CPU_TARGET = 0.7
START_S = 30.0
"""Time until a new pod is ready: scheduling, image and model."""
CALM_S, BUSY_S, SECONDS = 300.0, 1200.0, 2700.0
CALM, BUSY = 0.8, 4.0
"""Load before and after, and within the busy time, in full servers."""
SAMPLE_S = 15.0
TOLERANCE = 0.1
"""Deviation from an autoscaler's target that changes nothing."""
STABILIZATION_S = 300.0
"""Time in which an autoscaler wants fewer servers all along before it stops any."""
MEAN_S = 60.0
"""Time over which an autoscaler's measure is averaged."""

Figures = Mapping[str, Any]
"""Figures of one server: the content of `scale.toml`, or one of its models."""


class SimulatedServer:
    """A server: a batch whose sentences share the rate, and a queue.

    Args:
        model: service curve; the largest number of sentences is that of a full batch.
        now: time of its start, in seconds.
    """

    def __init__(self, model: Figures, now: float) -> None:
        self._slots = max(model["outstanding"])
        # Linear in the logarithm of the number between the measured points.
        logarithms = np.log(range(1, self._slots + 1)), np.log(model["outstanding"])
        self._rates: list[float] = np.interp(*logarithms, model["rates"]).tolist()
        """Sentences per second by the number of sentences in the batch, less 1."""
        self._now = now
        self._shared = 0.0
        """Work that a sentence in the batch from the beginning would have got."""
        self._batch: list[tuple[float, float]] = []
        """The shared work at the end, and the arrival of each sentence in the batch."""
        self._queue: deque[tuple[float, float]] = deque()
        self.busy_s = 0.0
        self.next_end = math.inf
        """Time at which the next sentence ends, if none arrives."""

    @property
    def waiting(self) -> int:
        """Number of waiting sentences."""
        return len(self._queue)

    def advance(self, now: float) -> None:
        """Work until a time at which no sentence ends before."""
        if self._batch:
            self._shared += (now - self._now) * self._rates[len(self._batch) - 1] / len(self._batch)
            self.busy_s += now - self._now
        self._now = now

    def add(self, work: float, arrived: float) -> None:
        """Take a sentence now; work is in units of the mean sentence."""
        if len(self._batch) < self._slots:
            heapq.heappush(self._batch, (self._shared + work, arrived))
            self._plan()
        else:
            self._queue.append((work, arrived))

    def end(self) -> float:
        """End the sentence with the least work left, and let the next one join; returns when it arrived."""
        _, arrived = heapq.heappop(self._batch)
        self._plan()
        if self._queue:
            self.add(*self._queue.popleft())
        return arrived

    def _plan(self) -> None:
        self.next_end = math.inf
        if self._batch:
            left = self._batch[0][0] - self._shared
            self.next_end = self._now + left * len(self._batch) / self._rates[len(self._batch) - 1]


@dataclass(frozen=True, slots=True)
class Sample:
    """State of the service at one time.

    Attributes:
        time: seconds from the beginning.
        servers: servers that take sentences.
        starting: servers that start.
        waiting: waiting sentences of all servers.
        busy: sum over servers of the share of the time, since the last sample, in which one had a sentence.
    """

    time: float
    servers: int
    starting: int
    waiting: int
    busy: float


Scale = Callable[[Sequence[Sample]], int]
"""The number of servers that an autoscaler wants, after all samples so far."""


@dataclass(kw_only=True)
class Outcome:
    """Result of a simulation.

    Attributes:
        latencies: arrival and latency of each answered sentence, in seconds, in order of the answers.
        samples: samples in order.
    """

    latencies: list[tuple[float, float]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)

    @property
    def server_s(self) -> float:
        """Time of all servers, starting ones included."""
        return sum(sample.servers + sample.starting for sample in self.samples) * SAMPLE_S

    def quantile(self, share: float, *, after: float = 0.0, before: float = math.inf) -> float:
        """Latency that a share of the sentences does not exceed, of those that arrived in a time."""
        chosen = sorted(latency for arrived, latency in self.latencies if after <= arrived < before)
        return chosen[min(int(share * len(chosen)), len(chosen) - 1)]


def simulate(
    model: Figures,
    arrivals: Callable[[float], float],
    *,
    peak: float,
    seconds: float,
    servers: int,
    scale: Scale | None = None,
    seed: int = 1,
) -> Outcome:
    """Simulate a service whose clients choose servers at random.

    Sentences deviate by half of their mean, about as lengths do. Those at a server when it stops are still answered, as
    after SIGTERM.

    Args:
        model: figures of a server.
        arrivals: sentences per second by time, at most `peak`.
        peak: upper bound of the arrivals.
        seconds: simulated time.
        servers: servers at the beginning.
        scale: autoscaler, called after each sample; None: a fixed number of servers.
        seed: seed of all that is random.
    """
    generator = random.Random(seed)
    outcome = Outcome()
    running = [SimulatedServer(model, 0.0) for _ in range(servers)]
    stopping: list[SimulatedServer] = []
    starting: deque[float] = deque()
    sample_at = SAMPLE_S
    times = _arrivals(arrivals, peak, seed)
    arrival = next(times)
    while True:
        first = min((*running, *stopping), key=lambda server: server.next_end)
        ready_at = starting[0] if starting else math.inf
        now = min(arrival, first.next_end, sample_at, ready_at)
        if now >= seconds:
            return outcome
        if now == first.next_end:
            first.advance(now)
            arrived = first.end()
            outcome.latencies.append((arrived, now - arrived))
        elif now == ready_at:
            starting.popleft()
            running.append(SimulatedServer(model, now))
        elif now == sample_at:
            outcome.samples.append(_sample(running, len(starting), now))
            sample_at = SAMPLE_S * (len(outcome.samples) + 1)
            wanted = scale(outcome.samples) if scale else servers
            starting.extend([now + START_S] * (wanted - len(running) - len(starting)))
            while starting and len(running) + len(starting) > wanted:
                starting.pop()
            stopping += running[max(wanted, 1) :]
            del running[max(wanted, 1) :]
        else:
            server = generator.choice(running)
            server.advance(now)
            server.add(generator.gammavariate(4.0, 0.25), now)
            arrival = next(times)


def _arrivals(arrivals: Callable[[float], float], peak: float, seed: int) -> Iterator[float]:
    """Yield the times of a Poisson process with a varying rate, by thinning; autoscalers do not change them."""
    generator = random.Random(f"{seed}.arrivals")
    now = 0.0
    while True:
        now += generator.expovariate(peak)
        if generator.random() * peak < arrivals(now):
            yield now


def _sample(servers: Sequence[SimulatedServer], starting: int, now: float) -> Sample:
    busy_s = 0.0
    for server in servers:
        server.advance(now)
        busy_s += server.busy_s
        server.busy_s = 0.0
    waiting = sum(server.waiting for server in servers)
    return Sample(time=now, servers=len(servers), starting=starting, waiting=waiting, busy=busy_s / SAMPLE_S)


def autoscaler(measure: Callable[[Sample], float], target: float) -> Scale:
    """Make an autoscaler that holds the measure of each server at a target, as HorizontalPodAutoscaler does.

    It wants the sum of the measure over servers, divided by the target. It at most doubles the servers, or adds four,
    between two samples, and stops servers only if it wanted fewer for five minutes.

    Args:
        measure: sum over all servers at a sample.
        target: target of a server.
    """
    wishes: list[tuple[float, int]] = []

    def scale(samples: Sequence[Sample]) -> int:
        now = samples[-1].time
        recent = [measure(sample) for sample in samples if sample.time > now - MEAN_S]
        total = sum(recent) / len(recent)
        current = samples[-1].servers + samples[-1].starting
        share = total / target / samples[-1].servers
        wish = current if abs(share - 1) <= TOLERANCE else math.ceil(total / target)
        wishes.append((now, wish))
        if wish > current:
            return min(wish, max(2 * current, current + 4), MOST)
        lasting = max(each for time, each in wishes if time > now - STABILIZATION_S)
        return max(min(current, lasting), LEAST)

    return scale


def autoscalers() -> dict[str, Scale | None]:
    """Make the autoscalers to compare, by name; None is a fixed number of servers."""
    by_cpu, by_waiting = (lambda sample: sample.busy, CPU_TARGET), (lambda sample: float(sample.waiting), TARGET)
    both = [autoscaler(*by_cpu), autoscaler(*by_waiting)]
    return {
        "CPU use (autoscaler.yaml)": autoscaler(*by_cpu),
        "waiting sentences alone": autoscaler(*by_waiting),
        "both (scaled-object.yaml)": lambda samples: max([scale(samples) for scale in both]),
        f"{MOST} servers": None,
    }


def busy_hour(model: Figures, seed: int) -> dict[str, Outcome]:
    """Simulate each autoscaler with a load that rises at once, and falls at once later."""
    full, found = max(model["rates"]), {}
    for name, scale in autoscalers().items():
        found[name] = simulate(
            model,
            lambda now: full * (BUSY if CALM_S <= now < CALM_S + BUSY_S else CALM),
            peak=BUSY * full,
            seconds=SECONDS,
            servers=LEAST if scale else MOST,
            scale=scale,
            seed=seed,
        )
        progress(name)
    return found


def at_load(model: Figures, load: float, seed: int) -> Outcome:
    """Simulate one server at a load."""
    rate = load * max(model["rates"])
    return simulate(model, lambda _: rate, peak=rate, seconds=SENTENCES / rate, servers=1, seed=seed)


def capacity_tables(figures: Figures) -> Iterator[str]:
    """Yield the tables that need no simulation: one server, fronts, many servers, bottlenecks, and cost."""
    models, fronts = figures["models"].values(), figures["fronts"]
    titles = [model["title"] for model in models]
    rows = [["model", "sentences at once", "sentences/s", "a core", "start, s", "memory, MiB", "bytes a sentence"]]
    for model in models:
        last = [f"{model['start_s']:.1f}", f"{model['memory_mib']:.0f}", f"{model['wire_bytes']:.0f}"]
        for number, rate in zip(model["outstanding"], model["rates"], strict=True):
            cells = last if number == model["outstanding"][-1] else ["", "", ""]
            rows.append([model["title"], f"{number}", f"{rate:.1f}", f"{rate / figures['cores']:.1f}", *cells])
    yield markdown(rows)
    times = {
        "server, over gRPC": "grpc_ms",
        "server, over HTTP": "http_ms",
        "client in Python, over gRPC": "client_ms",
        "`jumok gateway` before the server": "gateway_ms",
    }
    yield markdown(
        [["processor time of a sentence, ms", ""], *([name, f"{fronts[key]:.2f}"] for name, key in times.items())]
    )
    head = ["model", "servers", "sentences/s, full", "million characters a day at 70 %", "network, Mbit/s"]
    rows = [[*head, "cores of clients", "cores of `jumok gateway`"]]
    for model in models:
        for servers in MACHINES:
            rate = servers * max(model["rates"])
            day = LOAD * rate * figures["characters"] * 86_400 / 1e6
            beside = (
                rate * model["wire_bytes"] * 8 / 1e6,
                rate * model["client_ms"][-1] / 1e3,
                rate * fronts["gateway_ms"] / 1e3,
            )
            rows.append(
                [model["title"], f"{servers}", f"{rate:,.0f}", f"{day:,.0f}", *(f"{one:.1f}" for one in beside)]
            )
    yield markdown(rows)
    rows = [["one of these", *(f"feeds servers of {title}" for title in titles)]]
    for name, feeds in bottlenecks(figures).items():
        rows.append([name, *(f"{servers:,.0f}" for servers in feeds)])
    yield markdown(rows)
    rows = [["host", "$ an hour", *(f"{title}, {load}" for title in titles for load in ("full", "10 % busy"))]]
    for host in figures["hosts"]:
        prices = [dollars_per_million(figures, model, host, load) for model in models for load in (1.0, 0.1)]
        rows.append(
            [f"{host['name']} ({host['date']})", f"{host['dollars_an_hour']}", *(f"${one:.4f}" for one in prices)]
        )
    yield markdown(rows)


def bottlenecks(figures: Figures) -> dict[str, list[float]]:
    """Compute the number of full servers of each model that one resource can feed."""
    models = figures["models"].values()
    return {
        "a client process (Python, one core)": [1e3 / one["client_ms"][-1] / max(one["rates"]) for one in models],
        "a `jumok gateway` (one core)": [1e3 / figures["fronts"]["gateway_ms"] / max(one["rates"]) for one in models],
        "a network of 1 Gbit/s": [GIGABIT / one["wire_bytes"] / max(one["rates"]) for one in models],
    }


def dollars_per_million(figures: Figures, model: Figures, host: Figures, load: float) -> float:
    """Compute the price of a million characters on a host whose cores are as fast as the measured ones."""
    characters_a_second = load * max(model["rates"]) * figures["characters"] * host["cores"] / figures["cores"]
    return float(host["dollars_an_hour"] / 3600 / characters_a_second * 1e6)


def plot(by_load: Mapping[str, Mapping[float, Outcome]], outcomes: Mapping[str, Outcome], path: Path) -> None:
    """Plot latency by load, and servers and latency over time."""
    figure = Figure(figsize=(14, 4.2), layout="constrained")
    loads, servers, over_time = figure.subplots(1, 3)
    for index, (name, found) in enumerate(by_load.items()):
        for share, style, label in ((0.5, "o-", name), (0.99, "x--", None)):
            quantiles = [outcome.quantile(share) for outcome in found.values()]
            loads.plot([*found], quantiles, style, color=f"C{index}", label=label)
    loads.set(title="one server", xlabel="load", ylabel="latency, s; p50 solid, p99 dashed", yscale="log")
    loads.legend()
    starts = range(0, int(SECONDS) - 60, 60)
    for index, (name, outcome) in enumerate(outcomes.items()):
        minutes = [sample.time / 60 for sample in outcome.samples]
        servers.plot(minutes, [sample.servers for sample in outcome.samples], color=f"C{index}", label=name)
        worst = [outcome.quantile(0.99, after=start, before=start + 60) for start in starts]
        over_time.plot([start / 60 for start in starts], worst, color=f"C{index}")
    servers.set(title=f"servers, {next(iter(by_load))}", xlabel="minutes", ylim=(0, None))
    over_time.set(title="p99 of each minute", xlabel="minutes", ylabel="latency, s", yscale="log")
    for axes in (loads, servers, over_time):
        axes.grid(alpha=0.3)
    figure.legend(*servers.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Print the tables, and draw the picture."""
    parser = argparse.ArgumentParser(description="Show what many servers give and cost.")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the simulations: a .png, .svg or .pdf")
    parser.add_argument("--seed", type=int, default=1, help="of the simulations; default: %(default)s")
    options = parser.parse_args()
    figures = tomllib.loads(MEASURED.read_text(encoding="utf-8"))
    print(*capacity_tables(figures), sep="\n\n", end="\n\n")
    by_load = {
        model["title"]: {load: at_load(model, load, options.seed) for load in LOADS}
        for model in figures["models"].values()
    }
    rows = [["load", *(f"{title}, {share}" for title in by_load for share in ("p50", "p99"))]]
    for load in LOADS:
        cells = [f"{found[load].quantile(share):.2f} s" for found in by_load.values() for share in (0.5, 0.99)]
        rows.append([f"{load:.0%}", *cells])
    print(markdown(rows), end="\n\n")
    outcomes = busy_hour(next(iter(figures["models"].values())), options.seed)
    end = CALM_S + BUSY_S
    rows = [["scaled by", "server hours", "most servers", "p50", "p99", "p99 of the last ten busy minutes"]]
    for name, outcome in outcomes.items():
        most = max(sample.servers for sample in outcome.samples)
        latencies = [outcome.quantile(0.5), outcome.quantile(0.99), outcome.quantile(0.99, after=end - 600, before=end)]
        rows.append([name, f"{outcome.server_s / 3600:.1f}", f"{most}", *(f"{one:.1f} s" for one in latencies)])
    print(markdown(rows))
    if options.plot:
        plot(by_load, outcomes, options.plot)


if __name__ == "__main__":
    main()
