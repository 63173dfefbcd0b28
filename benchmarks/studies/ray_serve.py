"""Compare sentences per second of Ray Serve with ``jumok serve``, with as many replicas on one machine.

Rounds of both take turns, once with corpora and once with calls of one sentence. Each replica has one core. Needs the
extra ``ray``.
"""

import argparse
import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import jumok
from benchmarks.common.closed_loop import Decoding, load
from benchmarks.common.models import corpus
from benchmarks.common.processes import serving
from benchmarks.common.progress import progress, setup
from benchmarks.common.ratios import against, aligned, ratio, turns

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "multi30k-en-de-transformer"
GOAL = 0.8
"""Goal of Ray's rate by corpora as a multiple of the server's."""
DECODING = Decoding(beam_size=5, max_length=100)
SERVER, RAY = "jumok serve", "Ray Serve"
CORPORA_OF_REPLICA = 2
"""Corpora at once for each replica; Ray gives a corpus to one replica."""
APART_S = 0.2
"""Seconds between the begins of corpora: Ray chooses a replica by queues as they were shortly before."""


async def translate_corpora(address: str, texts: Sequence[str], *, corpora: int, sentences: int) -> float:
    """Translate sentences in several corpora at once, begun one after the other; returns the seconds of all."""
    each = sentences // corpora

    async def lines(first: int) -> AsyncIterator[str]:
        for text in itertools.islice(itertools.cycle(texts), first, first + each):
            yield text

    async def translate(client: jumok.AsyncClient, number: int) -> None:
        await asyncio.sleep(number * APART_S)
        results = client.translate_iter(
            lines(number * each), beam_size=DECODING.beam_size, max_length=DECODING.max_length, early_stopping=True
        )
        count = 0
        async for result in results:
            count += bool(result.translation.text)
        assert count == each

    async with jumok.AsyncClient(address) as client:
        began = time.perf_counter()
        await asyncio.gather(*(translate(client, number) for number in range(corpora)))
        return time.perf_counter() - began


async def measure(
    bundle: Path, texts: Sequence[str], *, replicas: int, outstanding: int, sentences: int, rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Measure the seconds of each kind of load, by contender and round."""
    seconds: dict[str, dict[str, list[float]]] = {kind: {SERVER: [], RAY: []} for kind in ("corpora", "one a call")}
    arguments = (bundle, "--replicas", str(replicas))
    corpora = CORPORA_OF_REPLICA * replicas
    async with AsyncExitStack() as running:
        server = await running.enter_async_context(
            serving("jumok", "serve", *arguments, "--threads", "1", "--port", "0")
        )
        ray = await running.enter_async_context(serving("benchmarks.contenders.ray_server", *arguments))
        addresses = {SERVER: server, RAY: ray}
        for number, name in turns(addresses, rounds, progress):
            one = addresses[name]
            taken = await translate_corpora(one.address, texts, corpora=corpora, sentences=sentences)
            single = await load(one, texts, DECODING, outstanding=outstanding, sentences=sentences)
            if number:
                seconds["corpora"][name].append(taken)
                seconds["one a call"][name].append(single.wall_s)
    return seconds


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description="Compare Ray Serve with jumok serve under load.")
    parser.add_argument("--bundle", type=Path, default=MODEL, help="English to German; default: %(default)s")
    parser.add_argument("--replicas", type=int, default=2, help="of each; default: %(default)s")
    parser.add_argument(
        "--outstanding", type=int, default=64, help="calls of one sentence at once; default: %(default)s"
    )
    parser.add_argument("--sentences", type=int, default=1000, help="of a round; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="that count; default: %(default)s")
    options = parser.parse_args()
    measured = asyncio.run(
        measure(
            options.bundle.resolve(),
            corpus("test_2016_flickr.en"),
            replicas=options.replicas,
            outstanding=options.outstanding,
            sentences=options.sentences,
            rounds=options.rounds,
        )
    )
    rows = [["load", "replicas", "jumok serve, sentences/s", "Ray, sentences/s", "ratio (range)", "goal"]]
    for kind, seconds in measured.items():
        rates = [f"{options.sentences / sorted(taken)[len(taken) // 2]:.0f}" for taken in seconds.values()]
        compared = ratio(seconds[RAY], seconds[SERVER])
        goal = against(compared.median, GOAL if kind == "corpora" else None)
        rows.append([kind, str(options.replicas), *rates, str(compared), goal])
    print(setup(len(os.sched_getaffinity(0)), ("jumok", "grpcio", "ray")))
    print(aligned(rows))


if __name__ == "__main__":
    main()
