"""Reports of measurements under load: figures, ratios, tables."""

import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from benchmarks.common.closed_loop import Measured
from benchmarks.common.ratios import Ratio, aligned, ratio

MANY = 64
"""Outstanding requests at which most goals apply."""
JUMOK, PLAIN, BATCHING, OFFLINE = "jumok", "plain peer", "batching peer", "offline engine"

_RELATIONS: dict[str, Callable[[float, float], bool]] = {">=": operator.ge, "<": operator.lt}


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One contender with one number of outstanding requests.

    Latencies are over the answers of all rounds, rates are medians of the rounds. Values that an offline engine lacks
    are None.

    Attributes:
        contender: name of the contender.
        outstanding: outstanding requests.
        setting: thread setting, or None.
        sentences_a_second: throughput.
        p50_ms: median latency at the client.
        p99_ms: 99th percentile.
        sentences_a_cpu_second: sentences per second of processor time.
        peak_rss_mib: peak memory of the server.
    """

    contender: str
    outstanding: int
    setting: str | None
    sentences_a_second: float
    p50_ms: float | None
    p99_ms: float | None
    sentences_a_cpu_second: float
    peak_rss_mib: float | None


@dataclass(frozen=True, kw_only=True)
class Comparison(Ratio):
    """The ratio of jumok to another contender, over the rounds.

    Attributes:
        what: the quantity.
        contender: the other contender.
        outstanding: outstanding requests.
        goal: bound of the median, or None.
    """

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
    outstanding: int,
    contender: str,
    rounds: Sequence[Measured],
    *,
    setting: str | None,
    peak_rss_mib: float | None,
) -> Figures:
    """Summarize a contender's rounds."""
    latencies_s = [latency_s for measured in rounds for latency_s in measured.latencies_s]
    p50_ms, p99_ms = (1e3 * percentile(latencies_s, each) if latencies_s else None for each in (50, 99))
    return Figures(
        contender=contender,
        outstanding=outstanding,
        setting=setting,
        sentences_a_second=statistics.median(map(_throughput, rounds)),
        p50_ms=p50_ms,
        p99_ms=p99_ms,
        sentences_a_cpu_second=statistics.median(map(_efficiency, rounds)),
        peak_rss_mib=peak_rss_mib,
    )


def comparisons(outstanding: int, rounds: Mapping[str, Sequence[Measured]]) -> list[Comparison]:
    """Compare jumok with the other contenders, by rounds."""

    def compare(what: str, contender: str, value: Callable[[Measured], float], goal: str | None) -> Comparison:
        ours, theirs = (list(map(value, rounds[name])) for name in (JUMOK, contender))
        return Comparison(
            **asdict(ratio(theirs, ours)),
            what=what,
            contender=contender,
            outstanding=outstanding,
            goal=goal,
        )

    many = outstanding == MANY
    return [
        compare("sentences per CPU-second", OFFLINE, _efficiency, ">= 0.9" if many else None),
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
    return lambda measured: percentile(measured.latencies_s, percent)


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the nearest-rank percentile: at least `percent` percent of the values are not above it."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]


def serving_table(found: Sequence[Figures], compared: Sequence[Comparison]) -> str:
    """Format two tables: figures, and ratios with their goals."""
    rows = [["contender", "outstanding", "threads", "sent/s", "p50 ms", "p99 ms", "sent/CPU-s", "peak MiB"]]
    for one in found:
        rows.append(
            [
                *(one.contender, f"{one.outstanding}", one.setting or "", f"{one.sentences_a_second:.1f}"),
                *(_cell(one.p50_ms), _cell(one.p99_ms), f"{one.sentences_a_cpu_second:.1f}", _cell(one.peak_rss_mib)),
            ]
        )
    if not compared:
        return aligned(rows)
    reached = {None: "", True: "reached", False: "missed"}
    ratios = [["jumok's", "to that of", "outstanding", "ratio (range)", "goal", ""]]
    for each in compared:
        names = (each.what, each.contender, f"{each.outstanding}")
        ratios.append([*names, str(each), each.goal or "", reached[each.reached]])
    return f"{aligned(rows)}\n\n{aligned(ratios)}"


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"
