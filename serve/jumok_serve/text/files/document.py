"""Files of texts: formats, the pieces of a file, and its characters and bytes; plain text."""

import codecs
import re
from collections import ChainMap
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import import_module
from inspect import signature
from itertools import chain
from pathlib import PurePosixPath
from pkgutil import iter_modules
from typing import Final, NoReturn, Self, TypeAlias, TypeVar

from jumok_proto.errors import InvalidArgumentError
from jumok_proto.file_formats import FILE_FORMATS
from jumok_proto.markup import MarkupKind, MarkupRules
from jumok_serve.text import archive
from jumok_serve.text.archive import Archive, ArchiveCopy, Entry
from jumok_serve.text.markup.scanner import XmlError
from jumok_serve.text.markup.strings import Markup, is_code

MAX_READ: Final = 2**18
"""Characters of a text above which its words and marks are not read: it is far too long to be translated."""

MAX_STRING_TAGS: Final = 20_000
"""Tags of a catalogue's string; one with more is left as it is and reported."""
MAX_SHOWN: Final = 60
"""Characters of a file that a message shows."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text of a file.

    Attributes:
        content: what is translated, in the markup of the format.
        written: what stands in the file; it stays if the text cannot be translated.
        line: its first line, from 1; of office documents the number of its paragraph in the part.
        write: makes of a translation what stands in its place; raises InvalidArgumentError if that would
            damage the file.
    """

    content: str
    written: str
    line: int
    write: Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Part:
    """Beginning of an archive's entry: the pieces after it are the entry's characters.

    Attributes:
        mark: bytes before the characters, which tell their encoding.
    """

    entry: Entry
    mark: bytes
    encoding: str


