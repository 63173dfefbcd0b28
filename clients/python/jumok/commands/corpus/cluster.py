"""Jobs on a Ray cluster: tasks read files, and a pool of actors translates their blocks."""

import logging
import os
import pickle
import socket
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import ray
from ray.exceptions import AuthenticationError, RayActorError, RayError

from jumok.commands._line_requests import Runner
from jumok.commands._output import LongTexts
from jumok.commands.corpus.inputs import Source
from jumok.commands.corpus.job import Job
from jumok.commands.corpus.rows import CorpusError, Row
from jumok.commands.corpus.run import Progress, long_texts, row_errors, size_before, translated

BLOCKS_IN_TURN = 2
"""Blocks that an actor translates at the same time, so that the end of one leaves no slot of a batch empty."""
CONNECT_S = 10.0
"""Seconds in which a cluster must answer."""
_END = b""
"""Rows of the mark at the end of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A Ray cluster, and the share of it that a job takes.

    Attributes:
        address: address of the cluster; ``auto``: the running one; ``local``: one on this machine, for this job.
        actors: most actors; None: as many as there is room for.
        cpus: cores of each actor.
    """

    address: str
    actors: int | None
    cpus: int


@dataclass(frozen=True, slots=True)
class _Block:
    """A translated block, whose rows are in a file of the job's folder."""

    rows: int
    errors: list[dict[str, Any]]
    long: LongTexts
    models: set[tuple[str, str]]
    path: Path


def translate_on_cluster(
    job: Job, block_rows: int, progress: Progress, *, cluster: Cluster, open_runner: Callable[[], Runner]
) -> None:
    """Translate the unfinished rows of all sources, and finish their files.

    Machines of the cluster have the bundle, and a file system in common with sources and output. Blocks end in any
    order; a block whose actor dies is translated again. Ray shuts down with the process: threads of Ray Data that find
    it shut down let the process hang, or end it before its error is reported.

    Args:
        open_runner: opens the bundle in an actor.

    Raises:
        CorpusError: the cluster has no room, or a task failed.
    """
    done = job.unfinished_files()
    if not done:
        return
    # Actors have other working folders.
    found = [replace(source, path=source.path.resolve()) for source in job.sources]
    read_blocks = partial(_read_blocks, sources=found, block_rows=block_rows)
    try:
        _check_answers(cluster.address)
        ray.init(cluster.address, log_to_driver=False, logging_level="warning")
    except ConnectionError as error:
        raise CorpusError(
            f"no Ray cluster answers at {cluster.address}: start one, or give --ray local; one with tokens needs "
            "RAY_AUTH_MODE=token and its token"
        ) from error
    except ValueError as error:
        raise CorpusError(
            f"--ray {cluster.address} is no address: give HOST:PORT, auto or local; Ray says: {error}"
        ) from error
    except AuthenticationError as error:
        raise CorpusError(f"this process has no token for the Ray cluster at {cluster.address}: {error}") from error
    try:
        arguments = (open_runner, job.sources, job.folder.resolve(), block_rows)
        totals: dict[int, int] = {}
        progress.skip(job.joined_size)
        # Closed now: blocks that are closed after Ray's end would start another cluster.
        with closing(_translated_blocks(cluster, list(done.items()), read_blocks, arguments)) as blocks:
            for file, number, packed, skipped, size in blocks:
                if packed == _END:
                    totals[file] = number
                else:
                    block: _Block = pickle.loads(packed)  # noqa: S301 - of this job
                    for model in block.models:
                        job.check_model(*model)
                    job.add_block(file, number, block.errors, partial(os.replace, block.path))
                    progress.skip(skipped)
                    progress.show(block.rows, len(block.errors), size, block.long)
                    done[file] += 1
                if done[file] == totals.get(file):
                    job.join(file, totals[file])
    except RayError as error:
        raise CorpusError(f"a task on the cluster failed: {_cause(error)}") from error


