"""Run the jumok command, or a server, in another process or in this one."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from click.testing import CliRunner

from jumok.commands._main import run as run_command
from tests.support.hang import HANG_S

JUMOK = (sys.executable, "-m", "jumok")


def run(*arguments: str | Path, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a command with bytes on standard input."""
    return subprocess.run([*JUMOK, *map(str, arguments)], input=given, capture_output=True, check=False, timeout=HANG_S)


def run_here(*arguments: str | Path, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a command as `run` does, but in this process: no interpreter starts."""
    with CliRunner().isolation(input=given) as (out, err, _), on_standard_input(given):
        code = run_command([*map(str, arguments)])
        return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


@contextmanager
def on_standard_input(given: bytes) -> Iterator[None]:
    """Give bytes to commands that read the file 0 itself, in a thread that may outlast the command."""
    before = os.dup(0)
    with tempfile.TemporaryFile() as file:
        file.write(given)
        file.seek(0)
        os.dup2(file.fileno(), 0)
        others = {*threading.enumerate()}
        try:
            yield
            for thread in {*threading.enumerate()} - others:
                if thread.name == "answer-lines-read":
                    thread.join(HANG_S)
                    assert not thread.is_alive()
        finally:
            os.dup2(before, 0)
            os.close(before)


@contextmanager
def serve(*arguments: str | Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Serve on a free port until the block ends; yields the process and its address."""
    process = subprocess.Popen(
        [*JUMOK, "serve", "--port", "0", "--threads", "1", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        serving = re.match(r"serving on (127\.0\.0\.1:\d+): ", line)
        assert serving, (line, process.communicate())
        yield process, serving[1]
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=HANG_S)


@dataclass(frozen=True)
class Running:
    """A server's process, and the addresses of its ports, that of gRPC first."""

    process: subprocess.Popen[str]
    addresses: list[str]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition while the server runs, but not for ever."""
        end = time.monotonic() + HANG_S
        while not condition():
            assert self.process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.02)


@contextmanager
def running(
    *arguments: str | Path, program: Sequence[str] = ("-m", "jumok"), log: IO[str] | int = subprocess.PIPE
) -> Iterator[Running]:
    """Serve on free ports for gRPC and metrics; kills the server at the end of the block."""
    options = ("--port", "0", "--metrics-port", "0", "--threads", "1", "--trusted-bundles", *map(str, arguments))
    command = [sys.executable, *program, "serve", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            addresses = re.findall(r"127\.0\.0\.1:\d+", line)
            assert addresses, (line, process.communicate())
            yield Running(process, addresses)
        finally:
            process.kill()
