"""Unary calls that cost their caller next to nothing, for load from a process that shares the server's cores.

A call through gRPC's client costs as much as its refusal by a server. Here its header block is made once, answers are
not decoded, and of all that a server says of a call only the status is looked at.
"""

import asyncio
import re
import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Self

from tests.faults.tools import http2
from tests.faults.tools.http2 import Connection, frame, headers

OK, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNAVAILABLE = 0, 4, 8, 14
"""Statuses of gRPC that callers ask for."""
WIDEST_WINDOW = 2**31 - 1
STATUS = re.compile(rb"grpc-status[\x01\x02](\d\d?)")
"""A field of a header block whose names and values are literal; it is, where the table of those before has no room."""

MOST_OPEN = 512
"""Calls at a time: a server counts one for a moment after it has told its end, and refuses what it counts too many."""

Done = Callable[[int, float], None]
"""Is told the status of a call, and the seconds that it took."""


class LightCalls(Connection):
    """Calls of TranslateText over one connection; made by `connect`. What is open when it is closed is forgotten.

    Args:
        timeout_s: the deadline of each call.
    """

    def __init__(self, timeout_s: float) -> None:
        # fields are to be literal, and answers may come at any length
        super().__init__({http2.HEADER_TABLE_SIZE: 0, http2.ENABLE_PUSH: 0, http2.INITIAL_WINDOW_SIZE: WIDEST_WINDOW})
        self._timeout_s = timeout_s
        self._header = headers(**{"grpc-timeout": f"{round(1000 * timeout_s)}m"})
        self._open: dict[int, tuple[float, Done]] = {}
        self._waiting: deque[tuple[bytes, float, Done]] = deque()
        self._most = MOST_OPEN

    @classmethod
    async def connect(cls, address: str, *, timeout_s: float) -> Self:
        """Connect to ``host:port``."""
        return await cls(timeout_s).to(address)

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
            sent.append(frame(http2.HEADERS, http2.END_HEADERS, self._next, self._header))
            sent.append(frame(http2.DATA, http2.END_STREAM, self._next, message))
            self._next += 2
        if sent:
            self._transport.write(b"".join(sent))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open the window of the whole connection, too."""
        super().connection_made(transport)
        self._transport.write(frame(http2.WINDOW_UPDATE, 0, 0, struct.pack(">I", WIDEST_WINDOW - http2.FIRST_WINDOW)))

    def data_received(self, data: bytes) -> None:
        """Read frames, and send what may be sent then."""
        super().data_received(data)
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell all callers that it is gone."""
        for stream in list(self._open):
            self._end(stream, UNAVAILABLE)

    def _agree(self, settings: Mapping[int, int]) -> None:
        self._most = min(MOST_OPEN, settings.get(http2.MAX_CONCURRENT_STREAMS, MOST_OPEN))

    def _read(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == http2.HEADERS:
            if flags & http2.END_STREAM:
                found = STATUS.search(payload)
                assert found is not None, payload
                self._end(stream, int(found[1]))
        elif kind == http2.RST_STREAM:
            began, _ = self._open.get(stream, (0.0, None))
            late = time.monotonic() >= began + self._timeout_s
            self._end(stream, DEADLINE_EXCEEDED if late else UNAVAILABLE)
        elif kind == http2.WINDOW_UPDATE and stream == 0:
            self._window += int.from_bytes(payload)
        elif kind == http2.GOAWAY:
            self._transport.abort()

    def _end(self, stream: int, status: int) -> None:
        """Tell who made a call; one that has ended already may be reset."""
        began, done = self._open.pop(stream, (0.0, None))
        if done is not None:
            done(status, time.monotonic() - began)
