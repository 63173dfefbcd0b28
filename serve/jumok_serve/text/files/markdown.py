"""Markdown: paragraphs, headings and cells are translated; all else stays as it is written.

A parser finds the blocks, and in each of them its text, the marks around words, and what is not translated. What is
written in the place of a text is parsed again: it has exactly the marks and the words of the translation, or the text
stays as it is and is reported.
"""

import html
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import or_
from typing import Any, Final, TypeAlias

from pyromark import Markdown, Options, reference_definitions

from jumok_proto.errors import InvalidArgumentError
from jumok_proto.markup import MarkupRules
from jumok_serve.text.files.document import (
    MAX_READ,
    PARTS_PER_STEP,
    FileFormat,
    Parts,
    Piece,
    Text,
    has_letters,
    refuse,
    unchanged,
    unread,
)
from jumok_serve.text.files.web import html_pieces
from jumok_serve.text.markup.scanner import Kind, Token, scan
from jumok_serve.text.markup.structure import find_structure

_EXTENSIONS: Final = ("TABLES", "FOOTNOTES", "STRIKETHROUGH", "TASKLISTS", "HEADING_ATTRIBUTES", "MATH", "WIKILINKS")
_OPTIONS: Final = reduce(or_, (Options[f"ENABLE_{name}"] for name in _EXTENSIONS))
_FRONT: Final = re.compile(rb"(?:(---)|\+\+\+)[ \t]*+\r?\n(?![ \t]*+\r?\n)")
_FRONT_END: Final = re.compile(rb"^(?:(---|\.\.\.)|\+\+\+)[ \t]*+\r?$", re.MULTILINE)
"""Ends of the data before a document: of YAML, with the group, or of TOML."""
_NEXT_ITEM: Final = re.compile(rb"[ \t]++(?:>|(?:[-+*]|\d{1,9}+[.)])(?=[ \t]))")
"""Mark of a list or quotation within another one, in the same line."""
_LINE: Final = re.compile(
    rb"^(?P<before>[ \t>]*+)(?:"
    rb"(?P<blank>:{3,}+[^\r\n]*+|\{:[^{}\r\n]*+\}(?=[ \t]*+\r?$)|\[TOC\](?=[ \t]*+\r?$)|\*\[[^\[\]\r\n]++\]:[^\r\n]*+"
    rb"|(?:(?:\{\{[<%][^{}\r\n]*+\}\}|\{%[^{}\r\n]*+(?<=%)\})[ \t]*+)+(?=\r?$)"
    rb"|(?:import|export)[ \t][^\r\n]*+(?<=[;'\"}])(?=\r?$))"
    rb"|(?P<block>(?:(?:!!!|\?\?\?\+?+)[ \t]*+[\w-]++(?:[ \t]++[\w-]++)*|\?\?\?\+?+(?=[ \t]++\"))"
    rb"(?:[ \t]++\"[^\"\r\n]*+\")?(?=[ \t]*+\r?$)"
    rb"|===[+!]?+[ \t]++\"[^\"\r\n]*+\"(?=[ \t]*+\r?$))"
    rb"|(?P<alert>\[![\w-]++\][+-]?+(?=[ \t\r\n]|\Z))"
    rb"|(?P<definition>:(?=[ \t]{1,4}+[^\s]))"
    rb"|(?P<items>(?:[-+*]|\d{1,9}+[.)])(?=[ \t]))"
    rb"|(?<=[>])|(?<=> ))",
    re.MULTILINE,
)
"""Beginnings of lines that the parser does not know, or that make lists and quotations: containers of Docusaurus and
Pandoc, attributes of kramdown, templates, code of MDX; blocks of MkDocs; alerts; abbreviations and definitions of PHP
Markdown Extra."""
_RAW: Final = re.compile(
    rb"\{{2,3}[^{}]{1,2000}+\}{2,3}|\{%(?:[^%]|%(?!\})){1,2000}%\}"
    rb"|(?<![\w:]):[+-]?[A-Za-z0-9][\w+-]{0,50}+:(?![\w:])"
    rb"|(?<!\w)(?:https?|ftp)://(?:[\w.\-/?#&=%+:@!$,;~*]|[\xc3-\xdf][\x80-\xbf]|\([^\s()<>]{0,500}+\)){0,2000}"
    rb"(?:[A-Za-z0-9/#=&%+$-]|[\xc3-\xdf][\x80-\xbf]|\([^\s()<>]{0,500}+\))"
    rb"|(?<=[\])`])\{[^{}\n]{1,500}+\}|(?:(?<=\])\[|\[\^)[^\[\]\s]{1,200}+\]"
)
"""Templates, emoji codes, bare addresses, attributes of spans, and marks of notes and links defined elsewhere."""
_EDGES: Final = re.compile(rb"(\{{1,3}%?|:|[a-z]+://)(.*?)(%?\}{1,3}|:|[/#=&%+$-]|)", re.DOTALL)
_STEP: Final = 2**15
"""Bytes that are masked at once, which holds Python's lock."""
MAX_MARKS: Final = 250_000
"""Marks of lists and quotations of a file: each takes memory in the parser."""
_CONTAINER: Final = re.compile(rb">|[-+*](?=[ \t]|\Z)|\d[.)](?=[ \t]|\Z)")
_FIRST_TAG: Final = re.compile(r"<[^<>]*+>[ \t]*+\r?\n")
_INDENTED: Final = re.compile(rb"\n *(?:\t| {4})[ \t]*\Z")
"""Before a paragraph: it begins behind a definition of a link, or would be code."""
_SETEXT: Final = re.compile(rb"[ \t]*+\r?\n[ \t>]*+[=-]")