Piece: TypeAlias = "str | Text"
FilePiece: TypeAlias = "Piece | Part"
Pieces: TypeAlias = "Callable[[str], Iterator[Piece]]"
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
            memory are proportional to the file. It may take the language of the translations too, as `language`, and
            that of the texts, as `source`; empty: unknown.
        markup: markup of texts; None: they are plain.
        rules: rules for elements of the markup.
        parts: parts that take memory while the file is translated.
        copies: copies of the file's characters in memory while it is read; a bound.
        fallback: encoding of files that are no UTF-8; empty: they are refused.
        conversion: command that makes a file UTF-8.
        entries: of a format of archives, yields the entries that have texts, with the function of their pieces; takes
            the archive, and `properties`, False to leave out those of the document; raises InvalidArgumentError for a
            bad file. None: a file is text.
    """

    pieces: Callable[..., Iterator[Piece]]
    markup: MarkupKind | None = None
    rules: MarkupRules = field(default_factory=MarkupRules)
    parts: Parts = LINES
    copies: int = 5
    fallback: str = ""
    conversion: str = "iconv -f ISO-8859-1 -t UTF-8"
    entries: Callable[..., Iterator[tuple[Entry, Pieces]]] | None = None

    def into(self, language: str, source: str = "", *, properties: bool = False) -> "FileFormat":
        """Return the format of files that are translated into a language, from one that may be known."""
        known = {"language": language, "source": source}
        taken = {name: known[name] for name in signature(self.pieces).parameters.keys() & known.keys()}
        entries = self.entries and partial(self.entries, properties=properties)
        return replace(self, pieces=partial(self.pieces, **taken), entries=entries)


def in_steps(parts: Iterable[_Part]) -> Generator[str, None, list[_Part]]:
    """Return the parts of a file; yields an empty piece after some of them, where reading may stop."""
    found = list[_Part]()
    for number, part in enumerate(parts, start=1):
        found.append(part)
        if number % PARTS_PER_STEP == 0:
            yield ""
    return found


def refuse(line: int, problem: str) -> NoReturn:
    """Raise the error of a bad file.

    Args:
        line: the line, from 1.
        problem: subject, what is wrong, and the way out.
    """
    raise InvalidArgumentError(f"file: line {line}: {problem}", field="file")


_DECLARED: Final = re.compile(r"\s*+<\?xml[^>]{0,1000}\sencoding\s*+=\s*+[\"']([^\"']*+)")
_UNICODE: Final = {"utf-8", "utf-16"}


def read_of_xml(content: str, parts: Iterator[_Part], remedy: str) -> Iterator[_Part]:
    """Yield the parts of a file of XML.

    Args:
        remedy: the way out if it declares another encoding than the one that it has.

    Raises:
        InvalidArgumentError: finding the parts raises XmlError, or the encoding is another.
    """
    declared = _DECLARED.match(content)
    if declared is not None and declared[1].lower() not in _UNICODE:
        refuse(1, f"the encoding {declared[1][:MAX_SHOWN]} is not UTF-8: {remedy}")
    try:
        yield from parts
    except XmlError as error:
        refuse(error.line, f"it {error.problem}; {error.remedy}")


class Lines:
    """Lines of places of a file; places come in their order, those that come again have the line of the last."""

    def __init__(self, content: str) -> None:
        self._content = content
        self._line, self._counted = 1, 0

    def at(self, position: int) -> int:
        """Return the line of a place."""
        if position > self._counted:
            self._line += self._content.count("\n", self._counted, position)
            self._counted = position
        return self._line


def after_all(pattern: re.Pattern[str], text: str, position: int) -> int:
    """Return the place after all matches that follow each other from a place on; an empty match is the last one."""
    while (found := pattern.match(text, position)) and found.end() > position:
        position = found.end()
    return position


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


def string_text(
    written: str,
    read: Callable[[str], str],
    line: int,
    write: Callable[[str], str],
    markup: Callable[[str], Markup] = Markup,
) -> Piece:
    """Return the text of a catalogue's string, as HTML, or the string as it is written if it is no language.

    Args:
        read: returns the characters that the string means.
        write: writes other characters as a string.
        markup: makes the HTML of the characters.
    """
    if len(written) > MAX_READ:
        return unread(written, written, line)
    before, text, after = separate(read(written))
    if not has_letters(text) or is_code(text) or any("\ud800" <= one <= "\udfff" for one in text):
        return written
    if text.count("<") > MAX_STRING_TAGS:
        return unread(text.ljust(MAX_READ + 1), written, line)
    made = markup(text)
    put = unchanged(made.content, written, lambda translation: write(before + made.written(translation) + after))
    return Text(made.content, written, line, put)


def wrapped(before: str, string: Piece, after: str = "", written: str = "") -> Piece:
    """Return a string with what stands around it.

    Args:
        written: what stands in the file if the text cannot be translated.
    """
    if isinstance(string, str):
        return f"{before}{string}{after}"
    return replace(string, written=written, write=lambda translation: f"{before}{string.write(translation)}{after}")


def separate(text: str) -> tuple[str, str, str]:
    """Return white space at the beginning, the text between, and white space at the end."""
    content = text.strip()
    if not content:
        return text, "", ""
    first = text.index(content)
    return text[:first], content, text[first + len(content) :]


def has_letters(text: str) -> bool:
    """True if there is something to translate."""
    parts = (text[start : start + 2**14] for start in range(0, len(text), 2**14))  # other threads run between them
    return any(any(map(str.isalpha, part)) for part in parts)


def text_within(written: str, line: int, letters: bool | None = None) -> Iterator[Piece]:
    """Yield white space at the beginning, the text between, and white space at the end.

    Args:
        letters: True if there is something to translate; None: if it has letters.
    """
    before, content, after = separate(written)
    del written  # it takes memory, as much as the content
    yield before
    letters = has_letters(content) if letters is None else letters
    yield Text(content, content, line + before.count("\n"), str) if letters else content
    yield after


_LINE: Final = re.compile(r"[^\n]*+\n?+")


def lines_of(content: str) -> Iterator[str]:
    """Yield the lines of a file with their ends, and an empty one."""
    return (found[0] for found in _LINE.finditer(content))


def plain_pieces(content: str) -> Iterator[Piece]:
    """Yield the lines of a text, without white space at their ends, and all else."""
    start, number = 0, 1
    while True:
        end = content.find("\n", start)
        yield from text_within(content[start:] if end < 0 else content[start:end], number)
        if end < 0:
            return
        yield "\n"
        start, number = end + 1, number + 1


FORMATS: Final = {"text": FileFormat(plain_pieces, parts=replace(LINES, size=0), copies=3)}

MAX_KEPT: Final = 10_000
"""Pieces of a file that are kept in memory between its check and its translation."""
KEPT_BYTES: Final = 512 * MAX_KEPT
"""Most bytes of their objects."""
READ_BYTES: Final = 32 * MAX_READ
"""Most bytes of the words and marks of a text."""
MAX_UNPACKED: Final = 2**26
"""Uncompressed bytes of all entries of an archive that have texts."""
ENTRY_BYTES: Final = 1024
"""Most bytes of the objects of an archive's entry."""
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_OLE: Final = bytes.fromhex("d0cf11e0a1b11ae1")
"""Beginning of a compound file, as Office wrote them before 2007, and around encrypted documents since."""
_TO_U_FFFF: Final = bytes(range(0xF0))
"""Bytes of characters up to U+FFFF in UTF-8."""


