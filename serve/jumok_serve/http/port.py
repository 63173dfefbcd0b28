"""Port of HTTP: listener, server, and application of a gRPC server."""

import asyncio
import logging
import socket
import time
import weakref
from asyncio.sslproto import SSLProtocol
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.server import ServerState

from jumok_serve.http.application import Application
from jumok_serve.http.connections import MAX_HEAD_BYTES, MAX_RECEIVE, ArrivingHeads, BoundedConnection
from jumok_serve.service.auth.tls import TlsFiles
from jumok_serve.service.connections import account_of, format_address, listen, peer_name
from jumok_serve.service.limits import ServiceLimits


class BoundedListener(socket.socket):
    """Listening socket that closes connections beyond the most as it accepts them.

    Connections count from here to the close of their sockets: asyncio shows those of TLS after the handshake only.

    Args:
        bound: socket that is bound to an address; not usable afterwards.

    Attributes:
        open_connections: number of open connections.
    """

    def __init__(self, bound: socket.socket, limits: ServiceLimits) -> None:
        super().__init__(fileno=bound.detach())
        self._limits = limits
        self._of_account = Counter[str]()
        self.open_connections = 0

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection.

        Raises:
            ConnectionAbortedError: one connection too many, which is closed.
        """
        accepted, address = super().accept()
        account = "" if self.family == socket.AF_UNIX else account_of(peer_name(*address[:2]))
        too_many = bool(account) and self._of_account[account] >= self._limits.max_connections_of_address
        if too_many or self.open_connections >= self._limits.max_connections:
            accepted.close()
            raise ConnectionAbortedError
        self.open_connections += 1
        self._of_account[account] += 1
        return _Counted(accepted, lambda: self._closed_of(account)), address

    def _closed_of(self, account: str) -> None:
        self.open_connections -= 1
        self._of_account[account] -= 1
        if not self._of_account[account]:
            del self._of_account[account]


class _Counted(socket.socket):
    """Socket that is uncounted as it is closed."""

    def __init__(self, accepted: socket.socket, uncount: Callable[[], None]) -> None:
        super().__init__(fileno=accepted.detach())
        self._uncount = weakref.finalize(self, uncount)

    def close(self) -> None:
        """Close the connection."""
        super().close()
        self._uncount()


BACKLOG = 2048
TLS_S = 5.0
"""Time for the TLS handshake of a connection, in seconds."""
ACCEPTS = 1
"""Connections accepted at once. asyncio tries each of them, and logs each failure, when no more files can be opened."""
LAST_REQUESTS_S = 1.0
"""Seconds of a stop in which clients may still send a request on an open connection; its response closes it."""
POLL_S = 0.02


class HttpPort:
    """Serves an application over HTTP/1.1 in the running event loop.

    Args:
        setting: setting of the port, for errors.
    """

    def __init__(
        self,
        application: Application,
        *,
        host: str,
        port: int,
        limits: ServiceLimits,
        tls: TlsFiles | None = None,
        setting: str = "--http-port",
    ) -> None:
        self._application = application
        self._host = host
        self._number = port
        self._limits = limits
        self._tls = tls
        self._setting = setting
        self._state = ServerState()
        self._server: asyncio.Server | None = None
        self._listener: BoundedListener | None = None

    @property
    def address(self) -> str:
        """``host:port``; after ``start`` with the actual port."""
        return format_address(self._host, self._number)

    @property
    def open_connections(self) -> int:
        """Number of open connections."""
        return 0 if self._listener is None else self._listener.open_connections

    @property
    def responses(self) -> Mapping[int, int]:
        """Number of responses by status."""
        return self._application.responses

    async def start(self) -> None:
        """Listen and serve.

        Raises:
            ListenError: the address cannot be bound.
            CredentialsError: the certificates are unusable.
        """
        context = None if self._tls is None else self._tls.ssl_context()
        if context is not None:
            # asyncio up to Python 3.14 has no setting for it, and takes 256 KiB for a connection that sends nothing.
            SSLProtocol.max_size = MAX_RECEIVE
        bound = await asyncio.to_thread(listen, self._host, self._number, self._setting)
        if bound.family != socket.AF_UNIX:
            address, self._number = bound.getsockname()[:2]
            self._application.bound_to(address, self._host)
        config = Config(
            self._application,
            http=BoundedConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level=logging.CRITICAL,  # the others are about clients; endpoints log failures
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=round(self._limits.max_idle_s),
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        )
        config.load()
        heads = ArrivingHeads()
        self._listener = BoundedListener(bound, self._limits)
        self._server = await asyncio.get_running_loop().create_server(
            lambda: BoundedConnection(config, self._state, self._limits, heads),
            sock=self._listener,
            ssl=context,
            backlog=ACCEPTS,
            ssl_handshake_timeout=None if context is None else TLS_S,
        )
        self._listener.listen(BACKLOG)

    async def stop(self, grace_s: float) -> None:
        """Accept no connections, finish requests for ``grace_s`` seconds, then cancel them.

        Responses close their connections. Idle connections are closed after `LAST_REQUESTS_S`, as a request may be on
        its way; may be called again with less time.
        """
        if self._server is None:
            return
        self._server.close()
        self._application.stopping = True
        end = time.monotonic() + grace_s
        await self._wait_for_connections(min(LAST_REQUESTS_S, grace_s))
        for connection in list(self._state.connections):
            with suppress(h11.LocalProtocolError):  # it ends with an error already
                connection.shutdown()
        await self._wait_for_connections(end - time.monotonic())
        for task in list(self._application.site.answering):
            task.cancel()
        await self._wait_for_connections(LAST_REQUESTS_S)
        for connection in list(self._state.connections):
            connection.transport.abort()

    async def _wait_for_connections(self, timeout_s: float) -> None:
        """Wait for the last connection to be closed; responses that are complete may still be on their way."""
        end = time.monotonic() + timeout_s
        while self._state.connections and time.monotonic() < end:
            await asyncio.sleep(POLL_S)
