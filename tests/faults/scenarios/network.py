"""Traffic at an open port: no HTTP/2, broken frames, oversized messages."""

import asyncio
import itertools
import random
import struct
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc

import jumok
from benchmarks.common.processes import Server
from benchmarks.common.progress import progress
from jumok_proto.v1.translation_pb2 import CorpusItem, TranslateCorpusRequest, TranslateTextRequest
from jumok_proto.v1.translation_pb2_grpc import TranslationServiceStub
from tests.faults.tools.findings import Findings, Plan
from tests.faults.tools.http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    headers,
)
from tests.faults.tools.servers import expect_well, jumok_serve

READ_S = 0.5
"""Seconds to wait for an answer before dropping the connection."""
AT_ONCE = 16
RANDOM_CONNECTIONS, LINGERING = 200, 200
GROWTH_MIB = 64
IDLE_WITHIN_S = 30.0
MESSAGE_LIMIT = 2**20


def broken_connections() -> dict[str, bytes]:
    """Rule-breaking client traffic, by its fault."""
    hello = PREFACE + frame(SETTINGS, 0, 0, b"")
    call = hello + frame(HEADERS, END_HEADERS, 1, headers())
    request = TranslateTextRequest(contents=["A dog runs."]).SerializeToString()
    message = b"\x00" + struct.pack(">I", len(request)) + request
    return {
        "HTTP/1.1": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "a TLS handshake": bytes.fromhex("16030100a5010000a10303") + bytes(160),
        "half of the preface": PREFACE[:11],
        "the preface alone": PREFACE,
        "a frame before SETTINGS": PREFACE + frame(PING, 0, 0, bytes(8)),
        "a frame longer than allowed": hello + frame(DATA, 0, 1, b"", length=2**24 - 1),
        "a frame that ends early": hello + frame(HEADERS, END_HEADERS, 1, headers(), length=4096),
        "SETTINGS of 5 bytes": PREFACE + frame(SETTINGS, 0, 0, bytes(5)),
        "SETTINGS of a stream": hello + frame(SETTINGS, 0, 1, b""),
        "an acknowledgement with content": hello + frame(SETTINGS, 1, 0, bytes(6)),
        "a window of 2^32 - 1": PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 2**32 - 1)),
        "a frame size of 1": PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 5, 1)),
        "PING of 7 bytes": hello + frame(PING, 0, 0, bytes(7)),
        "HEADERS of stream 0": hello + frame(HEADERS, END_HEADERS, 0, headers()),
        "HEADERS of an even stream": hello + frame(HEADERS, END_HEADERS, 2, headers()),
        "headers that are no HPACK": hello + frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff\x0f"),
        "an index that is in no table": hello + frame(HEADERS, END_HEADERS, 1, b"\xfe"),
        "a table larger than agreed": hello + frame(HEADERS, END_HEADERS, 1, b"\x3f\xe1\xff\xff\x7f" + headers()),
        "headers that never end": hello + frame(HEADERS, 0, 1, headers()) + frame(PING, 0, 0, bytes(8)),
        "CONTINUATION of nothing": hello + frame(CONTINUATION, END_HEADERS, 1, headers()),
        "thousands of CONTINUATIONs": hello
        + frame(HEADERS, 0, 1, headers())
        + b"".join(frame(CONTINUATION, 0, 1, b"\x00\x01a\x64" + b"b" * 100) for _ in range(5000)),
        "DATA of a stream that is not open": hello + frame(DATA, END_STREAM, 7, message),
        "WINDOW_UPDATE by 0": hello + frame(WINDOW_UPDATE, 0, 0, bytes(4)),
        "WINDOW_UPDATE beyond all bounds": hello + 2 * frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**31 - 1)),
        "RST_STREAM of a stream that is not open": hello + frame(RST_STREAM, 0, 5, bytes(4)),
        "PUSH_PROMISE of a client": hello + frame(PUSH_PROMISE, END_HEADERS, 1, struct.pack(">I", 2) + headers()),
        "GOAWAY of 3 bytes": hello + frame(GOAWAY, 0, 0, bytes(3)),
        "a frame of no known type": hello + frame(0x77, 0xFF, 3, b"?"),
        "PRIORITY upon itself": hello + frame(PRIORITY, 0, 1, struct.pack(">IB", 1, 255)),
        "10,000 PINGs": hello + 10_000 * frame(PING, 0, 0, bytes(8)),
        "2,000 calls that are reset at once": hello
        + b"".join(
            frame(HEADERS, END_HEADERS, stream, headers()) + frame(RST_STREAM, 0, stream, struct.pack(">I", 8))
            for stream in range(1, 4001, 2)
        ),
        "no path": hello + frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x00\x07:method\x04POST"),
        "another content type": hello
        + frame(HEADERS, END_HEADERS | END_STREAM, 1, headers(**{"content-type": "text/html"})),
        "a method that is no text": hello
        + frame(HEADERS, END_HEADERS | END_STREAM, 1, headers(**{":path": "/a/b"}).replace(b"/a/b", b"/a/\xff")),
        "a method that is not there": hello + frame(HEADERS, END_HEADERS | END_STREAM, 1, headers(**{":path": "/a/b"})),
        "a deadline that is no number": call.replace(b"\x02te\x08trailers", b"\x0cgrpc-timeout\x05soonS"),
        "a call without a message": hello + frame(HEADERS, END_HEADERS | END_STREAM, 1, headers()),
        "a message that ends early": call + frame(DATA, END_STREAM, 1, message[:-4]),
        "a message that says it is 4 GiB": call + frame(DATA, 0, 1, b"\x00\xff\xff\xff\xff" + request),
        "a message with unknown flags": call + frame(DATA, END_STREAM, 1, b"\x7f" + message[1:]),
        "a message compressed as nothing": call + frame(DATA, END_STREAM, 1, b"\x01" + message[1:]),
        "two messages where there is one": call + frame(DATA, END_STREAM, 1, 2 * message),
        "a call that is left open": call,
    }