def _check_answers(address: str) -> None:
    """Connect to the port of an address that has one; Ray itself tries for minutes.

    Raises:
        ConnectionError: no program answers there.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
        except OSError as error:
            raise ConnectionError(str(error)) from error


def _translated_blocks(
    cluster: Cluster,
    files: Sequence[tuple[int, int]],
    read: Callable[[pa.Table], Iterator[pa.Table]],
    arguments: tuple[object, ...],
) -> Generator[tuple[int, int, bytes, int, int], None, None]:
    """Yield each block, in any order, and the end of each file, as `_table` has them, with packed `_Block`.

    Args:
        files: files with their first blocks.
        read: reads the blocks of a file.
        arguments: arguments of `_Translate`.
    """
    room = int(ray.cluster_resources().get("CPU", 0) // cluster.cpus)
    if room < 1:
        raise CorpusError(
            f"the cluster at {cluster.address} has no room for an actor of {cluster.cpus} cores: lower --ray-cpus, or "
            "add machines"
        )
    context = ray.data.DataContext.get_current()
    logging.getLogger("ray.data").setLevel(logging.WARNING)  # the job reports its progress itself
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.target_max_block_size = 1  # bytes: each row, which is a block of the job, goes on alone
    actors = cluster.actors or room
    pool = ray.data.ActorPoolStrategy(
        min_size=1,
        max_size=actors,
        initial_size=min(actors, room),
        max_tasks_in_flight_per_actor=2 * BLOCKS_IN_TURN,
        max_concurrent_calls_per_actor=BLOCKS_IN_TURN,
        enable_true_multi_threading=True,
    )
    begun = [{"file": file, "number": number} for file, number in files]
    dataset = ray.data.from_items(begun, override_num_blocks=len(begun)).map_batches(
        read, batch_size=1, batch_format="pyarrow", num_cpus=0
    )
    translated_blocks = dataset.map_batches(
        _Translate,
        fn_constructor_args=arguments,
        batch_size=1,
        batch_format="pyarrow",
        compute=pool,
        num_cpus=cluster.cpus,
    )
    for row in translated_blocks.iter_rows():
        yield row["file"], row["number"], row["rows"], row["skipped"], row["size"]


def _table(file: int, number: int, rows: bytes, skipped: int, size: int) -> pa.Table:
    """Make a block of ``size`` bytes; ``skipped``: bytes before a file's first block, which earlier runs translated."""
    return pa.table({"file": [file], "number": [number], "rows": [rows], "skipped": [skipped], "size": [size]})


def _read_blocks(begun: pa.Table, sources: Sequence[Source], block_rows: int) -> Iterator[pa.Table]:
    """Read the blocks of a file from a number on, then the mark of its end."""
    (item,) = begun.to_pylist()
    file, number, position = item["file"], item["number"], None
    rows = sources[file].format.read(sources[file].path, number * block_rows)
    while block := list(islice(rows, block_rows)):
        skipped = size_before(number, block[0]) if position is None else 0
        position = position or skipped
        yield _table(file, number, pickle.dumps(block), skipped, block[-1].position - position)
        number, position = number + 1, block[-1].position
    yield _table(file, number, _END, 0, 0)


class _Translate:
    """Actor that translates blocks into files of the job's folder."""

    def __init__(
        self, open_runner: Callable[[], Runner], sources: Sequence[Source], folder: Path, block_rows: int
    ) -> None:
        self._runner = open_runner()
        self._sources = sources
        self._folder = folder
        self._block_rows = block_rows

    def __call__(self, batch: pa.Table) -> pa.Table:
        (item,) = batch.to_pylist()
        file, number = item["file"], item["number"]
        if item["rows"] == _END:
            return batch
        rows: list[Row] = pickle.loads(item["rows"])  # noqa: S301 - of this job
        models: set[tuple[str, str]] = set()
        done = list(translated(((file, row) for row in rows), lambda *model: models.add(model), self._runner))
        path = self._folder / f"{file:06}-{number:08}.{uuid4().hex}"
        self._sources[file].format.write(path, done)
        errors = row_errors(self._sources[file], done, first_row=number * self._block_rows + 1)
        block = _Block(len(rows), errors, long_texts(done), models, path)
        return _table(file, number, pickle.dumps(block), item["skipped"], item["size"])


def _cause(error: RayError) -> str:
    """Return the cause at the other end, without tracebacks."""
    lines = str(error).strip().splitlines()
    if not isinstance(error, RayActorError) or error.actor_init_failed:
        frames = (index for index, line in enumerate(lines) if line[:1].isspace())
        cause = " ".join(lines[max(frames, default=-1) + 1 :]) or lines[-1].strip()
        return cause.removeprefix(f"{CorpusError.__module__}.{CorpusError.__name__}: ")
    cause = " ".join(line.strip() for line in lines if not line[:1].isspace())
    if os.environ.get("RAY_AUTH_MODE", "").lower() == "token":  # Ray sets it, too
        cause += " RAY_AUTH_MODE is 'token' in this process: if the cluster has no tokens, set RAY_AUTH_MODE=disabled"
    return cause
