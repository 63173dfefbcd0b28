"""Tokens of markup, and the check that XML is well formed.

The parser sees no declaration of entities and attributes: chains of entities would fill its stack, entities within
entities its memory, and each declared attribute is compared with all others.
"""

import re
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from typing import NamedTuple, NoReturn
from xml.parsers import expat


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
    UNIT = auto()
    """A formula, such as ``m<sup>2</sup>``, which stays as it is; its name is its text."""
    SYNTAX = auto()
    """Syntax of an ICU message between texts, which it separates."""


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

_QUOTED = r"(?:\"[^\"]*+\"|'[^']*+')"
_VALUE = rf"(?:{_QUOTED}|[^\s\"'>][^\s>]*+)"
_NAME = r"([A-Za-z_:\x80-\U0010ffff][^\s/>]*+)"
_IN_START = re.compile(rf"[\s/]++|[^\s/>][^\s/>=]*+(?:\s*+=\s*+{_VALUE})?")
"""Space or an attribute of a start tag of HTML."""
_LONG_START = re.compile(rf"<{_NAME}[^>]*+>")
_XML_NAME = re.compile(rf"<{_NAME}")
_XML_REST = re.compile(rf"(?:[^\"'>]++|{_QUOTED})*>")
_END = re.compile(rf"</{_NAME}[^>]*+>")
_ATTRIBUTE = re.compile(rf"[\s/]([^\s/>=]+)(?:\s*=\s*({_VALUE}))?")
# Each text matches in one way at most: a declaration between two comments is in none of them.
_HARMLESS = (
    r"(?:\s++|<!--(?:[^-]++|-(?!-))*-->|<\?(?:[^?]++|\?(?!>))*\?>"
    rf"|<!(?:ELEMENT|NOTATION)\s(?:[^<>\"'%]++|{_QUOTED})*>)"
)
"""A part of a document type; entities and attributes that it declares could expand, or take quadratic time."""
_DOCTYPE = re.compile(rf"<!DOCTYPE\s(?:[^\[\]<>\"']++|{_QUOTED})*(?:\[{_HARMLESS}*\]\s*+)?>")
_COMMENT, _INSTRUCTION = ("<!--", "-->", Kind.RAW), ("<?", "?>", Kind.RAW)
_SPECIAL_XML = (_COMMENT, ("<![CDATA[", "]]>", Kind.CDATA), _INSTRUCTION)
_SPECIAL_HTML = (_COMMENT, ("<?", ">", Kind.RAW), ("<!", ">", Kind.RAW))
MAX_TAG = 4096
"""Characters of a tag of HTML in which a ``>`` in an attribute does not end it; bounds the work for hostile text."""
MAX_UNENDED = 256
"""Short tags that have no end within these characters, after which each tag of HTML ends at its first ``>``."""
MAX_XML_TAG = 2**18
"""Characters of a tag or document type of XML."""
_END_OF_LITERAL = {name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE) for name in LITERAL}


def attributes(tag: str) -> Iterator[tuple[str, str]]:
    """Yield name, in small letters, and value of each attribute of a start tag."""
    for found in _ATTRIBUTE.finditer(tag):
        yield found[1].lower(), (found[2] or "").strip("\"'")


def scan(text: str, *, html: bool) -> Iterator[Token]:
    """Yield the tokens of a document; joined, they are the document.

    A ``<`` that begins nothing is text; in XML, where it is an error, with all that follows. The time is proportional
    to the length.
    """
    done = position = unended = 0
    last = text.rfind(">")
    while 0 <= (position := text.find("<", position)) < last:
        if html:
            token, is_unended = _html_token(text, position, MAX_TAG if unended < MAX_UNENDED else 0)
            unended += is_unended
        elif (token := _xml_token(text, position)) is None:
            break
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
    if not html and done < position:
        yield Token(Kind.TEXT, text[done:position])
        done = position
    if done < len(text):
        yield Token(Kind.TEXT, text[done:])


def _html_token(text: str, position: int, most: int) -> tuple[Token | None, bool]:
    """Return the token that begins with a ``<`` of HTML, if one does, and True if other tags may be read again.

    Args:
        most: characters of a tag in which a ``>`` in an attribute does not end it.
    """
    if text.startswith("</", position):
        found = _END.match(text, position)
        return None if found is None else Token(Kind.END, found[0], found[1].lower()), False
    if found := _LONG_START.match(text, position):
        end = _end_of_start(text, found.end(1), position + most)
        name, written = found[1].lower(), text[position : end or found.end()]
        closed = written.endswith("/>") and (
            written[-3].isspace() or written[-3] in "\"'" or name == written[1:-2].lower()
        )
        kind = Kind.EMPTY if closed or name in VOID else Kind.START  # a slash at the end of a bare address closes none
        return Token(kind, written, name), not end and len(written) < most
    return _special(text, position, _SPECIAL_HTML), False


def _end_of_start(text: str, position: int, bound: int) -> int:
    """Return the end of a start tag of HTML after its name; 0 if there is none before a bound."""
    while found := _IN_START.match(text, position, bound):
        position = found.end()
    return position + 1 if text.startswith(">", position, bound) else 0


def _xml_token(text: str, position: int) -> Token | None:
    """Return the token that begins with a ``<`` of XML, if one does."""
    bound = position + MAX_XML_TAG
    if text.startswith("</", position):
        found = _END.match(text, position, bound)
        return None if found is None else Token(Kind.END, found[0], found[1])
    if (named := _XML_NAME.match(text, position, bound)) and (end := _end_of_xml_start(text, named.end(), bound)):
        written = text[position:end]
        return Token(Kind.EMPTY if written.endswith("/>") else Kind.START, written, named[1])
    if found := _DOCTYPE.match(text, position, bound):
        return Token(Kind.RAW, found[0])
    return _special(text, position, _SPECIAL_XML)


