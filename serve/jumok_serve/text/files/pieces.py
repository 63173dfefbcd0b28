"""Pieces of a file: texts, and what stands between them; plain text."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn, TypeAlias, TypeVar

from jumok_proto.errors import InvalidArgumentError
from jumok_proto.markup import MarkupKind, MarkupRules

MAX_READ: Final = 2**18
"""Characters of a text above which its words and marks are not read: it is far too long to be translated."""

MAX_SHOWN: Final = 60
"""Characters of a file that a message shows."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text of a file.

    Attributes:
        content: what is translated, in the markup of the format.
        written: what stands in the file; it stays if the text cannot be translated.
        line: its first line, from 1.
        write: makes of a translation what stands in its place.
    """

    content: str
    written: str
    line: int
    write: Callable[[str], str]


Piece: TypeAlias = "str | Text"
_Part = TypeVar("_Part")
PARTS_PER_STEP: Final = 1024
"""Parts, or pieces, that are found between two looks at whether the file is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Parts that a file is made of, and that take memory, such as lines.

    Attributes:
        name: their plural.
        marks: ASCII characters; each begins or ends a part.
        size: memory of a part in bytes, with its texts that are being translated; a bound.
        most: parts of a file.
    """

    name: str
    marks: str
    size: int
    most: int


LINES: Final = Parts(name="lines", marks="\n", size=200, most=500_000)
TAGS: Final = Parts(name="tags and entities", marks="<&", size=450, most=300_000)


@dataclass(frozen=True, slots=True)
class FileFormat:
    """A format of files.

    Attributes:
        pieces: yields the pieces of a file's characters; raises InvalidArgumentError for a bad file. Its time and its
            memory are proportional to the file.
        markup: markup of texts; None: they are plain.
        rules: rules for elements of the markup.
        parts: parts that take memory while the file is translated.
        copies: copies of the file's characters in memory while it is read; a bound.
    """

    pieces: Callable[[str], Iterator[Piece]]
    markup: MarkupKind | None = None
    rules: MarkupRules = field(default_factory=MarkupRules)
    parts: Parts = LINES
    copies: int = 5


Formats: TypeAlias = Mapping[str, FileFormat]


def in_steps(parts: Iterable[_Part], found: list[_Part]) -> Iterator[str]:
    """Find the parts of a file; yields an empty piece after some of them, where reading may stop."""
    for number, part in enumerate(parts, start=1):
        found.append(part)
        if number % PARTS_PER_STEP == 0:
            yield ""


def refuse(line: int, problem: str) -> NoReturn:
    """Raise the error of a bad file.

    Args:
        line: the line, from 1.
        problem: subject, what is wrong, and the way out.
    """
    raise InvalidArgumentError(f"file: line {line}: {problem}", field="file")


def shown(line: str) -> str:
    """Return the beginning of a line for a message."""
    text = line.strip()
    return repr(text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}...")


def unchanged(content: str, written: str, write: Callable[[str], str]) -> Callable[[str], str]:
    """Return a function that writes a text as it was if the translation is equal to it."""
    return lambda translation: written if translation == content else write(translation)


def unread(content: str, written: str, line: int) -> Text:
    """Return a text of more than `MAX_READ` characters: no server takes it, and it stays as it is."""
    return Text(content, written, line, lambda translation: written)


def separate(text: str) -> tuple[str, str, str]:
    """Return white space at the beginning, the text between, and white space at the end."""
    content = text.strip()
    if not content:
        return text, "", ""
    first = text.index(content)
    return text[:first], content, text[first + len(content) :]


def with_end(lines: Sequence[str], index: int) -> str:
    """Return a line of a file with its end, which the last one lacks."""
    return lines[index] + ("\n" if index + 1 < len(lines) else "")


def has_letters(text: str) -> bool:
    """True if there is something to translate."""
    parts = (text[start : start + 2**14] for start in range(0, len(text), 2**14))  # other threads run between them
    return any(any(map(str.isalpha, part)) for part in parts)


def plain_pieces(content: str) -> Iterator[Piece]:
    """Yield the lines of a text, without white space at their ends, and all else."""
    start, number = 0, 1
    while True:
        end = content.find("\n", start)
        line = content[start:] if end < 0 else content[start:end]
        before, text, after = separate(line)
        del line  # it takes memory, as much as the text
        yield before
        if has_letters(text):
            yield Text(text, text, number, str)
        else:
            yield text
        yield after
        if end < 0:
            return
        yield "\n"
        start, number = end + 1, number + 1


PLAIN = FileFormat(plain_pieces, parts=Parts(name="lines", marks="", size=0, most=0), copies=3)
