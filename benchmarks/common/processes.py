"""Processes of contenders: workers that take turns, and servers."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from benchmarks.common.data import ROOT
from benchmarks.contenders.worker import Task, Turn

SETTLE_S = 0.25
"""Pause after every turn, until spinning threads sleep."""

FOREIGN = ("CT2_", "GOMP_", "KMP_", "MKL_", "OMP_", "ONEDNN_")
"""Prefixes of environment variables that configure contenders; they are removed."""


START_S = 120.0
STOP_S = 10.0
_CPUCLOCK_SCHED = 2
"""Low bits of the Linux clock id of a process; see clock_getcpuclockid(3)."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program that runs in a process.

    Attributes:
        name: name in reports.
        module: Python module.
        arguments: command line.
        environment: environment variables.
    """

    name: str
    module: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, name: str, contender: str, *arguments: object, **environment: str) -> "Program":
        """Make the program of a file in ``contenders``, with its arguments and environment variables."""
        module = f"benchmarks.contenders.{contender}"
        return cls(name=name, module=module, arguments=tuple(map(str, arguments)), environment=environment)


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A program that translates, with its settings.

    Attributes:
        program: the program.
        size: bytes of its model on disk.
        batch_size: sentences or tokens that it translates together; 0 for the task's.
        batch_type: "examples" or "tokens".
        beyond: largest number of sentences of the cells that it skips, because it equals another contender there.
    """

    program: Program
    size: int
    batch_size: int = 0
    batch_type: str = "examples"
    beyond: int = 0

    @property
    def name(self) -> str:
        """The program's name, with the batch size if it is set."""
        unit = "sentences" if self.batch_type == "examples" else self.batch_type
        return f"{self.program.name} of {self.batch_size} {unit}" if self.batch_size else self.program.name

    def task(self, task: Task) -> Task:
        """The task with this contender's batches."""
        return replace(task, batch_size=self.batch_size, batch_type=self.batch_type)


class Process:
    """A program's process, stopped between its turns: waiting threads may spin.

    Args:
        program: the program.
    """

    def __init__(self, program: Program) -> None:
        self.program = program

    def __enter__(self) -> Self:
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-m", self.program.module, *self.program.arguments],
            cwd=ROOT,
            env={**_environment(), **self.program.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        return self

    def measure(self, task: Task) -> Turn:
        """Run one turn, and let the process settle.

        Raises:
            ChildProcessError: the process failed; with its last output.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.send_signal(signal.SIGCONT)
            print(json.dumps(asdict(task)), file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self._process.wait()
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip()
            raise ChildProcessError(f"{self.program.name} has failed:\n{said[-4000:]}")
        turn = Turn(**json.loads(answer))
        time.sleep(SETTLE_S)
        self._process.send_signal(signal.SIGSTOP)
        return turn

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._process:  # waits, and closes the pipes
            self._process.kill()
        self._errors.close()


def size_on_disk(*paths: Path) -> int:
    """Bytes of files, and of all files in folders."""
    files = (file for path in paths for file in (path.rglob("*") if path.is_dir() else (path,)))
    return sum(file.stat().st_size for file in files if file.is_file())


class ServerError(Exception):
    """A server did not start; has its output."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """A running server.

    Attributes:
        address: ``host:port``.
        pid: id of its process.
        metrics: address of its metrics, or "".
        process: the process, or None if it was started elsewhere.
        log: standard error of the process.
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
        """Peak memory so far, in MiB."""
        return self._memory_mib("VmHWM")

    def rss_mib(self) -> float:
        """Memory now, in MiB."""
        return self._memory_mib("VmRSS")

    def _memory_mib(self, line: str) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8")
        [kib] = re.findall(rf"^{line}:\s+(\d+) kB$", status, re.MULTILINE)
        return int(kib) / 1024

    def logged(self) -> str:
        """Its standard error so far."""
        if self.log is None:
            return ""
        self.log.seek(0)
        return self.log.read()

    async def end(self, number: signal.Signals) -> int:
        """Send a signal that ends the process; returns the exit status.

        The status is negative if the signal killed the process.
        """
        assert self.process is not None
        self.process.send_signal(number)
        return await self.process.wait()


@asynccontextmanager
async def serving(
    module: str, *arguments: str | Path, within: Sequence[str] = (), checkout: Path = ROOT, python: str = sys.executable
) -> AsyncIterator[Server]:
    """Run ``python -m MODULE`` until it serves, within this context.

    The module prints ``serving on ADDRESS: ``, or ``serving HTTP on ADDRESS``, once it serves.

    Args:
        module: module to run.
        arguments: arguments of the module.
        within: command that executes it, such as ``("nice", "-n", "5")``; it must replace itself.
        checkout: root of the checkout whose modules run.
        python: the interpreter.

    Raises:
        ServerError: it ended, or does not serve within ``START_S`` seconds.
    """
    path = str(checkout)
    if checkout == ROOT:
        path = os.pathsep.join([path, *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = await asyncio.create_subprocess_exec(
            *(*within, python),
            *("-m", module, *map(str, arguments)),
            stdout=subprocess.PIPE,
            stderr=log,
            env={**_environment(), "PYTHONPATH": path},
        )
        try:
            assert process.stdout is not None
            try:
                line = (await asyncio.wait_for(process.stdout.readline(), START_S)).decode()
            except TimeoutError:
                line = ""
            said = re.match(r"serving (?:HTTP )?on (\S+?):?(?=\s)(?:.*; metrics on (\S+)$)?", line)
            if said is None:
                log.seek(0)
                raise ServerError(f"{module} does not serve; it wrote:\n{line}{log.read()}".rstrip())
            yield Server(address=said[1], pid=process.pid, metrics=said[2] or "", process=process, log=log)
        finally:
            await _stop(process)


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Terminate a process, by force if necessary."""
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


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
