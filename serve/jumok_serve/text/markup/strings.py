"""Strings of catalogues, which may have tags, as HTML or XML and back.

Tags stay tags, and line breaks separate sentences. An element of ours carries what must come back as it was written in
its attribute ``x``: ``<jmk-l/>`` a line break, ``<jmk-m/>`` a mark, ``<jmk-h>`` a hole, ``<jmk-0>`` a numbered tag.
"""

import html
import re
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import ClassVar, Final

from jumok_proto.markup import MarkupRules
from jumok_serve.text.markup.scanner import Kind, Token, scan
from jumok_serve.text.markup.structure import find_ends

RULES: Final = MarkupRules(splitting_tags=("jmk-l",))
"""Rules for the markup of strings."""
_WRITTEN: Final = re.compile(r'[ /]x="([^"]*)"')
_SPACE: Final = re.compile(r"[ \t\r\n\f]++")
_NUMBERED: Final = re.compile(r"<(/?)(\d{1,4})[ ]?(/?)>")
_ENTITY: Final = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_ICU: Final = re.compile(r"\{\s*+\w++\s*+,\s*+(?:plural|select|selectordinal)\s*+,")
_OPENED: Final = re.compile(r"<(?=[A-Za-z/!?])")
"""In text: of a tag without an end, which could be that of a tag behind it."""
_EMPTY: Final = frozenset({"br", "hr", "wbr"})
"""Elements that need no slash to be taken as elements without content."""
_ADDRESS: Final = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*://|mailto:|tel:|data:)[!-~]+")
_CODE: Final = re.compile(
    r"#[0-9a-fA-F]{3,8}"  # a colour
    r"|[!-?A-~]+@[!-?A-~]+\.[a-z]+"  # an address of e-mail
    r"|[A-Za-z0-9]+(?:_[A-Za-z0-9]+)+|[A-Za-z]\w*(?:\.[A-Za-z]\w*){2,}"  # an identifier, a dotted name
    r"|\.{0,2}/[\w.@%~+/-]+|[\w/-]+\.(?:png|jpe?g|gif|svg|webp|html?|css|js|json|xml|md|txt|pdf|zip|mp[34]|ttf|woff2?)"
    r"|[vV]?\d+(?:[.:T-]\d+)+[!-~]*"  # a version, a date
    r"|[\d.,]+(?:px|em|rem|pt|dp|sp|ms|s|%|vh|vw)"  # a length
    r"|[@?][\w.:*+/-]*/[\w.]+"  # a reference
    # Placeholders only, or parts of a date; each text matches in one way, which bounds the work.
    r"|(?:%(?:\d+\$)?[-_^#+]?\d*(?:\.\d+)?(?:ll?|z)?[A-Za-z@%]|%\(\w+\)[a-z]"
    r"|[$#%]?\{{1,2} ?[\w.,#-]*+ ?\}{1,2}|[^\w%{}$#]|[$#](?!\{)|\d)+"
)
MAX_CODE: Final = 500
"""Characters of a string that may be code; addresses are longer."""


def is_code(text: str) -> bool:
    """True if a string is no language: an address, an identifier, a path, a version, a length, a placeholder."""
    return bool(_ADDRESS.fullmatch(text) or (len(text) <= MAX_CODE and _CODE.fullmatch(text)))


def mark(written: str) -> str:
    """Return a mark, which has a place among the words."""
    return tag(written, "/>", "m")


def line(written: str) -> str:
    """Return a line break."""
    return tag(written, "/>", "l")


def hole(written: str, seen: str = "") -> str:
    """Return text that is not translated.

    Args:
        seen: what the model reads; empty: the text.
    """
    return f'<jmk-h x="{html.escape(written)}" translate="no">{html.escape(seen or written)}</jmk-h>'


