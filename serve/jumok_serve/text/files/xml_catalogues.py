"""XML catalogues: Android's resources, Qt's TS and .NET's RESX. Texts are translated; all else stays."""

import html
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, cast

from jumok_serve.text.files.document import (
    MAX_READ,
    MAX_SHOWN,
    FileFormat,
    Parts,
    Piece,
    Text,
    has_letters,
    in_steps,
    refuse,
    unchanged,
    unread,
)
from jumok_serve.text.markup.catalogue import MAX_ACCELERATED, accelerate
from jumok_serve.text.markup.scanner import VOID, Kind, Token, XmlError, attributes, read_xml
from jumok_serve.text.markup.strings import RULES, Markup, hole, is_code, line, mark, tag
from jumok_serve.text.markup.structure import BLOCKS, find_ends
from jumok_serve.text.plurals import is_unused, missing_categories

_DECLARED: Final = re.compile(r"\s*+<\?xml[^>]{0,1000}\sencoding\s*+=\s*+[\"']([^\"']*+)")
_UNICODE: Final = {"utf-8", "utf-16", "us-ascii"}
_ESCAPED_TAG: Final = re.compile(r"&lt;(/?)([A-Za-z][\w:-]{0,40})((?:[^<>&]|&(?![lg]t;)){0,1000}?)(/?)(?:&gt;|>)")
"""A tag of a text that is HTML within XML."""
_ESCAPE: Final = re.compile(r"(?:\\u[0-9A-Fa-f]{4})+|(?:\\[nrt]\s*+)+|\\.|\"|&(?:quot|#34);|&(?:apos|#39);", re.DOTALL)
"""Parts of a string of Android that mean other characters."""
_NEEDED: Final = re.compile(r"[\\'\"]")
_NO_TEXT: Final = re.compile(r"<[^<>]*+>|\\(?:u[0-9A-Fa-f]{4}|.)|&[#\w]{1,40};", re.DOTALL)


class _Dialect(NamedTuple):
    """The way in which strings are written within XML.

    Attributes:
        ends: white space at the ends of a string, in its first group, or another part.
        known: parts of a string with a meaning.
        to_html: their HTML.
        write: writes characters, which are HTML.
        breaks: True if a line break is one.
        accelerates: True if ``&`` may be the mark of an accelerator.
    """

    ends: re.Pattern[str] = re.compile(r"(\s++)")
    known: re.Pattern[str] | None = None
    to_html: Callable[[re.Match[str]], str] = lambda found: hole(found[0])
    write: Callable[[str], str] = str
    breaks: bool = True
    accelerates: bool = False


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


_ANDROID: Final = _Dialect(
    re.compile(r"((?:\s++|\\[nrt]|\\u(?:0020|00[aA]0|200[0-9a-fA-F])|\")+)|\\."),
    _ESCAPE,
    _unescaped,
    _escaped,
    breaks=False,
)
_RESX: Final = _Dialect(accelerates=True)
_QT: Final = _Dialect(known=re.compile(r"%L?(?:\d{1,2}|n)"), accelerates=True)
_ACCELERATOR: Final = re.compile(r"(?<![A-Z\d])&amp;([^\W_])(?![\w.-]{0,30};)")
_ARGUMENT: Final = re.compile(r"(%L?(?:\d{1,2}|n)|\{[^{}]*+\}|&\w{1,31};)")


class _Document:
    """The tokens of a file.

    Attributes:
        tokens: all of them.
        ends: index of the end tag of each start tag.
    """

    def __init__(self, tokens: Sequence[Token]) -> None:
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

    def inside(self, index: int) -> Iterator[int]:
        """Yield the elements within one, not those within these."""
        after = self.ends.get(index, index)
        index += 1
        while index < after:
            if self.tokens[index].kind in {Kind.START, Kind.EMPTY}:
                yield index
            index = self.ends.get(index, index) + 1

    def attributes(self, index: int) -> Mapping[str, str]:
        """Return the attributes of an element."""
        return dict(attributes(self.tokens[index].written))


def _read(content: str, root: str) -> Generator[str, None, tuple[_Document, int]]:
    """Read a file, and return it with its outermost element."""
    declared = _DECLARED.match(content)
    if declared is not None and declared[1].lower() not in _UNICODE:
        refuse(1, f"the encoding {declared[1][:MAX_SHOWN]} is not UTF-8: convert the file, and change its first line")
    tokens = list[Token]()
    try:
        yield from in_steps(read_xml(content), tokens)
    except XmlError as error:
        refuse(error.line, f"it {error.problem}; {error.remedy}")
    first = next((index for index, token in enumerate(tokens) if token.kind in {Kind.START, Kind.EMPTY}), None)
    if first is None or tokens[first].name != root:
        name = "none" if first is None else tokens[first].name[:MAX_SHOWN]
        refuse(1, f"the outermost element must be {root}, got {name}: give the format of the file")
    return _Document(tokens), first