@dataclass(frozen=True, slots=True)
class FileDocument:
    """A file of texts.

    Attributes:
        content: the characters, or the archive; empty if the pieces are few, which have them.
        mark: bytes before the characters, which tell their encoding.
        count: number of texts.
        few: the pieces, if they are few; others are found again, so that memory is bounded.
    """

    content: str | Archive
    encoding: str
    mark: bytes
    format: FileFormat
    count: int
    few: Sequence[FilePiece] | None

    @classmethod
    def read(
        cls,
        data: bytearray,
        name: str,
        file_format: str,
        stopped: Callable[[], bool] = lambda: False,
        language: str = "",
        *,
        source: str = "",
        properties: bool = False,
    ) -> Generator[int, None, Self]:
        """Read a file and check all of it, in steps; yields the work of each, and returns the document.

        Args:
            data: bytes of the file; emptied, to free their memory, once they are decoded.
            name: name of the file; its end gives the format if there is no other.
            file_format: name of the format, or empty.
            stopped: true if the document is not needed any more; the rest is then left out.
            language: language of the translations; empty: unknown.
            source: language of the texts; empty: unknown.
            properties: True to translate a document's properties too.

        Raises:
            InvalidArgumentError: an unknown format, bytes that are no text, or a bad file.
        """
        yield PARTS_PER_STEP
        chosen = _format(name, file_format, data).into(language, source, properties=properties)
        mark, encoding = _encoding(data)
        content: str | Archive
        if chosen.entries is None:
            del data[: len(mark)]
            content, encoding = _decoded(data, encoding, chosen, "" if mark else chosen.fallback)
        else:
            content = Archive(bytes(data))
        data.clear()
        most = MAX_KEPT if isinstance(content, str) else 0  # texts of archives have many objects
        few, number, count, begun = list[FilePiece](), 0, 0, False
        for number, piece in enumerate(_pieces(chosen, content), start=1):
            count += isinstance(piece, Text)
            if number < most:
                few.append(piece)
            else:
                few.clear()
            begun = begun or bool(piece)
            if number % PARTS_PER_STEP == 0 or not begun:
                if stopped():
                    break
                yield PARTS_PER_STEP
        are_few = number < most
        return cls("" if are_few else content, encoding, mark, chosen, count, few if are_few else None)

    def pieces(self) -> Iterator[FilePiece]:
        """Yield texts, and all between them."""
        return _pieces(self.format, self.content) if self.few is None else iter(self.few)

    @property
    def is_packed(self) -> bool:
        """True if its bytes are compressed."""
        return isinstance(self.content, Archive)

    def writer(self) -> "FileWriter | ArchiveWriter":
        """Return what makes the bytes of the file of its pieces."""
        if isinstance(self.content, Archive):
            return ArchiveWriter(self.content)
        return FileWriter(self.mark, self.encoding)


class FileWriter:
    """Makes the bytes of a file of its pieces, in their order.

    Attributes:
        part: name of the entry that the pieces are of; empty: the file is no archive.
    """

    part = ""

    def __init__(self, mark: bytes, encoding: str) -> None:
        self._mark = mark
        self._encoding = encoding

    def add(self, written: str | Part) -> bytes:
        """Return the bytes of a piece, which may come later too."""
        assert isinstance(written, str)
        mark, self._mark = self._mark, b""
        return mark + encoded(written, self._encoding)

    def finish(self) -> bytes:
        """Return the bytes after the last piece."""
        return self._mark


class ArchiveWriter(ArchiveCopy):
    """Makes an archive of its pieces; see `FileWriter`."""

    _encoding = ""

    def add(self, written: str | Part) -> bytes:
        """See `FileWriter`."""
        if isinstance(written, str):
            self.put(encoded(written, self._encoding))
            return b""
        before, self._encoding = self.begin(written.entry), written.encoding
        self.put(written.mark)
        return before


def encoded(written: str, encoding: str) -> bytes:
    """Return the bytes of characters; a translation may have half of a surrogate pair."""
    return written.encode(encoding, "replace")


def _pieces(chosen: FileFormat, content: str | Archive) -> Iterator[FilePiece]:
    """Yield the pieces of a file."""
    if isinstance(content, str):
        yield from chosen.pieces(content)
        return
    assert chosen.entries is not None
    total = 0
    for entry, pieces in chosen.entries(content):
        total += entry.file_size
        if total > MAX_UNPACKED:
            archive.refuse(f"its texts have more than {MAX_UNPACKED} uncompressed bytes: split the file")
        data = bytearray().join(content.inflated(entry))
        mark, encoding = _encoding(data)
        del data[: len(mark)]
        yield Part(entry, mark, encoding)
        try:
            characters, _ = _decoded(data, encoding, chosen, "")
            data.clear()
            yield from pieces(characters)
        except InvalidArgumentError as error:
            archive.refuse(f"{entry.filename[:MAX_SHOWN]}: {str(error).removeprefix('file: ')}")


