"""Messages of catalogues: tags, accelerators, line breaks and flagged placeholders as XML, and back.

The XML has elements of its own, numbered in order: ``g`` is a pair of tags or a mark, ``p`` one that separates
sentences, and ``x`` a part that is copied, with what the model reads of it.
"""

import html
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple, NoReturn

from jumok_proto.errors import InvalidArgumentError
from jumok_proto.markup import MarkupRules
from jumok_serve.tasks.stand_ins import Hole
from jumok_serve.text.holes import find_holes, kinds_of_flag, without
from jumok_serve.text.markup.scanner import Kind, Token
from jumok_serve.text.markup.strings import Numbered
from jumok_serve.text.markup.structure import BLOCKS, IGNORED, MASKS, find_ends, is_translated

RULES: Final = MarkupRules(splitting_tags=("p",), non_splitting_tags=("g", "x"))
"""Rules for the elements of the XML."""
MIN_WRAPPED: Final = 40
"""Characters of a line that may go on in the next one; after shorter ones a line break stays."""
MAX_UNITS: Final = 4096
"""Parts of a message, as tags and line breaks, above which it is not translated."""
MAX_ACCELERATED: Final = 128
"""Characters of a message with an accelerator."""


def _words(words: str) -> frozenset[str]:
    return frozenset(words.split())


_TAG: Final = re.compile(
    r"<!--[^<]*?-->|</?([A-Za-z][\w:.-]*+)(?:\s(?:[^<>\"']++|\"[^\"<]*+\"|'[^'<]*+')*)?/?>|\x1b\[[\d;]{0,20}m"
)
_CODE: Final = re.compile(r"(?<![\w&])(?:[BCEFILRSXZ]|C[BIRW])<(?=[^\s<>=])|E<(?=[lg]t>)|<|>")
"""A code of POD and of po4a's manual pages begins, or one ends."""
_ALONE: Final = _words("b big br code dd dt em font hr i img li p small span strong sub sup td th tr tt u wbr")
"""Elements whose start tags are markup without an end; others, as `<file>`, are text."""
_BLOCKS: Final = (BLOCKS - _words("base button legend link menu meta option param search source summary")) | _words(
    "entry listitem para simpara term"
)
"""Elements of HTML and DocBook that separate sentences; some names of HTML mean others in DocBook and Mallard."""
_IGNORED: Final = IGNORED | _words(
    "cmd command computeroutput envar file filename function literal systemitem userinput varname c< cw< e< f< l< x< z<"
)
_ENTITY: Final = re.compile(r"&(?:#\d{1,7}|#[xX][\dA-Fa-f]{1,6}|[A-Za-z][\w.-]{1,31});")
_NO_WORD: Final = re.compile(rf"{_TAG.pattern}|{_ENTITY.pattern}|%[-+#0-9.$l]*[A-Za-z@]|\{{[^{{}}]*+\}}")
"""Tags, entities and placeholders of a text that is short."""
_PART: Final = re.compile(
    r"(?P<wrap>(?<=[\w,;)]) ?\r?\n(?=[a-z(]))|(?P<space> *+[\x00-\x1f\x7f\ufffe\uffff]\s*+|  ++)"
    rf"|(?P<entity>{_ENTITY.pattern})"
)
_ACCELERATORS: Final = {
    "&": re.compile(r"(?<!&)&(?=[^\W_])(?<![A-Z\d]&(?=[A-Z]))(?![\w.-]{1,31};)"),
    "_": re.compile(r"(?<!\w)_(?=[^\W_])|(?<=\b[A-Z])_(?=[a-z])|(?<=\b[A-Z][a-z])_(?=[a-z])"),
    "~": re.compile(r"(?<!\S)~(?=[A-Z])|(?<=[A-Za-z])~(?=[a-z])"),
}
"""Marks before the letter of an accelerator: of Qt and Windows, GTK, and LibreOffice."""
_KEYS: Final = re.compile(
    r"(?:^|\t)(?:(?:Ctrl|Alt|AltGr|Shift|Cmd|Meta|RawCtrl|Control|Option|Command)[+-])+(?:\w{1,12}|[^\s\w])$"
    r"|\t(?:F\d{1,2}|Del|Delete|Ins|Insert|Esc|Enter|Return|Tab|Space|Home|End|PgUp|PgDn|Left|Right|Up|Down)$"
)
_END: Final = re.compile(r"(?:\s*+(?:\.{3}|[:\u2026\uff1a]))?$")
_OPTION: Final = re.compile(r"(?<![\w-])-\w(?!\w)")
_CJK: Final = re.compile(r"[\u1100-\u11ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f\ufffe\uffff]")
_NEXT: Final = re.compile(r"%(?=[-+#0'I, ]*[\d.*]*(?:[A-Za-z@]|<PRI))(?!m)|\{(?=[:}])")
"""Beginning of a conversion that takes the next argument."""
_BRACES: Final = _words("python-brace-format rust-format c++-format")
_NUMBERED: Final = _BRACES | _words(
    "c-format objc-format php-format java-printf-format gcc-internal-format perl-format awk-format tcl-format"
)
"""Flags of formats whose conversions can have numbers."""
_CHECKED: Final = _words("printf gcc pascal qt boost tilde braces")
"""Kinds of holes that a translation must have as often as the text."""


