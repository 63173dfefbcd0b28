"""Strings of catalogues, which may have tags, as HTML and back.

Tags stay tags, and line breaks separate sentences. An element of ours carries what must come back as it was written in
its attribute ``x``: ``<x-l/>`` a line break, ``<x-m/>`` a mark, ``<x-h>`` a hole, ``<x-0>`` a numbered tag.
"""

import html
import re
from collections.abc import Callable, Iterator
from typing import Final

from jumok_proto.markup import MarkupRules
from jumok_serve.text.markup.scanner import Kind, Token, scan
from jumok_serve.text.markup.structure import find_ends

RULES: Final = MarkupRules(splitting_tags=("x-l",))
"""Rules for the markup of strings."""
_WRITTEN: Final = re.compile(r'[ /]x="([^"]*)"')
_SPACE: Final = re.compile(r"[ \t\r\n\f]++")
_NUMBERED: Final = re.compile(r"<(/?)(\d{1,4})[ ]?(/?)>")
_ENTITY: Final = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_ICU: Final = re.compile(r"\{\s*+\w++\s*+,\s*+(?:plural|select|selectordinal)\s*+,")
_EMPTY: Final = frozenset({"br", "hr", "wbr"})
"""Elements that need no slash to be taken as elements without content."""
_CODE: Final = re.compile(
    r"#[0-9a-fA-F]{3,8}"  # a colour
    r"|(?:[A-Za-z][A-Za-z0-9+.-]*://|mailto:|tel:|data:)[!-~]+|[!-?A-~]+@[!-?A-~]+\.[a-z]+"  # an address
    r"|[A-Za-z0-9]+(?:_[A-Za-z0-9]+)+|[A-Za-z]\w*(?:\.[A-Za-z]\w*){2,}"  # an identifier, a dotted name
    r"|\.{0,2}/[\w.@%~+/-]+|[\w/-]+\.(?:png|jpe?g|gif|svg|webp|html?|css|js|json|xml|md|txt|pdf|zip|mp[34]|ttf|woff2?)"
    r"|[vV]?\d+(?:[.:T-]\d+)+[!-~]*"  # a version, a date
    r"|[\d.,]+(?:px|em|rem|pt|dp|sp|ms|s|%|vh|vw)"  # a length
    r"|[@?][\w.:*+/-]*/[\w.]+"  # a reference
)


def is_code(text: str) -> bool:
    """True if a string is no language: a colour, an address, an identifier, a path, a version, a length."""
    return len(text) <= 2000 and _CODE.fullmatch(text) is not None


def mark(written: str) -> str:
    """Return a mark, which has a place among the words."""
    return f'<x-m x="{html.escape(written)}"/>'


def line(written: str) -> str:
    """Return a line break."""
    return f'<x-l x="{html.escape(written)}"/>'


def hole(written: str, seen: str = "") -> str:
    """Return text that is not translated.

    Args:
        seen: what the model reads; empty: the text.
    """
    return f'<x-h x="{html.escape(written)}" translate="no">{html.escape(seen or written)}</x-h>'


class Markup:
    """A string as HTML.

    Args:
        text: characters of the string.
        holes: what is not translated in its format.

    Attributes:
        content: the HTML.
    """

    def __init__(self, text: str, holes: re.Pattern[str] | None = None) -> None:
        tokens = list(scan(_NUMBERED.sub(_numbered, text), html=True))
        ends = find_ends(tokens)
        pairs = {*ends, *ends.values()}
        has_tags = any(index in pairs or _is_empty(token) for index, token in enumerate(tokens))
        self._is_html = has_tags or any(html.unescape(found[0]) != found[0] for found in _ENTITY.finditer(text))
        self._holes = holes
        self._breaks = _ICU.search(text) is None
        self.content = "".join(
            self._text(token.written)
            if token.kind is Kind.TEXT
            else token.written
            if index in pairs or _is_empty(token) or token.kind is Kind.RAW
            else mark(token.written)
            for index, token in enumerate(tokens)
        )

    def _text(self, text: str) -> str:
        if self._holes is None:
            return self._plain(text)
        parts, done = list[str](), 0
        for found in self._holes.finditer(text):
            parts += self._plain(text[done : found.start()]), hole(found[0])
            done = found.end()
        return "".join((*parts, self._plain(text[done:])))

    def _plain(self, text: str) -> str:
        escaped = text if self._is_html else text.replace("&", "&amp;").replace("<", "&lt;")
        return _SPACE.sub(_broken, escaped) if self._breaks else escaped

    def written(self, translation: str, write: Callable[[str], str] = str) -> str:
        """Return the string of a translation.

        Args:
            write: writes characters outside of tags.
        """
        return "".join(written_parts(translation, write if self._is_html else lambda text: write(html.unescape(text))))


def written_parts(translation: str, write: Callable[[str], str]) -> Iterator[str]:
    """Yield the parts of a translation as they stand in a file: text as a function writes it, all else as it was."""
    is_inside = False
    for token in scan(translation, html=True):
        found = None if token.kind is Kind.TEXT else _WRITTEN.search(token.written)
        if token.name == "x-h":
            is_inside = token.kind is Kind.START
            if is_inside and found is not None:
                yield html.unescape(found[1])
        elif found is not None and token.name.startswith("x-"):
            yield html.unescape(found[1])
        elif not is_inside:
            yield write(token.written) if token.kind is Kind.TEXT else token.written


def _is_empty(token: Token) -> bool:
    return token.kind is Kind.EMPTY and (token.written.endswith("/>") or " " in token.written or token.name in _EMPTY)


def _numbered(found: re.Match[str]) -> str:
    """Write a numbered tag, as React's translations have them, as one with a name."""
    return f'<{found[1]}x-{found[2]} x="{html.escape(found[0])}"{found[3]}>'


def _broken(found: re.Match[str]) -> str:
    return found[0] if not found[0].strip(" ") else line(found[0])