def android_pieces(content: str, language: str = "") -> Iterator[Piece]:
    """Yield the pieces of a file of Android's string resources, with the plural forms that the language has.

    Raises:
        InvalidArgumentError: no well-formed XML, or no resources.
    """
    document, root = yield from _read(content, "resources")
    done = 0
    for index in document.inside(root):
        name, given = document.tokens[index].name, document.attributes(index)
        if given.get("translatable") == "false" or name not in {"string", "string-array", "plurals"}:
            yield ""
            continue
        yield document.written(done, index)
        done = document.ends.get(index, index) + 1
        if name == "plurals":
            yield from _plurals(document, index, language)
        else:
            texts = [index] if name == "string" else list(document.inside(index))
            yield from _with_texts(document, index, texts)
    yield document.written(done, len(document.tokens))


def _with_texts(document: _Document, index: int, texts: Sequence[int]) -> Iterator[Piece]:
    """Yield the pieces of an element with some elements that are strings."""
    done = index
    for first in texts:
        last = document.ends.get(first, first)
        yield document.written(done, first + 1)
        yield from _texts(document, first + 1, last, _ANDROID)
        done = max(last, first + 1)
    yield document.written(done, document.ends.get(index, index) + 1)


def _plurals(document: _Document, index: int, language: str) -> Iterator[Piece]:
    """Yield the pieces of an element with plural forms; those that the language lacks are left out."""
    items = {document.attributes(item).get("quantity", ""): item for item in document.inside(index)}
    missing = missing_categories(language, items)
    done, last, space = index, index, ""
    for item in document.inside(index):
        category = document.attributes(item).get("quantity", "")
        before = item - (document.tokens[item - 1].kind is Kind.TEXT)
        yield document.written(done, before)
        space = document.written(before, item)
        last = document.ends.get(item, item)
        done = last + 1
        if "other" not in items or not is_unused(language, category):
            yield space
            yield from _with_texts(document, item, [item])
    for category in missing:
        opening, first = document.tokens[items["other"]].written, items["other"]
        yield space + re.sub(r"(quantity\s*=\s*[\"'])\w+", rf"\g<1>{category}", opening)
        yield from _texts(document, first + 1, document.ends.get(first, first), _ANDROID)
        yield document.written(max(first + 1, document.ends.get(first, first)), document.ends.get(first, first) + 1)
    yield document.written(done, document.ends.get(index, index) + 1)


def _texts(document: _Document, first: int, after: int, dialect: _Dialect) -> Iterator[Piece]:
    """Yield the pieces of an element's content; literal parts are texts of their own."""
    start = first
    for index in range(first, after):
        if (token := document.tokens[index]).kind is Kind.CDATA:
            yield from _run(document, start, index, dialect)
            yield token.written[:9]
            literal = dialect._replace(write=lambda text: dialect.write(text).replace("]]>", "]]]]><![CDATA[>"))
            yield from _string(token.written[9:-3], token.written[9:-3], document.line(index), literal, is_html=None)
            yield token.written[-3:]
            start = index + 1
    yield from _run(document, start, after, dialect)


def _run(document: _Document, first: int, after: int, dialect: _Dialect) -> Iterator[Piece]:
    """Yield the pieces of some tokens; what a translator must not change is a hole."""
    parts, index, written = list[str](), first, document.written(first, after)
    while index < after:
        token, end = document.tokens[index], document.ends.get(index, index)
        if token.name.rpartition(":")[2] == "g" and end > index:
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
    yield from _string("".join(parts), written, document.line(first), dialect, is_html=True)


def _escaped_tag(found: re.Match[str]) -> str:
    name = found[2].lower()
    if name in BLOCKS:
        return line(found[0])
    return tag(found[0], found[1] or ("/>" if found[4] or name in VOID else ""), name)


