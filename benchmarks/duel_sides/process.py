"""Contenders, and the processes that they run in."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from duel_sides.worker import Task, Turn

SETTLE_S = 0.25
"""After every turn, so that threads which spin for a while in case there is more to do have gone to sleep."""

FOREIGN = ("CT2_", "GOMP_", "KMP_", "MKL_", "OMP_", "ONEDNN_")
"""Beginnings of variables that would set up some contender behind the duel's back."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A program that translates, with its settings.

    Attributes:
        name: for people.
        module: what is run in its process.
        arguments: its command line.
        size: bytes of its model on disk.
        environment: variables that are set for it.
    """

    name: str
    module: str
    arguments: tuple[str, ...]
    size: int
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)


class Process:
    """A contender's process; it begins with ``with`` and sleeps between its turns.

    Args:
        contender: what runs in it.

    Attributes:
        contender: likewise.
        peak: bytes, the most that it has had in memory until the end of its last turn.
    """

    def __init__(self, contender: Contender) -> None:
        self.contender = contender
        self.peak = 0

    def __enter__(self) -> Self:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-m", self.contender.module, *self.contender.arguments],
            cwd=Path(__file__).parents[1],
            env={**kept, **self.contender.environment},
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
            print(json.dumps(asdict(task)), file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self._process.wait()
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip()
            raise ChildProcessError(f"{self.contender.name} has failed:\n{said[-4000:]}")
        turn = Turn(**json.loads(answer))
        self.peak = turn.peak
        time.sleep(SETTLE_S)
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