_ENTITY: Final = re.compile(r"(&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});)")
_NAME: Final = re.compile(r"\b([mi])(\d{1,9})\b")
_SPACES: Final = re.compile(r"[ \t\r\n\f]+")
_PREFIX: Final = re.compile(r"(?<=\n)[ \t>]+")
_SPECIAL: Final = (
    re.compile(
        r"[\\`*\[\]<~$]|(?<![^\W_])_|_(?![^\W_])|&(?=#?\w{1,32};)|!(?=\[)|:(?=\S{1,60}:|//)|\{(?=[{%:]|.{0,500}\}$)"
    ),
    re.compile(r"[!-/:-@\[-`{-~]"),
)
"""Characters that may become marks, and all that a backslash can escape."""
_LEADING: Final = re.compile(r"\d{0,9}([#>+=:.)|-]|!!!|\?\?\?)")
_LAST_MARKS: Final = re.compile(r"#(?=#*$)")
_BLOCKS: Final = frozenset({"Paragraph", "Heading", "TableCell", "HtmlBlock"})
_SPANS: Final = {"Emphasis": 1, "Strong": 2, "Strikethrough": 2, "Link": 1, "Image": 2}
"""Kinds of elements inside of a text, with the length of what opens them."""
MAX_SHOWN: Final = 256
"""Characters of what is not translated that the model may read."""
_PART_LENGTH: Final = 48
"""Characters of a text that each of its parts counts as, as it takes memory."""
_MASKS: Final = {"blank": b"", "block": b"-   #", "alert": b"#", "definition": b"-"}
"""What the parser reads in place of beginnings of lines: for blocks an item, whose content is indented by four."""
_NEEDED: Final = {"&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'", "&apos;": "'"}
_EMPHASIS: Final = frozenset({"Emphasis", "Strong"})


@dataclass(slots=True)
class _Part:
    """A part of a text.

    Attributes:
        role: text, start or end of an element, an empty one for a break between lines, or raw for a hole.
        first, after: its place in the file, in bytes.
        written: its characters there.
        kind: name by the parser; "Raw" for what the parser does not know, "Plain" for text of a translation.
        shown: text of a part, what the model reads of a hole, and the text of a picture.
        key: what tells it from others if it is parsed again.
        name: of an element.
        apart: True if it separates sentences.
        partner: index of the start of an element that ends here.
        label: what is between the brackets of a link or picture; None if that is not its label.
        tail: what follows the text of a picture; None if that text has marks.
    """

    role: Kind
    first: int
    after: int
    written: str
    kind: str
    shown: str = ""
    key: tuple[str, ...] = ()
    name: str = ""
    apart: bool = False
    partner: int = -1
    label: str | None = None
    tail: str | None = None

    @property
    def ends_line(self) -> bool:
        """True for a break, or mathematics on lines of its own."""
        return self.name == "br" and self.kind != "InlineHtml"

    @property
    def begins_line(self) -> bool:
        """True if a new line begins behind it."""
        return self.ends_line and self.written.rstrip(" \t>").endswith("\n")


