"""Documents of markup: nodes, and the parser that makes them.

Every tag is kept as it was written; a parser that builds a tree would write attributes and entities in its own way.
"""

import html
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from jumok_proto.errors import InvalidArgumentError
from jumok_proto.markup import MarkupKind, MarkupRules
from jumok_serve.tasks.stand_ins import Hole
from jumok_serve.text.markup.scanner import Kind, Token, XmlError, read_xml, scan
from jumok_serve.text.markup.structure import BLOCKS, IGNORED, Structure, find_structure, ignored_names, mend
from jumok_serve.text.messages import gaps, parse_message
from jumok_serve.text.placeholders import PlaceholderReader, ReadText, joined_holes


@dataclass(eq=False, slots=True)
class Span:
    """An element inside of a block, or a mark without text.

    Attributes:
        start, end: indices of its text in the block's; equal for a mark.
        opening, closing: its tags as they were written.
        children: spans inside of it, in their order.
        after_space: True if white space or nothing stands before it.
    """

    start: int
    end: int
    opening: str
    closing: str = ""
    children: "list[Span]" = field(default_factory=list)
    after_space: bool = False

    @property
    def is_mark(self) -> bool:
        """True if it has no text to be placed by."""
        return self.start == self.end

    def add_space(self) -> None:
        """Add a space after the last of its tags."""
        if self.closing:
            self.closing += " "
        else:
            self.opening += " "


def all_spans(spans: Sequence[Span]) -> Iterator[Span]:
    """Yield spans, each before those inside of it."""
    waiting = [*reversed(spans)]
    while waiting:
        yield (span := waiting.pop())
        waiting += reversed(span.children)


@dataclass(eq=False, slots=True)
class Block:
    """Text whose sentences are translated together, with spans.

    Attributes:
        text: plain text as the model reads it, without white space at its ends, and with a space for each white space
            inside.
        spans: outermost spans, in their order.
        entities: written forms of characters, such as ``&nbsp;``.
        literal: True for text without tags and entities, as in XML's ``<![CDATA[...]]>``.
        read: the text with its placeholders; None: it has none.
        written: the placeholders as they were written.
    """

    text: str
    spans: list[Span]
    entities: dict[str, str] = field(default_factory=dict)
    literal: bool = False
    read: ReadText | None = None
    written: Sequence[str] = ()
    _table: dict[int, str] = field(init=False)

    def __post_init__(self) -> None:
        self._table = str.maketrans({**_NEEDED, **self.entities})

    def escape(self, text: str) -> str:
        """Write plain text as markup, with the entities of the source where it had them."""
        if self.literal:
            return text.replace("]]>", "]]]]><![CDATA[>")
        if not self.entities:
            return text.replace("&", "&amp;").replace("<", "&lt;")
        return text.translate(self._table)


_NEEDED = {"&": "&amp;", "<": "&lt;"}


@dataclass(frozen=True, slots=True)
class Document:
    """A text with markup.

    Attributes:
        pieces: blocks, and all that is between them as it was written.
    """

    pieces: Sequence[str | Block]

    @property
    def blocks(self) -> list[Block]:
        """The blocks, in their order."""
        return [piece for piece in self.pieces if isinstance(piece, Block)]

    def written(self, write: Callable[[Block], str]) -> str:
        """Return the document with each block as a function writes it."""
        return "".join(piece if isinstance(piece, str) else write(piece) for piece in self.pieces)


UNREAD = frozenset("rp rt script style svg template textarea".split())  # noqa: SIM905
"""Elements of HTML whose content is no part of the sentence."""
EMPTY = IGNORED.union("a br i img wbr".split())  # noqa: SIM905
"""Elements of HTML that may be empty, as anchors and icons; others that are not translated are placeholders then."""
MAX_WRITTEN = 2048
"""Most characters of content that is a part of the sentence, as written, with entities and white space."""

_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9._-]*);")
_XML_ENTITIES = {"&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&apos;": "'"}
_WHITE_SPACE = re.compile(r"[ \t\r\n\f]+")
_SPACES = " \t\r\n\f"


def parse(
    text: str,
    kind: MarkupKind,
    rules: MarkupRules = MarkupRules(),  # noqa: B008 - frozen
    reader: PlaceholderReader | None = None,
) -> Document:
    """Parse a document; unclosed and crossed tags of HTML are mended.

    Args:
        reader: finds the placeholders of blocks; None: there are none, and what is not translated is a mark.

    Raises:
        InvalidArgumentError: the XML is not well formed, or has parts that are refused.
    """
    try:
        is_html, ignored = kind == "html", ignored_names(kind, rules)
        tokens = mend(scan(text, html=True), ignored) if is_html else list(read_xml(text))
    except XmlError as error:
        raise InvalidArgumentError(
            f"the text {error.problem} in line {error.line}; {error.remedy}, or send it as HTML", field="contents"
        ) from None
    tokens = tokens if reader is None else list(_with_messages(tokens, reader))
    return Document(tuple(_pieces(find_structure(tokens, kind, rules), reader, html_entities=is_html)))


