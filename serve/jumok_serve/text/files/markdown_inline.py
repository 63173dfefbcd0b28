"""Text of Markdown as HTML and back: links, emphasis and code are elements, all else is text."""

import html
import re
from typing import Final

from jumok_serve.text.files.pieces import MAX_READ
from jumok_serve.text.markup.scanner import Kind, scan

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
