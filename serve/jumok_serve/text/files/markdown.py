"""Markdown: blocks and spans, and which of them are text."""

import html
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from jumok_serve.text.files.document import (
    MAX_READ,
    FileFormat,
    Parts,
    Piece,
    Text,
    has_letters,
    separate,
    unchanged,
    unread,
    with_end,
    with_ends,
)
from jumok_serve.text.markup.scanner import Kind, scan
from jumok_serve.text.markup.structure import BLOCKS

_TARGET: Final = r"(?:\([^()\s]*+(?:[ \t]++\"[^\"]*+\")?\)|\[[^\[\]]*+\])"
_ENTITY_END: Final = r"(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});"
_INLINE: Final = re.compile(
    r"(?P<escape>\\[!-/:-@\[-`{-~])"
    r"|(?P<code>(?<!`)(?P<ticks>`{1,9})(?!`)[^`]++(?P=ticks)(?!`))"
    rf"|(?P<whole>!\[[^\[\]]*+\]{_TARGET}?|<[^<>\s@]{{1,999}}+@[^<>\s@]{{1,999}}+>"
    r"|</?[A-Za-z][^<>]*+>)"
    r"|(?P<comment><!--)"
    rf"|(?P<link>\[(?=[^\[\]]++\]{_TARGET}))"
    rf"|(?P<linkend>\]{_TARGET})"
    r"|(?P<mark>\*\*|__|~~|\*|_)"
    rf"|(?P<entity>&{_ENTITY_END})",
    re.DOTALL,
)
_BEGIN: Final = re.compile(r"[\\`<\[\]*_~&]")
"""First character of a mark, or the second one of a picture."""
_NAME: Final = re.compile(r"m(\d{1,9})")
_SPECIAL: Final = re.compile(r"[\\`*\[\]<~]|(?<![^\W_])_|_(?![^\W_])")
_AMPERSAND: Final = re.compile(f"&amp;(?=({_ENTITY_END})?)")
_LINK: Final = "["
_COMMENT_END: Final = "-->"
MAX_MARKUP: Final = MAX_READ
"""Characters of HTML after which a text is read no further; pictures, addresses and comments count little."""


class Inline:
    """A text of Markdown.

    Attributes:
        text: its characters without marks.
        markup: the text as HTML, where element ``m3`` stands for the third mark.
        is_cut: True if the text is far too long to be translated, and was not read to its end.
    """

    def __init__(self, written: str) -> None:
        self._out: list[str] = []
        self._plain: list[str] = []
        self._marks: list[tuple[str, str]] = []
        self._open: list[tuple[str, int]] = []  # mark and place in the output
        self._open_by_mark: dict[str, list[int]] = {}  # indices of `_open`, ascending
        end, last_comment_end = 0, written.rfind(_COMMENT_END)
        self._length = 0
        while self._length <= MAX_MARKUP and (found := _next_mark(written, end)):
            self._add(written[end : found.start()])
            end = found.end()
            if found["comment"] and end <= last_comment_end:
                end = written.index(_COMMENT_END, end) + len(_COMMENT_END)
                self._put(f"<m{self._number(written[found.start() : end], '')}/>")
            elif found["comment"]:
                self._add(found[0])
            else:
                self._add_mark(found, written)
        self.is_cut = self._length > MAX_MARKUP
        if not self.is_cut:
            self._add(written[end:])
        self.text = "".join(self._plain)
        self.markup = "".join(self._out)

    def write(self, markup: str) -> str:
        """Write translated HTML as Markdown."""
        written, skipped = list[str](), ""
        for token in scan(markup, html=True):
            found = _NAME.fullmatch(token.name)
            number = int(found[1]) if found else len(self._marks)
            opening, closing = self._marks[number] if number < len(self._marks) else ("", "")
            if skipped:
                skipped = "" if token.kind is Kind.END and token.name == skipped else skipped
            elif token.kind is Kind.END:
                written.append(closing)
            elif token.kind in {Kind.START, Kind.EMPTY}:
                if opening == _LINK and written and written[-1].endswith("!"):  # it would be a picture
                    written[-1] = f"{written[-1][:-1]}\\!"
                written.append(opening)
                skipped = token.name if token.kind is Kind.START and not closing else ""
            else:
                written.append(_escaped(token.written))
        return "".join(written)

    def _put(self, markup: str) -> None:
        self._out.append(markup)
        self._length += len(markup)

    def _add(self, text: str) -> None:
        self._plain.append(text)
        self._put(html.escape(text[: MAX_MARKUP + 1], quote=False))  # of more, nothing is translated

    def _add_mark(self, found: re.Match[str], written: str) -> None:
        kind, mark = found.lastgroup, found[0]
        if found["escape"]:
            self._add(mark[1:])
        elif found["entity"]:
            self._put(mark)
        elif found["code"]:
            content = mark.strip("`").strip()
            number = self._number(mark, "")
            self._put(f'<m{number} translate="no">{html.escape(content, quote=False)}</m{number}>')
        elif found["whole"]:
            self._put(f"<m{self._number(mark, '')}/>")
        elif kind == "link":
            self._open_mark(_LINK)
            self._put(mark)
        elif kind == "linkend":
            if not self._close(_LINK, mark):
                self._add(mark)
        else:
            before = written[max(0, found.start() - 1) : found.start()]
            after = written[found.end() : found.end() + 1]
            inside = "_" in mark  # of a word it is no mark
            closes = bool(before.strip()) and not (inside and after.isalnum())
            opens = bool(after.strip()) and not (inside and before.isalnum())
            if closes and self._close(mark, mark):
                return
            if opens:
                self._open_mark(mark)
            self._put(mark)

    def _open_mark(self, mark: str) -> None:
        self._open_by_mark.setdefault(mark, []).append(len(self._open))
        self._open.append((mark, len(self._out)))

    def _close(self, opening: str, closing: str) -> bool:
        """Close the last mark of a kind, and let those inside of it be text; False if there is none in the link."""
        index = self._last_open(opening)
        if index < 0 or index < self._last_open(_LINK):
            return False
        number = self._number(opening, closing)
        self._out[self._open[index][1]] = f"<m{number}>"
        self._put(f"</m{number}>")
        while len(self._open) > index:
            mark, _ = self._open.pop()
            self._open_by_mark[mark].pop()
        return True

    def _last_open(self, mark: str) -> int:
        indices = self._open_by_mark.get(mark)
        return indices[-1] if indices else -1

    def _number(self, opening: str, closing: str) -> int:
        self._marks.append((opening, closing))
        return len(self._marks) - 1


