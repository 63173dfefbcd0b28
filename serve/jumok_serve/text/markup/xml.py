"""Reading of well-formed XML, in steps of bounded time and memory. No entity is expanded, and nothing is loaded.

The parser sees no declaration of entities and attributes: chains of entities would fill its stack, entities within
entities its memory, and each declared attribute is compared with all others.
"""

import re
from collections.abc import Iterator
from typing import NoReturn
from xml.parsers import expat

from jumok_serve.text.markup.scanner import MAX_XML_TAG, Kind, Token, scan

MAX_DEPTH = 2**14
"""Elements around one."""
STEP = 2**14
"""Characters that the parser takes at once; it takes longer tags and comments whole, which it would else read again."""
_WHOLE = re.compile(r"\s*<(?:\?xml|!DOCTYPE)\b")
_DECLARATION = re.compile(r"<!(ENTITY|ATTLIST)\s++(?:%\s++)?([^\s<>\"'%;]{1,40})")
_NAME = re.compile(r"<[^\s<>&'\"=]")
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
        if len(written) > MAX_XML_TAG and _NAME.match(written):
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