@dataclass(slots=True, eq=False)
class Markup:
    """A string as HTML.

    Args:
        text: characters of the string, or HTML.
        known: parts that a format knows.
        to_html: returns their HTML; by default they are not translated.
        write: writes characters outside of tags, which are HTML if the string is.
        is_html: True if the text is HTML; None: if it has tags or entities.
        breaks: True if a line break separates.

    Attributes:
        content: the HTML.
    """

    text: InitVar[str]
    known: re.Pattern[str] | None = None
    to_html: Callable[[re.Match[str]], str] = lambda found: hole(found[0])
    _: KW_ONLY
    write: Callable[[str], str] = str
    is_html: bool | None = None
    breaks: bool = True
    content: str = field(init=False)

    def __post_init__(self, text: str) -> None:
        tokens = list[Token]()
        for token in scan(text, html=True):
            is_text = token.kind is Kind.TEXT  # only there a numbered tag is none of HTML
            tokens += scan(_NUMBERED.sub(_numbered, token.written), html=True) if is_text else (token,)
        ends = find_ends(tokens)
        tags = {*ends, *ends.values(), *(index for index, token in enumerate(tokens) if _is_empty(token))}
        if self.is_html is None:
            self.is_html = bool(tags) or any(html.unescape(found[0]) != found[0] for found in _ENTITY.finditer(text))
        self.breaks = self.breaks and _ICU.search(text) is None
        self.content = "".join(
            self._text(token.written)
            if token.kind is Kind.TEXT
            else token.written
            if index in tags or token.kind is Kind.RAW
            else mark(_original(token) or token.written)
            for index, token in enumerate(tokens)
        )

    def _text(self, text: str) -> str:
        parts, done = list[str](), 0
        for found in self.known.finditer(text) if self.known else ():
            parts += self._plain(text[done : found.start()]), self.to_html(found)
            done = found.end()
        return "".join((*parts, self._plain(text[done:])))

    def _plain(self, text: str) -> str:
        escaped = _OPENED.sub(mark("<"), text) if self.is_html else text.replace("&", "&amp;").replace("<", "&lt;")
        return _SPACE.sub(_broken, escaped) if self.breaks else escaped

    def written(self, translation: str) -> str:
        """Return the string of a translation."""
        return "".join(self._written(translation))

    def _written(self, translation: str) -> Iterator[str]:
        is_inside = False
        for token in scan(translation, html=True):
            if token.name == "jmk-h":
                is_inside = token.kind is Kind.START
                yield _original(token)
            elif is_inside:
                continue
            elif token.kind is Kind.TEXT:
                yield self.write(token.written if self.is_html else html.unescape(token.written))
            else:
                yield _original(token) or token.written


def tag(written: str, kind: str, name: str) -> str:
    """Return a tag whose form in the file is no HTML.

    Args:
        kind: ``""`` for a start tag, ``"/"`` for an end tag, ``"/>"`` for an element without content.
        name: of the element.
    """
    closed = "/" if kind == "/>" else ""
    return f'<{"/" if kind == "/" else ""}jmk-{name} x="{html.escape(written)}"{closed}>'


def _original(token: Token) -> str:
    """Return what a token of ours stands for; empty for others."""
    found = _WRITTEN.search(token.written) if token.name.startswith("jmk-") else None
    return "" if found is None else html.unescape(found[1])


def _is_empty(token: Token) -> bool:
    return token.kind is Kind.EMPTY and (token.written.endswith("/>") or " " in token.written or token.name in _EMPTY)


def _numbered(found: re.Match[str]) -> str:
    """Write a numbered tag, as React's translations have them, as one with a name."""
    return tag(found[0], found[1] or ("/>" if found[3] else ""), found[2])


def _broken(found: re.Match[str]) -> str:
    return found[0] if not found[0].strip(" ") else line(found[0])


class Numbered:
    """XML with elements that stand for parts of a file, each with its number in the attribute ``i``."""

    __slots__ = ("_written",)
    _ELEMENT: ClassVar[re.Pattern[str]]
    """Beginning of such an element, with its number as a group."""
    _HOLE: ClassVar[str]
    """Name of those whose content is not written."""

    def __init__(self) -> None:
        self._written = list[tuple[str, str]]()  # what the tags of each element stand for

    def _put(self, name: str, written: str, end: str = "/>") -> str:
        """Return a new element up to the end of its start tag, or more."""
        self._written.append((written, ""))
        return f'<{name} i="{len(self._written) - 1}"{end}'

    def _close(self, number: int, written: str) -> None:
        """Keep what an end tag stands for."""
        self._written[number] = self._written[number][0], written

    def _parts(self, translation: str) -> Iterator[tuple[int, str]]:
        """Yield the parts of a translation as the file has them, with the number of a start, and -1 for others.

        Ends have the number of all elements.
        """
        opened, is_inside = list[int](), False
        for token in scan(translation, html=False):
            found = self._ELEMENT.match(token.written)
            number = int(found[1]) if found and int(found[1]) < len(self._written) else -1
            if token.kind is Kind.START:
                opened.append(number)
            if number >= 0:
                yield number, self._written[number][0]
                is_inside = token.kind is Kind.START and token.name.lower() == self._HOLE
            elif token.kind is Kind.END and opened and (number := opened.pop()) >= 0:
                is_inside = False
                if self._written[number][1]:
                    yield len(self._written), self._written[number][1]
            elif not is_inside:
                yield -1, token.written
