"""Measure one server for the simulation: its service curve, its start, and the fronts before it.

The figures go into ``benchmarks/scale/measured.toml``. Models have random weights in the shape of a published one, and
run in int8 with beam size 4; each sentence has 20 source tokens, and 32 target tokens.
"""

import argparse
import asyncio
import multiprocessing
import os
import random
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import jumok
from benchmarks.common.closed_loop import Decoding, load
from benchmarks.common.processes import Server, serving
from benchmarks.common.progress import described, progress
from benchmarks.common.random_marian import MarianSizes, words
from benchmarks.http_load import DECODING as FRONT_DECODING
from benchmarks.http_load import MODEL, post_all, requests
from benchmarks.import_memory import SHAPES, TINY
from benchmarks.import_memory import measure as import_checkpoint
from benchmarks.scale.capacity import Model
from tests.faults.tools.texts import scenes
from tests.support.servers.relay import Relay

SOURCE_TOKENS, TARGET_TOKENS = 20, 32
BEAM_SIZE = 4
LANGUAGES = {"nllb-600m": ("aaa_Latn", "aab_Latn"), "tiny-nllb": ("aaa_Latn", "aab_Latn")}
OUTSTANDING = (1, 2, 4, 8, 16, 32, 64)
LIMITS = ("--requests-per-second", "1000000")
PACKAGES = ("jumok", "grpcio", "onnxruntime")


def made_bundle(shape: str, folder: Path) -> Path:
    """Make a checkpoint of a shape and import it in int8, unless the folder has the bundle."""
    bundle, checkpoint = folder / shape, folder / f"{shape}-checkpoint"
    if not bundle.exists():
        progress(f"{shape}: making the checkpoint")
        make = {**SHAPES, **TINY}[shape].make
        maker = multiprocessing.get_context("spawn").Process(target=make, args=(checkpoint,))
        maker.start()
        maker.join()
        if maker.exitcode:
            raise SystemExit(f"{shape}: the checkpoint was not made")
        progress(f"{shape}: importing it")
        part = folder / f"{shape}-part"
        import_checkpoint(shape, "jumok", "int8", checkpoint, part)
        part.rename(bundle)
    return bundle


def random_texts(count: int, seed: int) -> list[str]:
    """Texts of 20 tokens, of words that both random tokenizers have."""
    chosen, known = random.Random(seed), words(MarianSizes())
    return [" ".join(chosen.choices(known[:1000], k=SOURCE_TOKENS - 1)) for _ in range(count)]


async def measure_curve(
    bundle: Path,
    texts: Sequence[str],
    *,
    title: str,
    outstanding: Sequence[int],
    rounds: int,
    languages: tuple[str, str] | None = None,
) -> Model:
    """Measure the service curve of a server, in rounds over all numbers of outstanding requests."""
    decoding = Decoding(beam_size=BEAM_SIZE, max_length=TARGET_TOKENS, languages=languages)
    found: dict[int, list[tuple[float, float, float]]] = {number: [] for number in outstanding}
    async with serving("jumok", "serve", bundle, "--port", "0", *LIMITS):
        pass  # files come into memory
    began = time.monotonic()
    async with serving("jumok", "serve", bundle, "--port", "0", *LIMITS) as server:
        start_s = time.monotonic() - began
        for number in range(rounds):
            for count in outstanding:
                measured = await load(server, texts, decoding, outstanding=count, sentences=max(2 * count, 12))
                each = (measured.wall_s, measured.client_cpu_s)
                found[count].append(tuple(value / measured.sentences for value in each))  # type: ignore[arg-type]
            progress(f"round {number + 1} of {rounds}")
        carried = await _carried(server, texts[:20], decoding)
        memory_mib = server.peak_rss_mib()
    medians = [[statistics.median(values) for values in zip(*found[count], strict=True)] for count in outstanding]
    return Model(
        title=title,
        start_s=start_s,
        memory_mib=memory_mib,
        outstanding=outstanding,
        rates=[1 / wall_s for wall_s, _ in medians],
        client_ms=[1e3 * cpu_s for _, cpu_s in medians],
        wire_bytes=carried,
    )