def _next_mark(written: str, start: int) -> re.Match[str] | None:
    """Find a mark; one search of all forms in a long text would stop all other threads."""
    while begin := _BEGIN.search(written, start):
        for place in range(max(start, begin.start() - 1), begin.end()):
            if found := _INLINE.match(written, place):
                return found
        start = begin.end()
    return None


def _escaped(text: str) -> str:
    """Write text of HTML as Markdown; entities other than those of ``&``, ``<`` and ``>`` stay."""
    plain = _SPECIAL.sub(r"\\\g<0>", text.replace("&lt;", "<").replace("&gt;", ">"))
    return _AMPERSAND.sub(lambda found: "&" if found[1] is None else "\\&", plain)


MAX_WORDS: Final = MAX_READ // 2
"""Words of a text above which its marks are not read: it is far too long to be translated."""
MAX_PREFIX: Final = 1024
"""Marks at the beginning of a line, as of quotations within each other."""
_FENCE: Final = re.compile(r"[ \t>]*+(`{3,}+(?=[^`]*+$)|~{3,}+)")
_PREFIX: Final = re.compile(r"[ \t]*+(?:>|[-+*](?=[ \t])|\d{1,9}[.)](?=[ \t])|#{1,6}(?=[ \t])|\[[ xX]\](?=[ \t]))")
"""Mark of a quotation, list, heading or task at the beginning of a line, after others."""
_SPACE: Final = re.compile(r"[ \t]*+")
_MARKED: Final = re.compile(r"[ \t]*+(?:>|[-+*][ \t]|\d{1,9}[.)][ \t]|#{1,6}[ \t])")
_ITEM: Final = re.compile(r"[ \t>]*+(?:[-+*]|\d{1,9}[.)])[ \t]")
_KEPT: Final = re.compile(r"[ \t>]*+(?:\[[^\]]++\]:|-[ \t]*+-[- \t]*+\s*+$|(?:[*_][ \t]*+){3}[*_ \t]*+\s*+$|=++\s*+$)")
"""Definitions of links, lines, and the lines below titles."""
_TABLE: Final = re.compile(r"[ \t>]*+\|?+")
_DASHES: Final = re.compile(r"[ \t]*+:?-++:?+[ \t]*+(?:\||\s*+$)")
"""A cell of the line below a table's head."""
_HTML: Final = re.compile(r"[ \t>]*+(?:<[!?]|</?([A-Za-z][A-Za-z0-9]*+)(?=[\s/>]|$))")
_LEADING: Final = re.compile(r"(?:[#>+-]++|\d{1,9}(?=[.)]))(?=[.)]?(?:\s|$))")
_CELL: Final = re.compile(r"(\|)(?<!\\\|)")


def markdown_pieces(content: str) -> Iterator[Piece]:
    """Yield the pieces of a document."""
    lines = content.split("\n")
    index = _front_matter(lines)
    yield with_ends(lines, 0, index)
    blank, in_list = True, False
    while index < len(lines):
        line = lines[index]
        first = index
        indented = line.startswith(("    ", "\t"))
        if not line.strip():
            blank, index = True, index + 1
            yield with_end(lines, first)
            continue
        in_list = (in_list and (not blank or line.startswith((" ", "\t")))) or _ITEM.match(line) is not None
        if fence := _FENCE.match(line):
            index = _fence_end(lines, index, fence[1])
        elif indented and blank and not in_list:
            index += 1
        elif _begins_html(line):
            while index < len(lines) and lines[index].strip():
                index += 1
        elif "|" in line and index + 1 < len(lines) and "|" in lines[index + 1] and _is_below_head(lines[index + 1]):
            yield from _row(lines, index)
            yield with_end(lines, index + 1)
            index += 2
            while index < len(lines) and "|" in lines[index]:
                yield from _row(lines, index)
                index += 1
            blank = False
            continue
        elif _KEPT.match(line):
            index += 1
        else:
            index = _paragraph_end(lines, index)
            yield from _paragraph(lines, first, index)
            blank = False
            continue
        blank = indented and blank
        yield with_ends(lines, first, index)


