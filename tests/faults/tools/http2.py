"""Frames of HTTP/2 and header blocks of calls, made by hand: right ones and wrong ones alike."""

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
ACK, END_STREAM, END_HEADERS = 0x1, 0x1, 0x4
"""Frame types and flags of RFC 9113, section 6."""


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
