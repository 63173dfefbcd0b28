"""Measure one server for the simulation of many: its service curve, its start, and the fronts before it.

The figures go into `scale.toml`. Models have random weights in the shape of a published one, and run in int8 with beam
size 4; each sentence has 20 source tokens, and 32 target tokens.
"""

import argparse
import asyncio
import os
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import jumok
from benchmarks.common.closed_loop import TIMEOUT_S, Decoding, ask, load
from benchmarks.common.data import TRANSFORMER, corpus
from benchmarks.common.processes import Server, serving
from benchmarks.common.progress import progress, setup
from benchmarks.common.random_marian import MarianSizes, words
from benchmarks.http_load import DECODING as FRONT_DECODING
from benchmarks.http_load import free_port, post_all, requests
from benchmarks.studies.import_memory import SHAPES, make_apart
from benchmarks.studies.import_memory import measure as import_checkpoint

SOURCE_TOKENS, TARGET_TOKENS = 20, 32
OUTSTANDING = (1, 2, 4, 8, 16, 32, 64)
LIMITS = ("--requests-per-second", "1000000")


def made_bundle(shape: str, folder: Path) -> Path:
    """Make a checkpoint of a shape and import it in int8, unless the folder has the bundle."""
    bundle, checkpoint = folder / shape, folder / f"{shape}-checkpoint"
    if not bundle.exists():
        make_apart(shape, checkpoint)
        part = folder / f"{shape}-part"
        import_checkpoint(shape, "jumok", "int8", checkpoint, part)
        part.rename(bundle)
    return bundle


async def measure_curve(bundle: Path, shape: str, *, outstanding: Sequence[int], rounds: int) -> str:
    """Measure the service curve of a server, in rounds over all numbers of outstanding requests; returns TOML."""
    chosen, known = random.Random(1), words(MarianSizes())[:1000]  # both random tokenizers have these
    texts = [" ".join(chosen.choices(known, k=SOURCE_TOKENS - 1)) for _ in range(256)]
    languages = ("aaa_Latn", "aab_Latn") if "nllb" in shape else None
    decoding = Decoding(beam_size=4, max_length=TARGET_TOKENS, languages=languages)
    found: dict[int, list[tuple[float, float]]] = {number: [] for number in outstanding}
    async with serving("jumok", "serve", bundle, "--port", "0", *LIMITS):
        pass  # files come into memory
    began = time.monotonic()
    async with serving("jumok", "serve", bundle, "--port", "0", *LIMITS) as server:
        start_s = time.monotonic() - began
        for number in range(rounds):
            for count in outstanding:
                measured = await load(server, texts, decoding, outstanding=count, sentences=max(2 * count, 12))
                found[count].append(
                    (measured.wall_s / measured.sentences, 1e3 * measured.client_cpu_s / measured.sentences)
                )
            progress(f"round {number + 1} of {rounds}")
        async with relayed(server) as (relay, carried):
            sums = []
            for calls in (0, 20):  # besides the one that connects
                carried.clear()
                await asyncio.to_thread(latencies_after, relay, texts[0], decoding, [0.0] * calls)
                sums.append(sum(carried))
        memory_mib = server.peak_rss_mib()
    medians = [[statistics.median(values) for values in zip(*found[count], strict=True)] for count in outstanding]
    return (
        f'[models.{shape}]\ntitle = "{shape}"\nstart_s = {start_s:.1f}\nmemory_mib = {memory_mib:.0f}\n'
        f"outstanding = {[*outstanding]}\nrates = {[round(1 / wall_s, 2) for wall_s, _ in medians]}\n"
        f"client_ms = {[round(client_ms, 2) for _, client_ms in medians]}\n"
        f"wire_bytes = {(sums[1] - sums[0]) / 20:.0f}\n"
    )


def latencies_after(server: Server, text: str, decoding: Decoding, rests_s: Sequence[float]) -> list[float]:
    """Return the latencies of calls after these rests, in seconds."""

    async def call_all() -> list[float]:
        latencies = []
        async with jumok.AsyncClient(server.address, timeout_s=TIMEOUT_S) as client:
            await ask(client, text, decoding)  # connects
            for rest_s in rests_s:
                await asyncio.sleep(rest_s)
                latencies.append(await ask(client, text, decoding))
        return latencies

    return asyncio.run(call_all())


@asynccontextmanager
async def relayed(server: Server) -> AsyncIterator[tuple[Server, list[int]]]:
    """Relay a server's connections; yields it by the relay's address, and the sizes of all that is carried."""
    carried: list[int] = []

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(2**16):
            carried.append(len(data))
            writer.write(data)
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there = await asyncio.open_connection(*server.address.rsplit(":", 1))
        await asyncio.gather(copy(reader, there), copy(there_reader, writer))

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as relay:
        port = relay.sockets[0].getsockname()[1]
        yield replace(server, address=f"127.0.0.1:{port}"), carried


async def measure_fronts(texts: Sequence[str], *, sentences: int, rounds: int) -> dict[str, float]:
    """Measure processor milliseconds for each sentence of server, client, HTTP port and gateway.

    The model is small, so that fronts are a large part of the whole.
    """
    found: dict[str, list[float]] = {name: [] for name in ("grpc_ms", "client_ms", "http_ms", "gateway_ms")}
    port, messages = free_port(), requests(texts)["own JSON"]
    arguments = (TRANSFORMER, "--port", "0", "--http-port", str(port), *LIMITS)
    async with serving("jumok", "serve", *arguments) as server:
        gate = ("gateway", "--server", server.address, "--http-port", "0")
        async with serving("jumok", *gate) as gateway:
            gateway_port = int(gateway.address.rpartition(":")[2])
            for number in range(1 + rounds):
                measured = await load(server, texts, FRONT_DECODING, outstanding=64, sentences=sentences)
                taken = {"grpc_ms": measured.cpu_s / sentences, "client_ms": measured.client_cpu_s / sentences}
                for name, front, at in (("http_ms", server, port), ("gateway_ms", gateway, gateway_port)):
                    before = front.cpu_s()
                    await post_all(at, messages, outstanding=64, sentences=sentences)
                    taken[name] = (front.cpu_s() - before) / (64 + sentences)
                if number:  # the first round warms up
                    for name, seconds in taken.items():
                        found[name].append(1e3 * seconds)
    return {name: round(statistics.median(values), 2) for name, values in found.items()}


def main() -> None:
    """Measure, and print the figures as TOML."""
    parser = argparse.ArgumentParser(description="Measure one server for the simulation of many.")
    parser.add_argument("--shape", choices=SHAPES, action="append", default=[], help="a model to measure")
    parser.add_argument("--fronts", action="store_true", help="measure gRPC, HTTP and the gateway")
    parser.add_argument("--outstanding", type=int, nargs="+", default=[*OUTSTANDING], help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="that count; default: %(default)s")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="make the bundles here, and use those that are here")
    options = parser.parse_args()
    print(f"# {setup(len(os.sched_getaffinity(0)), ('jumok', 'grpcio', 'onnxruntime'))}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for shape in options.shape:
            bundle = made_bundle(shape, folder)
            measured = measure_curve(bundle, shape, outstanding=options.outstanding, rounds=options.rounds)
            print(asyncio.run(measured), flush=True)
    if options.fronts:
        texts = corpus("test_2016_flickr.en")
        fronts = asyncio.run(measure_fronts(texts, sentences=1000, rounds=options.rounds))
        print("[fronts]", *(f"{name} = {value}" for name, value in fronts.items()), sep="\n")


if __name__ == "__main__":
    main()