def _front_matter(lines: Sequence[str]) -> int:
    """Return the number of lines of the data before the document."""
    if lines[0].rstrip() != "---":
        return 0
    ends = (index for index, line in enumerate(lines) if index and line.rstrip() in {"---", "..."})
    return next(ends, -1) + 1


def _fence_end(lines: Sequence[str], index: int, fence: str) -> int:
    closing = re.compile(rf"[ \t>]*+{re.escape(fence[0])}{{{len(fence)},}}+\s*+$")
    index += 1
    while index < len(lines) and not closing.match(lines[index]):
        index += 1
    return min(index + 1, len(lines))


def _begins_html(line: str) -> bool:
    found = _HTML.match(line)
    return found is not None and (found[1] is None or (found[1].lower() in BLOCKS and found[1].lower() != "br"))


def _is_below_head(line: str) -> bool:
    """True for the line of dashes below a table's head."""
    start = end = _end(_TABLE, line)
    while found := _DASHES.match(line, end):
        end = found.end()
    return end > start and not line[end:].strip()


def _prefix_end(text: str) -> int:
    """Return the end of the marks at the beginning of a text, of `MAX_PREFIX` at most; others are text."""
    end = number = 0
    while number < MAX_PREFIX and (found := _PREFIX.match(text, end)):
        end, number = found.end(), number + 1
    return _end(_SPACE, text, end)


def _end(pattern: re.Pattern[str], text: str, start: int = 0) -> int:
    found = pattern.match(text, start)
    return start if found is None else found.end()


def _paragraph_end(lines: Sequence[str], index: int) -> int:
    """Return the line after a paragraph, which a line break, a heading and a possible row of a table end too."""
    heading = lines[index].lstrip(" \t>").startswith("#")
    while not heading and not _breaks(lines[index]) and "|" not in lines[index] and index + 1 < len(lines):
        following = lines[index + 1]
        if not following.strip() or any(rule.match(following) for rule in (_MARKED, _FENCE, _KEPT)):
            break
        if _begins_html(following) or "|" in following:
            break
        index += 1
    return index + 1


def _breaks(line: str) -> bool:
    text = line.removesuffix("\r")
    return text.endswith(("  ", "\\"))


def _paragraph(lines: Sequence[str], first: int, after: int) -> Iterator[Piece]:
    whole = with_ends(lines, first, after)
    start = _prefix_end(whole)
    yield whole[:start]
    end = _heading_end(whole, start) if "#" in whole[:start] else len(whole)
    line = whole.removesuffix("\n").removesuffix("\r")
    if end == len(whole) and line.endswith("\\") and len(line) > start + 1:
        end = len(line) - 1
    yield from _text(whole[start:end], first + 1, cell=False)
    yield whole[end:]


def _heading_end(whole: str, start: int) -> int:
    """Return the place of the marks that may end a heading, after space, or the end of its line."""
    line = whole.rstrip(" \t\r\n")
    text = line.rstrip("#")
    marked = len(text) < len(line) and text[start:].endswith((" ", "\t"))
    return max(start, len(text.rstrip(" \t"))) if marked else len(whole)


def _row(lines: Sequence[str], index: int) -> Iterator[Piece]:
    for number, cell in enumerate(_CELL.split(with_end(lines, index))):
        if number % 2:
            yield cell
        else:
            yield from _text(cell, index + 1, cell=True)


def _text(part: str, line: int, *, cell: bool) -> Iterator[Piece]:
    before, written, after = separate(part)
    yield before
    words = written.split(maxsplit=MAX_WORDS)
    inline = Inline(" ".join(words)) if len(words) <= MAX_WORDS else None
    del words  # they take memory
    if inline is None or inline.is_cut:
        yield unread(written if inline is None else inline.markup, written, line)
    elif has_letters(inline.text):
        write = partial(_written, inline, cell=cell)
        yield Text(inline.markup, written, line, unchanged(inline.markup, written, write))
    else:
        yield written
    yield after


def _written(inline: Inline, translation: str, *, cell: bool) -> str:
    """Write a translation so that it begins no list, and ends no cell."""
    text = inline.write(translation)
    if (found := _LEADING.match(text)) is not None:
        place = found.end() if found[0].isdigit() else 0
        text = f"{text[:place]}\\{text[place:]}"
    return re.sub(r"(?<!\\)\|", r"\\|", text) if cell else text


FORMATS: Final = {
    "markdown": FileFormat(
        markdown_pieces,
        "html",
        parts=Parts(name="lines and marks", marks="\n|*_`[]<&\\~", size=250, most=500_000),
    )
}
