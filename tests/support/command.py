"""Run the jumok command in another process."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.hang import HANG_S

JUMOK = (sys.executable, "-m", "jumok")


def run(*arguments: str | Path, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a command with bytes on standard input."""
    return subprocess.run([*JUMOK, *map(str, arguments)], input=given, capture_output=True, check=False, timeout=HANG_S)


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