def _string(text: str, written: str, line_number: int, dialect: _Dialect, *, is_html: bool | None) -> Iterator[Piece]:
    """Yield the pieces of a string.

    Args:
        text: the string with marks and holes.
        written: the string in the file.
    """
    if len(written) > MAX_READ:
        yield unread(written, written, line_number)
        return
    before = (found[1] or "") if (found := dialect.ends.match(text)) is not None else ""
    after = ""
    for found in dialect.ends.finditer(text, len(before)):
        if found.end() == len(text):
            after = found[1] or ""
    content = written[len(before) : len(written) - len(after)]
    if not has_letters(_NO_TEXT.sub("", content)) or is_code(content):
        yield written
        return
    inner, key = text[len(before) : len(text) - len(after)], None
    if dialect.accelerates and is_html and inner.count("&") == 1 and len(inner) <= MAX_ACCELERATED:
        key = _ACCELERATOR.search(inner)
        inner = inner[: key.start()] + inner[key.start(1) :] if key else inner
    markup = Markup(inner, dialect.known, dialect.to_html, write=dialect.write, is_html=is_html, breaks=dialect.breaks)

    def write(translation: str) -> str:
        made = markup.written(translation)
        if key:
            parts = [(-1 + index % 2, part) for index, part in enumerate(_ARGUMENT.split(made))]
            accelerate(parts, "&amp;", key[1])
            return "".join(part for _, part in parts)
        return f"\\{made}" if dialect is _ANDROID and made.startswith(("@", "?")) and not before else made

    yield before
    yield Text(markup.content, content, line_number + before.count("\n"), unchanged(markup.content, content, write))
    yield after


def resx_pieces(content: str) -> Iterator[Piece]:
    """Yield the pieces of a RESX file of .NET; values with a type are no texts.

    Raises:
        InvalidArgumentError: no well-formed XML, or no RESX file.
    """
    document, root = yield from _read(content, "root")
    done = 0
    for index in document.inside(root):
        given = document.attributes(index)
        if (
            document.tokens[index].name != "data"
            or {"type", "mimetype"} & given.keys()
            or given.get("name", "").startswith("&gt;&gt;")
        ):
            yield ""
            continue
        for value in document.inside(index):
            if document.tokens[value].name == "value" and value in document.ends:
                yield document.written(done, value + 1)
                yield from _texts(document, value + 1, document.ends[value], _RESX)
                done = document.ends[value]
    yield document.written(done, len(document.tokens))


def qt_pieces(content: str) -> Iterator[Piece]:
    """Yield the pieces of a TS file of Qt: empty unfinished translations are made, and stay unfinished.

    Raises:
        InvalidArgumentError: no well-formed XML, or no TS file.
    """
    document, root = yield from _read(content, "TS")
    done = 0
    for context in document.inside(root):
        yield ""
        for message in document.inside(context):
            parts = {document.tokens[part].name: part for part in document.inside(message)}
            if document.tokens[message].name != "message" or not {"source", "translation"} <= parts.keys():
                continue
            source, translation = parts["source"], parts["translation"]
            if document.attributes(translation).get("type") != "unfinished" or source not in document.ends:
                continue
            forms = [part for part in document.inside(translation) if document.tokens[part].name == "numerusform"]
            for target in forms or [translation]:
                end = document.ends.get(target, target)
                if not document.written(target + 1, end).strip():
                    yield document.written(done, target)
                    yield from _made(document, source, target, end)
                    done = end + 1
    yield document.written(done, len(document.tokens))


def _made(document: _Document, source: int, target: int, end: int) -> Iterator[Piece]:
    """Yield the pieces of a translation, which stays empty if its only text cannot be translated."""
    start = document.tokens[target]
    pieces = list(_texts(document, source + 1, document.ends[source], _QT))
    if start.kind is Kind.EMPTY:
        tags = f"{start.written.removesuffix('/>').rstrip()}>", f"</{start.name}>"
    else:
        tags = start.written, document.tokens[end].written
    texts = [index for index, piece in enumerate(pieces) if isinstance(piece, Text)]
    if len(texts) != 1:
        yield from (tags[0], *pieces, tags[1])
        return
    (index,) = texts
    before, after = ("".join(cast("list[str]", some)) for some in (pieces[:index], pieces[index + 1 :]))
    text = cast("Text", pieces[index])

    def write(translation: str) -> str:
        return f"{tags[0]}{before}{text.write(translation)}{after}{tags[1]}"

    yield replace(text, written=document.written(target, end + 1), write=write)


TAGS: Final = Parts(name="tags, attributes, entities and escapes", marks="<=&\\", size=380, most=450_000)
FORMATS: Final = {
    "android": FileFormat(android_pieces, "html", RULES, TAGS, takes_language=True),
    "qt": FileFormat(qt_pieces, "html", RULES, TAGS),
    "resx": FileFormat(resx_pieces, "html", RULES, TAGS),
}
