"""HTTP port for Prometheus, with bounds on connections and their time."""

import errno
import logging
import socket
import time
from contextlib import suppress
from socketserver import ThreadingMixIn
from threading import Thread
from typing import Any, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import make_wsgi_app

from jumok_serve.errors import ListenError
from jumok_serve.service.address import bare_host, format_address
from jumok_serve.service.telemetry.metrics import MeasuredServer, make_registry

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 16
"""Open connections; another one is closed at once."""
CONNECTION_S = 10.0
"""Seconds after which a connection is closed, in the middle of a request or of a response."""
FULL_S = 0.5
"""Wait for a file when the process may open no more; a connection that waits would be tried again at once."""


class MetricsPort:
    """Serves metrics over HTTP in its own threads until it is closed.

    Raises:
        ListenError: the address cannot be bound.
    """

    def __init__(self, server: MeasuredServer, *, host: str, port: int, connection_s: float = CONNECTION_S) -> None:
        try:
            self._http = _make_http_server(host, port, connection_s)
        except (OSError, OverflowError) as error:
            raise ListenError(
                f"cannot listen on {format_address(host, port)} for metrics: {error}; choose another --metrics-port"
            ) from error
        self._http.set_app(make_wsgi_app(make_registry(server)))
        self._thread = Thread(target=self._http.serve_forever, name="metrics", daemon=True)
        self._thread.start()
        self.address = format_address(host, self._http.server_port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _QuietHandler(WSGIRequestHandler):
    """Handler of one request; its base class logs every request to standard error."""

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug(format, *args)


class _HttpServer(ThreadingMixIn, WSGIServer):
    """Server with a thread for each connection, of at most `MAX_CONNECTIONS`."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], family: socket.AddressFamily, connection_s: float) -> None:
        self.address_family = family
        self._connection_s = connection_s
        self._started: dict[socket.socket, float] = {}  # in the order of arrival
        super().__init__(address, _QuietHandler)

    def get_request(self) -> Any:
        """Accept a connection."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                time.sleep(FULL_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, or close it."""
        if len(self._started) >= MAX_CONNECTIONS:
            self.shutdown_request(request)
            return
        self._started[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self._started.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End connections that are open for too long; called at least twice a second."""
        now = time.monotonic()
        for request, started in list(self._started.items()):
            if now - started > self._connection_s:
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)  # which wakes its thread

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a connection that was cut; the base class prints a traceback."""
        logger.debug("a scrape of the metrics failed", exc_info=True)


def _make_http_server(host: str, port: int, connection_s: float) -> _HttpServer:
    family, _, _, _, address = socket.getaddrinfo(
        bare_host(host), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    return _HttpServer((str(address[0]), int(address[1])), family, connection_s)
