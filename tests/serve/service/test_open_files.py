"""A server that may open no more files: it does not spin, and serves again once others have left."""

import json
import os
import resource
import select
import signal
import socket
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import pytest

import jumok
from tests.faults.tools.http2 import PREFACE, SETTINGS, frame
from tests.support.command import Running, running
from tests.support.hang import HANG_S

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="files are seen in Linux' /proc")

FREE = 8
"""Files that a server may still open."""
LOOK_S = 1.0
"""Time in which a server that spins shows it."""


def limit_files(server: Running) -> int:
    """Let a server open only few more files; returns the number that it may have."""
    most = max(files(server)) + 1 + FREE
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (most, most))
    return most


def files(server: Running) -> list[int]:
    return [int(name) for name in os.listdir(f"/proc/{server.process.pid}/fd")]


def cpu_s(server: Running) -> float:
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def used_s(server: Running) -> float:
    """Return the processor time that a server takes in ``LOOK_S``."""
    before = cpu_s(server)
    time.sleep(LOOK_S)
    return cpu_s(server) - before


@pytest.fixture
def log(tmp_path: Path) -> Iterator[IO[str]]:
    """A file for the log, as a pipe might fill."""
    with (tmp_path / "log").open("w+") as file:
        yield file


def connect(address: str, *, of: str = "127.0.0.1") -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=HANG_S, source_address=(of, 0))


def open_connection(address: str, of: str = "127.0.0.1") -> socket.socket:
    """Open a connection of gRPC that stays open without calls."""
    connection = connect(address, of=of)
    connection.sendall(PREFACE + frame(SETTINGS, 0, 0, b""))
    return connection


def test_ports_wait_for_files_and_serve_again(tiny_bundle: Path, log: IO[str]) -> None:
    with running(tiny_bundle, "--http-port", "0", log=log) as server:
        grpc, http, metrics = server.addresses
        with ExitStack() as opened:
            most = limit_files(server)
            for number in range(most):  # more than there is room for, whatever the server opens for a moment
                opened.enter_context(open_connection(grpc, of=f"127.0.1.{number + 1}"))
            server.wait_until(lambda: len(files(server)) == most)
            for address in server.addresses:
                opened.enter_context(connect(address))
            server.wait_until(lambda: used_s(server) < LOOK_S / 2)  # one that spins is never idle
            assert os.fstat(log.fileno()).st_size < 100_000
        with jumok.Client(grpc, timeout_s=HANG_S) as client:
            assert client.list_models()
        body = json.dumps({"q": "a dog", "source": "en", "target": "de"}).encode()
        request = urllib.request.Request(f"http://{http}/translate", body, {"content-type": "application/json"})
        for asked in (f"http://{http}/health", f"http://{metrics}/metrics", request):
            with urllib.request.urlopen(asked, timeout=HANG_S) as response:
                assert response.status == 200
        server.process.send_signal(signal.SIGTERM)
        server.process.communicate(timeout=HANG_S)
        assert server.process.returncode == 0


def test_an_address_that_takes_all_files_is_bounded(tiny_bundle: Path, log: IO[str]) -> None:
    most = 4
    options = ("--http-port", "0", "--max-connections-of-address", str(most))
    with running(tiny_bundle, *options, log=log) as server, ExitStack() as opened:
        limit_files(server)
        held = [opened.enter_context(open_connection(server.addresses[0])) for _ in range(3 * FREE)]
        poll = select.poll()
        for connection in held:
            poll.register(connection, select.POLLRDHUP)
        closed = 0
        while closed < len(held) - most:
            ended = poll.poll(1000 * HANG_S)
            assert ended
            for number, _ in ended:
                poll.unregister(number)
                closed += 1
        server.wait_until(lambda: f"connections of ipv4:127.0.0.1, which may have {most}" in Path(log.name).read_text())
