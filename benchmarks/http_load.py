"""Compare sentences per second over HTTP with gRPC, on one server.

Rounds of both take turns, each with a constant number of requests outstanding, of one sentence each. The client sends
plain HTTP/1.1 over kept connections, so that it costs little beside the server.
"""

import argparse
import asyncio
import itertools
import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from google.protobuf import json_format

from benchmarks.common.closed_loop import Decoding, load
from benchmarks.common.data import TRANSFORMER, corpus
from benchmarks.common.processes import serving
from benchmarks.common.progress import setup, write_json
from benchmarks.common.ratios import against, aligned, ratio, turns
from jumok_proto.conversion import options_to_proto

GOAL = 0.85
"""Goal of the rate over HTTP as a multiple of gRPC's."""
DECODING = Decoding(beam_size=5, max_length=100)


def requests(texts: Sequence[str]) -> dict[str, list[bytes]]:
    """Make an HTTP request of each text, by API."""

    def post(path: str, body: object, *headers: str) -> bytes:
        content = json.dumps(body).encode()
        lines = (f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers)
        return "\r\n".join((*lines, f"Content-Length: {len(content)}", "", "")).encode() + content

    options = json_format.MessageToDict(options_to_proto(DECODING.options))
    return {
        "own JSON": [post("/v1/text:translate", {"contents": [text], "options": options}) for text in texts],
        "LibreTranslate": [
            post("/translate", {"q": text, "source": "en", "target": "de", "format": "text"}) for text in texts
        ],
        "DeepL": [post("/v2/translate", {"text": [text], "target_lang": "DE"}) for text in texts],
    }


async def post_all(port: int, messages: Sequence[bytes], *, outstanding: int, sentences: int) -> float:
    """Keep requests outstanding until enough are answered; returns the seconds of the measured ones.

    Raises:
        ValueError: an answer is not 200.
    """
    times: list[float] = []
    waiting = itertools.cycle(messages)

    async def ask(waiting: Iterator[bytes]) -> None:
        reader, writer = await asyncio.open_connection("localhost", port)
        try:
            for message in waiting:
                if len(times) >= outstanding + sentences:
                    return
                writer.write(message)
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    int(line.split(b":")[1])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length")
                )
                body = await reader.readexactly(length)
                if not head.startswith(b"HTTP/1.1 200"):
                    raise ValueError((head + body).decode(errors="replace"))
                times.append(time.perf_counter())
        finally:
            writer.close()

    await asyncio.gather(*(ask(waiting) for _ in range(outstanding)))
    return times[outstanding + sentences - 1] - times[outstanding - 1]


def free_port() -> int:
    """Return a port that is free now."""
    with socket.create_server(("localhost", 0)) as free:
        return int(free.getsockname()[1])


async def measure(
    bundle: Path, texts: Sequence[str], *, outstanding: int, sentences: int, rounds: int
) -> dict[str, list[float]]:
    """Measure the seconds of each API by round; "gRPC" is one of them."""
    port, messages = free_port(), requests(texts)
    limits = ("--requests-per-second", "1000000", "--port", "0", "--http-port", str(port))
    seconds: dict[str, list[float]] = {name: [] for name in ("gRPC", *messages)}
    async with serving("jumok", "serve", bundle, *limits) as server:
        for number, name in turns(seconds, rounds):
            if name == "gRPC":
                measured = await load(server, texts, DECODING, outstanding=outstanding, sentences=sentences)
                taken = measured.wall_s
            else:
                taken = await post_all(port, messages[name], outstanding=outstanding, sentences=sentences)
            if number:
                seconds[name].append(taken)
    return seconds


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description="Compare HTTP with gRPC under load.")
    parser.add_argument("--bundle", type=Path, default=TRANSFORMER, help="English to German; default: %(default)s")
    parser.add_argument("--outstanding", type=int, default=64, help="requests at once; default: %(default)s")
    parser.add_argument("--sentences", type=int, default=1000, help="of a round; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="that count; default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the seconds of all rounds to a file too")
    options = parser.parse_args()
    print(setup(len(os.sched_getaffinity(0)), ("jumok", "grpcio", "uvicorn", "starlette")))
    texts = corpus("test_2016_flickr.en")
    seconds = asyncio.run(
        measure(
            options.bundle,
            texts,
            outstanding=options.outstanding,
            sentences=options.sentences,
            rounds=options.rounds,
        )
    )
    rows = [["API", "outstanding", "sentences/s", "multiple of gRPC's (range)", "goal"]]
    for name, taken in seconds.items():
        rate = options.sentences / sorted(taken)[len(taken) // 2]
        compared = ratio(taken, seconds["gRPC"])
        goal = against(compared.median, None if name == "gRPC" else GOAL)
        rows.append([name, str(options.outstanding), f"{rate:.0f}", str(compared), goal])
    print(aligned(rows))
    write_json(options.json, {"seconds": seconds})


if __name__ == "__main__":
    main()
