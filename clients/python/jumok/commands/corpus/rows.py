"""Rows of files, and the protocol of file formats."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import click

from jumok.commands._line_requests import MAX_LINE_BYTES, Line
from jumok.commands._output import NONE_LONG, LongTexts

NO_CONTENT = "has no content"


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
