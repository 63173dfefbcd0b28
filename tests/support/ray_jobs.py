"""Jobs of ``jumok translate-corpus --ray`` that need no model.

As a program, ``ray_jobs.py ADDRESS OUT BLOCKS IN...`` runs a job that is killed with SIGKILL after BLOCKS blocks. If
BLOCKS is ``unequal``, the job fails, as its machines have two versions of the model.
"""

import os
import signal
import sys
from collections.abc import Callable, Generator, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import ray

from jumok.commands._line_requests import Line, Outcome, Runner
from jumok.commands.corpus.cluster import Cluster, translate_on_cluster
from jumok.commands.corpus.inputs import find_sources, is_one_file
from jumok.commands.corpus.job import Job
from jumok.commands.corpus.run import run_job
from tests.support.corpus_jobs import BLOCK_ROWS, COLUMNS, at_once, in_threads, translation


def in_capitals() -> Runner:
    """Open the runner of a bundle that translates into capitals."""
    return in_threads


def dying(mark: Path) -> Runner:
    """Open a runner whose process is killed once, in the middle of a block; ``mark`` is a file that it makes."""

    def translate(lines: Iterable[Line]) -> Generator[tuple[Line, Outcome], None, None]:
        for number, outcome in enumerate(at_once(lines)):
            if number == 1 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield outcome

    return translate


def failing() -> Runner:
    """Fail to open a bundle."""
    raise FileNotFoundError("/models/en-de: no such bundle on this machine")


def of_two_versions(lines: Iterable[Line]) -> Generator[tuple[Line, Outcome], None, None]:
    """Translate with another version of the model from one file, as on a machine with another bundle."""
    for line in lines:
        yield line, translation(line.text, version="2" if line.text.startswith("row") else "1")


def unequal() -> Runner:
    """Open a runner of a model that is not the same everywhere."""
    return of_two_versions


def _run(
    address: str,
    out: Path,
    *inputs: Path,
    open_runner: Callable[[], Runner] = in_capitals,
    cpus: int = 1,
    make_job: type[Job] = Job,
) -> bool:
    """Run a job to its end on a cluster, as in a process of its own."""
    sources = find_sources(inputs, out, None, COLUMNS)
    job = make_job(out, sources, is_file=is_one_file(inputs))
    cluster = Cluster(address=address, actors=None, cpus=cpus)
    translate = partial(translate_on_cluster, cluster=cluster, open_runner=open_runner)
    return run_job(job, {}, translate, block_rows=BLOCK_ROWS)


def run(address: str, out: Path, *inputs: Path, **options: Any) -> bool:
    """Run a job to its end on a cluster, and leave the cluster."""
    try:
        return _run(address, out, *inputs, **options)
    finally:
        ray.shutdown()


class _KilledJob(Job):
    """A job that is killed after some blocks."""

    left = 0

    def add_block(self, *arguments: Any) -> None:
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1
        super().add_block(*arguments)


def main() -> None:
    """Run a job that is killed or fails."""
    address, out, blocks, *inputs = sys.argv[1:]
    if blocks == "unequal":
        _run(address, Path(out), *map(Path, inputs), open_runner=unequal)
    else:
        _KilledJob.left = int(blocks)
        _run(address, Path(out), *map(Path, inputs), make_job=_KilledJob)


if __name__ == "__main__":
    main()
