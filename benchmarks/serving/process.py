"""A server in a process of its own: where it listens, what it costs, and its end."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from duel_sides.process import FOREIGN

HERE = Path(__file__).parents[1]
START_S = 120.0
STOP_S = 10.0
_CPUCLOCK_SCHED = 2
"""With this and a process' id Linux makes the number of its clock, as clock_getcpuclockid(3) tells it."""


class ServerError(Exception):
    """A server did not start; says what it wrote."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server that runs.

    Attributes:
        address: ``host:port``.
        pid: of its process.
    """

    address: str
    pid: int

    def cpu_s(self) -> float:
        """Processor time of all its threads so far, in seconds."""
        return time.clock_gettime((~self.pid << 3) | _CPUCLOCK_SCHED)

    def peak_rss_mib(self) -> float:
        """The most memory that it has held so far."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8")
        [kib] = re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
        return int(kib) / 1024


@asynccontextmanager
async def serving(module: str, *arguments: str | Path) -> AsyncIterator[Server]:
    """Run ``python -m MODULE`` until the block ends, however it ends; it says ``serving on ADDRESS: `` when it serves.

    Args:
        module: what to run.
        arguments: for it.

    Raises:
        ServerError: it has ended, or not served within ``START_S`` seconds.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryFile("w+") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", module, *map(str, arguments)),
            stdout=subprocess.PIPE,
            stderr=log,
            env={**environment, "PYTHONPATH": path},
        )
        try:
            assert process.stdout is not None
            try:
                line = (await asyncio.wait_for(process.stdout.readline(), START_S)).decode()
            except TimeoutError:
                line = ""
            said = re.match(r"serving on (\S+): ", line)
            if said is None:
                log.seek(0)
                raise ServerError(f"{module} does not serve; it wrote:\n{line}{log.read()}".rstrip())
            yield Server(address=said[1], pid=process.pid)
        finally:
            await _stop(process)


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Ask it to end, and do not take no for an answer."""
    try:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(process.wait(), STOP_S)
    except TimeoutError:
        pass
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
