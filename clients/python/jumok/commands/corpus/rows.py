"""Rows of files, the protocol of file formats, and those with a row on each line: text and JSONL."""

import gzip
import json
import shutil
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import click

from jumok.commands._line_requests import MAX_LINE_BYTES, Line, read_lines
from jumok.commands._output import NONE_LONG, LongTexts, one_line

NO_CONTENT = "has no content"
JSON_SPACE = " \t\r\n"


class CorpusError(click.ClickException):
    """A job cannot start or go on; the message says why, and the way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Names of columns.

    Attributes:
        text: column to translate.
        translation: column for translations.
        score: column for scores, or None.
        several: True if the two columns hold a list, with an item for each hypothesis.
    """

    text: str
    translation: str
    score: str | None
    several: bool

    @property
    def added(self) -> tuple[str, ...]:
        """Names of the added columns."""
        return (self.translation,) if self.score is None else (self.translation, self.score)

    def values(self, result: "Result | None") -> dict[str, object]:
        """Return the values of a row's added columns; None for a bad row."""
        if result is None:
            return dict.fromkeys(self.added)
        texts, scores = result
        found = (list(texts), list(scores)) if self.several else (texts[0], scores[0])
        return dict(zip(self.added, found, strict=False))

    def check_free(self, taken: Sequence[str], where: str) -> None:
        """Check that a file lacks the added columns.

        Raises:
            CorpusError: it has one.
        """
        for name, option in zip(self.added, ("--out-column", "--score-column"), strict=False):
            if name in taken:
                raise CorpusError(f"{where} has a column {name!r} already: choose another {option}")


Result = tuple[tuple[str, ...], tuple[float, ...]]
"""Texts and scores of a row's hypotheses, best first."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a file.

    Attributes:
        line: its text, with a ``problem`` if the row is bad.
        record: the parts of the row that its format needs to write it again.
        position: bytes of the file up to its end, as far as the format knows.
    """

    line: Line
    record: Any
    position: int


@dataclass(frozen=True, slots=True)
class Done:
    """A row of a file with its result, or the reason why it has none."""

    file: int
    row: Row
    result: Result | None
    reason: str = ""
    long: LongTexts = NONE_LONG


Block = Sequence[Done]
"""Consecutive rows of a file."""


class Format(Protocol):
    """Reads rows of files and writes blocks of them."""

    def check(self, path: Path) -> None:
        """Check a file before the job.

        Raises:
            CorpusError: the file can never be translated.
        """

    def read(self, path: Path, skip: int) -> Iterator[Row]:
        """Read the rows of a file, without the first ``skip``.

        Raises:
            CorpusError: the file is damaged, or has a column that the job adds.
        """

    def write(self, path: Path, block: Block) -> None:
        """Write a block as a file."""

    def join(self, source: Path, blocks: Sequence[Path], out: Path) -> None:
        """Join all blocks of a source to one file."""


def as_line(text: object, name: str, column: str) -> Line:
    """Make the line of a value that should be a text; it has a ``problem`` if it is none."""
    if text is None:
        return Line("", name, 0, f"the column {column!r} is null")
    if not isinstance(text, str):
        return Line("", name, 0, f"the column {column!r} is {_KINDS.get(type(text), type(text).__name__)}, not text")
    size = len(text.encode(errors="replace"))
    if size > MAX_LINE_BYTES:
        return Line("", name, size, f"longer than {MAX_LINE_BYTES} bytes")
    return Line(text, name, size) if text.strip() else Line("", name, size, NO_CONTENT)


_KINDS: dict[type, str] = {
    bool: "a boolean",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


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
