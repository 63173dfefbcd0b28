"""Memory of idle connections: ten thousand keep-alive connections, each after a request."""

import resource
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.command import JUMOK
from tests.support.hang import HANG_S
from tests.support.servers.http_server import HEALTH, call

CONNECTIONS = 10_000
MAX_GROWTH_BYTES = 200 * 2**20
FILES = CONNECTIONS + 500


def resident_bytes(process: int) -> int:
    """Read the resident memory of a process."""
    pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def exchange(connection: socket.socket) -> bytes:
    """Send a request, and read its response to the end."""
    connection.sendall(HEALTH)
    received = b""
    while not received.endswith(b'{"status":"ok"}'):
        piece = connection.recv(65536)
        assert piece, received
        received += piece
    return received


@pytest.mark.slow
def test_ten_thousand_idle_connections_are_cheap(tiny_bundle: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES:
        pytest.skip(f"{FILES} open files are needed, and the hard limit is {hard}: raise it with ulimit -Hn")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, FILES), hard))  # the server inherits it
    limits = ["--max-connections", str(FILES), "--max-connections-of-address", str(FILES)]
    command = [*JUMOK, "serve", "--port", "0", "--http-port", "0", *limits, str(tiny_bundle)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, ExitStack() as opened:
        opened.callback(process.kill)
        assert process.stdout is not None
        address = process.stdout.readline().strip().rpartition("HTTP on ")[2]
        host, port = address.split(":")
        first = opened.enter_context(socket.create_connection((host, int(port)), timeout=HANG_S))
        exchange(first)
        before = resident_bytes(process.pid)
        for _ in range(CONNECTIONS):
            exchange(opened.enter_context(socket.create_connection((host, int(port)), timeout=HANG_S)))
        growth = resident_bytes(process.pid) - before
        assert exchange(first).startswith(b"HTTP/1.1 200")
        translated = call(f"http://{address}/translate", {"q": "a dog", "source": "en", "target": "de"})
        assert translated.status == 200
    assert growth <= MAX_GROWTH_BYTES, f"{growth / 2**20:.0f} MiB"
