"""Ends of connections that flood the server with calls, or do not read their responses."""

import asyncio
import logging
import time
from collections.abc import Iterable
from urllib.parse import unquote

import grpc

from jumok_serve.rate_limit import RateLimiter
from jumok_serve.service.connections import FILES, INTERVAL_S, MAX_METADATA, OpenFiles, close_connections
from jumok_serve.service.rpc.call import Call
from jumok_serve.service.rpc.error_boundary import HANDLER_TYPES, Context
from jumok_serve.service.rpc.error_table import drop_frames

logger = logging.getLogger(__name__)

RESET_S = 1.0
"""Age at which a call has been of use, so that its cancellation is no part of a flood."""
RESETS, RESETS_PER_SECOND = 512, 33.0
"""Younger cancelled calls of a caller, at once and later on, beyond as many others; nghttp2 has such a bound too."""
FIELD_OVERHEAD = 32
"""Bytes that a field of metadata counts besides its own (RFC 9113, section 6.5.2)."""


class Floods:
    """Ends connections whose calls are cancelled at once, again and again, have too much metadata, or are not read.

    gRPC does none of it. Sees connections in Linux' /proc; on other systems it ends none.

    Attributes:
        refusing: handler of a call that has too much metadata.
    """

    def __init__(self) -> None:
        self._resets = RateLimiter(RESETS_PER_SECOND, RESETS)
        self.refusing = HANDLER_TYPES[False](self._refuse)
        self._peers: set[str] = set()
        self._found = asyncio.Event()

    async def _refuse(self, _: object, context: Context) -> None:
        self.close(context.peer())
        try:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"metadata has more than {MAX_METADATA} bytes; send less"
            )
        except grpc.aio.AbortError as error:
            drop_frames(error)

    def ended(self, call: Call) -> None:
        """Count a call; an observer's method."""
        if call.code != "CANCELLED" or call.duration_s >= RESET_S:
            self._resets.give_back(call.account, 1)
        elif self._resets.take(call.account, time.monotonic()) > 0:
            self.close(call.peer)

    def close(self, peer: str) -> None:
        """End the connection of a peer in gRPC's notation, soon."""
        if FILES.is_dir():
            self._peers.add(unquote(peer))  # gRPC quotes the brackets of IPv6
            self._found.set()

    async def end(self) -> None:
        """End connections that flood, until cancelled."""
        files = OpenFiles()
        while True:
            await self._found.wait()
            self._found.clear()
            peers, self._peers = self._peers, set()
            try:
                closed = await asyncio.to_thread(close_connections, files, peers)
            except OSError:  # the whole system has too many open files
                await asyncio.sleep(INTERVAL_S)
                self._peers |= peers
                self._found.set()
                continue
            for account, number in closed.items():
                logger.warning(
                    "closed %d connections of %s: calls cancelled at once, too much metadata, or unread responses",
                    number,
                    account,
                )


def too_large(metadata: Iterable[tuple[str, str | bytes]]) -> bool:
    """True if a call has too much metadata."""
    return sum(len(key) + len(value) + FIELD_OVERHEAD for key, value in metadata) > MAX_METADATA
