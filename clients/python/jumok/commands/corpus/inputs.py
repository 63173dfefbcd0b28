"""The files of a job: found, named, and their formats recognized."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

import click

from jumok.commands.corpus.rows import Columns, CorpusError, Format, JsonLinesFormat, TextFormat

FORMATS = ("text", "jsonl", "parquet")
_BY_SUFFIX = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
_UNREADABLE = frozenset(
    f".{end}" for end in ("json", "csv", "tsv", "zip", "bz2", "xz", "zst", "orc", "avro", "arrow", "feather", "xlsx")
)
"""Ends of the names of files that are no lines of text."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file of a job.

    Attributes:
        path: the file.
        name: path of its output in the job's output.
        format: its format.
        size: bytes.
        changed_ns: time of its last change, in nanoseconds.
    """

    path: Path
    name: PurePath
    format: Format
    size: int
    changed_ns: int


def find_sources(inputs: Sequence[Path], out: Path, format_name: str | None, columns: Columns) -> list[Source]:
    """Find the files of a job, in the order of their output.

    Files of a folder come in the order of their names; hidden ones, and names that begin with ``_``, are left out.

    Raises:
        CorpusError: there is no file, a format is unknown, two outputs had one name, or a file cannot be translated.
    """
    if is_one_file(inputs):
        named = [(inputs[0], PurePath(out.name))]
    else:
        named = [pair for path in inputs for pair in _named(path, out)]
    if not named:
        raise CorpusError(f"{inputs[0]} has no files: give a folder with files to translate")
    counts = Counter(name for _, name in named)
    if twice := next((name for name, count in counts.items() if count > 1), None):
        raise CorpusError(f"two files are named {twice}, and so would be their outputs: translate them one by one")
    return [_source(path, name, format_name, columns) for path, name in named]


def is_one_file(inputs: Sequence[Path]) -> bool:
    """True if the output of inputs is a file, and not a folder."""
    return len(inputs) == 1 and not inputs[0].is_dir()


def _named(path: Path, out: Path) -> list[tuple[Path, PurePath]]:
    """List the files of a path, each with the name of its output."""
    if not path.is_dir():
        return [(path, PurePath(path.name))]
    if out.resolve().is_relative_to(path.resolve()):
        raise CorpusError(f"--out {out} is in the folder {path}, whose files are read: choose another")
    files = sorted(file for file in path.rglob("*") if file.is_file())
    relative = [(file, PurePath(file.relative_to(path))) for file in files]
    return [(file, name) for file, name in relative if not any(part.startswith((".", "_")) for part in name.parts)]


def _source(path: Path, name: PurePath, format_name: str | None, columns: Columns) -> Source:
    if not path.is_file():
        raise CorpusError(f"{path} is no regular file: jobs read their input again when they are resumed")
    own, written = (format_name or _format_of(each) for each in (path, name))
    if written != own:
        raise CorpusError(f"--out {name} names a file of {written}, but {path} is {own}: the format stays")
    if own == "text" and (columns.several or columns.score is not None):
        raise click.UsageError(f"--num-hypotheses and --score-column need columns, and {path} is text: use JSONL")
    state = path.stat()
    source = Source(path, name, _make_format(own, name, columns), state.st_size, state.st_mtime_ns)
    source.format.check(path)
    return source


def _format_of(path: PurePath) -> str:
    suffix = (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower()
    if suffix in _UNREADABLE:
        raise CorpusError(f"{path} has the format {suffix}: convert it to JSONL or Parquet, or give its --format")
    return _BY_SUFFIX.get(suffix, "text")


def _make_format(format_name: str, name: PurePath, columns: Columns) -> Format:
    compressed = name.suffix == ".gz"
    if format_name == "parquet":
        from jumok.commands.corpus.parquet import ParquetFormat  # noqa: PLC0415 - needs pyarrow, an extra

        return ParquetFormat(columns)
    return JsonLinesFormat(compressed, columns) if format_name == "jsonl" else TextFormat(compressed)