@dataclass(slots=True)
class _Block:
    """A text with its marks.

    Attributes:
        kind: of `_BLOCKS`, or "Item" for a text that an item of a list has by itself.
        first, after: its place, in bytes.
        before, behind: what stands around it if it is parsed again.
        is_inside: True in a list, quotation or note, which lines may be indented for.
        forms: how the file writes characters that it escapes.
        length: of the text with its marks; beyond `MAX_READ` no further parts are added.
    """

    kind: str
    first: int
    after: int
    before: str = ""
    behind: str = "\n"
    is_inside: bool = False
    parts: list[_Part] = field(default_factory=list)
    forms: dict[str, str] = field(default_factory=dict)
    length: int = 0

    @property
    def is_cut(self) -> bool:
        """True if it is far too long to be translated, and was not read to its end."""
        return self.length > MAX_READ


_Definitions: TypeAlias = Mapping[str, tuple[str, str]]
"""Addresses and titles of links by their labels."""


def _mask(data: bytes) -> Iterator[str]:
    """Replace what the parser does not know by as many bytes; yields empty texts, and the masked characters at last."""
    masked: bytearray | None = None
    marks = start = 0
    if front := _FRONT.match(data):
        ends = (end for end in _FRONT_END.finditer(data, front.end() - 1) if (end[1] is None) == (front[1] is None))
        if (last := next(ends, None)) is not None:
            start = last.end()
            masked = bytearray(re.sub(rb"[^\r\n]", b" ", data[:start]) + data[start:])
    while start < len(data):
        half, end = start + _STEP // 2, min(start + _STEP, len(data))
        if end < len(data):
            end = data.rfind(b"\n\n", half, end) + 1 or data.rfind(b"\n", half, end) + 1 or end
        changes = list[tuple[int, int, bytes]]()
        for found in _RAW.finditer(data, start, end):
            if edges := _EDGES.fullmatch(found[0]):
                changes.append((*found.span(), edges[1] + b"x" * len(edges[2]) + edges[3]))
        for found in _LINE.finditer(data, start, end):
            marks += len(_CONTAINER.findall(found[0]))
            place = found.end()
            while found.lastgroup == "items" and (following := _NEXT_ITEM.match(data, place)) is not None:
                marks, place = marks + 1, following.end()
            if marks > MAX_MARKS:
                line = data.count(b"\n", 0, found.start()) + 1
                refuse(line, f"the file has more than {MAX_MARKS} marks of lists and quotations: split it")
            first, after = found.end("before"), found.end()
            if found.lastgroup in _MASKS:
                changes.append((first, after, _MASKS[found.lastgroup].ljust(after - first)[: after - first]))
        for first, after, made in changes:
            masked = masked or bytearray(data)
            masked[first:after] = made
        start = end
        yield ""
    yield (masked or data).decode()


def _named(event: Any) -> tuple[str, Any]:
    """Return the name of an event or an element, and what the parser says about it."""
    found: tuple[str, Any] = (event, {}) if isinstance(event, str) else next(iter(event.items()))
    return found