async def _carried(server: Server, texts: Sequence[str], decoding: Decoding) -> float:
    """Measure the bytes of a call with one sentence, both directions, over an open connection."""
    source_language, target_language = decoding.languages or (None, None)
    with Relay(server.address) as relay:
        async with jumok.AsyncClient(relay.address, timeout_s=600) as client:

            async def call(text: str) -> None:
                await client.translate(
                    text,
                    source_language=source_language,
                    target_language=target_language,
                    beam_size=decoding.beam_size,
                    max_length=decoding.max_length,
                )

            await call(texts[0])  # connects
            before = relay.carried
            for text in texts:
                await call(text)
            return (relay.carried - before) / len(texts)


async def measure_fronts(bundle: Path, texts: Sequence[str], *, sentences: int, rounds: int) -> dict[str, float]:
    """Measure processor milliseconds for each sentence of server, client, HTTP port and gateway.

    The model is small, so that fronts are a large part of the whole.
    """
    found: dict[str, list[float]] = {name: [] for name in ("grpc_ms", "client_ms", "http_ms", "gateway_ms")}
    with socket.create_server(("localhost", 0)) as free:
        port = str(free.getsockname()[1])
    arguments = (bundle, "--port", "0", "--http-port", port, *LIMITS)
    async with serving("jumok", "serve", *arguments) as server:
        gate = ("gateway", "--server", server.address, "--http-port", "0")
        async with serving("jumok", *gate) as gateway:
            messages = requests(texts)["own JSON"]
            gateway_port = int(gateway.address.rpartition(":")[2])
            for number in range(1 + rounds):
                measured = await load(server, texts, FRONT_DECODING, outstanding=64, sentences=sentences)
                before = server.cpu_s()
                await post_all(int(port), messages, outstanding=64, sentences=sentences)
                through_http = (server.cpu_s() - before) / (64 + sentences)
                before = gateway.cpu_s()
                await post_all(gateway_port, messages, outstanding=64, sentences=sentences)
                through_gateway = (gateway.cpu_s() - before) / (64 + sentences)
                if number:  # the first round warms up
                    found["grpc_ms"].append(1e3 * measured.cpu_s / sentences)
                    found["client_ms"].append(1e3 * measured.client_cpu_s / sentences)
                    found["http_ms"].append(1e3 * through_http)
                    found["gateway_ms"].append(1e3 * through_gateway)
    return {name: round(statistics.median(values), 2) for name, values in found.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print the figures as TOML; returns the exit status."""
    parser = argparse.ArgumentParser(description="Measure one server for the simulation of many.")
    parser.add_argument("--shape", choices=[*SHAPES, *TINY], action="append", default=[], help="a model to measure")
    parser.add_argument("--fronts", action="store_true", help="measure gRPC, HTTP and the gateway")
    parser.add_argument("--outstanding", type=int, nargs="+", default=[*OUTSTANDING], help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="that count; default: %(default)s")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="make the bundles here, and use those that are here")
    options = parser.parse_args(arguments)
    where = described(len(os.sched_getaffinity(0)), PACKAGES)
    print(f"# {where['cores']} cores of {where['processor']}; load before: {where['load_before']}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for shape in options.shape:
            bundle = made_bundle(shape, folder)
            measured = asyncio.run(
                measure_curve(
                    bundle,
                    random_texts(256, seed=1),
                    title=shape,
                    outstanding=options.outstanding,
                    rounds=options.rounds,
                    languages=LANGUAGES.get(shape),
                )
            )
            print(measured.toml(shape), flush=True)
    if options.fronts:
        fronts = asyncio.run(measure_fronts(MODEL, scenes(1000, 1), sentences=1000, rounds=options.rounds))
        print("[fronts]", *(f"{name} = {value}" for name, value in fronts.items()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
