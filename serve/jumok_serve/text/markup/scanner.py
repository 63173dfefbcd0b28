"""Tags, text and all else of HTML or XML, each as it was written."""

import re
from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple


class Kind(Enum):
    """Kind of a token."""

    TEXT = auto()
    START = auto()
    END = auto()
    EMPTY = auto()
    """An element without content: ``<br>``, ``<x/>``."""
    RAW = auto()
    """A comment, a declaration, a processing instruction."""
    CDATA = auto()
    """Literal text of XML."""


class Token(NamedTuple):
    """A part of a document.

    Attributes:
        written: its characters in the document.
        name: name of the element, in small letters in HTML; empty for text and others.
    """

    kind: Kind
    written: str
    name: str = ""


VOID = frozenset("area base br col embed frame hr img input link meta param source track wbr".split())  # noqa: SIM905
LITERAL = frozenset({"script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes", "plaintext"})
"""Elements of HTML whose content has no tags."""

_VALUE = r"(?:\"[^\"]*\"|'[^']*'|[^\s\"'>][^\s>]*)"
_START = re.compile(r"<([A-Za-z_:\x80-\U0010ffff][^\s/>]*)")
_IN_START = re.compile(rf"[\s/]+|[^\s/>][^\s/>=]*(?:\s*=\s*{_VALUE})?")
"""Space or an attribute of a start tag."""
_LONG_START = re.compile(r"<([A-Za-z_:\x80-\U0010ffff][^\s/>]*)[^>]*>")
_END = re.compile(r"</([A-Za-z_:\x80-\U0010ffff][^\s/>]*)[^>]*>")
_ATTRIBUTE = re.compile(rf"[\s/]([^\s/>=]+)(?:\s*=\s*({_VALUE}))?")
_CLOSED = re.compile(r"(?:[\s\"']|^<[^\s/>]+)/>$")
"""End of a tag without content; a slash at the end of an address without quotation marks is none."""
_DOCTYPE = re.compile(r"<!DOCTYPE[^\[>]*(?:\[.*?\]\s*)?>", re.DOTALL)
_SPECIAL = (("<!--", "-->", Kind.RAW), ("<![CDATA[", "]]>", Kind.CDATA), ("<?", "?>", Kind.RAW), ("<!", ">", Kind.RAW))
MAX_TAG = 4096
"""Characters of a tag of HTML in which a ``>`` in an attribute does not end it; bounds the work for hostile text."""
_END_OF_LITERAL = {name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE) for name in LITERAL}


def attributes(tag: str) -> Iterator[tuple[str, str]]:
    """Yield name, in small letters, and value of each attribute of a start tag."""
    for found in _ATTRIBUTE.finditer(tag):
        yield found[1].lower(), (found[2] or "").strip("\"'")


def scan(text: str, *, html: bool) -> Iterator[Token]:
    """Yield the tokens of a document; joined, they are the document.

    A ``<`` that begins nothing is text. The time is proportional to the length.
    """
    done = position = 0
    last = text.rfind(">")
    while 0 <= (position := text.find("<", position)) < last:
        token = _at(text, position, html=html)
        if token is None:
            position += 1
            continue
        if done < position:
            yield Token(Kind.TEXT, text[done:position])
        yield token
        done = position = position + len(token.written)
        if html and token.kind is Kind.START and token.name in LITERAL:
            found = _END_OF_LITERAL[token.name].search(text, position)
            end = len(text) if found is None or found.end() > last else found.start()  # at the last ">" it may end
            if position < end:
                yield Token(Kind.TEXT if token.name == "title" else Kind.RAW, text[position:end])
            done = position = end
    if done < len(text):
        yield Token(Kind.TEXT, text[done:])


def _at(text: str, position: int, *, html: bool) -> Token | None:
    """Return the token that begins with the ``<`` at a position, if one does."""
    if text.startswith("</", position):
        found = _END.match(text, position)
        return None if found is None else Token(Kind.END, found[0], _name(found[1], html=html))
    bound = position + MAX_TAG if html else len(text)  # XML is well formed
    found = _START.match(text, position, bound)
    end = _end_of_start(text, found.end(), bound) if found else 0
    if not end and (found := _LONG_START.match(text, position)):
        end = found.end()
    if found and end:
        written, name = text[position:end], _name(found[1], html=html)
        empty = (html and name in VOID) or _CLOSED.search(written) is not None
        return Token(Kind.EMPTY if empty else Kind.START, written, name)
    if not html and (found := _DOCTYPE.match(text, position)):
        return Token(Kind.RAW, found[0])
    for opening, closing, kind in _SPECIAL:
        if text.startswith(opening, position) and not (html and kind is Kind.CDATA):
            until = ">" if html and opening == "<?" else closing
            end = text.find(until, position + len(opening))
            return Token(kind, text[position:] if end < 0 else text[position : end + len(until)])
    return None


def _end_of_start(text: str, position: int, bound: int) -> int:
    """Return the end of a start tag after its name; 0 if there is none before a bound."""
    while found := _IN_START.match(text, position, bound):
        position = found.end()
    return position + 1 if text.startswith(">", position, bound) else 0


def _name(written: str, *, html: bool) -> str:
    return written.lower() if html else written
