"""Parallel text: files of source and target sentences, one per line, plain or gzip."""

import gzip
import zlib
from pathlib import Path

from jumok_proto.errors import JumokError


class CorpusError(JumokError, ValueError):
    """A file is not parallel text; the message says which one and why."""


def read_lines(path: Path) -> list[str]:
    """Read the lines of a UTF-8 file; decompresses .gz files.

    Raises:
        CorpusError: the file cannot be read, or a line is not UTF-8.
    """
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise CorpusError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    lines = []
    for number, line in enumerate(data.removesuffix(b"\n").split(b"\n") if data else (), start=1):
        try:
            lines.append(line.removesuffix(b"\r").decode("utf-8"))
        except UnicodeDecodeError as error:
            place = f"{path}, line {number}, byte {error.start + 1}"
            raise CorpusError(f"{place}: 0x{line[error.start]:02x} is not UTF-8; convert the file") from error
    return lines


def read_parallel(source: Path, target: Path) -> tuple[list[str], list[str]]:
    """Read two files with equal numbers of lines, not 0.

    Raises:
        CorpusError: the numbers differ or are 0.
    """
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise CorpusError(
            f"{source} has {len(sources)} lines and {target} has {len(targets)}: line n of one must be the "
            "translation of line n of the other"
        )
    if not sources:
        raise CorpusError(f"{source} has no lines")
    return sources, targets
