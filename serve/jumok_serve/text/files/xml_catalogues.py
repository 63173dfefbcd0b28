"""XML catalogues: Android's resources, Qt's TS and .NET's RESX. Texts are translated; all else stays."""

import html
import re
from collections.abc import Generator, Iterator, Mapping
from functools import partial
from typing import Final

from jumok_serve.text.files.document import (
    MAX_READ,
    MAX_SHOWN,
    FileFormat,
    Parts,
    Piece,
    Text,
    has_letters,
    in_steps,
    read_of_xml,
    refuse,
    string_text,
    unread,
    wrapped,
)
from jumok_serve.text.markup.catalogue import MAX_ACCELERATED, accelerate
from jumok_serve.text.markup.scanner import VOID, Kind, Token, attributes, read_xml
from jumok_serve.text.markup.strings import RULES, Markup, hole, line, mark, tag
from jumok_serve.text.markup.structure import BLOCKS, find_ends
from jumok_serve.text.plurals import is_unused, missing_categories

_ESCAPED_TAG: Final = re.compile(r"&lt;(/?)([A-Za-z][\w:-]{0,40})((?:[^<>&]|&(?![lg]t;)){0,1000}?)(/?)(?:&gt;|>)")
"""A tag of a text that is HTML within XML."""
_ESCAPE: Final = re.compile(r"(?:\\u[0-9A-Fa-f]{4})+|(?:\\[nrt]\s*+)+|\\.|\"|&(?:quot|#34);|&(?:apos|#39);", re.DOTALL)
"""Parts of a string of Android that mean other characters."""
_NEEDED: Final = re.compile(r"[\\'\"]")
_NO_TEXT: Final = re.compile(r"<[^<>]*+>|\\(?:u[0-9A-Fa-f]{4}|.)|&[#\w]{1,40};", re.DOTALL)


def _unescaped(found: re.Match[str]) -> str:
    """Return the HTML of a part of a string of Android."""
    written = found[0]
    if written.startswith("\\u"):
        characters = bytes.fromhex(written.replace("\\u", "")).decode("utf-16-be", "replace")
        is_kept = "\ufffd" in characters or any(map(str.isspace, characters))
        return mark(written) if is_kept else html.escape(characters, quote=False)
    if written[0] == "\\":
        return line(written) if written[1] in "nrt" else html.escape(written[1], quote=False)
    return mark(written) if written in {'"', "&quot;", "&#34;"} else "'"


def _escaped(text: str) -> str:
    return _NEEDED.sub(r"\\\g<0>", text)


_ANDROID: Final = partial(Markup, known=_ESCAPE, to_html=_unescaped, write=_escaped, breaks=False)
_RESX: Final = partial(Markup)
_QT: Final = partial(Markup, known=re.compile(r"%L?(?:\d{1,2}|n)"))
_SPACE: Final = re.compile(r"(\s++)")
_ANDROID_SPACE: Final = re.compile(r"((?:\s++|\\[nrt]|\\u(?:0020|00[aA]0|200[0-9a-fA-F])|\")+)|\\.")
"""White space at the ends of a string, in its first group, or another part."""
_ACCELERATOR: Final = re.compile(r"(?<![A-Z\d])&amp;([^\W_])(?![\w.-]{0,30};)")
"""Mark of an accelerator in Qt and .NET, and its letter."""
_ARGUMENT: Final = re.compile(r"(%L?(?:\d{1,2}|n)|\{[^{}]*+\}|&\w{1,31};)")


def local(token: Token) -> str:
    """Return the name of an element without its prefix."""
    return token.name.rpartition(":")[2]


def opened(tag: str) -> str:
    """Return the start tag of an element without content."""
    return f"{tag.removesuffix('/>').rstrip()}>" if tag.endswith("/>") else tag


class Document:
    """The tokens of a file.

    Attributes:
        tokens: all of them.
        ends: index of the end tag of each start tag.
    """

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.ends = find_ends(tokens)
        self._lines, self._counted = 1, 0

    def written(self, first: int, after: int) -> str:
        """Return some tokens as they are written."""
        return "".join(token.written for token in self.tokens[first:after])

    def line(self, index: int) -> int:
        """Return the line of a token; tokens come in their order."""
        if index > self._counted:
            self._lines += sum(token.written.count("\n") for token in self.tokens[self._counted : index])
            self._counted = index
        return self._lines

    def end(self, index: int) -> int:
        """Return the end tag of a start tag; other tokens are their own."""
        return self.ends.get(index, index)

    def name(self, index: int) -> str:
        """Return the name of an element without its prefix."""
        return local(self.tokens[index])

    def inside(self, index: int) -> Iterator[int]:
        """Yield the elements within one, not those within these."""
        after = self.end(index)
        index += 1
        while index < after:
            if self.tokens[index].kind in {Kind.START, Kind.EMPTY}:
                yield index
            index = self.end(index) + 1

    def attributes(self, index: int) -> Mapping[str, str]:
        """Return the attributes of an element."""
        return dict(attributes(self.tokens[index].written))


