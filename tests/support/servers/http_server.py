"""HTTP port of a real server in a thread of the test process, and a plain client of it."""

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.message import Message
from typing import Any, NamedTuple
from urllib.parse import urlencode

from jumok_serve.http.port import HttpPort, make_http_front
from jumok_serve.service import Server
from jumok_serve.translator import Translator
from tests.support.hang import HANG_S
from tests.support.servers.in_process_server import serving


class Served(NamedTuple):
    """A server and its addresses."""

    url: str
    grpc: str
    server: Server

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of HTTP."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host.strip("[]"), int(port)

    def connect(self, of: str | None = None) -> socket.socket:
        """Connect to the HTTP port, from an address of this machine."""
        return socket.create_connection(self.address, HANG_S, None if of is None else (of, 0))


@contextmanager
def serving_http(*translators: Translator, front: Mapping[str, Any] = {}, **settings: Any) -> Iterator[Served]:
    """Serve over gRPC and HTTP; ``front``: settings of the HTTP port."""
    made: list[Server] = []

    def make_front(server: Server) -> HttpPort:
        made.append(server)
        return make_http_front(server, port=0, **front)

    with serving(*translators, make_front=make_front, **settings) as address:
        (server,) = made
        assert server.front is not None
        yield Served(f"http://{server.front.address}", address, server)


def head(verb: str, path: str, size: int | None = None, *lines: str) -> bytes:
    """Head of a request, with a JSON body of a size or without a body."""
    body = () if size is None else ("Content-Type: application/json", f"Content-Length: {size}")
    return "\r\n".join((f"{verb} {path} HTTP/1.1", "Host: localhost", *body, *lines, "", "")).encode()


HEALTH = head("GET", "/health")


class Answer(NamedTuple):
    """Response to a request."""

    status: int
    headers: "Message[str, str]"
    content: Any


def events(url: str, content: object) -> list[tuple[str, dict[str, Any]]]:
    """Read the events of a stream: names and data."""
    request = urllib.request.Request(url, json.dumps(content).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=HANG_S) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        blocks = response.read().decode().split("\n\n")
    found = []
    for block in filter(None, blocks):
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        found.append((fields.get("event", ""), json.loads(fields["data"])))
    return found


def call(
    url: str,
    content: object = None,
    *,
    form: object = None,
    raw: bytes | None = None,
    headers: Mapping[str, str] = {},
    method: str | None = None,
) -> Answer:
    """Send JSON, a form or bytes, and read JSON."""
    sent = dict(headers)
    if content is not None:
        raw, sent["Content-Type"] = json.dumps(content).encode(), "application/json"
    elif form is not None:
        raw = urlencode(form, doseq=True).encode()  # type: ignore[arg-type]
    request = urllib.request.Request(url, raw, sent, method=method)
    try:
        with urllib.request.urlopen(request, timeout=HANG_S) as response:
            return Answer(response.status, response.headers, json.load(response))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.headers, json.load(error))
