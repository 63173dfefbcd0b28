"""Frames of HTTP/2 and header blocks of calls, made by hand: right ones and wrong ones alike."""

import asyncio
import struct
from collections.abc import Mapping
from typing import Self

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
ACK, END_STREAM, END_HEADERS = 0x1, 0x1, 0x4
"""Frame types and flags of RFC 9113, section 6."""
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE = 1, 2, 3, 4
"""Settings of RFC 9113, section 6.5.2."""
FIRST_WINDOW = 65_535


def frame(kind: int, flags: int, stream: int, payload: bytes, *, length: int | None = None) -> bytes:
    """A frame of HTTP/2; its length may be a lie."""
    return (
        struct.pack(">I", len(payload) if length is None else length)[1:]
        + struct.pack(">BBI", kind, flags, stream)
        + payload
    )


def headers(**others: str) -> bytes:
    """The header block of a call, each field as a literal without indexing (RFC 7541, section 6.2.2)."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/jumok.v1.TranslationService/TranslateText",
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    } | others
    return b"".join(
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )


class Connection(asyncio.Protocol):
    """A connection of HTTP/2 whose frames are made by hand; answers PING and SETTINGS.

    Args:
        settings: that it begins with.
    """

    def __init__(self, settings: Mapping[int, int]) -> None:
        self._settings = b"".join(struct.pack(">HI", *setting) for setting in settings.items())
        self._transport: asyncio.Transport
        self._buffer = b""
        self._next = 1
        self._window = FIRST_WINDOW

    async def to(self, address: str) -> Self:
        """Connect to ``host:port``."""
        host, _, port = address.rpartition(":")
        await asyncio.get_running_loop().create_connection(lambda: self, host, int(port))
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send preface and settings."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(PREFACE + frame(SETTINGS, 0, 0, self._settings))

    def data_received(self, data: bytes) -> None:
        """Read frames."""
        data = self._buffer + data
        at = 0
        while len(data) - at >= 9 and len(data) - at >= 9 + (length := int.from_bytes(data[at : at + 3])):
            kind, flags, stream = struct.unpack_from(">BBI", data, at + 3)
            payload = data[at + 9 : at + 9 + length]
            at += 9 + length
            if kind in {PING, SETTINGS}:
                if not flags & ACK:
                    self._transport.write(frame(kind, ACK, 0, payload if kind == PING else b""))
                    if kind == SETTINGS:
                        self._agree(dict(struct.iter_unpack(">HI", payload)))
            else:
                self._read(kind, flags, stream, payload)
        self._buffer = data[at:]

    def _agree(self, settings: Mapping[int, int]) -> None:
        """Take settings of the server."""

    def _read(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """Take another frame."""