def _with_messages(tokens: Sequence[Token], reader: PlaceholderReader) -> Iterator[Token]:
    """Part the texts of an ICU message with tags from its syntax, so that no tag leaves its branch."""
    text = "".join(one.written if one.kind is Kind.TEXT else " " * len(one.written) for one in tokens)
    places = list(accumulate((len(one.written) for one in tokens), initial=0))
    tags = [place for one, place in zip(tokens, places, strict=False) if one.kind is not Kind.TEXT]
    message = parse_message(text) if tags else None
    divided = any(one.kind is not Kind.TEXT and one.name not in BLOCKS for one in tokens) or any(
        hole.kind == "icu" and bisect_left(tags, hole.first) < bisect_left(tags, hole.after)
        for hole in (message.branches[0].holes if message else ())
    )
    if message is None or not divided or all(hole.kind != "icu" for hole in reader.find(text)):
        yield from tokens
        return
    parts = list[tuple[int, int, Kind, str]]()
    for branch in message.branches:
        parted = [hole for hole in branch.holes if hole.kind in _PARTED]
        parts += ((*gap, Kind.TEXT, "") for gap in gaps(parted, branch.first, branch.after))
        parts += ((*hole[:2], Kind.UNIT, name) for hole in parted if (name := _PARTED[hole.kind]))
    parts.sort()
    parts += [(*gap, Kind.SYNTAX, "") for gap in gaps(parts, 0, len(text))]
    parts = sorted(part for part in parts if part[0] < part[1])
    for token, place in zip(tokens, places, strict=False):
        number = bisect_right(parts, place, key=lambda part: part[1])
        while token.kind is Kind.TEXT and number < len(parts) and parts[number][0] < place + len(token.written):
            first, after, kind, name = parts[number]
            yield Token(kind, text[max(first, place) : min(after, place + len(token.written))], name)
            number += 1
        if token.kind is not Kind.TEXT:
            yield token


_PARTED = {"icu": "", "number": "5", "quote": "x"}
"""Holes of a message's branch that are no text, and what the model reads in their place."""


def _pieces(structure: Structure, reader: PlaceholderReader | None, *, html_entities: bool) -> Iterator[str | Block]:
    """Yield blocks, and all that is between them."""
    tokens, block = structure.tokens, _BlockBuilder(reader, html_entities=html_entities)
    ends, index = set(structure.ends.values()), 0
    while index < len(tokens):
        token, first = tokens[index], index
        index += 1
        written, separate = token.written, structure.separate[first]
        if first in structure.ignored:
            index = structure.ignored[first] + 1
            written = "".join(one.written for one in tokens[first:index])
            separate = any(structure.separate[first:index])
        if separate:
            yield from block.pieces()
            block = _BlockBuilder(reader, html_entities=html_entities)
            literal = token.kind is Kind.CDATA and first not in structure.ignored and any(map(str.isalnum, written[9:]))
            yield from _literal(written, reader) if literal else (written,)
        elif first in structure.ignored:
            block.ignore(tokens[first:index])
        elif token.kind is Kind.TEXT:
            block.add_text(written)
        elif token.kind is Kind.UNIT:
            block.keep(written, token.name)
        elif first in structure.ends:
            block.open(written)
        elif first in ends:
            block.close(written)
        else:
            block.mark(written)
    yield from block.pieces()


def _literal(written: str, reader: PlaceholderReader | None) -> Iterator[str | Block]:
    """Yield the pieces of literal text in XML."""
    first, after = len(written) - len(written[9:].lstrip()), 9 + len(written[9:-3].rstrip())
    yield written[:first]
    block = Block(written[first:after], [], literal=True)
    yield block if reader is None else _with_placeholders(block, reader, (), {})
    yield written[after:]


def _with_placeholders(
    block: Block, reader: PlaceholderReader, known: Sequence[Hole], written: Mapping[int, str]
) -> Block:
    """Let a model read a block whose placeholders are known; a tag inside of one divides it.

    Args:
        known: placeholders beside those that the reader finds.
        written: characters that were written in another form, by their indices.
    """
    spans = list(all_spans(block.spans))
    if not spans and not known:
        read = reader.read(block.text)
    else:
        edges = sorted({edge for span in spans for edge in (span.start, span.end)})
        holes = joined_holes([*known, *reader.find(block.text)])
        parts = [part for hole in holes for part in _parts(block.text, hole, edges)]
        read = reader.with_holes(block.text, parts, edges=frozenset(edges))
    if not read.placeholders:
        return block
    for span in spans:
        span.start, span.end = read.place(span.start), read.place(span.end)
    forms = tuple(
        block.escape(one.content)
        if one.holes[0].content
        else "".join(written.get(at, block.text[at]) for at in range(one.holes[0].first, one.holes[-1].after))
        for one in read.placeholders
    )
    return Block(read.text, block.spans, block.entities, block.literal, read, forms)


def _parts(text: str, hole: Hole, edges: Sequence[int]) -> Iterator[Hole]:
    """Yield the parts of a placeholder between tags, without white space at their ends."""
    inner = edges[bisect_right(edges, hole.first) : bisect_left(edges, hole.after)]
    for first, after in pairwise((hole.first, *inner, hole.after)):
        part = text[first:after]
        if part.strip():
            start, end = first + len(part) - len(part.lstrip()), first + len(part.rstrip())
            yield hole._replace(first=start, after=end)


