"""A file that was read: its characters, its format, and its pieces."""

import codecs
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Final, Self

from jumok_proto.errors import InvalidArgumentError
from jumok_serve.text.files.markdown import MARKDOWN
from jumok_serve.text.files.pieces import MAX_READ, PARTS_PER_STEP, PLAIN, FileFormat, Formats, Piece, Text, refuse
from jumok_serve.text.files.po import PO
from jumok_serve.text.files.subtitles import SRT, VTT
from jumok_serve.text.files.web import HTML
from jumok_serve.text.files.xliff import XLIFF

FORMATS: Final[Formats] = MappingProxyType(
    {"text": PLAIN, "markdown": MARKDOWN, "html": HTML, "po": PO, "xliff": XLIFF, "srt": SRT, "vtt": VTT}
)
"""Formats by name."""
ENDINGS: Final = MappingProxyType(
    {
        "txt": "text",
        **dict.fromkeys(("md", "markdown"), "markdown"),
        **dict.fromkeys(("html", "htm", "xhtml"), "html"),
        **dict.fromkeys(("po", "pot"), "po"),
        **dict.fromkeys(("xliff", "xlf"), "xliff"),
        "srt": "srt",
        "vtt": "vtt",
    }
)
"""Names of formats by the end of a file's name."""
MAX_KEPT: Final = 10_000
"""Pieces of a file that are kept in memory between its check and its translation."""
KEPT_BYTES: Final = 512 * MAX_KEPT
"""Most bytes of their objects."""
READ_BYTES: Final = 32 * MAX_READ
"""Most bytes of the words and marks of a text."""
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_TO_U_FFFF: Final = bytes(range(0xF0))
"""Bytes of characters up to U+FFFF in UTF-8."""


@dataclass(frozen=True, slots=True)
class FileDocument:
    """A file of texts.

    Attributes:
        content: the characters; empty if the pieces are few, which have them.
        mark: bytes before the characters, which tell their encoding.
        count: number of texts.
        few: the pieces, if they are few; others are found again, so that memory is bounded.
    """

    content: str
    encoding: str
    mark: bytes
    format: FileFormat
    count: int
    few: Sequence[Piece] | None

    @classmethod
    def read(
        cls, data: bytearray, name: str, file_format: str, stopped: Callable[[], bool] = lambda: False
    ) -> Generator[int, None, Self]:
        """Read a file and check all of it, in steps; yields the work of each, and returns the document.

        Args:
            data: bytes of the file; emptied, to free their memory, once they are decoded.
            name: name of the file; its end gives the format if there is no other.
            file_format: name of the format, or empty.
            stopped: true if the document is not needed any more; the rest is then left out.

        Raises:
            InvalidArgumentError: an unknown format, bytes that are no text, or a bad file.
        """
        yield PARTS_PER_STEP
        chosen = _format(name, file_format)
        mark, encoding = _encoding(data)
        del data[: len(mark)]
        content = _decoded(data, encoding)
        data.clear()
        few, number, count, begun = list[Piece](), 0, 0, False
        for number, piece in enumerate(chosen.pieces(content), start=1):
            count += isinstance(piece, Text)
            if number < MAX_KEPT:
                few.append(piece)
            else:
                few.clear()
            begun = begun or bool(piece)
            if number % PARTS_PER_STEP == 0 or not begun:
                if stopped():
                    break
                yield PARTS_PER_STEP
        if number < MAX_KEPT:
            return cls("", encoding, mark, chosen, count, few)
        return cls(content, encoding, mark, chosen, count, None)

    def pieces(self) -> Iterator[Piece]:
        """Yield texts, and all between them."""
        return self.format.pieces(self.content) if self.few is None else iter(self.few)

    def encode(self, written: str) -> bytes:
        """Return the bytes of some of the characters."""
        return written.encode(self.encoding, "replace")  # a translation may have half of a surrogate pair


def needed_memory(data: bytes | bytearray, name: str, file_format: str) -> int:
    """Return a bound on the bytes of memory that a file takes until it is translated.

    Args:
        name, file_format: as for `FileDocument.read`.

    Raises:
        InvalidArgumentError: an unknown format, or a file of too many parts.
    """
    chosen = _format(name, file_format)
    parts = chosen.parts
    encoding = _encoding(data)[1]
    count = sum(data.count(mark.encode(encoding)) for mark in parts.marks)
    if count > parts.most:
        raise InvalidArgumentError(
            f"file: has {count} {parts.name}, at most {parts.most} are allowed in this format: split the file",
            field="file",
        )
    return KEPT_BYTES + READ_BYTES + len(data) * chosen.copies * _width(data, encoding) + count * parts.size


def _width(data: bytes | bytearray, encoding: str) -> int:
    """Return the bytes that Python takes for each character, for each byte of the file; a bound."""
    if encoding != "utf-8":
        return 2
    if data.isascii():
        return 1
    parts = (data[start : start + 2**16] for start in range(0, len(data), 2**16))  # a copy of all takes memory
    return 4 if any(part.translate(None, _TO_U_FFFF) for part in parts) else 2


def _encoding(data: bytes | bytearray) -> tuple[bytes, str]:
    """Return the mark of a file's encoding, which may be empty, and the encoding."""
    return next(((mark, name) for mark, name in _MARKS if data.startswith(mark)), (b"", "utf-8"))


def _format(name: str, file_format: str) -> FileFormat:
    ending = PurePosixPath(name.replace("\\", "/")).suffix.removeprefix(".").lower()
    chosen = file_format or ENDINGS.get(ending, "")
    if chosen in FORMATS:
        return FORMATS[chosen]
    known = ", ".join(FORMATS)
    if file_format:
        raise InvalidArgumentError(f"format: {file_format!r} is unknown; choose of {known}", field="format")
    raise InvalidArgumentError(
        f"format: the name {name!r} has no known ending ({', '.join(ENDINGS)}): give the format, one of {known}",
        field="format",
    )


def _decoded(data: bytearray, encoding: str) -> str:
    try:
        content = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        if b"\0" in data:
            refuse(line, "it is a binary file, no text: give another file")
        refuse(
            line,
            f"byte 0x{data[error.start]:02x} is not {encoding.upper()}: convert the file, as with "
            "'iconv -f ISO-8859-1 -t UTF-8'",
        )
    if "\0" in content:
        refuse(content.count("\n", 0, content.index("\0")) + 1, "it is a binary file, no text: give another file")
    return content
