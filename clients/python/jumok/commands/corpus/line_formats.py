"""Formats with a row on each line: text and JSONL, plain or compressed with gzip."""

import gzip
import json
import shutil
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

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
        with path.open("rb") as file:
            compressed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            stream = cast("BinaryIO", gzip.GzipFile(fileobj=file)) if compressed else file
            try:
                position = 0
                for number, line in enumerate(read_lines(stream, str(path))):
                    position = file.tell() if compressed else position + line.size
                    if number >= skip:
                        yield Row(*self._parsed(line), position)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise CorpusError(
                    f"{path} is damaged or cut off: {error}; compress it again, and start anew"
                ) from error

    def _parsed(self, line: Line) -> tuple[Line, Any]:
        """Return the text of a line that was read, and its record."""
        bad = not line.problem and not line.text.strip()
        return replace(line, text="", problem=NO_CONTENT) if bad else line, None

    def write(self, path: Path, block: Block) -> None:
        """Write the lines of a block."""
        # A lone surrogate can only occur in a translation, which Python escapes in this way.
        data = "".join(self._written(done.row, done.result) for done in block).encode(errors="backslashreplace")
        path.write_bytes(gzip.compress(data, mtime=0) if self.compressed else data)

    def _written(self, row: Row, result: Result | None) -> str:
        text = "" if result is None else one_line(result[0][0])
        return f"{text}\r\n" if row.line.carriage_return else f"{text}\n"

    def join(self, source: Path, blocks: Sequence[Path], out: Path) -> None:
        """Join files; members of gzip files make a gzip file."""
        with out.open("wb") as joined:
            for block in blocks:
                with block.open("rb") as part:
                    shutil.copyfileobj(part, joined, 2**20)
            if self.compressed and not blocks:
                joined.write(gzip.compress(b"", mtime=0))


@dataclass(frozen=True)
class JsonLinesFormat(TextFormat):
    """One JSON object on each line, which is kept as it is but for the added columns.

    A line that is no object gives an object with the added columns alone, all null. Records are the lines of objects,
    without the closing brace.

    Attributes:
        columns: names of columns.
    """

    columns: Columns

    def _parsed(self, line: Line) -> tuple[Line, str | None]:
        line, _ = super()._parsed(line)
        if line.problem:
            return line, None
        try:
            found = json.loads(line.text)
        except (ValueError, RecursionError) as error:
            return replace(line, text="", problem=f"is not JSON: {error}"), None
        if not isinstance(found, dict):
            return replace(line, text="", problem="is not a JSON object"), None
        self.columns.check_free(list(found), line.name)
        record = line.text.rstrip(JSON_SPACE)[:-1] + (", " if found else "")
        column = self.columns.text
        if column not in found:
            listing = ", ".join(found) or "none"
            return replace(line, text="", problem=f"has no column {column!r}; it has: {listing}"), record
        return as_line(found[column], line.name, column), record

    def _written(self, row: Row, result: Result | None) -> str:
        added = json.dumps(self.columns.values(result), ensure_ascii=False)
        return f"{added if row.record is None else row.record + added.removeprefix('{')}\n"
