"""Jobs of ``jumok translate-corpus --ray`` that need no model.

As a program, ``ray_jobs.py ADDRESS OUT BLOCKS IN...`` runs a job that is killed with SIGKILL after BLOCKS blocks.
"""

import os
import signal
import sys
from collections.abc import Callable, Generator, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from jumok.commands._line_requests import Line
from jumok.commands._runners import Outcome, Runner
from jumok.commands.corpus.cluster import Cluster, translate_on_cluster
from jumok.commands.corpus.inputs import find_sources, is_one_file
from jumok.commands.corpus.job import Job
from jumok.commands.corpus.run import run_job
from tests.support.corpus_jobs import BLOCK_ROWS, COLUMNS, at_once, in_threads


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


def run(
    address: str,
    out: Path,
    *inputs: Path,
    open_runner: Callable[[], Runner] = in_capitals,
    cpus: int = 1,
    make_job: type[Job] = Job,
) -> bool:
    """Run a job to its end on a cluster."""
    sources = find_sources(inputs, out, None, COLUMNS)
    job = make_job(out, [source.name for source in sources], is_file=is_one_file(inputs))
    cluster = Cluster(address=address, actors=None, cpus=cpus)
    translate = partial(translate_on_cluster, cluster=cluster, open_runner=open_runner)
    return run_job(job, {}, sources, translate, block_rows=BLOCK_ROWS)


class _KilledJob(Job):
    """A job that is killed after some blocks."""

    left = 0

    def add_block(self, *arguments: Any) -> None:
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1
        super().add_block(*arguments)


def main() -> None:
    """Run a job that is killed."""
    address, out, blocks, *inputs = sys.argv[1:]
    _KilledJob.left = int(blocks)
    run(address, Path(out), *map(Path, inputs), make_job=_KilledJob)


if __name__ == "__main__":
    main()
