"""A name server for one name (RFC 1035), as far as clients of gRPC ask: addresses of IPv4, by UDP."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Self, cast

A, IN = 1, 1
TTL_S = 30
"""Seconds that an answer may be cached; the value of CoreDNS in Kubernetes."""
ANSWER, NO_SUCH_NAME = 0x8400, 0x8403
"""Flags of an authoritative answer."""
HEADER = struct.Struct(">6H")


class NameServer(asyncio.DatagramProtocol):
    """Answers with the addresses that a name has now.

    Args:
        name: the only name that exists.

    Attributes:
        addresses: its addresses, which may change at any time.
        questions: number of questions for addresses so far.
    """

    def __init__(self, name: str) -> None:
        self.addresses: Collection[str] = ()
        self.questions = 0
        self._labels = [label.encode() for label in name.lower().split(".")]

    @classmethod
    @asynccontextmanager
    async def opened(cls, name: str) -> "AsyncIterator[tuple[Self, str]]":
        """Answer on a free port of this machine; yields the server and its address."""
        loop = asyncio.get_running_loop()
        transport, server = await loop.create_datagram_endpoint(lambda: cls(name), local_addr=("127.0.0.1", 0))
        try:
            host, port = transport.get_extra_info("sockname")
            yield server, f"{host}:{port}"
        finally:
            transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the socket."""
        self._transport = cast("asyncio.DatagramTransport", transport)  # Python 3.11's own is none by its class

    def datagram_received(self, data: bytes, addr: tuple[str | int, int]) -> None:
        """Answer a question."""
        self._transport.sendto(self.answer(data), addr)

    def answer(self, data: bytes) -> bytes:
        """Make the answer to a message with one question."""
        number, flags = HEADER.unpack_from(data)[:2]
        labels, place = [], HEADER.size
        while length := data[place]:
            labels.append(data[place + 1 : place + 1 + length].lower())
            place += 1 + length
        kind, _ = struct.unpack_from(">2H", data, place + 1)
        question = data[HEADER.size : place + 5]
        known = labels == self._labels
        found = [socket.inet_aton(address) for address in self.addresses] if known and kind == A else []
        self.questions += known and kind == A
        name_of_question = 0xC000 | HEADER.size
        records = (struct.pack(">3HIH", name_of_question, A, IN, TTL_S, len(address)) + address for address in found)
        recursion = flags & 0x0100
        head = HEADER.pack(number, (ANSWER if known else NO_SUCH_NAME) | recursion, 1, len(found), 0, 0)
        return head + question + b"".join(records)
