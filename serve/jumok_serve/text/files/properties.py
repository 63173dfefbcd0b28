"""Properties of Java: values are translated; keys, comments and their order stay."""

import json
import re
from collections.abc import Iterator
from functools import partial
from typing import Final

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
from jumok_serve.text.markup.strings import RULES, Markup, hole

_END: Final = r"(?:\r\n|\n|\r)"
_BESIDE: Final = re.compile(rf"(?:[ \t\f]*+{_END}){{1,256}}|[ \t\f]*+[#!][^\r\n]*+")
"""Empty lines, or a comment."""
_KEY: Final = re.compile(rf"(?:[^\\ \t\f\r\n=:]{{1,64}}+|\\(?:{_END}[ \t\f]*+|.|$)){{1,256}}", re.DOTALL)
_BLANKS: Final = re.compile(rf"(?:[ \t\f]{{1,64}}+|\\{_END}){{1,256}}")
_PART: Final = re.compile(rf"(?:[^\\\r\n]{{1,64}}+|\\(?:{_END}[ \t\f]*+|.|$)){{1,256}}", re.DOTALL)
_ESCAPE: Final = re.compile(rf"\\(?:({_END}[ \t\f]*+)|(u[0-9A-Fa-f]{{4}}(?:\\u[0-9A-Fa-f]{{4}})*)|(.|$))", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_WRITTEN: Final = str.maketrans({"\\": "\\\\", **{character: f"\\{name}" for name, character in _ESCAPED.items()}})
_BROKEN: Final = re.compile(rf"\\n(\\{_END}[ \t\f]*+)")
_WIDE: Final = re.compile(r"[^\x00-\xff]")
_ARGUMENT: Final = re.compile(r"\{\s*+\d++\s*+[,}]")
_QUOTED: Final = re.compile(r"''|'[^'{}]{0,50}[{}][^']{0,50}'")
"""Quotes of a message format."""


def properties_pieces(content: str) -> Iterator[Piece]:
    """Yield the pieces of a file of properties.

    Raises:
        InvalidArgumentError: an escape without its digits.
    """
    escaped = re.compile(r"[^\x00-\x7f]" if content.isascii() else "(?!)" if _WIDE.search(content) else _WIDE)
    position, lines = 0, Lines(content)
    while position < len(content):
        first, found = position, _BESIDE.match(content, position)
        if found is not None:
            start = position = found.end()
        else:
            key = after_all(_KEY, content, after_all(_BLANKS, content, first))
            start = after_all(_BLANKS, content, key)
            start = after_all(_BLANKS, content, start + content.startswith(("=", ":"), start))
            position = after_all(_PART, content, start)
        yield content[first:start]
        if start < position:
            yield _text(content[start:position], lines.at(start), escaped)


def _text(written: str, line: int, escaped: re.Pattern[str]) -> Piece:
    """Return the text of a value.

    Args:
        escaped: characters that are written as escapes.
    """
    broken = _BROKEN.search(written)

    def write(made: str) -> str:
        start = "\\" if made.startswith((" ", "=", ":")) else ""
        value = escaped.sub(lambda found: json.dumps(found[0])[1:-1], start + made.translate(_WRITTEN))
        if broken is None:
            return value
        inside = value.removesuffix("\\n")
        return inside.replace("\\n", f"\\n{broken[1]}") + value[len(inside) :]

    return string_text(written, partial(_ESCAPE.sub, partial(_unescaped, line)), line, write, _markup)


def _markup(text: str) -> Markup:
    """Return the HTML of a value, which is a message format if it has an argument, or each of its quotes twice."""
    if not _ARGUMENT.search(text) and ("''" not in text or "'" in text.replace("''", "")):
        return Markup(text)
    return Markup(
        text,
        _QUOTED,
        lambda found: "'" if found[0] == "''" else hole(found[0]),
        write=lambda made: made.replace("'", "''"),
    )


def _unescaped(line: int, found: re.Match[str]) -> str:
    if found[1] is not None:
        return ""
    if found[2] is not None:
        digits = found[2].replace("\\", "").replace("u", "")
        return bytes.fromhex(digits).decode("utf-16-be", "surrogatepass")
    if found[3] == "u":
        refuse(line, f"no escape is as {shown(found.string[found.start() : found.start() + 6])}: write four digits")
    return _ESCAPED.get(found[3], found[3])


_PARTS: Final = Parts(name="lines, escapes and tags", marks="\n\r\\<&", size=200, most=500_000)
FORMATS: Final = {"properties": FileFormat(properties_pieces, "html", RULES, _PARTS, fallback="iso-8859-1")}