class _Unit(NamedTuple):
    """A part of a message.

    Attributes:
        kind: `text`, `hole`, `mark`, `open` or `close`.
        separates: True if it separates sentences.
        shown: what the model reads of a hole.
    """

    kind: str
    written: str
    separates: bool = False
    shown: str = ""


class Message(Numbered):
    """A message without white space at its ends.

    Attributes:
        written: the message.
        markup: the message as XML.
        has_letters: True if there is something to translate.
        conversions: placeholders of the flags, which a translation has as often.

    Args:
        flags: of the entry, such as `c-format`.
        accelerator: mark that the file names; empty: found by its place.
    """

    _ELEMENT = re.compile(r"<[gpx] i=\"(\d{1,9})\"", re.IGNORECASE)
    _HOLE = "x"

    def __init__(self, written: str, flags: Sequence[str] = (), accelerator: str = "") -> None:
        super().__init__()
        self.written = written
        self._kinds = frozenset[str]().union(*map(kinds_of_flag, flags))
        self._flags = frozenset(flags)
        keys = _KEYS.search(written, max(0, len(written) - 64))
        self._keys = written[keys.start() :] if keys else ""
        text = written.removesuffix(self._keys)
        place = _accelerator(text, accelerator)
        self._mark, self._key = text[place : place + 1], text[place + 1 : place + 2]
        text = text[:place] + text[place + 1 :]
        # A conversion counts also if a longer placeholder around it is divided by a tag.
        holes = [*find_holes(text, self._kinds), *find_holes(text, self._checked)] if self._kinds else []
        self.conversions = self._counted(text)
        self._entities = dict[str, str]()
        self._mixed = "&" in _ENTITY.sub("", text)  # with characters that stand for themselves: entities are holes
        self._width = 0
        units = list(islice((unit for unit in self._units(text, holes) if unit.written), MAX_UNITS))
        self._is_cut = len(units) == MAX_UNITS
        if self._is_cut:
            units = [_Unit("text", _CONTROL.sub(" ", text))]
        plain = "".join(unit.written for unit in units if unit.kind == "text")
        doubled = "{}" if self._flags & _BRACES else "%" if "printf" in self._kinds else ""
        self._doubled = {mark: 2 * mark for mark in doubled if mark not in plain}
        if any(unit.written.startswith("<") for unit in units if unit.kind != "text"):
            needed = {"&": "&amp;", "<": "&lt;"}
            self._entities |= {one: needed[one] for one in needed if one not in plain}
        self._open = list[tuple[int, str]]()
        self.has_letters = False
        sentences = groupby(units, attrgetter("separates"))
        self.markup = "".join(part for _, sentence in sentences for part in self._xml(list(sentence)))

    def _units(self, text: str, holes: Sequence[Hole]) -> Iterator[_Unit]:
        """Yield the parts of a message, in order."""
        found = [
            (tag.start(), tag.end(), _token(tag[0], tag[1] or "")) for tag in islice(_TAG.finditer(text), MAX_UNITS)
        ]
        if not any(token.kind is Kind.EMPTY for *_, token in found) and not find_ends([token for *_, token in found]):
            found += _codes(text)
        found += [
            (hole.first, hole.after, Token(Kind.TEXT, text[hole.first : hole.after]))
            for hole in holes
            if hole.kind not in {"icu", "element", "entity"}
        ]
        kept, position = list[tuple[int, int, Token]](), 0
        for one in sorted(found, key=itemgetter(0, 1)):
            if one[0] >= position:
                kept.append(one)
                position = one[1]
        ends = find_ends([token for *_, token in kept])
        closing = set(ends.values())
        position = 0
        for number, (first, after, token) in enumerate(kept):
            is_tag = "=" in token.written or (token.name in _ALONE and len(token.written) == len(token.name) + 2)
            if first < position or (token.kind is Kind.START and number not in ends and not is_tag):
                continue
            yield from self._texts(text, position, first)
            position = after
            if number in ends and is_translated(token, "html", _IGNORED) is False:
                end, position, _ = kept[ends[number]]
                shown = html.unescape(_TAG.sub("", text[after:end]))
                yield _Unit("hole", text[first:position], token.name in _BLOCKS, shown)
            elif token.kind is Kind.TEXT or (token.kind is Kind.EMPTY and token.name in MASKS):
                yield _Unit("hole", token.written, shown=token.written)
            else:
                kind = "open" if number in ends else "close" if number in closing else "mark"
                yield _Unit(kind, token.written, token.name in _BLOCKS)
        yield from self._texts(text, position, len(text))

    def _texts(self, text: str, first: int, after: int) -> Iterator[_Unit]:
        """Yield the parts of a message between tags and holes."""
        begin = first
        for found in _PART.finditer(text[first:after]):
            place = first + found.start()
            yield _Unit("text", text[begin:place])
            begin = first + found.end()
            if found["entity"]:
                character = html.unescape(found[0])
                if not self._mixed and len(character) == 1 and (character > "~" or character in "&<>\"'"):
                    self._entities.setdefault(character, found[0])
                    yield _Unit("text", character)
                else:
                    yield _Unit("hole", found[0], shown=character if len(character) == 1 else found[0][1:-1])
            elif found["wrap"] and (width := place - text.rfind("\n", 0, place) - 1) >= MIN_WRAPPED:
                self._width = max(self._width, width)
                yield _Unit("text", " ")
            else:
                yield _Unit("mark", found[0], separates=True)
        yield _Unit("text", text[begin:after])

    def _xml(self, units: Sequence[_Unit]) -> Iterator[str]:
        """Yield the parts of a sentence as XML; if there are no letters, all are marks."""
        letters = any(unit.kind == "text" and _has_letters(unit.written) for unit in units)
        self.has_letters = self.has_letters or letters
        table = str.maketrans(self._entities)
        for unit in units:
            name = "p" if unit.separates else "g"
            if unit.kind == "text" and letters:
                yield html.escape(unit.written, quote=False)
            elif unit.kind == "close":
                number, name = self._open.pop()
                self._close(number, unit.written)
                yield f"</{name}>"
            elif unit.kind == "open":
                self._open.append((len(self._written), name))
                yield self._put(name, unit.written, ">")
            elif letters and unit.shown:
                shown = html.escape(_CONTROL.sub(" ", unit.shown), quote=False)
                yield self._put("x", unit.written, f' translate="no">{shown}</x>')
            else:
                written = unit.written.translate(table) if unit.kind == "text" else unit.written
                yield self._put(name, written)

    def write(self, translation: str) -> str:
        """Write a translation of the markup as a message.

        Raises:
            InvalidArgumentError: it lacks a part of the message, or a program would read it in another way.
        """
        if translation == self.markup:
            return self.written
        if self._is_cut:
            _refuse(f"the text has more than {MAX_UNITS} tags, placeholders and line breaks")
        table = str.maketrans(self._entities | self._doubled)
        parts = [
            (number, part if number >= 0 else html.unescape(part).translate(table))
            for number, part in self._parts(translation.strip(" "))
        ]
        found, pairs = Counter(number for number, _ in parts), sum(bool(end) for _, end in self._written)
        if [found[number] for number in range(len(self._written) + 1)] != [1] * len(self._written) + [pairs]:
            _refuse("it has other tags than the text")
        written = "".join(part for _, part in parts)
        if not written.strip():
            _refuse("it is empty")
        if self._kinds:
            counted = self._counted(written)
            if wrong := [*(counted - self.conversions), *(self.conversions - counted)]:
                _refuse(f"it has {wrong[0]!r} {counted[wrong[0]]} times, the text {self.conversions[wrong[0]]} times")
        self._put_in_order(parts)
        if self._mark:
            accelerate(parts, self._mark, self._key)
        return (self._wrapped(parts) if self._width else "".join(part for _, part in parts)) + self._keys

    @property
    def _checked(self) -> frozenset[str]:
        """Kinds of conversions; for flags of others, braces around one are characters."""
        checked = self._kinds & _CHECKED
        return checked if len(checked) == 1 or self._flags & _BRACES else checked - {"braces"}

    def _counted(self, text: str) -> Counter[str]:
        """Count the conversions of a text, but for doubled signs, which are characters."""
        holes = find_holes(text, self._checked) if self._kinds else ()
        return Counter(one for hole in holes if (one := text[hole.first : hole.after]) != "%%")

    def _put_in_order(self, parts: list[tuple[int, str]]) -> None:
        """Give conversions numbers if they have another order; in formats without numbers, put them in order."""
        sign = "{" if self._flags & _BRACES else "%"
        takes, inside = list[str](), dict[int, list[tuple[int, Hole]]]()  # what takes the next argument, by its part
        for number, (written, _) in enumerate(self._written if self.conversions else ()):
            for hole in find_holes(written, self._checked):
                if written[hole.first] == sign and _NEXT.match(written, hole.first):
                    inside.setdefault(number, []).append((len(takes), hole))
                    takes.append(written[hole.first : hole.after])
        order = [rank for number, _ in parts for rank, _ in inside.get(number, ())]
        if order == sorted(order):
            return
        numbered = self._flags & _NUMBERED and not any("*" in take for take in takes)
        in_order = iter(takes)
        for index, (number, written) in enumerate(parts):
            pieces, end = list[str](), 0
            for rank, hole in inside.get(number, ()):
                take, following = takes[rank], next(in_order)
                if numbered:
                    following = f"{{{rank}{take[1:]}" if take[0] == "{" else f"%{rank + 1}${take[1:]}"
                pieces += written[end : hole.first], following
                end = hole.after
            parts[index] = number, "".join((*pieces, written[end:]))

    def _wrapped(self, parts: Sequence[tuple[int, str]]) -> str:
        """Break lines at the spaces of the text, where the message had breaks for its lines alone."""
        lines = list[str]()
        whole = "".join(written.replace(" ", "\0") if number < 0 else written for number, written in parts)
        for line in whole.split("\n"):
            words = line.split("\0")
            row = words[0]
            for word in words[1:]:
                if len(row) + len(word) >= self._width:
                    lines.append(row)
                    row = word
                else:
                    row += f" {word}"
            lines.append(row)
        return "\n".join(lines)


