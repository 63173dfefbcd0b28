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
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path

from benchmarks.common.closed_loop import Decoding, Measured, load, offline
from benchmarks.common.models import Models, served_random
from benchmarks.common.processes import Server, ServerError, serving
from benchmarks.common.progress import described, progress, setup, write_json
from benchmarks.common.random_marian import MarianSizes
from benchmarks.common.ratios import NO_FIGURES, turns
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
from jumok_serve import Translator

SERVER = "benchmarks.contenders.ctranslate2_server"
CORES = len(os.sched_getaffinity(0))
OPTIONS: dict[str, tuple[str, ...]] = {PLAIN: (), BATCHING: ("--batching",)}
"""Options of the servers around CTranslate2."""
SERVICES = ("--metrics-port", "0", "--requests-per-second", "1000000")
"""Options of a server in production, whose cost is measured."""
DECODING = Decoding(beam_size=4, max_length=100)
TINY = MarianSizes(vocabulary=300, layers=1, width=32, feed_forward=64, heads=2, positions=128)
BESIDE = 64
"""Sentences for the offline engine before and after the measured ones."""


SETTINGS = {f"{workers}x{each}": (workers, each) for workers, each in ((2, max(1, CORES // 2)), (1, CORES))}
"""Workers of CTranslate2 and threads of each, by name."""


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
