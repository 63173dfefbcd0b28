"""``jumok serve`` under load, compared with simple servers around CTranslate2.

Every contender is a separate process, serves the same weights in int8 on the same cores, and answers the same clients.
The clients keep a fixed number of requests outstanding, with one sentence each. Contenders take turns in each round,
while the others are idle. There are three servers, and one engine without a server:

- jumok: ``jumok serve`` as it configures itself, with metrics and a bound on the rate of calls;
- plain peer: ``contenders/plain_server.py``, where every request calls ``translate_batch`` on a thread;
- batching peer: ``contenders/batching_server.py``, where all waiting requests go into the next ``translate_batch``;
- offline engine: ``Translator`` in this process, given all sentences at once, in the same order.

Before the rounds each peer is measured with two workers on half of the cores each, and with one worker on all cores.
The faster setting is kept. There are two models: a Marian checkpoint of OPUS-MT's size with random weights, whose
translations are about as long as the sources; and this repository's trained model, on the test sentences of Multi30k.
All contenders stop a search when K hypotheses have ended.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common.closed_loop import Decoding, Measured, latencies_after, load, offline
from benchmarks.common.models import MULTI30K, ServedModel, served_random, served_trained
from benchmarks.common.processes import Server, ServerError, serving
from benchmarks.common.progress import described, progress
from benchmarks.common.random_marian import MarianSizes
from benchmarks.common.ratios import NO_FIGURES
from benchmarks.common.report import (
    BATCHING,
    JUMOK,
    OFFLINE,
    PLAIN,
    Comparison,
    Figures,
    comparisons,
    figures,
    serving_table,
)
from benchmarks.common.rests import QUICK_RESTS, RESTS, Rested, measure_rests, rest_table
from jumok_serve import Translator

CORES = len(os.sched_getaffinity(0))
RANDOM, TRAINED = "Marian", "Multi30k"
MODULES = {PLAIN: "benchmarks.contenders.plain_server", BATCHING: "benchmarks.contenders.batching_server"}
SERVICES = ("--metrics-port", "0", "--requests-per-second", "1000000")
"""Options of a server in production, whose cost is measured."""
DECODING = Decoding(beam_size=4, max_length=100)
TINY = MarianSizes(vocabulary=300, layers=1, width=32, feed_forward=64, heads=2, positions=128)
BESIDE = 64
"""Sentences for the offline engine before and after the measured ones."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Parameters of a run.

    Attributes:
        outstanding: numbers of outstanding requests.
        sentences: sentences per round; at least twice the requests.
        rounds: number of rounds.
        rests: calls by the rest before each, in seconds.
    """

    outstanding: Sequence[int]
    sentences: int
    rounds: int
    rests: Mapping[float, int]


@dataclass(frozen=True, kw_only=True)
class Threads:
    """A thread setting of CTranslate2."""

    workers: int
    each: int

    def __str__(self) -> str:
        return f"{self.workers}x{self.each}"


SETTINGS = (Threads(workers=2, each=max(1, CORES // 2)), Threads(workers=1, each=CORES))


@dataclass(kw_only=True)
class Record:
    """Results so far."""

    figures: list[Figures] = field(default_factory=list)
    ratios: list[Comparison] = field(default_factory=list)
    rests: list[Rested] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Servers:
    """The running contenders with one model.

    Attributes:
        name: name of the model.
        jumok: jumok's server.
        peers: CTranslate2's servers by name and setting.
        translator: the engine without a server.
        texts: texts to translate.
    """

    name: str
    jumok: Server
    peers: dict[str, dict[Threads, Server]]
    translator: Translator
    texts: Sequence[str]

    async def measure(self, outstanding: int, plan: Plan, record: Record) -> None:
        """Measure all contenders with a number of outstanding requests."""
        sentences = max(plan.sentences, 2 * outstanding)

        async def turn(name: str, what: str, server: Server) -> Measured:
            measured = await load(server, self.texts, DECODING, outstanding=outstanding, sentences=sentences)
            rate = measured.sentences / measured.wall_s
            progress(f"{self.name}, {outstanding} outstanding, {name}, {what}: {rate:.1f} sentences per second")
            return measured

        servers, chosen = {JUMOK: self.jumok}, {}
        await turn(JUMOK, "warming up", self.jumok)
        for name, settings in self.peers.items():
            seconds = {threads: (await turn(name, str(threads), server)).wall_s for threads, server in settings.items()}
            best = min(seconds, key=seconds.__getitem__)
            servers[name], chosen[name] = settings[best], str(best)
        found: dict[str, list[Measured]] = {name: [] for name in (*servers, OFFLINE)}
        for number in range(1, plan.rounds + 1):
            for name, server in servers.items():
                found[name].append(await turn(name, f"round {number} of {plan.rounds}", server))
            found[OFFLINE].append(offline(self.translator, self.texts, DECODING, beside=BESIDE, sentences=sentences))
        record.figures += [
            figures(
                self.name,
                outstanding,
                name,
                measured,
                setting=chosen.get(name),
                peak_rss_mib=servers[name].peak_rss_mib() if name in servers else None,
            )
            for name, measured in found.items()
        ]
        record.ratios += comparisons(self.name, outstanding, found)

    def measure_rests(self, plan: Plan, record: Record) -> None:
        """Measure jumok and the plain peer, called now and then."""
        plain = next(iter(self.peers[PLAIN].values()))
        for name, server in ((JUMOK, self.jumok), (PLAIN, plain)):
            progress(f"{self.name}, {name}: after rests")
            call = partial(latencies_after, server, self.texts[0], DECODING)
            record.rests.append(measure_rests(self.name, name, plan.rests, call))


async def measure_model(name: str, model: ServedModel, plan: Plan, record: Record) -> None:
    """Start all servers of a model, measure them, and stop them."""
    async with AsyncExitStack() as running:
        ours = await running.enter_async_context(serving("jumok", "serve", model.bundle, "--port", "0", *SERVICES))
        peers = {
            peer: {
                threads: await running.enter_async_context(serving(module, *_arguments(model, threads)))
                for threads in SETTINGS
            }
            for peer, module in MODULES.items()
        }
        translator = running.enter_context(Translator(model.bundle))
        started = Servers(name=name, jumok=ours, peers=peers, translator=translator, texts=model.texts)
        for outstanding in plan.outstanding:
            await started.measure(outstanding, plan, record)
        await asyncio.to_thread(started.measure_rests, plan, record)


def _arguments(model: ServedModel, threads: Threads) -> list[str | Path]:
    return [
        *(model.ctranslate2, "--source", model.source, "--target", model.target),
        *("--inter-threads", str(threads.workers), "--intra-threads", str(threads.each)),
        *("--beam-size", str(DECODING.beam_size), "--max-decoding-length", str(DECODING.max_length)),
    ]


def report(record: Record, where: dict[str, Any], plan: Plan, *, ratios: bool = True) -> str:
    """Setup and tables."""
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    tables = serving_table(record.figures, record.ratios if ratios else ())
    return (
        f"{where['cores']} cores of {where['processor']}; {versions}; int8, beam {DECODING.beam_size}; medians of "
        f"{plan.rounds} rounds; load before: {where['load_before']}\n\n"
        f"{tables}\n\n"
        f"Latency of one request after rests (multiple of back to back)\n{rest_table(record.rests, ratios=ratios)}"
    )


def main() -> int:
    """Make the models, measure, and print the tables; returns the exit status."""
    parser = argparse.ArgumentParser(description="Load jumok serve, and two servers around CTranslate2.")
    parser.add_argument("--outstanding", type=int, nargs="+", metavar="N", help="requests; default: 1 8 64 256")
    parser.add_argument("--rounds", type=int, help="rounds that count; default: 5")
    parser.add_argument(
        "--sentences", type=int, help="measured in every round, at least twice the requests; default: 128"
    )
    parser.add_argument("--model", choices=(RANDOM, TRAINED), action="append", help="only this; default: both")
    parser.add_argument("--quick", action="store_true", help="a tiny random model alone: minutes, and says nothing")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="make the models here, and use those that are here")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to a file too")
    arguments = parser.parse_args()
    quick: bool = arguments.quick
    plan = Plan(
        outstanding=arguments.outstanding or ((1, 8) if quick else (1, 8, 64, 256)),
        rounds=arguments.rounds or (2 if quick else 5),
        rests=QUICK_RESTS if quick else RESTS,
        sentences=arguments.sentences or (16 if quick else 128),
    )
    if min(*plan.outstanding, plan.rounds, plan.sentences, 1) < 1:
        parser.error("--outstanding, --rounds and --sentences must be at least 1")
    chosen = [RANDOM] if quick else arguments.model or [RANDOM, TRAINED]
    where = described(CORES)
    record = Record()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the servers are stopped then, too
    try:
        with tempfile.TemporaryDirectory() as folder:
            kept = arguments.keep.resolve() if arguments.keep else Path(folder)
            if RANDOM in chosen:
                sizes, name = (TINY, "tiny-load") if quick else (MarianSizes(), "marian-load")
                asyncio.run(measure_model(RANDOM, served_random(sizes, kept / name, progress), plan, record))
            if TRAINED in chosen and MULTI30K.is_dir():
                asyncio.run(measure_model(TRAINED, served_trained(kept / "multi30k", progress), plan, record))
    except ServerError as error:
        print(f"load failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if quick:
        print(NO_FIGURES)
    print(report(record, where, plan, ratios=not quick))
    if TRAINED in chosen and not MULTI30K.is_dir():
        print(f"\n{TRAINED} was left out: {MULTI30K} is not there; name its folder in JUMOK_MULTI30K")
    if arguments.json:
        content = {
            **where,
            "beam_size": DECODING.beam_size,
            "rounds": plan.rounds,
            "figures": [asdict(each) for each in record.figures],
            "rests": [asdict(each) for each in record.rests],
            "ratios": [asdict(each) | {"reached": each.reached} for each in record.ratios],
        }
        arguments.json.write_text(json.dumps(content, indent=2), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