def accelerate(parts: list[tuple[int, str]], mark: str, letter: str) -> None:
    """Put the mark of an accelerator before its letter, or another, in brackets after Korean, Chinese and Japanese.

    Args:
        parts: those of the translation: a negative number and text, or a number and what is no text.
    """
    texts = [index for index, (number, _) in enumerate(parts) if number < 0]
    key = re.escape(letter)
    for pattern in (rf"(?<!\w){key}", rf"(?i:(?<!\w){key})", rf"(?i:{key})", r"[^\W_]"):
        for index in texts:
            written = parts[index][1]
            outside = _NO_WORD.sub(lambda found: " " * len(found[0]), written)
            if not any(_CJK.search(parts[text][1]) for text in texts) and (found := re.search(pattern, outside)):
                parts[index] = -1, f"{written[: found.start()]}{mark}{written[found.start() :]}"
                return
    index = texts[-1] if texts else len(parts) - 1
    number, written = parts[index]
    end = found.start() if (found := _END.search(written)) else len(written)
    parts[index] = number, f"{written[:end]}({mark}{letter.upper()}){written[end:]}"


def _refuse(problem: str) -> NoReturn:
    raise InvalidArgumentError(f"the translation is left out: {problem}; translate the text by hand", field="contents")


def _token(written: str, name: str) -> Token:
    """Return the token of a tag, or of a comment, which has no name."""
    kind = Kind.END if written.startswith("</") else Kind.EMPTY if written.endswith("/>") else Kind.START
    return Token(kind if name else Kind.RAW, written, name.lower())