async def send(server: Server, data: bytes, *, whole_s: float = READ_S, awaited: bytes | None = None) -> bytes:
    """Send bytes over a connection of their own, and give what comes back within a while, or until that is there."""
    host, _, port = server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    received = bytearray()
    with suppress(OSError, TimeoutError):
        writer.write(data)
        async with asyncio.timeout(whole_s):
            await writer.drain()
            while (awaited is None or awaited not in received) and (piece := await reader.read(65536)):
                received += piece
    writer.transport.abort()
    return bytes(received)


class Bystander:
    """Translates one sentence after the other, as long as others misbehave.

    Args:
        server: that serves both.
        texts: to translate.
    """

    def __init__(self, server: Server, texts: Sequence[str]) -> None:
        self._client = jumok.AsyncClient(server.address, timeout_s=120)
        self._texts = itertools.cycle(texts)
        self.answered = 0
        self.errors: list[BaseException] = []

    @asynccontextmanager
    async def translating(self, least: int) -> AsyncIterator[None]:
        """Translate within this context, which begins after some answers."""
        translating = asyncio.create_task(self._translate())
        try:
            while self.answered < least:
                await asyncio.sleep(0.05)
            yield
        finally:
            translating.cancel()
            await asyncio.gather(translating, return_exceptions=True)

    async def _translate(self) -> None:
        async with self._client as client:
            for text in self._texts:
                try:
                    await client.translate(text, max_length=40)
                except jumok.JumokError as error:
                    self.errors.append(error)
                self.answered += 1


async def broken_frames(plan: Plan, findings: Findings) -> None:
    """Random bytes, broken HTTP/2 and messages too large, while another client translates."""
    random_ = random.Random(plan.seed)
    async with jumok_serve(plan.bundle, "--max-message-bytes", str(MESSAGE_LIMIT)) as server:
        bystander = Bystander(server, plan.texts)
        async with bystander.translating(20):
            before_mib, before_files = server.rss_mib(), _open_files(server)
            broken = broken_connections()
            await _all_of(server, list(broken.values()))
            progress(f"network: {len(broken)} kinds of broken connections")
            await _all_of(server, list(_random_connections(random_)))
            await _linger(server)
            progress("network: random bytes, and connections that say nothing")
            too_large = [await _too_large(server, stream=stream) for stream in (False, True)]
        await expect_well(findings, server, IDLE_WITHIN_S)
        findings.expect_below("files left open", _open_files(server) - before_files, 10, "d")
        findings.expect_below("memory more, MiB", server.rss_mib() - before_mib, GROWTH_MIB, ".0f")
    findings.tell("kinds of broken connections", len(broken))
    findings.tell("connections with random bytes", RANDOM_CONNECTIONS)
    findings.tell("connections that say nothing, at a time", LINGERING)
    findings.expect_equal("messages over the limit", ", ".join(too_large), "RESOURCE_EXHAUSTED, RESOURCE_EXHAUSTED")
    findings.expect_more("translations of another client meanwhile", bystander.answered, 20)
    findings.expect_none("of these that failed", bystander.errors)


async def _all_of(server: Server, connections: Sequence[bytes]) -> None:
    """Send each over a connection of its own, several at a time."""
    free = asyncio.Semaphore(AT_ONCE)

    async def one(data: bytes) -> None:
        async with free:
            await send(server, data)

    await asyncio.gather(*map(one, connections))


def _random_connections(random_: random.Random) -> Iterator[bytes]:
    """Bytes at random; half of them behind a preface and settings, as frames with any type, flags and stream."""
    for number in range(RANDOM_CONNECTIONS):
        if number % 2:
            yield random_.randbytes(random_.randrange(1, 4096))
        else:
            frames = []
            for _ in range(20):
                kind, flags, stream = map(random_.randrange, (12, 256, 10))
                frames.append(frame(kind, flags, stream, random_.randbytes(random_.randrange(200))))
            yield PREFACE + frame(SETTINGS, 0, 0, b"") + b"".join(frames)


async def _linger(server: Server) -> None:
    """Hold many connections open that say nothing, and see that others are served meanwhile."""
    host, _, port = server.address.rpartition(":")
    connections = [await asyncio.open_connection(host, int(port)) for _ in range(LINGERING)]
    async with jumok.AsyncClient(server.address, timeout_s=120) as client:
        await client.translate("A dog runs.")
    for _, writer in connections:
        writer.transport.abort()


async def _too_large(server: Server, *, stream: bool) -> str:
    """The status of a message over the limit, of a call or within a stream."""
    text = "A dog runs. " * (MESSAGE_LIMIT // 10)
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = TranslationServiceStub(channel)
        try:
            if stream:
                async for _ in stub.TranslateCorpus(iter([TranslateCorpusRequest(items=[CorpusItem(content=text)])])):
                    pass
            else:
                await stub.TranslateText(TranslateTextRequest(contents=[text]))
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
    return "OK"


def _open_files(server: Server) -> int:
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))
