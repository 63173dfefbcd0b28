"""Strings files of Apple's systems: values are translated; keys, comments and their order stay."""

import re
from collections.abc import Iterator
from typing import Final, NoReturn

from jumok_serve.text.files.document import (
    FileFormat,
    Lines,
    Parts,
    Piece,
    after_all,
    refuse,
    shown,
    string_text,
)
from jumok_serve.text.files.po import ESCAPED, WRITTEN
from jumok_serve.text.markup.strings import RULES

_SPACE: Final = re.compile(r"[\s\ufeff]{1,8192}+|//[^\r\n]*+|/\*")
_PART: Final = re.compile(r'(?:[^"\\]{1,64}+|\\.){1,256}', re.DOTALL)
_NAME: Final = re.compile(r"[\w.$/:-]{1,8192}+")
_ESCAPE: Final = re.compile(r"\\(?:((?:[uU][0-9A-Fa-f]{4})(?:\\[uU][0-9A-Fa-f]{4})*)|([0-7]{1,3})|(.))", re.DOTALL)
_EXAMPLE: Final = '"key" = "value";'


def strings_pieces(content: str) -> Iterator[Piece]:
    """Yield the pieces of a strings file.

    Raises:
        InvalidArgumentError: no strings file, or one in the form of XML.
    """
    if re.match(r"\s*+(?:<\?xml|<!DOCTYPE|<plist)", content):
        refuse(1, "it is a property list in XML: convert it, as with 'plutil -convert strings'")
    done, position, lines = 0, 0, Lines(content)
    while (position := _after_space(content, position)) < len(content):
        first, position = position, _after_string(content, position)
        if content.startswith("=", start := _after_space(content, position)):
            start = _after_space(content, start + 1)
            position = _after_string(content, start)
            yield content[done:start]
            written = content[start:position]
            yield string_text(written, _read, lines.at(start), _write) if written.startswith('"') else written
            done = position
        if not content.startswith(";", position := _after_space(content, position)):
            _refuse(content, first)
        position += 1
        yield content[done:position]
        done = position
    yield content[done:]


def _after_space(content: str, position: int) -> int:
    """Return the place after white space and comments."""
    while found := _SPACE.match(content, position):
        position = found.end()
        if found[0] == "/*":
            end = content.find("*/", position)
            if end < 0:
                refuse(content.count("\n", 0, position) + 1, "a comment has no end: add */")
            position = end + 2
    return position


def _after_string(content: str, position: int) -> int:
    """Return the place after a string, in quotation marks or without."""
    quoted = content.startswith('"', position)
    after = after_all(_PART if quoted else _NAME, content, position + quoted)
    if (quoted and not content.startswith('"', after)) or after == position:
        _refuse(content, position)
    return after + quoted


def _refuse(content: str, position: int) -> NoReturn:
    line = content.count("\n", 0, position) + 1
    refuse(line, f"an entry must be as {_EXAMPLE}, got {shown(content[position : position + 80])}: mend it")


def _read(written: str) -> str:
    return _ESCAPE.sub(_unescaped, written[1:-1])


def _write(characters: str) -> str:
    return f'"{characters.translate(WRITTEN)}"'


def _unescaped(found: re.Match[str]) -> str:
    if found[1] is not None:
        digits = found[1].replace("\\", "").lower().replace("u", "")
        return bytes.fromhex(digits).decode("utf-16-be", "surrogatepass")
    return chr(int(found[2], 8)) if found[2] is not None else ESCAPED.get(found[3], found[3])


_PARTS: Final = Parts(name="strings, lines, escapes and tags", marks='"\n\\<&', size=150, most=700_000)
FORMATS: Final = {"strings": FileFormat(strings_pieces, "html", RULES, _PARTS)}