class _Reader:
    """Finds the texts of a file, or of a part of one."""

    def __init__(self, data: bytes, masked: str, definitions: _Definitions) -> None:
        resolve = (lambda link: definitions.get(_label(link["reference"]))) if definitions else None
        parser = Markdown(options=_OPTIONS, broken_link_callback=resolve)
        self._data = data
        self._events = parser.events_with_range(masked)
        self._block: _Block | None = None
        self._raw: Iterator[re.Match[bytes]] = iter(())
        self._next: re.Match[bytes] | None = None  # hole that the parser does not know
        self._open: list[_Part] = []  # a hole twice if it has an element inside
        self._ends: list[int] = []  # of blocks around, negative if they are no items
        self._task = ""

    def blocks(self) -> Iterator[_Block | None]:
        """Yield the texts; None in between, where reading may stop."""
        code = False
        for number, (event, place) in enumerate(self._events, start=1):
            if number % PARTS_PER_STEP == 0:
                yield None
            first, after = place["start"], place["end"]
            name, value = _named(event)
            if name not in {"Start", "End"}:
                if name == "TaskListMarker":
                    self._task = "[ ] "
                elif not code and name != "Rule":
                    self._add_inline(name, value or "", first, after)
                continue
            tag, details = _named(value)
            if tag in _SPANS:
                self._start(tag, details, first, after) if name == "Start" else self._end(tag, after)
                continue
            yield from self._finish()
            code = name == "Start" and tag in {"CodeBlock", "MetadataBlock"}
            if tag in _BLOCKS and name == "Start":
                self._begin(tag, first, after)
            elif tag not in _BLOCKS and name == "Start":
                self._task = ""
                self._ends.append(after if tag == "Item" else -1)
            elif tag not in _BLOCKS:
                self._ends.pop()
        yield from self._finish()

    def _begin(self, kind: str, first: int, after: int) -> _Block:
        self._block = _Block(kind, first, after, is_inside=bool(self._ends))
        if kind == "TableCell":
            self._block.before, self._block.behind, self._block.forms["|"] = "|a|\n|-|\n|", " |\n", "\\|"
        self._raw = self._holes(first, after if kind != "HtmlBlock" else first)
        self._next = next(self._raw, None)
        return self._block

    def _begin_item(self, first: int) -> _Block:
        """Begin the text that an item has by itself; else its holes would be read as they are masked."""
        return self._begin("Item", first, self._ends[-1] if self._ends else len(self._data))

    def _holes(self, first: int, after: int) -> Iterator[re.Match[bytes]]:
        """Find what the parser does not know; one search of a long text would stop all other threads."""
        while first < after and not (self._block and self._block.is_cut):
            end = first + _STEP
            found = _RAW.search(self._data, first, min(end + _STEP // 2, after))
            first = end
            if found is not None and found.start() < end:
                first = found.end()
                yield found

    def _finish(self) -> Iterator[_Block]:
        block, self._block = self._block, None
        self._open.clear()
        while block and block.parts and block.parts[-1].role is Kind.TEXT and block.parts[-1].shown.isspace():
            block.parts.pop()
        if block is None or not block.parts:
            return
        if block.kind == "Heading":
            tail = self._data[block.parts[-1].after : block.after]
            setext = _SETEXT.match(tail) is not None
            block.before, block.behind = ("", "\n===\n") if setext else ("# ", f"{tail.decode().rstrip()}\n")
        elif block.kind in {"Paragraph", "Item"} and self._ends and self._ends[-1] >= 0:
            block.before = f"- {self._task}"
        elif block.kind == "Paragraph" and not self._ends:
            indented = _INDENTED.search(self._data[max(0, block.first - 80) : block.first])
            block.before = "[_]: _\n\t" if indented else ""
        if block.kind != "HtmlBlock" and not block.is_cut:
            self._pair(block)
        yield block

    def _pair(self, block: _Block) -> None:
        """Find the partners of elements, HTML's too, and what separates sentences or is not translated."""
        tokens = [Token(part.role, part.written, part.name) for part in block.parts]
        structure = find_structure(tokens, "html", MarkupRules())
        starts, parts, index = dict[int, int](), list[_Part](), 0
        while index < len(tokens):
            part, first = block.parts[index], index
            index += 1
            if first in structure.ignored:
                index = structure.ends[first] + 1
                part.shown = "".join(one.shown for one in block.parts[first:index])
                part.role, part.after = Kind.RAW, block.parts[index - 1].after
                part.written = self._written(part.first, part.after)
                part.key = (_SPACES.sub(" ", part.written),)
            elif first in structure.ends:
                starts[structure.ends[first]] = len(parts)
            elif first in starts:
                part.partner = starts[first]
            elif part.role in {Kind.START, Kind.END}:
                part.role = Kind.RAW
            part.apart = any(structure.separate[first:index])
            parts.append(part)
        block.parts = parts

    def _written(self, first: int, after: int) -> str:
        return self._data[first:after].decode()

    @property
    def _last(self) -> _Part | None:
        return self._block.parts[-1] if self._block and self._block.parts else None

    def _add(self, part: _Part) -> _Block:
        block = self._block or self._begin_item(part.first)
        last = self._last
        if last is not None and block.is_cut:
            last.after = max(last.after, part.after)
            return block
        block.length += len(part.shown) + _PART_LENGTH
        if last is not None and last.ends_line:
            last.after = part.after if part.kind == "SoftBreak" else part.first
            last.written = self._written(last.first, last.after)
        if last is None or not (last.ends_line and part.kind == "SoftBreak"):
            block.parts.append(part)
        return block

    def _add_inline(self, name: str, value: str, first: int, after: int) -> None:
        if self._open and (hole := self._open[-1]).role is Kind.RAW:
            hole.after = after
            hole.shown += (value or " ") if name in {"Text", "SoftBreak"} else ""
            masked = len(value.encode()) == after - first and value != self._written(first, after)
            hole.tail = hole.tail if name == "SoftBreak" or (name == "Text" and not masked) else None
            return
        if name == "Text":
            self._add_text(value, first, after)
            return
        before = {"HardBreak": "Text", "DisplayMath": "SoftBreak"}.get(name)  # a part with it if it is white space
        if self._block and self._last and self._last.kind == before and self._last.shown.isspace():
            first = self._block.parts.pop().first
        written = self._written(first, after)
        part = _Part(Kind.RAW, first, after, written, name, written, (name, _SPACES.sub(" ", value or written).strip()))
        if name in {"FootnoteReference", "InlineHtml"}:
            part.shown = ""
        if name == "Code":
            part.shown = value if value in written else written.strip("` ")
        elif name == "Html" or (name == "InlineMath" and self._data[after : after + 1].isdigit()):
            part.role = Kind.TEXT  # of HTML, or two amounts of dollars
        elif name == "SoftBreak":
            part.role, part.shown = Kind.TEXT, " "
        elif name == "HardBreak":
            part.role, part.shown, part.key, part.name = Kind.EMPTY, "", (), "br"
        elif name == "DisplayMath" and written[0].isspace():  # it has lines of its own
            part.role, part.name = Kind.EMPTY, "br"
        elif name == "InlineHtml":
            tokens = list(scan(written, html=True))
            part.role, part.name = (tokens[0].kind, tokens[0].name) if len(tokens) == 1 else (Kind.RAW, "")
        self._add(part)

    def _add_text(self, text: str, first: int, after: int) -> None:
        """Add text, and the holes in it; attributes belong to what is before them."""
        begin = first
        if self._block is None:
            self._begin_item(first - 1)  # a backslash may stand there
        while self._next is not None and self._next.start() < after:
            start, end = self._next.span()
            if first <= start:
                self._add_plain(self._written(first, start), first, start)
                raw, last = self._written(start, end), self._last
                if raw[0] == "{" and last and last.after == start and last.role in {Kind.END, Kind.RAW}:
                    last.written, last.after = last.written + raw, end
                    last.tail = None if last.tail is None else last.tail + raw
                else:
                    self._add(_Part(Kind.RAW, start, end, raw, "Raw", raw))
            first = max(first, min(end, after))
            if end > after:
                return
            self._next = next(self._raw, None)
        self._add_plain(text if first == begin else self._written(first, after), first, after)

    def _add_plain(self, text: str, first: int, after: int) -> None:
        if first == after:
            return
        written, block = self._written(first, after), self._block
        done = 0 if block is None else block.parts[-1].after if block.parts else block.first
        escaped = done < first and self._data[first - 1 : first] == b"\\"
        block = self._add(_Part(Kind.TEXT, first - escaped, after, written, "Text", text))
        if escaped and text[0] not in ".)+-":  # those are marks only at the beginning, and parts of addresses
            block.forms[text[0]] = f"\\{text[0]}"
        elif written != text and text in _NEEDED.values():
            block.forms[text] = written

    def _start(self, kind: str, details: Mapping[str, object], first: int, after: int) -> None:
        if self._open and (hole := self._open[-1]).role is Kind.RAW:
            hole.tail = None
            self._open.append(hole)
            return
        link, opening = str(details.get("link_type", "")), self._written(first, first + 1) * _SPANS[kind]
        if "WikiLink" in link:
            opening = self._written(first, after).partition("|")[0] + "|"
        elif kind == "Strikethrough" and self._data[first + 1 : first + 2] != b"~":
            opening = "~"
        whole = kind == "Image" or link in {"Autolink", "Email"} or "'has_pothole': False" in link
        part = _Part(Kind.RAW if whole else Kind.START, first, first + len(opening.encode()), opening, kind)
        part.key = (kind, str(details.get("dest_url", "")), str(details.get("title", "")))
        part.name = "" if whole else f"{kind}{first}"
        part.label = "" if link.startswith(("Shortcut", "Collapsed")) else None
        part.tail = "" if kind == "Image" and "WikiLink" not in link else None
        self._open.append(part)
        if not whole:
            self._add(part)

    def _end(self, kind: str, after: int) -> None:
        part, block = self._open.pop(), self._block
        if self._open and self._open[-1] is part:
            return
        while self._data[after - 1] in b" \t":
            after -= 1  # the parser gives it a tab at the end of a heading
        if part.label is not None and self._data[after : after + 2] == b"[]":
            after += 2  # the parser leaves them out
        if part.role is Kind.RAW:
            inside, part.after, part.written = part.after, after, self._written(part.first, after)
            part.shown = part.shown if kind == "Image" else part.written.strip("<>[]")
            part.tail = None if part.tail is None else self._written(inside, after)
            part.label = None if part.label is None else self._written(part.first + 2, inside)
            self._add(part)
            return
        first = after - len(part.written)
        if block is not None and kind == "Link":
            first = max(part.after, block.parts[-1].after)
        label = None if part.label is None else self._written(part.after, first)
        self._add(_Part(Kind.END, first, after, self._written(first, after), kind, name=part.name, label=label))


def _label(label: str) -> str:
    return " ".join(label.split()).casefold()


def _content(parts: Sequence[_Part]) -> str:
    """Write a text as HTML, and the texts of its pictures after it, for the model."""
    out, pictures = list[str](), list[str]()
    for index, part in enumerate(parts):
        shown = html.escape(part.shown, quote=False)
        if part.apart:
            out.append(f"<br m{index}/>")
        elif part.role is Kind.TEXT:
            out.append(part.written if part.written != part.shown and _ENTITY.fullmatch(part.written) else shown)
        elif part.role is Kind.START:
            out.append(f"<m{index}>")
        elif part.role is Kind.END:
            out.append(f"</m{part.partner}>")
        elif part.kind == "Image" or not 0 < len(part.shown) <= MAX_SHOWN:
            out.append(f"<m{index}/>")
        else:
            out.append(f'<m{index} translate="no">{shown}</m{index}>')
        if part.tail is not None and has_letters(part.shown):
            pictures.append(f"<br i{index}/>{shown}")
    return "".join(out + pictures)


def _read_translation(parts: Sequence[_Part], translation: str) -> list[_Part]:
    """Return the parts of a translation."""
    ends = {part.partner: part for part in parts if part.role is Kind.END}
    found, pictures, picture, skipped = list[_Part](), dict[int, str](), -1, ""
    for token in scan(translation, html=True):
        named = _NAME.search(token.written) if token.kind is not Kind.TEXT else None
        number = int(named[2]) if named else len(parts)
        if skipped:
            skipped = "" if token.kind is Kind.END and token.name == skipped else skipped
        elif named and named[1] == "i":
            picture = number
        elif picture >= 0:
            pictures[picture] = pictures.get(picture, "") + html.unescape(token.written)
        elif token.kind is Kind.TEXT:
            for place, text in enumerate(_ENTITY.split(token.written)):
                plain = _SPACES.sub(" ", html.unescape(text) if place % 2 else text)
                kind = "Entity" if place % 2 and plain not in _NEEDED.values() else "Plain"
                found += [_Part(Kind.TEXT, 0, 0, text, kind, plain)] if plain else []
        elif number < len(parts) and token.kind is Kind.END:
            found.append(ends[number])
        elif number < len(parts):
            found.append(parts[number])
            skipped = token.name if token.kind is Kind.START and parts[number].role is not Kind.START else ""
    for number, text in pictures.items():
        if number < len(parts) and text.strip() != parts[number].shown.strip():
            changed = replace(parts[number], shown=_SPACES.sub(" ", text).strip(), written="")
            found = [changed if part is parts[number] else part for part in found]
    return _without_spaces(found)


def _without_spaces(parts: Sequence[_Part], role: Kind = Kind.END) -> list[_Part]:
    """Join texts, and move spaces at the ends of emphasized words out of the marks."""
    found, at_end = list[_Part](), role is Kind.END
    for part in parts if at_end else reversed(parts):
        text = found[-1] if found and found[-1].kind == "Plain" else None
        if text and part.role is role and part.kind in {*_EMPHASIS, "Strikethrough"}:
            bare = text.shown.rstrip(" ") if at_end else text.shown.lstrip(" ")
            found[-1:] = [replace(text, shown=bare)] if bare else []
            found += [part, replace(text, shown=" ")] if bare != text.shown else [part]
        elif text and part.kind == "Plain":
            found[-1] = replace(text, shown=text.shown + part.shown if at_end else part.shown + text.shown)
        else:
            found.append(part)
    return _without_spaces(found, Kind.START) if at_end else found[::-1]


def _signature(parts: Sequence[_Part]) -> list[tuple[str, ...]]:
    """Return what parts are in any way of writing."""
    found, text, begins = list[tuple[str, ...]](), "", True
    for part in (*parts, None):
        if part and (part.role is Kind.TEXT or part.kind == "Raw"):
            text += part.shown
            continue
        text = _SPACES.sub(" ", text)
        text = text.rstrip(" ") if part is None or part.ends_line else text
        text = text.lstrip(" ") if begins else text
        found += [(text,)] if text else []
        text, begins = "", part is not None and part.begins_line
        if part is not None:
            picture = (_SPACES.sub(" ", part.shown).strip(),) if part.kind == "Image" else ()
            found.append((part.role.name, *part.key, *picture))
    return found


class _Writer:
    """Writes the parts of a translation as Markdown.

    Args:
        level: what is escaped: up to 1 only what the file escapes, then what may become a mark, at last all that can
            be. From 1 on marks of emphasis are those that are read as marks between their neighbours. Between a mark
            and a letter some are none: the letter is then written as an entity.

    Attributes:
        written: the characters.
    """

    def __init__(self, block: _Block, parts: Sequence[_Part], level: int) -> None:
        self._block = block
        self._parts = parts
        self._level = level
        self._out: list[str] = []
        self._opened: list[tuple[int, str]] = []  # places in the output, and marks
        self._entity = False  # the next character is one
        for index, part in enumerate(parts):
            written = part.written
            if part.role is Kind.TEXT:
                written = written if part.kind == "Entity" else self._text(index)
            elif part.role is Kind.START:
                written = self._opening(index) if level and part.kind in _EMPHASIS else written
                self._opened.append((index, written))
            elif part.role is Kind.END:
                first, mark = self._opened.pop() if self._opened else (0, written)
                if level and part.kind in _EMPHASIS:
                    written, self._entity = mark, self._needs_entity(self._before(), self._behind(index), mark)
                elif part.label is not None and "".join(self._out[first + 1 :]) != part.label:
                    written = f"][{part.label}]"
            elif not written:
                written = f"![{self._escape(part.shown)}{part.tail if part.label is None else f'][{part.label}]'}"
            self._out.append(written)
        self.written = "".join(self._out)

    def _text(self, index: int) -> str:
        text, behind = self._parts[index].shown, self._parts[index + 1] if index + 1 < len(self._parts) else None
        if begins := not index or self._parts[index - 1].begins_line:
            text = text.lstrip(" ")
        if behind is None or behind.ends_line:
            text = text.rstrip(" ")
        written = self._escape(text)
        if self._level > 1 and text:
            if begins and (found := _LEADING.match(written)):
                written = f"{written[: found.start(1)]}\\{written[found.start(1) :]}"
            if text.endswith("!") and not written.endswith("\\!") and behind and behind.role is Kind.START:
                written = f"{written[:-1]}\\!"  # a link would be a picture
            if behind is None and self._block.kind == "Heading" and not written.endswith("\\#"):
                written = _LAST_MARKS.sub(r"\\#", written, count=1)
            self._entity = self._entity or (begins and self._level > 2 and text[0].isalpha())
        if self._entity and text and written[0] == text[0]:
            written = f"&#{ord(text[0])};{written[1:]}"
        self._entity = False
        return written

    def _escape(self, text: str) -> str:
        forms = self._block.forms
        if self._level < 2:
            return text.translate({ord(one): form for one, form in forms.items()})
        places = {found.start() for found in _SPECIAL[self._level - 2].finditer(text)}
        return "".join(forms.get(one) or (f"\\{one}" if place in places else one) for place, one in enumerate(text))

    def _before(self) -> str:
        """Return the last character that is of no mark; a space at the beginning."""
        marks = (part.kind in _EMPHASIS for part in reversed(self._parts[: len(self._out)]))
        return next((one[-1] for one, mark in zip(reversed(self._out), marks, strict=True) if one and not mark), " ")

    def _behind(self, index: int) -> str:
        """Return the next character that is of no mark; a space at the end."""
        others = (part for part in self._parts[index + 1 :] if part.kind not in _EMPHASIS)
        return next(((part.shown if part.kind == "Plain" else part.written)[:1] or "!" for part in others), " ")

    def _opening(self, index: int) -> str:
        before = (self._out[-1][-1:] if self._out else "") or " "
        around = {mark[0] for _, mark in self._opened}
        mark = ("_" if "*" in around or (before == "*" and "_" not in around) else "*") * _SPANS[
            self._parts[index].kind
        ]
        if self._needs_entity(self._behind(index), before, mark) and self._parts[index - 1].kind == "Plain":
            self._out[-1] = f"{self._out[-1][:-1]}&#{ord(before)};"
        return mark

    @staticmethod
    def _needs_entity(inside: str, outside: str, mark: str) -> bool:
        inside_mark, outside_mark = (unicodedata.category(one)[0] in "PS" for one in (inside, outside))
        return not outside.isspace() and not outside_mark and ("_" in mark or inside_mark)


def _write(  # noqa: PLR0917 - kept for each text, as few objects
    block: _Block, definitions: _Definitions, line: int, content: str, written: str, translation: str
) -> str:
    """Write a translation in the place of a text.

    Raises:
        InvalidArgumentError: no way of writing it keeps its marks.
    """
    if translation == content:
        return written
    parts = _read_translation(block.parts, translation.encode("utf-8", "replace").decode())
    for index, behind in enumerate(parts[1:]):
        if (url := parts[index].written)[:1].isalpha() and parts[index].kind == "Raw" and behind.shown[:1].isalpha():
            # Without brackets the word would be in the address.
            parts[index] = _Part(Kind.RAW, 0, 0, f"<{url}>", "Link", key=("Link", [*_mask(url.encode())][-1], ""))
    intended, cells = _signature(parts), block.kind == "TableCell"
    notes = {part.written for part in parts if part.kind == "FootnoteReference"}
    kinds = {block.kind, "Paragraph", "Item"} if block.kind in {"Paragraph", "Item"} else {block.kind}
    for level in range(2 + len(_SPECIAL)):
        writer = _Writer(block, parts, level)
        inner = _PREFIX.sub("", writer.written) if block.is_inside else writer.written
        again = block.before + inner + block.behind + "".join(f"\n{note}: x\n" for note in notes)
        *_, masked = _mask(data := again.encode())
        found = list(filter(None, _Reader(data, masked, definitions).blocks()))
        fits = len(found) == cells + 1 + len(notes) and found[cells].kind in kinds
        if fits and _signature(found[cells].parts) == intended:
            return writer.written
    raise InvalidArgumentError(
        f"file: line {line}: its marks cannot be kept around the words of the translation: translate it by hand",
        field="file",
    )


def markdown_pieces(content: str) -> Iterator[Piece]:
    """Yield the pieces of a document.

    Raises:
        InvalidArgumentError: it has too many marks of lists and quotations.
    """
    data, masked = content.encode(), ""
    for masked in _mask(data):  # noqa: B007 - the last is used
        yield ""
    definitions = dict[str, tuple[str, str]]()
    if b"]:" in data:
        for label, found in reference_definitions(masked, options=_OPTIONS).items():
            definitions.setdefault(_label(label), (found["dest"], found["title"] or ""))
    done, line = 0, 1
    for block in _Reader(data, masked, definitions).blocks():
        if block is None:
            yield ""
            continue
        first, after = block.parts[0].first, block.parts[-1].after
        before, written = data[done:first].decode(), data[first:after].decode()
        yield before
        line += before.count("\n")
        yield from _pieces(block, written, line, definitions)
        line += written.count("\n")
        done = after
    yield data[done:].decode()


def _with_first_line(first: str, translation: str) -> str:
    """Keep a tag alone in its line: without the line it is no block."""
    if not translation.startswith(tag := first.rstrip()):
        raise InvalidArgumentError(
            f"file: the tag {tag} cannot stay at the beginning: translate it by hand", field="file"
        )
    return f"{first}{translation[len(tag) :].lstrip()}"


def _pieces(block: _Block, written: str, line: int, definitions: _Definitions) -> Iterator[Piece]:
    if block.is_cut:
        yield unread("".join(part.shown + " " * _PART_LENGTH for part in block.parts), written, line)
    elif block.kind == "HtmlBlock":
        if _SPACES.sub("", written) != _SPACES.sub("", "".join(part.written for part in block.parts)):
            yield written  # with marks of a quotation between its lines
            return
        for piece in html_pieces(written):
            if not isinstance(piece, Text):
                yield piece
            elif any("<" in token.written for token in scan(piece.content, html=True) if token.kind is Kind.TEXT):
                yield piece.written  # of a tag that has no end
            else:
                first = _FIRST_TAG.match(piece.written) if written.startswith(piece.written) else None
                write = partial(_with_first_line, first[0]) if first else piece.write
                yield replace(piece, line=line + piece.line - 1, write=unchanged(piece.content, piece.written, write))
    elif any(has_letters(part.shown) for part in block.parts if part.role is Kind.TEXT or part.tail):
        content = _content(block.parts)
        yield Text(content, written, line, partial(_write, block, definitions, line, content, written))
    else:
        yield written


FORMATS: Final = {
    "markdown": FileFormat(
        markdown_pieces,
        "html",
        parts=Parts(name="lines and marks", marks="\n|*_`[]<&\\~", size=400, most=500_000),
    )
}
