"""The loop of a job: rows are read, translated in one stream, and written in blocks."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

import click

from jumok.commands._line_requests import InputError, Line
from jumok.commands._output import NONE_LONG, LongTexts
from jumok.commands._runners import Outcome, Runner
from jumok.commands.corpus.inputs import Source
from jumok.commands.corpus.job import Job
from jumok.commands.corpus.rows import Result, Row

Translate: TypeAlias = Callable[[Job, Sequence[Source], int, "Progress"], None]
"""Translates the unfinished rows of a job's sources, in blocks of a number of rows."""


@dataclass(frozen=True, slots=True)
class Done:
    """A row of a file with its result, or the reason why it has none."""

    file: int
    row: Row
    result: Result | None
    reason: str
    long: LongTexts


def run_job(
    job: Job,
    settings: Mapping[str, Any],
    sources: Sequence[Source],
    translate: Translate,
    *,
    block_rows: int,
) -> bool:
    """Begin or continue a job, and finish it.

    Args:
        settings: all that the output depends on beside the sources and the size of blocks, as JSON.
        translate: translates the unfinished rows of all sources, and finishes their files.
        block_rows: rows of each block; the last of a file may have fewer.

    Returns:
        True unless no row could be translated.

    Raises:
        CorpusError: the job cannot begin or go on.
    """
    files = [(str(source.path.resolve()), source.size, source.changed_ns) for source in sources]
    with job.opened({**settings, "block_rows": block_rows, "files": files}):
        if job.finished_blocks():
            click.echo(f"going on with {job.folder}", err=True)
        progress = Progress(sum(source.size for source in sources))
        if not job.is_published:
            translate(job, sources, block_rows, progress)
        bad = job.publish()
    progress.long.warn(str(job.out))
    end = f"{bad} bad rows in {job.errors}" if bad else "no bad rows"
    click.echo(f"{job.out}: {progress.rows} rows in this run; {end}", err=True)
    return job.translated_any or not bad


def translate_here(
    job: Job,
    sources: Sequence[Source],
    block_rows: int,
    progress: "Progress",
    *,
    open_runner: Callable[[], AbstractContextManager[Runner]],
) -> None:
    """Translate the unfinished rows of all sources in one stream, and finish their files."""
    finished = job.finished_blocks()
    open_files = [file for file in range(len(sources)) if not job.is_joined(file)]
    progress.skip(joined_size(job, sources))

    def rows() -> Iterator[tuple[int, Row]]:
        for file in open_files:
            for row in sources[file].format.read(sources[file].path, finished.get(file, 0) * block_rows):
                yield file, row

    with open_runner() as runner, closing(translated(rows(), job.check_model, runner)) as done:
        upcoming = next(done, None)
        for file in open_files:
            number, position = finished.get(file, 0), None
            while upcoming is not None and upcoming.file == file:
                block: list[Done] = []
                while upcoming is not None and upcoming.file == file and len(block) < block_rows:
                    block.append(upcoming)
                    upcoming = next(done, None)
                _finish_block(job, sources[file], file, number, block, first_row=number * block_rows + 1)
                bad = sum(row.result is None for row in block)
                if position is None:
                    position = size_before(number, block[0].row)
                    progress.skip(position)
                progress.show(len(block), bad, block[-1].row.position - position, long_texts(block))
                position = block[-1].row.position
                number += 1
            job.join(file, number, partial(sources[file].format.join, sources[file].path))


def joined_size(job: Job, sources: Sequence[Source]) -> int:
    """Return the bytes of the files that are finished."""
    return sum(source.size for file, source in enumerate(sources) if job.is_joined(file))


def size_before(number: int, row: Row) -> int:
    """Return the bytes of a file before the block of a number, which begins with the row; one row counts little."""
    return row.position if number else 0


def translated(
    rows: Iterable[tuple[int, Row]], check_model: Callable[[str, str], None], runner: Runner
) -> Generator[Done, None, None]:
    """Translate rows of files in one stream.

    Args:
        check_model: called with name and version of the model of each translation.
    """
    sent: deque[tuple[int, Row]] = deque()

    def lines() -> Iterator[Line]:
        for file, row in rows:
            sent.append((file, row))
            yield row.line

    with closing(runner(lines())) as outcomes:
        for line, outcome in outcomes:
            file, row = sent.popleft()
            yield Done(file, row, _result(outcome, check_model), _reason(outcome, line), _long_texts(outcome))


def _result(outcome: Outcome, check_model: Callable[[str, str], None]) -> Result | None:
    """Return the parts of a translation that are written; the rest would fill memory."""
    if isinstance(outcome, InputError):
        return None
    check_model(outcome.model, outcome.model_version)
    hypotheses = outcome.hypotheses
    return tuple(each.text for each in hypotheses), tuple(each.score for each in hypotheses)


def _reason(outcome: Outcome, line: Line) -> str:
    return str(outcome).removeprefix(f"{line.name}: ") if isinstance(outcome, InputError) else ""


def _long_texts(outcome: Outcome) -> LongTexts:
    if isinstance(outcome, InputError):
        return NONE_LONG
    return LongTexts(len(outcome.cut_sentences), outcome.source_truncated)


def long_texts(block: Sequence[Done]) -> LongTexts:
    """Return the numbers of a block's rows that were too long for the model."""
    return LongTexts(sum(done.long.cut_sentences for done in block), sum(done.long.truncated for done in block))


def _finish_block(job: Job, source: Source, file: int, number: int, block: Sequence[Done], *, first_row: int) -> None:
    written = [(done.row, done.result) for done in block]
    job.add_block(
        file, number, row_errors(source, block, first_row=first_row), lambda path: source.format.write(path, written)
    )


def row_errors(source: Source, block: Sequence[Done], *, first_row: int) -> list[dict[str, Any]]:
    """Return a JSON object for each bad row of a block."""
    return [
        {"file": str(source.path), "row": row, "reason": done.reason}
        for row, done in enumerate(block, start=first_row)
        if done.result is None
    ]


class Progress:
    """A line on standard error for each finished block, with the rate and an estimate of the rest.

    Args:
        size: bytes of all files.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._began = time.monotonic()
        self._skipped = 0
        self._done = 0
        self.rows = 0
        self.bad = 0
        self.long = NONE_LONG

    def skip(self, size: int) -> None:
        """Count bytes that earlier runs have translated."""
        self._skipped += size

    def show(self, rows: int, bad: int, size: int, long: LongTexts = NONE_LONG) -> None:
        """Report a finished block.

        Args:
            rows, bad: numbers of rows, and of bad ones.
            size: bytes of its rows in the file.
            long: texts that were too long for the model.
        """
        self.long = LongTexts(self.long.cut_sentences + long.cut_sentences, self.long.truncated + long.truncated)
        self.rows += rows
        self.bad += bad
        self._done += size
        elapsed_s = max(time.monotonic() - self._began, 1e-6)
        behind = self._skipped + self._done
        share = behind / self._size
        if self._done:
            left_s = elapsed_s * (self._size - behind) / self._done
            left = f"about {timedelta(seconds=round(left_s))} left"
        else:  # a compressed file that is read at once
            left = "time left unknown"
        click.echo(
            f"{self.rows} rows, {self.bad} bad, {self.rows / elapsed_s:.0f} rows/s, {share:.0%}, {left}", err=True
        )
