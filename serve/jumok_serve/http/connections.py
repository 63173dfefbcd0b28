"""Connections of the HTTP port: the time for each step of a request."""

import asyncio
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import is_ssl
from uvicorn.server import ServerState

from jumok_serve.service.connections import HANDSHAKE_S
from jumok_serve.service.limits import ServiceLimits

HEAD_S = HANDSHAKE_S
"""Time for the head of a request, in seconds."""
MAX_HEAD_BYTES = 64 * 1024
"""Bytes of a request's head; texts may come in the query string."""
MAX_RECEIVE = 8 * 1024
"""Bytes that a connection receives at once; asyncio's 256 KiB each are memory that strangers can take."""
MAX_ARRIVING_HEADS_BYTES = 16 * 2**20
"""Bytes of all heads that are arriving, beyond which those of more than `MAX_RECEIVE` are refused: 2,000 strangers
could take 120 MiB with heads that have no end."""
MAX_HEADERS = 200
"""Header fields of a request, or trailer fields of its body: each takes ten microseconds of the event loop."""
_HEAD_END = re.compile(rb"\n\r?\n")
LINGER_S = 2.0
"""Time in which the rest of a refused request is read and thrown away, in seconds: else its client may not see why."""


class ArrivingHeads:
    """Counts the bytes of a port's heads that are arriving.

    Attributes:
        size: bytes of all of them.
    """

    def __init__(self) -> None:
        self.size = 0


class LingeringTransport:
    """Transport whose connection is closed once its client had time to read the last response.

    A socket that is closed with unread bytes resets the connection, and the client may lose the response.

    Attributes:
        linger: starts the wait; returns False if none is needed.
    """

    def __init__(self, transport: asyncio.Transport, linger: Callable[[], bool]) -> None:
        self._transport = transport
        self.linger = linger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        """Close the connection, now or after it lingered."""
        if not self.linger():
            self._transport.close()


class _OneAhead(FlowControl):
    """Flow control that reads nothing while a client's next request waits for the present one."""

    def __init__(self, transport: Any, received: h11.Connection) -> None:
        super().__init__(transport)
        self._received = received

    def resume_reading(self) -> None:
        """Read again, unless a request waits."""
        if self._received.their_state is not h11.DONE or not self._received.trailing_data[0]:
            super().resume_reading()


class BoundedConnection(H11Protocol):
    """Connection that is closed if its client is slow.

    Unlike its base class it bounds the time for a request's head, the time in which the client reads nothing of a
    response, and what it holds of heads, bodies and further requests.
    """

    def __init__(self, config: Config, state: ServerState, limits: ServiceLimits, heads: ArrivingHeads) -> None:
        super().__init__(config, state, {})
        self._limits = limits
        self._heads = heads
        self._counted = 0  # bytes among these
        self._long_head = False  # was refused
        self._head: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._lingers_for = 0  # bytes that are still thrown away

    def connection_made(self, transport: Any) -> None:
        """Start to wait for a request."""
        transport.max_size = MAX_RECEIVE
        if is_ssl(transport):
            transport.set_read_buffer_limits(MAX_RECEIVE)  # while reading pauses
        lingering: Any = LingeringTransport(transport, self._linger)
        super().connection_made(lingering)
        self.flow = _OneAhead(lingering, self.conn)
        self._head = self.loop.call_later(HEAD_S, transport.abort)

    def _linger(self) -> bool:
        """Wait for the client's end if its request is refused before all of it has arrived; returns False if not."""
        begun = self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]
        arriving = begun or self.conn.their_state is h11.SEND_BODY or self._long_head
        if self._lingers_for or not arriving or self.transport.is_closing():
            return False
        self._lingers_for = 2 * self._limits.max_message_bytes
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.transport.resume_reading()
        self._unset_timers()
        self._head = self.loop.call_later(LINGER_S, self.transport.abort)
        return True

    def _unset_timers(self) -> None:
        for timer in (self._head, self._unread):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Read a piece of a request, or throw it away."""
        if self._lingers_for:
            self._lingers_for -= len(data)
            if self._lingers_for <= 0:
                self.transport.abort()
            return
        super().data_received(data)
        if self._lingers_for or self.transport.is_closing():
            return
        if self.conn.their_state is h11.IDLE:
            self._count_head(len(self.conn.trailing_data[0]))
            if self._counted > MAX_RECEIVE and self._heads.size > MAX_ARRIVING_HEADS_BYTES:
                self._refuse(503, "too many long heads of requests are arriving: send texts in the body of a request")
                return
        else:
            self._count_head(0)
        if self.conn.their_state is h11.SEND_BODY:
            if self.conn.trailing_data[0].count(b"\n") > MAX_HEADERS:  # of a body's end; chunks have been taken out
                self.transport.abort()
            elif self.cycle.body:
                self.flow.pause_reading()  # until the piece has been taken
        idle = self.cycle is None or self.cycle.response_complete
        if not idle and self._head is not None:
            self._head.cancel()
            self._head = None
        elif idle and self._head is None and self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._head = self.loop.call_later(HEAD_S, self.transport.abort)

    def handle_events(self) -> None:
        """Read what has arrived, unless it is a head of too many lines."""
        if self.conn.their_state is h11.IDLE:
            head = _HEAD_END.split(self.conn.trailing_data[0], 1)[0]
            if head.count(b"\n") > MAX_HEADERS:
                self.send_400_response(f"a request takes at most {MAX_HEADERS} header fields")
                return
        super().handle_events()
        if self.conn.their_state is h11.IDLE:
            self.flow.resume_reading()  # the rest of a head

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request, and say what is wrong with a long head."""
        waits = self.conn.our_state is h11.IDLE  # for a head, and not for a body
        self._long_head = waits and len(self.conn.trailing_data[0]) > MAX_HEAD_BYTES
        if self._long_head:
            self._refuse(431, f"the head of a request takes at most {MAX_HEAD_BYTES} bytes: send texts in its body")
        else:
            super().send_400_response(msg)

    def _refuse(self, status: int, text: str) -> None:
        """Answer with an error in plain text, and close the connection."""
        headers = [("content-type", "text/plain; charset=utf-8"), ("connection", "close")]
        response = h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase.encode())
        for event in (response, h11.Data(data=text.encode()), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _count_head(self, size: int) -> None:
        self._heads.size += size - self._counted
        self._counted = size

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        self._unset_timers()
        self._count_head(0)
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        if isinstance(self.transport, LingeringTransport):
            self.transport.linger = lambda: False  # no cycle keeps what was received

    def pause_writing(self) -> None:
        """Give the client time to read."""
        super().pause_writing()
        self._unread = self.loop.call_later(self._limits.upload_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the clock: the client has read."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
