"""Limits of connections: pings, idleness, age, number, and bytes before a request is read."""

import asyncio
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, aclosing, asynccontextmanager
from typing import Any

import pytest

import jumok
from jumok_serve.service import connections
from jumok_serve.service.connections import MAX_METADATA, STREAM_WINDOW, OpenFiles, close_excess
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.rpc.interceptor import RESETS
from tests.faults.tools import http2
from tests.support.hang import HANG_S, until
from tests.support.servers.fake_model import ONE, Answer, FakeModel, hold, serving

INITIAL_WINDOW_SIZE = 4
"""Setting of RFC 9113, section 6.5.2."""
CHECK = {":path": "/grpc.health.v1.Health/Check"}

linux = pytest.mark.skipif(sys.platform != "linux", reason="connections are seen in Linux' /proc")


class Connection:
    """A connection of HTTP/2 without a library, which answers pings only if asked."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    @asynccontextmanager
    async def to(cls, address: str, of: str | None = None) -> "AsyncIterator[Connection]":
        """Connect, from an address of this machine, and exchange settings."""
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(
            host.strip("[]"), int(port), local_addr=None if of is None else (of, 0)
        )
        try:
            writer.write(http2.PREFACE + http2.frame(http2.SETTINGS, 0, 0, b""))
            yield cls(reader, writer)
        finally:
            writer.transport.abort()

    def send(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        self._writer.write(http2.frame(kind, flags, stream, payload))

    async def read(self, size: int) -> bytes | None:
        """Bytes of the server; None at the end of the connection."""
        try:
            return await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def receive(self, wanted: Callable[[int, int], bool]) -> tuple[int, bytes] | None:
        """Next frame that is wanted by kind and flags, as kind and content; None at the end of the connection."""
        return await self.receive_of(lambda kind, flags, _: wanted(kind, flags))

    async def receive_of(self, wanted: Callable[[int, int, int], bool]) -> tuple[int, bytes] | None:
        """Next frame that is wanted by kind, flags and stream."""
        while (header := await self.read(9)) is not None:
            payload = await self.read(int.from_bytes(header[:3]))
            if header[3] == http2.SETTINGS and not header[4] & http2.ACK:
                self.send(http2.SETTINGS, http2.ACK, 0, b"")
            if payload is not None and wanted(header[3], header[4], int.from_bytes(header[5:])):
                return header[3], payload
        return None


async def pinged(connection: Connection, times: int, pause_s: float) -> bytes:
    """Ping, each time after the answer and a pause; returns the reason for which the server goes away, or nothing."""
    for _ in range(times):
        connection.send(http2.PING, 0, 0, bytes(8))
        found = await connection.receive(
            lambda kind, flags: kind == http2.GOAWAY or (kind == http2.PING and flags & http2.ACK != 0)
        )
        if found is None or found[0] == http2.GOAWAY:
            return b"gone" if found is None else found[1][8:]
        await asyncio.sleep(pause_s)
    return b""


@pytest.mark.parametrize("call_is_open", [False, True])
async def test_pings_at_the_allowed_interval_keep_a_connection_and_others_end_it(call_is_open: bool) -> None:
    for interval_s, expected in ((0.02, b""), (3600.0, b"too_many_pings")):
        limits = ServiceLimits(min_ping_interval_s=interval_s)
        async with serving(FakeModel(), limits=limits) as (server, _), Connection.to(server.address) as connection:
            if call_is_open:
                connection.send(http2.HEADERS, http2.END_HEADERS, 1, http2.headers(**CHECK))
            assert await pinged(connection, 8, 0.03) == expected


def test_the_default_allows_pings_every_ten_seconds() -> None:
    assert ServiceLimits().min_ping_interval_s < 10


async def test_a_client_that_answers_no_pings_is_left_and_its_work_cancelled() -> None:
    model = FakeModel(on_submit=hold)
    limits = ServiceLimits(keepalive_s=1.0, keepalive_timeout_s=1.0)
    async with serving(model, limits=limits) as (server, _), Connection.to(server.address) as connection:
        message = ONE.SerializeToString()
        connection.send(http2.HEADERS, http2.END_HEADERS, 1, http2.headers())
        connection.send(http2.DATA, 1, 1, b"\0" + struct.pack(">I", len(message)) + message)
        answer = await model.submitted.get()
        assert await connection.receive(lambda *_: False) is None
        await until(answer.futures[0].cancelled)


async def test_a_connection_without_calls_is_closed() -> None:
    limits = ServiceLimits(max_idle_s=0.1)
    async with serving(FakeModel(), limits=limits) as (server, _), Connection.to(server.address) as connection:
        found = await connection.receive(lambda kind, _: kind == http2.GOAWAY)
        assert found is not None
        assert b"idle" in found[1]


async def test_an_old_connection_takes_no_calls_and_an_sdk_loses_none() -> None:
    """Connections live for a tenth of a second, and as long again with open calls."""
    model = FakeModel(on_submit=hold)
    limits = ServiceLimits(max_connection_age_s=0.1, max_connection_grace_s=0.1)
    texts = [f"text {number}" for number in range(60)]

    async def answer_slowly() -> None:
        while True:
            answer: Answer = await model.submitted.get()
            await asyncio.sleep(0.01)
            answer.complete()

    async with serving(model, limits=limits) as (server, _):
        answering = asyncio.ensure_future(answer_slowly())
        async with jumok.AsyncClient(server.address) as client:
            results: list[Any] = []
            async with aclosing(client.translate_iter(texts, window=4)) as iterated:
                async for result in iterated:
                    results.append(result.translation.text)
            assert results == [text.upper() for text in texts]
            for text in texts[:30]:
                assert (await client.translate(text)).text == text.upper()
        answering.cancel()
        corpora = server.counts.ended_with
        assert sum(number for (method, _), number in corpora.items() if method.endswith("TranslateCorpus")) > 1


async def test_connections_beyond_the_most_are_closed() -> None:
    async with (
        serving(FakeModel(), limits=ServiceLimits(max_connections=2)) as (server, _),
        Connection.to(server.address) as first,
        Connection.to(server.address) as second,
    ):
        for connection in (first, second):
            assert await connection.receive(lambda kind, _: kind == http2.SETTINGS)
        async with Connection.to(server.address) as third:
            assert await third.receive(lambda kind, _: kind == http2.SETTINGS) is None
        assert await pinged(first, 1, 0) == b""


async def left_after(closed: int, connections: Sequence[Connection]) -> list[Connection]:
    """Wait until this many connections are closed; returns the others."""
    ends = {asyncio.ensure_future(connection.receive(lambda *_: False)): connection for connection in connections}
    waiting = set(ends)
    while len(ends) - len(waiting) < closed:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert all(end.result() is None for end in done)
    for end in waiting:
        end.cancel()
    await asyncio.wait(waiting)
    return [connection for end, connection in ends.items() if end in waiting]


@linux
async def test_connections_of_an_address_beyond_the_most_are_closed() -> None:
    limits = ServiceLimits(max_connections_of_address=3)
    async with (
        serving(FakeModel(), limits=limits) as (server, _),
        Connection.to(server.address, of="127.0.0.2") as other,
        AsyncExitStack() as opened,
    ):
        held = [await opened.enter_async_context(Connection.to(server.address)) for _ in range(5)]
        for connection in (other, *(left := await left_after(2, held))):
            assert await pinged(connection, 1, 0) == b""
        assert len(left) == 3


@linux
def test_new_connections_are_closed_before_older_ones() -> None:
    """Although the number of the first file is free again, so that a new connection has it."""
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as opened:
        files = OpenFiles()
        server.settimeout(HANG_S)

        def connect() -> tuple[socket.socket, socket.socket]:
            client = opened.enter_context(socket.create_connection(server.getsockname(), HANG_S))
            return client, opened.enter_context(server.accept()[0])

        port = server.getsockname()[1]
        first = connect()
        older = [connect() for _ in range(2)]
        known, closed = close_excess(files, port, 3, [])
        assert (len(known), closed) == (3, {})
        for one in first:
            one.close()
        newer = [connect() for _ in range(3)]
        known, closed = close_excess(files, port, 3, known)
        assert closed == {"ipv4:127.0.0.1": 2}
        ended = [client.recv(1) for client, _ in newer[1:]]
        assert ended == [b"", b""]
        for client, accepted in (*older, newer[0]):
            accepted.sendall(b"x")
            assert client.recv(1) == b"x"


@linux
async def test_one_address_cannot_keep_others_out() -> None:
    """It takes all connections and is silent."""
    limits = ServiceLimits(max_connections=4, max_connections_of_address=2)
    async with serving(FakeModel(), limits=limits) as (server, _), AsyncExitStack() as opened:
        for _ in range(4):
            await opened.enter_async_context(Connection.to(server.address))
        served = False
        while not served:
            async with Connection.to(server.address, of="127.0.0.2") as connection:
                served = await connection.receive(lambda kind, _: kind == http2.SETTINGS) is not None


async def test_a_call_whose_request_is_not_read_may_send_little() -> None:
    """The window is not widened, though the client keeps to it and sends all that it may."""
    limits = ServiceLimits(max_message_bytes=2**20, max_open_bytes=2 * 2**20)
    async with serving(FakeModel(), limits=limits) as (server, channel), Connection.to(server.address) as connection:
        raw: Any = channel
        upload = raw.stream_unary("/jumok.v1.TranslationService/TranslateText")()
        await until(lambda: server.intake.budget.free < 2 * 2**20)
        found = await connection.receive(lambda kind, flags: kind == http2.SETTINGS and not flags & http2.ACK)
        assert found is not None
        assert dict(struct.iter_unpack(">HI", found[1]))[INITIAL_WINDOW_SIZE] == STREAM_WINDOW
        connection.send(http2.HEADERS, http2.END_HEADERS, 1, http2.headers())
        connection.send(http2.DATA, 0, 1, b"\0" + struct.pack(">I", 2**20 - 10) + bytes(STREAM_WINDOW - 5))
        await until(lambda: server.open_calls == 2)
        connection.send(http2.PING, 0, 0, b"after it")
        updates = 0

        def seen(kind: int, flags: int, stream: int) -> bool:
            nonlocal updates
            updates += kind == http2.WINDOW_UPDATE and stream == 1
            return kind == http2.PING and flags & http2.ACK != 0

        assert await connection.receive_of(seen) == (http2.PING, b"after it")
        assert not updates
        upload.cancel()  # now the request is read, and may be sent


def reset(connection: Connection, stream: int, **fields: str) -> None:
    """Call, and cancel the call at once."""
    connection.send(http2.HEADERS, http2.END_HEADERS, stream, http2.headers(**fields))
    connection.send(http2.RST_STREAM, 0, stream, struct.pack(">I", 8))


@linux
@pytest.mark.parametrize("fields", [{}, CHECK], ids=["translation", "health"])
async def test_a_connection_whose_calls_are_all_cancelled_at_once_is_closed(fields: dict[str, str]) -> None:
    """And every further one of the caller; connections of callers that cancel nothing stay."""
    async with serving(FakeModel()) as (server, _), Connection.to(server.address) as bystander:
        assert await pinged(bystander, 1, 0) == b""
        for _ in range(3):
            async with Connection.to(server.address) as connection:
                assert await connection.receive(lambda kind, _: kind == http2.SETTINGS)
                closing = asyncio.ensure_future(connection.receive(lambda *_: False))
                stream = 1
                while not closing.done():
                    reset(connection, stream, **fields)
                    stream += 2
                    await asyncio.sleep(0)
                assert closing.result() is None
        assert await pinged(bystander, 1, 0) == b""


@linux
async def test_calls_that_are_cancelled_beside_as_many_that_are_answered_are_no_flood() -> None:
    async with serving(FakeModel()) as (server, _), Connection.to(server.address) as connection:
        for number in range(2 * RESETS):
            reset(connection, 4 * number + 1)
            connection.send(http2.HEADERS, http2.END_HEADERS, 4 * number + 3, http2.headers(**CHECK))
            connection.send(http2.DATA, http2.END_STREAM, 4 * number + 3, bytes(5))
            assert await connection.receive(lambda kind, flags: kind == http2.HEADERS and flags & http2.END_STREAM != 0)
        assert await pinged(connection, 1, 0) == b""


MANY_FIELDS = (b"\x00\x01a\x00") * (MAX_METADATA // 16)
LARGE_FIELDS = (b"\x00\x01a\x64" + bytes([98]) * 100) * (MAX_METADATA // 80)


@linux
@pytest.mark.parametrize("fields", [MANY_FIELDS, LARGE_FIELDS], ids=["many", "large"])
@pytest.mark.parametrize("path", ["/jumok.v1.TranslationService/TranslateText", CHECK[":path"], "/a/b"])
async def test_a_call_with_too_much_metadata_is_refused_and_its_connection_closed(path: str, fields: bytes) -> None:
    """gRPC takes up to 16 MiB of a client that does not answer the server's settings."""
    async with serving(FakeModel()) as (server, _), Connection.to(server.address) as bystander:
        assert await pinged(bystander, 1, 0) == b""
        closed = False
        while not closed:  # gRPC refuses some of such calls at random
            async with Connection.to(server.address) as connection:
                connection.send(http2.HEADERS, 0, 1, http2.headers(**{":path": path}))
                connection.send(http2.CONTINUATION, http2.END_HEADERS, 1, fields)
                connection.send(http2.PING, 0, 0, b"after it")
                closed = await unanswered(connection)
        assert await pinged(bystander, 1, 0) == b""


async def unanswered(connection: Connection) -> bool:
    """Read without an answer to settings, to the end of a call; True if the connection ends."""
    while (header := await connection.read(9)) is not None:
        payload = await connection.read(int.from_bytes(header[:3]))
        if header[3] == http2.RST_STREAM and payload is not None:
            return False
    return True


@linux
async def test_a_connection_that_does_not_answer_settings_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HANDSHAKE_S", 0.2)
    async with serving(FakeModel()) as (server, _), Connection.to(server.address) as connection:
        while await connection.read(1) is not None:
            pass