def needed_memory(data: bytes | bytearray, name: str, file_format: str) -> int:
    """Return a bound on the bytes of memory that a file takes until it is translated.

    Args:
        name, file_format: as for `FileDocument.read`.

    Raises:
        InvalidArgumentError: an unknown format, or a file of too many parts.
    """
    chosen = _format(name, file_format, data)
    if chosen.entries is None:
        parts = (data[start : start + 2**16] for start in range(0, len(data), 2**16))  # a copy of all takes memory
        return KEPT_BYTES + READ_BYTES + len(data) + _text_memory(chosen, parts, _encoding(data)[1])
    content = Archive(bytes(data))
    sizes = (
        2 * entry.file_size + _text_memory(chosen, content.inflated(entry), "utf-8", f"{entry.filename[:MAX_SHOWN]}: ")
        for entry, _ in chosen.entries(content)
    )
    directory = len(data) - content.directory
    entries = len(content.entries) * ENTRY_BYTES + 6 * directory  # a name may take four bytes for each of its own
    return KEPT_BYTES + READ_BYTES + 3 * len(data) + entries + max(sizes, default=0)


def _text_memory(chosen: FileFormat, data: Iterable[bytes | bytearray], encoding: str, entry: str = "") -> int:
    """Return a bound on the memory of the characters and parts of a file, or of an archive's entry."""
    size, width, count = 0, 1, 0
    for some in data:
        size += len(some)
        width = max(width, _utf_8_width(some) if encoding == "utf-8" else 2)
        count += sum(some.count(mark.encode(encoding)) for mark in chosen.parts.marks)
    parts = chosen.parts
    if count > parts.most:
        bound = f"at most {parts.most} are allowed in this format"
        archive.refuse(f"{entry}has {count} {parts.name}, {bound}: split the file")
    return size * chosen.copies * width + count * parts.size


def _utf_8_width(data: bytes | bytearray) -> int:
    """Return the bytes that Python takes for each character, for each byte of the file; a bound."""
    if data.isascii():
        return 1
    return 4 if data.translate(None, _TO_U_FFFF) else 2


def _encoding(data: bytes | bytearray) -> tuple[bytes, str]:
    """Return the mark of a file's encoding, which may be empty, and the encoding."""
    return next(((mark, name) for mark, name in _MARKS if data.startswith(mark)), (b"", "utf-8"))


@cache
def known_formats() -> Mapping[str, FileFormat]:
    """Return the formats by name: each module beside this one has some in its `FORMATS`."""
    package = str(__package__)
    modules = (import_module(f"{package}.{found.name}") for found in iter_modules(import_module(package).__path__))
    formats = ChainMap(*(module.FORMATS for module in modules))
    return {name: formats[name] for name in FILE_FORMATS}


def _format(name: str, file_format: str, data: bytes | bytearray) -> FileFormat:
    """Return the format of a file; its first bytes tell those that no format is for."""
    if data.startswith(b"%PDF-"):
        archive.refuse("it is a PDF file: convert it to DOCX or text, and translate that")
    if data.startswith(_OLE):
        if "EncryptedPackage".encode("utf-16-le") in data:
            archive.refuse("it is protected by a password: remove the password in its program")
        archive.refuse("it is a document of Office 97 to 2003: save it as DOCX, XLSX or PPTX, and translate that")
    base = PurePosixPath(name.replace("\\", "/")).name.lower()
    ending = PurePosixPath(base).suffix.removeprefix(".")
    chosen = file_format or next(
        (one for known in (base, ending) for one, endings in FILE_FORMATS.items() if known in endings), ""
    )
    if chosen in known_formats():
        return known_formats()[chosen]
    known = ", ".join(known_formats())
    if file_format:
        raise InvalidArgumentError(f"format: {file_format!r} is unknown; choose of {known}", field="format")
    endings = ", ".join(chain.from_iterable(FILE_FORMATS.values()))
    raise InvalidArgumentError(
        f"format: the name {name!r} has no known ending ({endings}): give the format, one of {known}", field="format"
    )


def _decoded(data: bytearray, encoding: str, chosen: FileFormat, fallback: str) -> tuple[str, str]:
    """Return the characters of a file, and their encoding."""
    try:
        content = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        if b"\0" in data:
            refuse(line, "it is a binary file, no text: give another file")
        if fallback:
            return data.decode(fallback), fallback
        wrong = f"byte 0x{data[error.start]:02x} is not {encoding.upper()}"
        refuse(line, f"{wrong}: convert the file, as with '{chosen.conversion}'")
    if "\0" in content:
        refuse(content.count("\n", 0, content.index("\0")) + 1, "it is a binary file, no text: give another file")
    return content, encoding