def _codes(text: str) -> Iterator[tuple[int, int, Token]]:
    """Yield the codes of manual pages, such as `B<bold>`, as two tags each."""
    around = list[re.Match[str]]()
    for found in _CODE.finditer(text):
        if found[0] != ">":
            around.append(found)
        elif around and (opening := around.pop())[0] != "<":
            yield opening.start(), opening.end(), Token(Kind.START, opening[0], opening[0].lower())
            yield found.start(), found.end(), Token(Kind.END, found[0], opening[0].lower())


def _has_letters(text: str) -> bool:
    """True if there is language beside the holes; options and their values, as `-n, --name=NAME`, are none."""
    holes = find_holes(text)
    if any(hole.kind == "icu" for hole in holes):  # its branches are language
        return True
    plain = without(text, (hole[:2] for hole in holes))
    if text.lstrip().startswith("-"):
        return any(one.isalpha() and not one.isupper() for one in _OPTION.sub("", plain))
    return any(map(str.isalpha, plain))


def _accelerator(text: str, named: str) -> int:
    """Return the place of the mark of an accelerator; the length of the text if it has none."""
    patterns = {named: re.compile(rf"{re.escape(named)}(?=[^\W_])")} if named else _ACCELERATORS
    for mark, pattern in patterns.items() if len(text) <= MAX_ACCELERATED and "\n" not in text else ():
        if mark in text:
            holes = find_holes(text)
            places = [one.start() for one in pattern.finditer(text)]
            places = [place for place in places if not any(hole.first <= place < hole.after for hole in holes)]
            others = text.count(mark) - sum(text.count(mark, hole.first, hole.after) for hole in holes)
            if len(places) == others == 1:
                return places[0]
    return len(text)
