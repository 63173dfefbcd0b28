"""Responses over HTTP that their callers do not read: bounded in bytes, and whole once they are read."""

import socket
from contextlib import ExitStack
from pathlib import Path

from jumok_proto.glossaries import GlossaryEntries
from jumok_serve import GlossaryStore
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.translator import Translator
from tests.support.hang import HANG_S
from tests.support.servers.http_server import call, serving_http

KEY = {"Authorization": "DeepL-Auth-Key any"}


def test_unread_answers_over_http_are_refused(translator: Translator, tmp_path: Path) -> None:
    """A glossary is a large answer to a small request."""
    entries = "".join(f"{number:06}{'a' * 93}\tb\n" for number in range(40_000))
    limits = ServiceLimits(max_open_bytes=0, max_watches=8, max_calls=64)
    store = GlossaryStore(tmp_path)
    name = store.create("", "large", [GlossaryEntries(tsv=entries)]).id
    path = f"/v2/glossaries/{name}/entries"
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {KEY['Authorization']}\r\n\r\n".encode()
    with serving_http(translator, glossaries=store, limits=limits) as served:
        statuses = []
        with ExitStack() as opened:
            connections = [opened.enter_context(socket.socket()) for _ in range(6)]
            for connection in connections:
                if connection is not connections[0]:  # the system takes little of these responses
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                connection.settimeout(HANG_S)
                connection.connect(served.address)
                connection.sendall(request)
                statuses.append(connection.recv(12)[9:])
            assert statuses[0] == b"200"
            assert statuses[-1] == b"429"
            with connections[0].makefile("rb") as rest:  # all of it arrives, in pieces
                while rest.readline().strip():
                    pass
                assert len(rest.read(len(entries))) == len(entries)
        assert call(f"{served.url}/v2/usage", headers=KEY, method="GET").status == 200
