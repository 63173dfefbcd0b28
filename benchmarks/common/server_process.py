"""A server in a process of its own: where it listens, what it costs, and its end."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from benchmarks.common.processes import FOREIGN

HERE = Path(__file__).parents[2]
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
        metrics: where it tells its metrics; empty where it does not.
        process: that it is; None where somebody else has started it.
        log: what it writes to standard error.
    """

    address: str
    pid: int
    metrics: str = ""
    process: asyncio.subprocess.Process | None = field(default=None, repr=False)
    log: IO[str] | None = field(default=None, repr=False)

    def cpu_s(self) -> float:
        """Processor time of all its threads so far, in seconds."""
        return time.clock_gettime((~self.pid << 3) | _CPUCLOCK_SCHED)

    def peak_rss_mib(self) -> float:
        """The most memory that it has held so far."""
        return self._memory_mib("VmHWM")

    def rss_mib(self) -> float:
        """The memory that it holds now."""
        return self._memory_mib("VmRSS")

    def _memory_mib(self, line: str) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8")
        [kib] = re.findall(rf"^{line}:\s+(\d+) kB$", status, re.MULTILINE)
        return int(kib) / 1024

    def logged(self) -> str:
        """What it has written to standard error so far."""
        if self.log is None:
            return ""
        self.log.seek(0)
        return self.log.read()

    async def end(self, number: signal.Signals) -> int:
        """Send it a signal that ends it, and give its exit status; the signal's number below 0 where it was killed."""
        assert self.process is not None
        self.process.send_signal(number)
        return await self.process.wait()


@asynccontextmanager
async def serving(
    module: str, *arguments: str | Path, within: Sequence[str] = (), checkout: Path = HERE, python: str = sys.executable
) -> AsyncIterator[Server]:
    """Run ``python -m MODULE`` until the block ends, however it ends; it says ``serving on ADDRESS: `` when it serves.

    Args:
        module: what to run.
        arguments: for it.
        within: a command that is to run it, such as ``("nice", "-n", "5")``; it must become what it runs.
        checkout: root of the checkout whose modules run.
        python: the interpreter.

    Raises:
        ServerError: it has ended, or not served within ``START_S`` seconds.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    path = str(checkout)
    if checkout == HERE:
        path = os.pathsep.join([path, *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = await asyncio.create_subprocess_exec(
            *(*within, python),
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
            said = re.match(r"serving on (\S+): (?:.*; metrics on (\S+)$)?", line)
            if said is None:
                log.seek(0)
                raise ServerError(f"{module} does not serve; it wrote:\n{line}{log.read()}".rstrip())
            yield Server(address=said[1], pid=process.pid, metrics=said[2] or "", process=process, log=log)
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