class _BlockBuilder:
    """Builds a block from its tokens."""

    def __init__(self, reader: PlaceholderReader | None, *, html_entities: bool) -> None:
        self._reader = reader
        self._html = html_entities
        self._forms: dict[int, str] = {}  # of characters that are written in another form
        self._holes: list[Hole] = []
        self._has_words = False  # beside the holes
        self._text: list[str] = []
        self._length = 0
        self._space = True  # at the end of the text
        self._written: list[str] = []
        self._spans: list[Span] = []
        self._open: list[Span] = []
        self._entities: dict[str, str] = {}
        self._last: Span | None = None  # whose tag was the last token

    def add_text(self, written: str) -> None:
        """Add text with entities."""
        end = 0
        for found in _ENTITY.finditer(written):
            character = html.unescape(found[0]) if self._html or found[0][1] == "#" else _XML_ENTITIES.get(found[0], "")
            self._add(written[end : found.start()])
            end = found.end()
            if len(character) == 1 and not (character.isspace() and character in _SPACES):
                self._entities.setdefault(character, found[0])
                self._forms[self._length] = found[0]
                self._written.append(found[0])
                self._append(character)
                self._has_words = self._has_words or character.isalnum()
            else:
                self.mark(found[0])
        self._add(written[end:])

    def open(self, written: str) -> None:
        """Add a start tag."""
        self._open.append(self.mark(written))

    def close(self, written: str) -> None:
        """Add an end tag."""
        span = self._last = self._open.pop()
        span.end, span.closing = self._length, written
        self._written.append(written)

    def mark(self, written: str) -> Span:
        """Add a part without text."""
        span = self._last = Span(self._length, self._length, written, after_space=self._space)
        (self._open[-1].children if self._open else self._spans).append(span)
        self._written.append(written)
        return span

    def ignore(self, tokens: Sequence[Token]) -> None:
        """Add an element whose content is not translated; the model reads its text, or a stand-in."""
        written, name = "".join(token.written for token in tokens), tokens[0].name
        visible = "".join(token.written for token in tokens[1:-1] if token.kind is Kind.TEXT)
        if visible.strip(_SPACES) or (self._html and name in EMPTY):
            self.keep(written, "" if self._html and name in UNREAD else visible)
        else:
            self._copy(written, written)

    def keep(self, written: str, visible: str) -> None:
        """Add a part that stays as it is, with the text that the model reads for it, if any."""
        plain = _WHITE_SPACE.sub(" ", html.unescape(visible)).strip() if len(visible) <= MAX_WRITTEN else ""
        self._copy(plain, written)

    def _copy(self, text: str, written: str) -> None:
        """Add a placeholder, or a mark without text."""
        if not text or self._reader is None:
            self.mark(written)
            return
        first = self._length
        self._append(text)
        self._holes.append(Hole(first, self._length, "element"))
        self._forms |= {**dict.fromkeys(range(first, self._length), ""), first: written}
        self._written.append(written)
        self._last = None

    def pieces(self) -> Iterator[str | Block]:
        """Yield the block, or its tokens as they were written if it has no text to translate."""
        text = "".join(self._text)
        if not self._has_words:
            yield "".join(self._written)
            return
        first = self._written[0]
        yield first[: len(first) - len(first.lstrip(_SPACES))]
        length = len(text.rstrip(" "))
        after_space = None
        for span in all_spans(self._spans):
            after_space = after_space or (span if length < span.start else None)
            span.start, span.end = min(span.start, length), min(span.end, length)
        if after_space:
            after_space.opening = f" {after_space.opening}"
        block = Block(text[:length], self._spans, self._entities)
        yield block if self._reader is None else _with_placeholders(block, self._reader, self._holes, self._forms)
        last = self._written[-1]
        if length < len(text) and not after_space:
            yield last[len(last.rstrip(_SPACES)) :] or " "

    def _add(self, written: str) -> None:
        if not written:
            return
        self._written.append(written)
        text = _WHITE_SPACE.sub(" ", written)
        if self._reader is not None and (len(text) < len(written) or "\n" in written):
            self._note_spaces(written)
        if self._space and text[0] == " ":
            text = text[1:]
            if self._last is not None:  # between two white spaces: the second one goes with the tag
                self._last.add_space()
        self._append(text)
        self._has_words = self._has_words or any(map(str.isalnum, text))
        self._last = None

    def _note_spaces(self, written: str) -> None:
        """Note the white space that is no single space."""
        shift = self._length - (self._space and written[0] in _SPACES)
        for found in _WHITE_SPACE.finditer(written):
            if found[0] != " " and found.start() + shift >= self._length:
                self._forms[found.start() + shift] = found[0]
            shift -= len(found[0]) - 1

    def _append(self, text: str) -> None:
        if text:
            self._text.append(text)
            self._length += len(text)
            self._space = text[-1] == " "