def read_document(content: str, root: str) -> Generator[str, None, tuple[Document, int]]:
    """Read a file, and return it with its outermost element."""
    remedy = "convert the file, and change its first line"
    tokens = yield from in_steps(read_of_xml(content, read_xml(content), remedy))
    first = next((index for index, token in enumerate(tokens) if token.kind in {Kind.START, Kind.EMPTY}), None)
    if first is None or local(tokens[first]) != root:
        name = "none" if first is None else tokens[first].name[:MAX_SHOWN]
        refuse(1, f"the outermost element must be {root}, got {name}: give the format of the file")
    return Document(tokens), first


def android_pieces(content: str, language: str = "") -> Iterator[Piece]:
    """Yield the pieces of a file of Android's string resources, with the plural forms that the language has.

    Raises:
        InvalidArgumentError: no well-formed XML, or no resources.
    """
    document, root = yield from read_document(content, "resources")
    done = 0
    for index in document.inside(root):
        items, name = list[int](), document.name(index)
        if name in {"string", "string-array", "plurals"} and document.attributes(index).get("translatable") != "false":
            items = [index] if name == "string" else list(document.inside(index))
        forms, space = dict[str, int](), ""
        if name == "plurals":
            forms = {document.attributes(item).get("quantity", ""): item for item in items}
        for item in items:
            before = item - (document.tokens[item - 1].kind is Kind.TEXT)
            yield document.written(done, before)
            space, done = document.written(before, item), document.end(item) + 1
            if "other" not in forms or not is_unused(language, document.attributes(item).get("quantity", "")):
                yield from _element(document, item, space + document.tokens[item].written)
        if not items:
            yield ""
        for category in missing_categories(language, forms):
            opening = document.tokens[forms["other"]].written
            named = re.sub(r"(quantity\s*=\s*[\"'])\w+", rf"\g<1>{category}", opening)
            yield from _element(document, forms["other"], space + named)
    yield document.written(done, len(document.tokens))


def _element(document: Document, index: int, opening: str) -> Iterator[Piece]:
    """Yield the pieces of an element that is a string, with another start tag."""
    end = document.end(index)
    yield opening
    yield from _texts(document, index + 1, end, _ANDROID)
    yield document.written(max(index + 1, end), end + 1)


def _texts(document: Document, first: int, after: int, dialect: partial[Markup]) -> Iterator[Piece]:
    """Yield the pieces of an element's content; literal parts are texts of their own."""
    start = first
    for index in range(first, after):
        if (token := document.tokens[index]).kind is Kind.CDATA:
            yield from _run(document, start, index, dialect)
            yield token.written[:9]
            yield from _string(token.written[9:-3], token.written[9:-3], document.line(index), dialect, literal=True)
            yield token.written[-3:]
            start = index + 1
    yield from _run(document, start, after, dialect)


def _run(document: Document, first: int, after: int, dialect: partial[Markup]) -> Iterator[Piece]:
    """Yield the pieces of some tokens; what a translator must not change is a hole."""
    parts, index, written = list[str](), first, document.written(first, after)
    while index < after:
        token, end = document.tokens[index], document.end(index)
        if local(token) == "g" and end > index:
            seen = "".join(one.written for one in document.tokens[index + 1 : end] if one.kind is Kind.TEXT)
            parts.append(hole(document.written(index, end + 1), html.unescape(seen)))
            index = end
        elif token.name in VOID and token.kind is not Kind.EMPTY:
            parts.append(mark(token.written))
        elif token.kind is Kind.TEXT:
            parts.append(_ESCAPED_TAG.sub(_escaped_tag, token.written))
        else:
            parts.append(token.written)
        index += 1
    yield from _string("".join(parts), written, document.line(first), dialect)


def _escaped_tag(found: re.Match[str]) -> str:
    name = found[2].lower()
    if name in BLOCKS:
        return line(found[0])
    return tag(found[0], found[1] or ("/>" if found[4] or name in VOID else ""), name)


