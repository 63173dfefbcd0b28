"""``jumok serve`` under load, compared with simple servers around CTranslate2.

Every contender is a separate process, serves the same weights in int8 on the same cores, and answers the same clients.
The clients keep a fixed number of requests outstanding, with one sentence each. Contenders take turns in each round,
while the others are idle. There are three servers, and one engine without a server:

- jumok: ``jumok serve`` as it configures itself, with metrics and a bound on the rate of calls;
- plain peer: ``contenders/ctranslate2_server.py``, where every request calls ``translate_batch`` on a thread;
- batching peer: the same with ``--batching``, where all waiting requests go into the next ``translate_batch``;
- offline engine: ``Translator`` in this process, given all sentences at once, in the same order.

Before the rounds each peer is measured with two workers on half of the cores each, and with one worker on all cores.
The faster setting is kept. The model is a Marian checkpoint of OPUS-MT's size with random weights, whose translations
are about as long as the sources. All contenders stop a search when K hypotheses have ended.
"""

import argparse
import asyncio
import itertools
import operator
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common.closed_loop import Decoding, Measured, Moment, load
from benchmarks.common.models import Models, served_random
from benchmarks.common.processes import Server, ServerError, serving
from benchmarks.common.progress import described, progress, setup, write_json
from benchmarks.common.random_marian import TINY, MarianSizes
from benchmarks.common.ratios import NO_FIGURES, Ratio, aligned, percentile, ratio, turns
from jumok_serve import Translator
from jumok_serve.search.options import DecodingOptions
from jumok_serve.tasks.model import TranslationParameters

MANY = 64
"""Outstanding requests at which most goals apply."""
JUMOK, PLAIN, BATCHING, OFFLINE = "jumok", "plain peer", "batching peer", "offline engine"

_RELATIONS: dict[str, Callable[[float, float], bool]] = {">=": operator.ge, "<": operator.lt}
SERVER = "benchmarks.contenders.ctranslate2_server"
CORES = len(os.sched_getaffinity(0))
OPTIONS: dict[str, tuple[str, ...]] = {PLAIN: (), BATCHING: ("--batching",)}
"""Options of the servers around CTranslate2."""
SERVICES = ("--metrics-port", "0", "--requests-per-second", "1000000")
"""Options of a server in production, whose cost is measured."""
DECODING = Decoding(beam_size=4, max_length=100)
BESIDE = 64
"""Sentences for the offline engine before and after the measured ones."""


