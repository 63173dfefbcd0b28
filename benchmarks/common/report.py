"""Reports of measurements under load: figures, ratios, tables."""

import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from benchmarks.common.closed_loop import Answer, Measured
from benchmarks.common.ratios import Ratio, aligned, ratio

MANY = 64
"""Outstanding requests at which most goals apply."""
JUMOK, PLAIN, BATCHING, OFFLINE = "jumok", "plain peer", "batching peer", "offline engine"

_RELATIONS: dict[str, Callable[[float, float], bool]] = {">=": operator.ge, "<": operator.lt}


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
    """Format two tables: figures, and ratios with their goals."""
    head = "model|contender|outstanding|threads|sent/s|tokens/s|tokens|p50 ms|p95 ms|p99 ms|queue ms|decoding|CPU s"
    rows = [[*head.split("|"), "sent/CPU-s", "cores", "peak MiB"]]
    for one in found:
        rows.append(
            [
                *(one.model, one.contender, f"{one.outstanding}", one.setting or ""),
                *(_cell(one.sentences_a_second, 1), _cell(one.tokens_a_second), _cell(one.tokens_a_sentence, 1)),
                *(_cell(one.p50_ms), _cell(one.p95_ms), _cell(one.p99_ms), _cell(one.queue_ms)),
                *(_cell(one.decoding, 1), _cell(one.cpu_s, 2), _cell(one.sentences_a_cpu_second, 1)),
                *(_cell(one.cores, 2), _cell(one.peak_rss_mib)),
            ]
        )
    if not compared:
        return aligned(rows)
    reached = {None: "", True: "reached", False: "missed"}
    ratios = [["model", "jumok's", "to that of", "outstanding", "ratio (range)", "goal", ""]]
    for each in compared:
        names = (each.model, each.what, each.contender, f"{each.outstanding}")
        ratios.append([*names, str(each), each.goal or "", reached[each.reached]])
    return f"{aligned(rows)}\n\n{aligned(ratios)}"


def _cell(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:.{digits}f}"
