"""Many calls at once over connections made by hand: bombs, uploads that do not end, watches, silence."""

import struct
from collections import Counter
from collections.abc import Mapping

from tests.faults.tools import http2
from tests.faults.tools.http2 import Connection, frame, headers

CANCEL = 8
"""Error code of RFC 9113, section 7."""
FRAME = 16_384


def message(content: bytes, *, compressed: bool = False, declared: int | None = None) -> bytes:
    """A message of gRPC; its length may be a lie."""
    return struct.pack(">BI", compressed, len(content) if declared is None else declared) + content


class Flood(Connection):
    """A connection with as many calls as it is told to make; made by `connect`.

    Keeps to the windows of the server, and sends all that they allow.

    Args:
        fields: header fields of every call.
        reads: False to take no byte of a response.
    """

    def __init__(self, fields: Mapping[str, str], *, reads: bool = True) -> None:
        super().__init__({} if reads else {http2.INITIAL_WINDOW_SIZE: 0})
        self._fields = fields
        self.ended: Counter[str] = Counter()
        """Frames that ended calls, and the connection, by kind."""
        self.sent = 0
        self._initial = http2.FIRST_WINDOW
        self._windows: dict[int, int] = {}
        self._unsent: dict[int, tuple[bytes, int, bool]] = {}

    @classmethod
    async def connect(cls, address: str, *, reads: bool = True, **fields: str) -> "Flood":
        """Connect to ``host:port``."""
        return await cls(fields, reads=reads).to(address)

    def call(self, path: str, data: bytes, *, end: bool = True, **fields: str) -> None:
        """Begin a call, send data, and end the requests or leave them open."""
        block = headers(
            **{":path": path} | dict(self._fields) | {name.replace("_", "-"): fields[name] for name in fields}
        )
        self._transport.write(frame(http2.HEADERS, http2.END_HEADERS, self._next, block))
        self._windows[self._next] = self._initial
        self._unsent[self._next] = data, 0, end
        self._send(self._next)
        self._next += 2

    def cancel(self, path: str, times: int) -> None:
        """Begin calls, and cancel each at once (HTTP/2 rapid reset)."""
        block = headers(**{":path": path} | dict(self._fields))
        for _ in range(times):
            self._transport.write(
                frame(http2.HEADERS, http2.END_HEADERS, self._next, block)
                + frame(http2.RST_STREAM, 0, self._next, struct.pack(">I", CANCEL))
            )
            self._next += 2

    @property
    def open_calls(self) -> int:
        """Calls that have not ended."""
        return len(self._windows)

    def close(self) -> None:
        """Drop the connection."""
        self._transport.abort()

    def _send(self, stream: int) -> None:
        data, at, end = self._unsent.pop(stream, (b"", 0, False))
        while at < len(data) and (size := min(self._window, self._windows[stream], FRAME, len(data) - at)) > 0:
            flags = http2.END_STREAM if end and at + size == len(data) else 0
            self._transport.write(frame(http2.DATA, flags, stream, data[at : at + size]))
            self._window -= size
            self._windows[stream] -= size
            at += size
            self.sent += size
        if at < len(data):
            self._unsent[stream] = data, at, end

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the end."""
        self.ended["connection"] += 1
        self._windows.clear()
        self._unsent.clear()

    def _agree(self, settings: Mapping[int, int]) -> None:
        initial = settings.get(http2.INITIAL_WINDOW_SIZE, self._initial)
        for stream in self._windows:
            self._windows[stream] += initial - self._initial
        self._initial = initial

    def _read(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == http2.WINDOW_UPDATE:
            if stream == 0:
                self._window += int.from_bytes(payload)
            elif stream in self._windows:
                self._windows[stream] += int.from_bytes(payload)
            for waiting in [stream] if stream else list(self._unsent):
                if waiting in self._unsent:
                    self._send(waiting)
        elif kind == http2.GOAWAY:
            self.ended["goaway"] += 1
        elif (kind == http2.HEADERS and flags & http2.END_STREAM) or kind == http2.RST_STREAM:
            self._unsent.pop(stream, None)
            if self._windows.pop(stream, None) is not None:
                self.ended["call"] += 1
