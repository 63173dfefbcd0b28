"""The metrics port among clients that send nothing, or too slowly."""

import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import cast

import pytest

from jumok_serve.service.models.registry import ModelRegistry
from jumok_serve.service.rpc.call import CallCounts
from jumok_serve.service.server import Server
from jumok_serve.service.telemetry.metrics import MAX_CONNECTIONS, MetricsPort
from tests.support.hang import HANG_S


@dataclass
class NoModels:
    """A server without models and calls."""

    front = None
    models: ModelRegistry = field(default_factory=lambda: ModelRegistry([]))
    counts: CallCounts = field(default_factory=CallCounts)
    open_calls: int = 0
    serving: bool = True


def opened(connection_s: float) -> MetricsPort:
    return MetricsPort(cast("Server", NoModels()), host="127.0.0.1", port=0, connection_s=connection_s)


@pytest.fixture
def sockets() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def connect(port: MetricsPort, sockets: ExitStack) -> socket.socket:
    host, number = port.address.split(":")
    return sockets.enter_context(socket.create_connection((host, int(number)), timeout=HANG_S))


def scrape(port: MetricsPort) -> str:
    with urllib.request.urlopen(f"http://{port.address}/metrics", timeout=HANG_S) as response:
        return str(response.read().decode())


def test_silent_connections_take_a_bounded_number_of_threads(sockets: ExitStack) -> None:
    with opened(connection_s=HANG_S) as port:
        silent = [connect(port, sockets) for _ in range(MAX_CONNECTIONS)]
        for _ in range(3):
            another = connect(port, sockets)
            assert another.recv(1) == b""  # closed at once
        silent[0].sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        while received := silent[0].recv(2**16):
            last = received
        assert last
        # Its place is free; the server counts it as such in another thread.
        for _ in range(10_000):
            try:
                assert "jumok_dropped_log_lines_total 0.0" in scrape(port)
                break
            except OSError:
                continue
        else:
            pytest.fail("no place became free")


def test_slow_connections_are_closed(sockets: ExitStack) -> None:
    with opened(connection_s=0.1) as port:
        slow = [connect(port, sockets) for _ in range(MAX_CONNECTIONS)]
        for number, one in enumerate(slow):
            one.sendall(b"GET /metrics HTTP/1.0\r\n"[: number + 1])
        assert [one.recv(1) for one in slow] == [b""] * MAX_CONNECTIONS
        assert "jumok_open_requests 0.0" in scrape(port)


def test_a_port_without_connections_ends_at_once() -> None:
    with opened(connection_s=HANG_S) as port:
        assert "process_cpu_seconds_total" in scrape(port)
