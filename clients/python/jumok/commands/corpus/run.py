"""The loop of a job: rows are read, translated in one stream, and written in blocks."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from datetime import timedelta
from functools import partial
from itertools import groupby, islice
from typing import Any, TypeAlias

import click

from jumok.commands._line_requests import InputError, Line, Runner
from jumok.commands._output import NONE_LONG, LongTexts
from jumok.commands.corpus.inputs import Source
from jumok.commands.corpus.job import Job
from jumok.commands.corpus.rows import Block, Done, Row

Translate: TypeAlias = Callable[[Job, int, "Progress"], None]
"""Translates the unfinished rows of a job's sources, in blocks of a number of rows."""


def run_job(job: Job, settings: Mapping[str, Any], translate: Translate, *, block_rows: int) -> bool:
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
    with job.opened({**settings, "block_rows": block_rows}):
        if job.finished_blocks():
            click.echo(f"going on with {job.folder}", err=True)
        progress = Progress(sum(source.size for source in job.sources))
        if not job.is_published:
            translate(job, block_rows, progress)
        bad = job.publish()
    progress.long.warn(str(job.out))
    end = f"{bad} bad rows in {job.errors}" if bad else "no bad rows"
    click.echo(f"{job.out}: {progress.rows} rows in this run; {end}", err=True)
    return job.translated_any or not bad


def translate_here(
    job: Job,
    block_rows: int,
    progress: "Progress",
    *,
    open_runner: Callable[[], AbstractContextManager[Runner]],
) -> None:
    """Translate the unfinished rows of all sources in one stream, and finish their files."""
    unfinished = job.unfinished_files()
    progress.skip(job.joined_size)

    def rows() -> Iterator[tuple[int, Row]]:
        for file, blocks in [*unfinished.items()]:
            source = job.sources[file]
            for row in source.format.read(source.path, blocks * block_rows):
                yield file, row

    with open_runner() as runner, closing(translated(rows(), job.check_model, runner)) as all_done:
        for file, done in groupby(all_done, key=lambda row: row.file):
            source, number, position = job.sources[file], unfinished.pop(file), None
            while block := list(islice(done, block_rows)):
                errors = row_errors(source, block, first_row=number * block_rows + 1)
                job.add_block(file, number, errors, partial(source.format.write, block=block))
                if position is None:
                    position = size_before(number, block[0].row)
                    progress.skip(position)
                progress.show(len(block), len(errors), block[-1].row.position - position, long_texts(block))
                position = block[-1].row.position
                number += 1
            job.join(file, number)
    for file, number in unfinished.items():  # without further rows
        job.join(file, number)


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
            if isinstance(outcome, InputError):
                yield Done(file, row, None, str(outcome).removeprefix(f"{line.name}: "))
                continue
            check_model(outcome.model, outcome.model_version)
            hypotheses = outcome.hypotheses  # all that is written; the rest would fill memory
            result = tuple(each.text for each in hypotheses), tuple(each.score for each in hypotheses)
            yield Done(file, row, result, long=LongTexts(len(outcome.cut_sentences), outcome.source_truncated))


def long_texts(block: Block) -> LongTexts:
    """Return the numbers of a block's rows that were too long for the model."""
    return LongTexts(sum(done.long.cut_sentences for done in block), sum(done.long.truncated for done in block))


def row_errors(source: Source, block: Block, *, first_row: int) -> list[dict[str, Any]]:
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
