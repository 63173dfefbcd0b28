"""Unary calls that cost their caller next to nothing, for load from a process that shares the server's cores.

A call through gRPC's client costs as much as its refusal by a server. Here its header block is made once, answers are
not decoded, and of all that a server says of a call only the status is looked at.
"""

import asyncio
import re
import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Self

from tests.faults.tools.http2 import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    headers,
)

OK, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNAVAILABLE = 0, 4, 8, 14
"""Statuses of gRPC that callers ask for."""
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE = 1, 2, 3, 4
"""Settings of RFC 9113, section 6.5.2."""
FIRST_WINDOW, WIDEST_WINDOW = 65_535, 2**31 - 1
STATUS = re.compile(rb"grpc-status[\x01\x02](\d\d?)")
"""A field of a header block whose names and values are literal; it is, where the table of those before has no room."""

MOST_OPEN = 512
"""Calls at a time: a server counts one for a moment after it has told its end, and refuses what it counts too many."""

Done = Callable[[int, float], None]
"""Is told the status of a call, and the seconds that it took."""


class LightCalls(asyncio.Protocol):
    """Calls of TranslateText over one connection; made by `connect`. What is open when it is closed is forgotten.

    Args:
        timeout_s: the deadline of each call.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._header = headers(**{"grpc-timeout": f"{round(1000 * timeout_s)}m"})
        self._transport: asyncio.Transport
        self._buffer = b""
        self._open: dict[int, tuple[float, Done]] = {}
        self._waiting: deque[tuple[bytes, float, Done]] = deque()
        self._next = 1
        self._window = FIRST_WINDOW
        self._most = MOST_OPEN

    @classmethod
    async def connect(cls, address: str, *, timeout_s: float) -> Self:
        """Connect to ``host:port``."""
        host, _, port = address.rpartition(":")
        _, calls = await asyncio.get_running_loop().create_connection(lambda: cls(timeout_s), host, int(port))
        return calls

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._open.clear()
        self._waiting.clear()
        self._transport.close()

    @property
    def unanswered(self) -> int:
        """Calls that have no status yet."""
        return len(self._open) + len(self._waiting)

    def call(self, request: bytes, done: Done) -> None:
        """Make a call; it waits here as long as the server takes no further stream or no further bytes."""
        message = b"\x00" + struct.pack(">I", len(request)) + request
        self._waiting.append((message, time.monotonic(), done))
        self._send()

    def ask(self, request: bytes) -> Awaitable[int]:
        """Make a call, and wait for its status."""
        answered: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def ended(status: int, _: float) -> None:
            if not answered.done():
                answered.set_result(status)

        self.call(request, ended)
        return answered

    def _send(self) -> None:
        sent = []
        while self._waiting and len(self._open) < self._most and len(self._waiting[0][0]) <= self._window:
            message, began, done = self._waiting.popleft()
            self._window -= len(message)
            self._open[self._next] = (began, done)
            sent.append(frame(HEADERS, END_HEADERS, self._next, self._header))
            sent.append(frame(DATA, END_STREAM, self._next, message))
            self._next += 2
        if sent:
            self._transport.write(b"".join(sent))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say that fields are to be literal, and that answers may come at any length."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        settings = {HEADER_TABLE_SIZE: 0, ENABLE_PUSH: 0, INITIAL_WINDOW_SIZE: WIDEST_WINDOW}
        packed = b"".join(struct.pack(">HI", *setting) for setting in settings.items())
        widen = struct.pack(">I", WIDEST_WINDOW - FIRST_WINDOW)
        transport.write(PREFACE + frame(SETTINGS, 0, 0, packed) + frame(WINDOW_UPDATE, 0, 0, widen))

    def data_received(self, data: bytes) -> None:
        """Read frames."""
        data = self._buffer + data
        at = 0
        while len(data) - at >= 9:
            length = int.from_bytes(data[at : at + 3])
            if len(data) - at < 9 + length:
                break
            kind, flags, stream = struct.unpack_from(">BBI", data, at + 3)
            self._read(kind, flags, stream, data[at + 9 : at + 9 + length])
            at += 9 + length
        self._buffer = data[at:]
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell all callers that it is gone."""
        for stream in list(self._open):
            self._end(stream, UNAVAILABLE)

    def _read(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == HEADERS:
            if flags & END_STREAM:
                found = STATUS.search(payload)
                assert found is not None, payload
                self._end(stream, int(found[1]))
        elif kind == RST_STREAM:
            began, _ = self._open.get(stream, (0.0, None))
            late = time.monotonic() >= began + self._timeout_s
            self._end(stream, DEADLINE_EXCEEDED if late else UNAVAILABLE)
        elif kind == PING and not flags & ACK:
            self._transport.write(frame(PING, ACK, 0, payload))
        elif kind == SETTINGS and not flags & ACK:
            said = dict(struct.iter_unpack(">HI", payload))
            self._most = min(MOST_OPEN, said.get(MAX_CONCURRENT_STREAMS, MOST_OPEN))
            self._transport.write(frame(SETTINGS, ACK, 0, b""))
        elif kind == WINDOW_UPDATE and stream == 0:
            self._window += int.from_bytes(payload)
        elif kind == GOAWAY:
            self._transport.abort()

    def _end(self, stream: int, status: int) -> None:
        """Tell who made a call; one that has ended already may be reset."""
        began, done = self._open.pop(stream, (0.0, None))
        if done is not None:
            done(status, time.monotonic() - began)
