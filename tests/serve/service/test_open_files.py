"""A server that may open no more files: it does not spin, and serves again once others have left."""

import json
import os
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import jumok
from tests.faults.tools.http2 import PREFACE, SETTINGS, frame
from tests.support.command import JUMOK
from tests.support.hang import HANG_S

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="files are seen in Linux' /proc")

FREE = 8
"""Files that a server may still open."""
LOOK_S = 2.0
"""Time in which a server that spins shows it."""


@dataclass(frozen=True)
class Running:
    """A server's process, the addresses of its ports for gRPC, HTTP and metrics, and the file of its log."""

    process: subprocess.Popen[str]
    addresses: list[str]
    log: Path

    def limit_files(self) -> int:
        """Let the server open only few more files; returns the number that it may have."""
        most = max(self.files()) + 1 + FREE
        resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (most, most))
        return most

    def files(self) -> list[int]:
        return [int(name) for name in os.listdir(f"/proc/{self.process.pid}/fd")]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition while the server runs."""
        end = time.monotonic() + HANG_S
        while not condition():
            assert self.process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.02)

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def running(bundle: Path, folder: Path, *options: str) -> Iterator[Running]:
    """Serve on three ports; the log goes into a file, as a pipe might fill."""
    ports = ("--port", "0", "--http-port", "0", "--metrics-port", "0")
    command = [*JUMOK, "serve", *ports, "--threads", "1", "--trusted-bundles", *options, str(bundle)]
    log = folder / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            addresses = re.findall(r"127\.0\.0\.1:\d+", line)
            assert len(addresses) == 3, (line, log.read_text())
            yield Running(process, addresses, log)
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=HANG_S)


def connect(address: str, *, of: str = "127.0.0.1") -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=HANG_S, source_address=(of, 0))


def open_connection(address: str, of: str = "127.0.0.1") -> socket.socket:
    """Open a connection of gRPC that stays open without calls."""
    connection = connect(address, of=of)
    connection.sendall(PREFACE + frame(SETTINGS, 0, 0, b""))
    return connection


def test_ports_wait_for_files_and_serve_again(tiny_bundle: Path, tmp_path: Path) -> None:
    with running(tiny_bundle, tmp_path) as server:
        grpc, http, metrics = server.addresses
        with ExitStack() as opened:
            most = server.limit_files()
            for number in range(most):  # more than there is room for, whatever the server opens for a moment
                opened.enter_context(open_connection(grpc, of=f"127.0.1.{number + 1}"))
            server.wait_until(lambda: len(server.files()) == most)
            for address in server.addresses:
                opened.enter_context(connect(address))
            before = server.cpu_s()
            time.sleep(LOOK_S)
            assert server.cpu_s() - before < LOOK_S / 2
            assert server.log.stat().st_size < 100_000
        with jumok.Client(grpc, timeout_s=HANG_S) as client:
            assert client.list_models()
        for url in (f"http://{http}/health", f"http://{metrics}/metrics"):
            with urllib.request.urlopen(url, timeout=HANG_S) as response:
                assert response.status == 200
        body = json.dumps({"q": "a dog", "source": "en", "target": "de"}).encode()
        request = urllib.request.Request(f"http://{http}/translate", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=HANG_S) as response:
            assert response.status == 200


def test_an_address_that_takes_all_files_is_bounded(tiny_bundle: Path, tmp_path: Path) -> None:
    most = 4
    with running(tiny_bundle, tmp_path, "--max-connections-of-address", str(most)) as server, ExitStack() as opened:
        server.limit_files()
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
        server.wait_until(lambda: f"connections of ipv4:127.0.0.1, which may have {most}" in server.log.read_text())
