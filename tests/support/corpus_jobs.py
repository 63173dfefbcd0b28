"""Jobs of ``jumok translate-corpus`` that need no model, and their end at any moment.

As a program, ``corpus_jobs.py OUT IN...`` kills a job with SIGKILL at each change that it makes on disk, and lets it go
on; prints the number of kills.
"""

import os
import signal
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from jumok.commands._line_requests import InputError, Line, Outcome, answer_lines
from jumok.commands.corpus.inputs import find_sources, is_one_file
from jumok.commands.corpus.job import Job
from jumok.commands.corpus.rows import Columns
from jumok.commands.corpus.run import run_job, translate_here
from jumok_proto.results import FinishReason, Hypothesis, Translation

COLUMNS = Columns(text="text", translation="translation", score=None, several=False)
BLOCK_ROWS = 3
CHANGES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate"}
"""Audit events of Python; ``open`` counts for writing alone."""
ENDED = 3
"""Exit code of a process whose job ended before the kill."""


def translation(*texts: str, version: str = "1") -> Translation:
    """A translation with hypotheses; their scores are -1, -2 and so on."""
    hypotheses = tuple(
        Hypothesis(
            text=text,
            score=-float(rank),
            tokens=("x",),
            token_ids=(5,),
            token_scores=(-float(rank),),
            finish_reason=FinishReason.EOS,
        )
        for rank, text in enumerate(texts, start=1)
    )
    return Translation(
        hypotheses=hypotheses,
        source_language="en",
        target_language="de",
        source_token_count=1,
        source_truncated=False,
        model="tiny",
        model_version=version,
    )


def in_capitals(texts: list[str]) -> list[Translation]:
    """The translations of texts, which are the texts in capitals."""
    return [translation(text.upper()) for text in texts]


def at_once(lines: Iterable[Line]) -> Generator[tuple[Line, Outcome], None, None]:
    """A runner without threads: a process that makes threads should not be forked."""
    for line in lines:
        outcome = InputError(f"{line.name}: {line.problem}") if line.problem else translation(line.text.upper())
        yield line, outcome


in_threads = partial(answer_lines, request=in_capitals, retry_s=1.0)
"""The runner of a bundle, with its threads."""


def run(
    out: Path,
    *inputs: Path,
    runner: Any = in_threads,
    columns: Columns = COLUMNS,
    settings: dict[str, Any] | None = None,
    block_rows: int = BLOCK_ROWS,
    format_name: str | None = None,
) -> bool:
    """Run a job to its end."""
    sources = find_sources(inputs, out, format_name, columns)
    job = Job(out, sources, is_file=is_one_file(inputs))
    translate = partial(translate_here, open_runner=lambda: nullcontext(runner))
    return run_job(job, settings or {}, translate, block_rows=block_rows)


def _killed_at(change: int, work: Callable[[], object]) -> bool:
    """Fork a process that works and is killed at its n-th change on disk; returns False if it ended before."""
    child = os.fork()
    if not child:
        left = change

        def count(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal left
            reads = event == "open" and not (arguments[2] & (os.O_WRONLY | os.O_RDWR))
            if event in CHANGES and not reads:
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        work()
        os._exit(ENDED)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.waitstatus_to_exitcode(status) == ENDED
    return False


def main() -> None:
    """Kill a job once at each change, each time in a new output, and let it go on to its end."""
    out, inputs = Path(sys.argv[1]), [Path(argument) for argument in sys.argv[2:]]
    change = 0
    while True:
        here = out.with_name(f"{change}-{out.name}")
        work = partial(run, here, *inputs, runner=at_once)
        killed = _killed_at(change, work)
        if killed:
            change += 1
            unfinished = here.with_name(f"{here.name}.unfinished")
            if not here.exists() or (unfinished.exists() and any(unfinished.iterdir())):
                work()
        else:
            break
    print(change)


if __name__ == "__main__":
    main()