def _end_of_xml_start(text: str, position: int, bound: int) -> int:
    """Return the end of a start tag of XML after its name; 0 if there is none before a bound."""
    end = text.find(">", position, bound)
    if not text.count("'", position, end) and not text.count('"', position, end) % 2:
        return end + 1  # as nearly all; the pattern looks at each attribute, and takes ten times longer
    found = _XML_REST.match(text, position, bound)
    return found.end() if found else 0


def _special(text: str, position: int, forms: Iterable[tuple[str, str, Kind]]) -> Token | None:
    for opening, closing, kind in forms:
        if text.startswith(opening, position):
            end = text.find(closing, position + len(opening))
            return Token(kind, text[position:] if end < 0 else text[position : end + len(closing)])
    return None


MAX_DEPTH = 2**14
"""Elements around one."""
STEP = 2**14
"""Characters that the parser takes at once; it takes longer tags and comments whole, which it would else read again."""
_WHOLE = re.compile(r"\s*<(?:\?xml|!DOCTYPE)\b")
_DECLARATION = re.compile(r"<!(ENTITY|ATTLIST)\s++(?:%\s++)?([^\s<>\"'%;]{1,40})")
_TAG = re.compile(r"<[^\s<>&'\"=]")
_SPACES = " \t\r\n\f"
_MEND = "mend it"


class XmlError(Exception):
    """Text that is no XML, or XML that is refused.

    Attributes:
        line: the line, from 1.
        problem: the rest of a sentence that begins with the text.
        remedy: the way out.
    """

    def __init__(self, line: int, problem: str, remedy: str = _MEND) -> None:
        super().__init__(problem)
        self.line = line
        self.problem = problem
        self.remedy = remedy


def read_xml(text: str) -> Iterator[Token]:
    """Yield the tokens of a document, or of a fragment of one; joined, they are the text.

    Raises:
        XmlError: the text is not well formed, declares entities or attributes, or has a part that is too large.
    """
    check = _Check(text)
    for token in scan(text, html=False):
        check.add(token)
        yield token
    check.finish()


class _Check:
    """Feeds a parser with tokens, some of them at once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._is_whole = _WHOLE.match(text) is not None
        self._waiting: list[str] = []
        self._length = 0
        self._done = 0
        self._depth = 0
        self._lines = 0  # before the first character that the parser takes
        self._parser = expat.ParserCreate(encoding="utf-8")
        self._parser.UseForeignDTD(True)  # unknown entities are no errors
        self._parser.ExternalEntityRefHandler = lambda *_: 1
        if not self._is_whole:
            self._parse("<fragment>")

    def add(self, token: Token) -> None:
        """Check a token, with those before it if they are long."""
        written, most = token.written, len(token.written)
        if token.kind is Kind.START:
            self._depth += 1
            if self._depth > MAX_DEPTH:
                self._refuse(f"has more than {MAX_DEPTH} elements within each other", "nest fewer")
        elif token.kind is Kind.END:
            self._depth -= 1
        elif token.kind is Kind.TEXT and written.startswith("<"):
            self._refuse_rest(written)
        elif token.kind in {Kind.TEXT, Kind.CDATA}:
            most = STEP
        if not self._done and self._is_whole:
            written = written.lstrip(_SPACES)  # before the declaration
            self._lines = token.written.count("\n", 0, len(token.written) - len(written))
        self._done += len(token.written)
        for start in range(0, len(written), most):
            self._waiting.append(written[start : start + most])
            self._length += len(self._waiting[-1])
            if self._length >= STEP:
                self._flush()

    def finish(self) -> None:
        """Check the rest."""
        self._flush()
        self._parse("" if self._is_whole else "</fragment>", final=True)

    def _refuse_rest(self, written: str) -> NoReturn:
        """Raise the error of text that begins with no tag, or one without an end."""
        if written.startswith("<!DOCTYPE") and (found := _DECLARATION.search(written)):
            kind = "entity" if found[1] == "ENTITY" else "attributes of"
            self._done += found.start()
            self._refuse(
                f"declares the {kind} {found[2]!r} (<!{found[1]})",
                "remove the declaration, and write the characters in place of its entities",
            )
        self._flush()  # an error before it is the first one
        if len(written) > MAX_XML_TAG and _TAG.match(written):
            self._refuse(f"has a tag of more than {MAX_XML_TAG} characters", "write a shorter one")
        if written.startswith("<!") and not written.startswith(("<!--", "<![CDATA[")):
            self._refuse(f"is not well-formed XML: no declaration as {written[:9]!r} is allowed here")
        self._parse(written[:MAX_XML_TAG], final=True)
        self._refuse(f"is not well-formed XML: no tag begins as {written[:20]!r}")

    def _refuse(self, problem: str, remedy: str = _MEND) -> NoReturn:
        self._flush()
        raise XmlError(self._text.count("\n", 0, self._done) + 1, problem, remedy)

    def _flush(self) -> None:
        part = "".join(self._waiting)
        self._waiting.clear()
        self._length = 0
        self._parse(part)

    def _parse(self, part: str, *, final: bool = False) -> None:
        try:
            self._parser.Parse(part.encode(), final)
        except expat.ExpatError as error:
            raise XmlError(
                error.lineno + self._lines, f"is not well-formed XML: {expat.ErrorString(error.code)}"
            ) from None
