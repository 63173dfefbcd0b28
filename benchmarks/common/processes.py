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

from benchmarks.contenders.worker import Task, Turn

ROOT = Path(__file__).parents[2]
SETTLE_S = 0.25
"""After every turn, so that threads which spin for a while in case there is more to do have gone to sleep."""

FOREIGN = ("CT2_", "GOMP_", "KMP_", "MKL_", "OMP_", "ONEDNN_")
"""Beginnings of variables that would set up some contender behind the duel's back."""


START_S = 120.0
STOP_S = 10.0
_CPUCLOCK_SCHED = 2
"""With this and a process' id Linux makes the number of its clock, as clock_getcpuclockid(3) tells it."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """What runs in a process.

    Attributes:
        name: for people.
        module: that is run.
        arguments: its command line.
        environment: variables that are set for it.
    """

    name: str
    module: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A program that translates, with all that there is to set.

    Attributes:
        program: that it is.
        size: bytes of its model on disk.
        batch_size: of what it is told to translate together; 0: as ``Task`` has it.
        batch_type: "examples" or "tokens".
        beyond: it plays cells of more sentences only; in others its batches would be those of another contender.
    """

    program: Program
    size: int
    batch_size: int = 0
    batch_type: str = "examples"
    beyond: int = 0

    @property
    def name(self) -> str:
        """For people: the program's, and its batches where these are set."""
        unit = "sentences" if self.batch_type == "examples" else self.batch_type
        return f"{self.program.name} of {self.batch_size} {unit}" if self.batch_size else self.program.name

    def task(self, task: Task) -> Task:
        """A task for it."""
        return replace(task, batch_size=self.batch_size, batch_type=self.batch_type)


class Process:
    """A program's process; it begins with ``with``, and is stopped between its turns: waiting threads may spin.

    Args:
        program: what runs in it.
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
        """One turn, and the time that it takes to settle.

        Raises:
            ChildProcessError: the process has failed; with what it said last.
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
    module: str, *arguments: str | Path, within: Sequence[str] = (), checkout: Path = ROOT, python: str = sys.executable
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


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
