"""Formats with a row on each line: text and JSONL, plain or compressed with gzip."""

import gzip
import json
import shutil
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

from jumok.commands._line_requests import Line, read_lines
from jumok.commands._output import one_line
from jumok.commands.corpus.rows import NO_CONTENT, Block, Columns, CorpusError, Result, Row, as_line

JSON_SPACE = " \t\r\n"


@dataclass(frozen=True)
class TextFormat:
    """Lines of text; a bad row gives an empty line.

    Attributes:
        compressed: True to compress output with gzip; input is recognized by its first bytes.
    """

    compressed: bool

    def check(self, path: Path) -> None:
        """Every file of bytes has lines."""

    def read(self, path: Path, skip: int) -> Iterator[Row]:
        """Read lines."""
        for line, position in _lines(path, skip):
            bad = not line.problem and not line.text.strip()
            yield Row(replace(line, text="", problem=NO_CONTENT) if bad else line, None, position)

    def write(self, path: Path, block: Block) -> None:
        """Write the best translations."""
        _write(path, "".join(_text_line(row.line, result) for row, result in block), self.compressed)

    def join(self, source: Path, blocks: Sequence[Path], out: Path) -> None:
        """Join lines."""
        _join(blocks, out, self.compressed)


@dataclass(frozen=True)
class JsonLinesFormat:
    """One JSON object on each line, which is kept as it is but for the added columns.

    A line that is no object gives an object with the added columns alone, all null.

    Attributes:
        columns: names of columns.
        compressed: as in ``TextFormat``.
    """

    columns: Columns
    compressed: bool

    def check(self, path: Path) -> None:
        """Any line may have the column."""

    def read(self, path: Path, skip: int) -> Iterator[Row]:
        """Read objects; records are the lines of objects, without the closing brace."""
        for line, position in _lines(path, skip):
            yield self._row(line, position)

    def _row(self, line: Line, position: int) -> Row:
        if line.problem:
            return Row(line, None, position)
        if not line.text.strip():
            return Row(replace(line, text="", problem=NO_CONTENT), None, position)
        try:
            found = json.loads(line.text)
        except (ValueError, RecursionError) as error:
            return Row(replace(line, text="", problem=f"is not JSON: {error}"), None, position)
        if not isinstance(found, dict):
            return Row(replace(line, text="", problem="is not a JSON object"), None, position)
        self.columns.check_free(list(found), line.name)
        record = line.text.rstrip(JSON_SPACE)[:-1] + (", " if found else "")
        column = self.columns.text
        if column not in found:
            listing = ", ".join(found) or "none"
            problem = f"has no column {column!r}; it has: {listing}"
            return Row(replace(line, text="", problem=problem), record, position)
        return Row(as_line(found[column], line.name, column), record, position)

    def write(self, path: Path, block: Block) -> None:
        """Write objects with the added columns."""
        lines = (self._line(row.record, result) for row, result in block)
        _write(path, "".join(f"{line}\n" for line in lines), self.compressed)

    def _line(self, record: str | None, result: Result | None) -> str:
        added = json.dumps(self.columns.values(result), ensure_ascii=False)
        return added if record is None else record + added.removeprefix("{")

    def join(self, source: Path, blocks: Sequence[Path], out: Path) -> None:
        """Join lines."""
        _join(blocks, out, self.compressed)


def _text_line(line: Line, result: Result | None) -> str:
    text = "" if result is None else one_line(result[0][0])
    return f"{text}\r\n" if line.carriage_return else f"{text}\n"


def _lines(path: Path, skip: int) -> Iterator[tuple[Line, int]]:
    """Read lines, and the position in the file after each; without the first ``skip``."""
    with path.open("rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        stream = cast("BinaryIO", gzip.GzipFile(fileobj=file)) if compressed else file
        try:
            position = 0
            for number, line in enumerate(read_lines(stream, str(path))):
                position = file.tell() if compressed else position + line.size
                if number >= skip:
                    yield line, position
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise CorpusError(f"{path} is damaged or cut off: {error}; compress it again, and start anew") from error


def _write(path: Path, text: str, compressed: bool) -> None:
    # A lone surrogate can only occur in a translation, which Python escapes in this way.
    data = text.encode(errors="backslashreplace")
    path.write_bytes(gzip.compress(data, mtime=0) if compressed else data)


def _join(blocks: Sequence[Path], out: Path, compressed: bool) -> None:
    """Join files; members of gzip files make a gzip file."""
    with out.open("wb") as joined:
        for block in blocks:
            with block.open("rb") as part:
                shutil.copyfileobj(part, joined, 2**20)
        if compressed and not blocks:
            joined.write(gzip.compress(b"", mtime=0))
