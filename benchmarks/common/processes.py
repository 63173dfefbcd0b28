"""Contenders, and the processes that their programs run in."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.contenders.worker import Task, Turn

SETTLE_S = 0.25
"""After every turn, so that threads which spin for a while in case there is more to do have gone to sleep."""

FOREIGN = ("CT2_", "GOMP_", "KMP_", "MKL_", "OMP_", "ONEDNN_")
"""Beginnings of variables that would set up some contender behind the duel's back."""


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
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-m", self.program.module, *self.program.arguments],
            cwd=Path(__file__).parents[2],
            env={**kept, **self.program.environment},
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