def _string(
    text: str, written: str, line_number: int, dialect: partial[Markup], *, literal: bool = False
) -> Iterator[Piece]:
    """Yield the pieces of a string.

    Args:
        text: the string with marks and holes.
        written: the string in the file.
        literal: True if it is within CDATA.
    """
    if len(written) > MAX_READ:
        yield unread(written, written, line_number)
        return
    ends = _ANDROID_SPACE if dialect is _ANDROID else _SPACE
    before, after = (found[1] or "") if (found := ends.match(text)) is not None else "", ""
    for found in ends.finditer(text, len(before)):
        if found.end() == len(text):
            after = found[1] or ""
    content = written[len(before) : len(written) - len(after)]
    if not has_letters(_NO_TEXT.sub("", content)):
        yield written
        return
    inner, key = text[len(before) : len(text) - len(after)], None
    if dialect is not _ANDROID and not literal and inner.count("&") == 1 and len(inner) <= MAX_ACCELERATED:
        key = _ACCELERATOR.search(inner)
        inner = inner[: key.start()] + inner[key.start(1) :] if key else inner

    def write(made: str) -> str:
        made = made.replace("]]>", "]]]]><![CDATA[>") if literal else made
        if key:
            parts = [(-1 + index % 2, part) for index, part in enumerate(_ARGUMENT.split(made))]
            accelerate(parts, "&amp;", key[1])
            return "".join(part for _, part in parts)
        return f"\\{made}" if dialect is _ANDROID and made.startswith(("@", "?")) and not before else made

    markup = partial(dialect, is_html=None if literal else True)
    yield before
    yield string_text(content, lambda _: inner, line_number + before.count("\n"), write, markup)
    yield after


def resx_pieces(content: str) -> Iterator[Piece]:
    """Yield the pieces of a RESX file of .NET; values with a type are no texts.

    Raises:
        InvalidArgumentError: no well-formed XML, or no RESX file.
    """
    document, root = yield from read_document(content, "root")
    done = 0
    for index in document.inside(root):
        given = document.attributes(index)
        yield ""
        is_typed = {"type", "mimetype"} & given.keys() or given.get("name", "").startswith("&gt;&gt;")
        for value in document.inside(index) if document.name(index) == "data" and not is_typed else ():
            if document.name(value) == "value" and value in document.ends:
                yield document.written(done, value + 1)
                yield from _texts(document, value + 1, document.ends[value], _RESX)
                done = document.ends[value]
    yield document.written(done, len(document.tokens))


def qt_pieces(content: str) -> Iterator[Piece]:
    """Yield the pieces of a TS file of Qt: empty unfinished translations are made, and stay unfinished.

    Raises:
        InvalidArgumentError: no well-formed XML, or no TS file.
    """
    document, root = yield from read_document(content, "TS")
    done = 0
    for context in document.inside(root):
        yield ""
        for message in document.inside(context):
            parts = {document.name(part): part for part in document.inside(message)}
            if document.name(message) != "message" or not {"source", "translation"} <= parts.keys():
                continue
            source, translation = parts["source"], parts["translation"]
            if document.attributes(translation).get("type") != "unfinished" or source not in document.ends:
                continue
            forms = [part for part in document.inside(translation) if document.name(part) == "numerusform"]
            for target in forms or [translation]:
                end = document.end(target)
                if not document.written(target + 1, end).strip():
                    yield document.written(done, target)
                    yield from _made(document, source, target, end)
                    done = end + 1
    yield document.written(done, len(document.tokens))


def _made(document: Document, source: int, target: int, end: int) -> Iterator[Piece]:
    """Yield the pieces of a translation, which stays empty if its only text cannot be translated."""
    start = document.tokens[target].written
    opening, closing = start, document.written(target + 1, end + 1)
    if not closing:
        opening, closing = opened(start), f"</{document.tokens[target].name}>"
    pieces = [opening, *_texts(document, source + 1, document.ends[source], _QT), closing]
    texts = [index for index, piece in enumerate(pieces) if isinstance(piece, Text)]
    if len(texts) == 1:
        before, after = ("".join(map(str, some)) for some in (pieces[: texts[0]], pieces[texts[0] + 1 :]))
        pieces = [wrapped(before, pieces[texts[0]], after, document.written(target, end + 1))]
    yield from pieces


TAGS: Final = Parts(name="tags, attributes, entities and escapes", marks="<=&\\", size=380, most=450_000)
FORMATS: Final = {
    "android": FileFormat(android_pieces, "html", RULES, TAGS),
    "qt": FileFormat(qt_pieces, "html", RULES, TAGS),
    "resx": FileFormat(resx_pieces, "html", RULES, TAGS),
}