SETTINGS = {f"{workers}x{each}": (workers, each) for workers, each in ((2, max(1, CORES // 2)), (1, CORES))}
"""Workers of CTranslate2 and threads of each, by name."""


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


def offline(
    translator: Translator, texts: Sequence[str], decoding: Decoding, *, beside: int, sentences: int
) -> Measured:
    """Decode all texts in this process, with one request each.

    The sentences and their order are those of the server's measurement.

    One request with all texts would be decoded in another order. The time counts from the first to the last measured
    sentence; sentences after these keep the batch full. The time to tokenize and to detokenize counts for as many
    sentences, as in a server.

    Args:
        translator: the engine.
        texts: texts to translate, repeated as needed.
        decoding: decoding options.
        beside: number of sentences before the measured ones, and again after them.
        sentences: number of measured sentences.
    """
    moments: list[Moment] = []
    over = threading.Event()

    def note(_: object) -> None:
        cpu_s = time.process_time()
        moments.append(Moment(time.perf_counter(), cpu_s, cpu_s))
        if len(moments) == len(futures):
            over.set()

    submitted = list(itertools.islice(itertools.cycle(texts), sentences + 2 * beside))
    began = time.thread_time()
    parameters = TranslationParameters(options=DecodingOptions(**decoding.options))
    requests = [translator.submit([text], parameters) for text in submitted]
    around_s = time.thread_time() - began
    futures = [future for request in requests for future in request.futures]
    for future in futures:
        future.add_done_callback(note)
    over.wait()
    began = time.thread_time()
    for request in requests:
        request.collect()
    around_s += time.thread_time() - began
    first, last = moments[beside - 1], moments[beside + sentences - 1]
    return Measured(
        latencies_s=(),
        sentences=sentences,
        wall_s=last.wall_s - first.wall_s,
        cpu_s=last.cpu_s - first.cpu_s + around_s * sentences / len(submitted),
        client_cpu_s=0.0,
    )


async def measure(
    servers: Mapping[str, Mapping[str, Server]],
    model: Models,
    translator: Translator,
    outstanding: int,
    *,
    sentences: int,
    rounds: int,
) -> tuple[list[Figures], list[Comparison]]:
    """Measure all contenders with a number of outstanding requests.

    Args:
        servers: servers by name and setting.
        model: texts to translate.
        translator: the engine without a server.
        outstanding: outstanding requests.
        sentences: sentences of a round, at least twice the requests.
        rounds: rounds that count.
    """
    sentences = max(sentences, 2 * outstanding)

    async def turn(server: Server) -> Measured:
        return await load(server, model.texts, DECODING, outstanding=outstanding, sentences=sentences)

    progress(f"{outstanding} outstanding")
    chosen: dict[str, str] = {}
    for name, settings in servers.items():
        seconds = {setting: (await turn(server)).wall_s for setting, server in settings.items()}
        chosen[name] = min(seconds, key=seconds.__getitem__)
    found: dict[str, list[Measured]] = {name: [] for name in (*servers, OFFLINE)}
    for number, name in turns(found, rounds):
        measured = (
            offline(translator, model.texts, DECODING, beside=BESIDE, sentences=sentences)
            if name == OFFLINE
            else await turn(servers[name][chosen[name]])
        )
        if number:
            found[name].append(measured)
    listed = [
        figures(
            outstanding,
            name,
            measured,
            setting=chosen.get(name) or None,
            peak_rss_mib=servers[name][chosen[name]].peak_rss_mib() if name in servers else None,
        )
        for name, measured in found.items()
    ]
    return listed, comparisons(outstanding, found)


async def measure_model(
    model: Models, outstanding: Sequence[int], *, sentences: int, rounds: int
) -> tuple[list[Figures], list[Comparison]]:
    """Start all servers of a model, measure them, and stop them."""
    listed: list[Figures] = []
    compared: list[Comparison] = []
    async with AsyncExitStack() as running:

        async def started(module: str, *arguments: str | Path) -> Server:
            return await running.enter_async_context(serving(module, *arguments))

        servers = {JUMOK: {"": await started("jumok", "serve", model.bundle, "--port", "0", *SERVICES)}}
        for peer, options in OPTIONS.items():
            servers[peer] = {
                name: await started(SERVER, *options, *_arguments(model, *threads))
                for name, threads in SETTINGS.items()
            }
        translator = running.enter_context(Translator(model.bundle))
        for number in outstanding:
            some, ratios = await measure(servers, model, translator, number, sentences=sentences, rounds=rounds)
            listed += some
            compared += ratios
    return listed, compared


def _arguments(model: Models, workers: int, threads: int) -> list[str | Path]:
    assert model.checkpoint is not None
    return [
        *(model.ctranslate2["int8"], "--source", model.checkpoint / "source.spm"),
        *("--target", model.checkpoint / "target.spm"),
        *("--inter-threads", str(workers), "--intra-threads", str(threads)),
        *("--beam-size", str(DECODING.beam_size), "--max-decoding-length", str(DECODING.max_length)),
    ]


def main() -> int:
    """Make the model, measure, and print the tables; returns the exit status."""
    parser = argparse.ArgumentParser(description="Load jumok serve, and two servers around CTranslate2.")
    parser.add_argument("--outstanding", type=int, nargs="+", metavar="N", help="requests; default: 1 8 64 256")
    parser.add_argument("--rounds", type=int, help="rounds that count; default: 5")
    parser.add_argument(
        "--sentences", type=int, help="measured in every round, at least twice the requests; default: 128"
    )
    parser.add_argument("--quick", action="store_true", help="a tiny model: minutes, and says nothing")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="make the model here, and use one that is here")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to a file too")
    arguments = parser.parse_args()
    quick: bool = arguments.quick
    outstanding = arguments.outstanding or ((1, 8) if quick else (1, 8, 64, 256))
    rounds = arguments.rounds or (2 if quick else 5)
    sentences = arguments.sentences or (16 if quick else 128)
    if min(*outstanding, rounds, sentences, 1) < 1:
        parser.error("--outstanding, --rounds and --sentences must be at least 1")
    where = described(CORES)
    print(f"{setup(CORES)}; int8, beam {DECODING.beam_size}; medians of {rounds} rounds\n")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the servers are stopped then, too
    try:
        with tempfile.TemporaryDirectory() as folder:
            kept = arguments.keep.resolve() if arguments.keep else Path(folder)
            sizes, name = (TINY, "tiny-load") if quick else (MarianSizes(), "marian-load")
            model = served_random(sizes, kept / name)
            found, compared = asyncio.run(measure_model(model, outstanding, sentences=sentences, rounds=rounds))
    except ServerError as error:
        print(f"load failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if quick:
        print(NO_FIGURES)
    print(serving_table(found, () if quick else compared))
    content = {
        **where,
        "beam_size": DECODING.beam_size,
        "rounds": rounds,
        "figures": list(map(asdict, found)),
        "ratios": [asdict(each) | {"reached": each.reached} for each in compared],
    }
    write_json(arguments.json, content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
