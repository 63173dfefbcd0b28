"""Paragraphs of office documents: runs as inline elements of a small document, and the paragraph written of it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias
from xml.sax.saxutils import escape, unescape

from jumok_serve.text.markup.scanner import Kind, Token, XmlError, attributes, scan

MAX_NESTED: Final = 16
"""Paragraphs around a text, as those around a text box; groups, fields."""


MAX_MARKS: Final = 256
"""Marks between which characters are found that touch."""


@dataclass(frozen=True)
class Vocabulary:
    """Elements of documents, by their short names.

    Attributes:
        paragraphs: elements whose characters are a text.
        run: element around characters that look alike; empty: characters stand in the paragraph itself.
        characters: element around characters; empty: they stand in the paragraph itself.
        properties: looks of a run; the elements of ``ignored`` do not make runs differ.
        groups: elements around runs, which stay around their words; those of ``looks`` say only how they look.
        folded: properties of a group.
        open: elements whose tags are left out of translated paragraphs.
        dropped: elements that are left out of them, as they tell of the source's characters.
        breaks: elements that separate sentences.
        shown: beginnings of names of elements that the model reads, and that stay.
        written: characters that elements stand for.
        kept: elements whose paragraphs stay.
        within: elements whose paragraphs are translated, also inside of ``kept`` ones.
        only_within: True if no other paragraph is translated.
        preserve: True if ``characters`` need an attribute for white space at their ends.
        line_ends: True if line ends and tabs are shown.
    """

    paragraphs: frozenset[str]
    run: str = ""
    characters: str = ""
    properties: str = ""
    ignored: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    looks: frozenset[str] = frozenset()
    folded: frozenset[str] = frozenset()
    open: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()
    breaks: frozenset[str] = frozenset()
    shown: tuple[str, ...] = ()
    written: Mapping[str, str] = field(default_factory=dict)
    kept: frozenset[str] = frozenset()
    within: frozenset[str] = frozenset()
    only_within: bool = False
    preserve: bool = False
    line_ends: bool = False


KEPT_FIELDS: Final = frozenset(
    "AUTHOR CREATEDATE DATE DOCPROPERTY FILENAME MERGEFIELD PRINTDATE SAVEDATE SEQ TIME USERNAME".split()  # noqa: SIM905
)
"""Fields of Word whose shown characters stay."""
_FIELD, _STATE, _INSTRUCTION, BINDING = "w:fldSimple", "w:fldChar", "w:instrText", "w:dataBinding"
_STATES: Final = frozenset({"begin", "separate", "end"})
_SHOWN_BREAK: Final = re.compile(r"((?:[\t\n\r]|_x00(?:0[9A-Da-d])_)+)")
"""Line ends and tabs, also as Office escapes them."""
_ENTITY: Final = re.compile(r"&[^;]{1,40};")
_NOISE: Final = re.compile(r"\s(?:lang|altLang|dirty|err|noProof|smtClean|smtId|bmk)=\"[^\"]*\"")
"""Attributes of properties that do not change the look."""
_NOTHING: Final = re.compile(r"<[^\s<>]++\s*+(?:/>|></[^<>]++>)")
_RANGE: Final = re.compile(r"(.*?)-?(start|end)", re.IGNORECASE)
_RANGE_IDS: Final = frozenset({"id", "name"})
_END: Final = re.compile(r"\s*+/?>\Z")


class Run(NamedTuple):
    """A kind of run.

    Attributes:
        look: key of its look.
        opening, closing: what stands around its characters.
    """

    look: str = ""
    opening: str = ""
    closing: str = ""


class _Item(NamedTuple):
    """A part of a paragraph.

    Attributes:
        kind: text, mark, hole or break; open and close for the tags of a group.
        number: of a text the number of its run, of others that of what stands in the file.
        text: characters, as XML; those of a hole are shown to the model.
        field: of a Word field's mark the state or the instruction, of a group that is a field its instruction.
    """

    kind: str
    number: int
    text: str = ""
    field: str = ""


def has_words(text: str) -> bool:
    """True if XML's characters have a letter."""
    return any(map(str.isalpha, _ENTITY.sub("", text) if "&" in text else text))


class Paragraph:
    """Characters of a paragraph as a small document of XML, and what stands in the file for its elements.

    In the document ``<r i="1">`` is a run, ``<g i="2">`` a group, ``<m i="3"/>`` a mark, ``<x>`` a hole, and
    ``<br i="4"/>`` a break.

    Attributes:
        content: the document; empty if there is nothing to translate.
        nested: paragraphs within its marks.
        looks: numbers of groups that only say how characters look.
        element: the file's own name of the element of characters.
    """

    def __init__(self, words: Vocabulary) -> None:
        self.content = ""
        self.nested: list[Paragraph] = []
        self.looks: set[int] = set()
        self.element = words.characters
        self._words = words
        self._items: list[_Item] = []
        self._raw: list[Raw] = []
        self._closings: dict[int, str] = {}
        self._literal: dict[int, str] = {}  # breaks that are characters
        self._runs: dict[str, int] = {}  # numbers by look
        self._tags: list[tuple[str, str]] = []  # around the characters of each
        self._firsts: dict[tuple[str, str], int] = {}  # beginnings of ranges, as of bookmarks
        self._ranges: dict[int, tuple[int, int]] = {}  # numbers of both ends, by each of them
        self._bases: dict[int, int] = {}  # run of the characters of a group that have no tag
        self._base = -1
        self._head: list[_Item] = []
        self._tail: list[_Item] = []

    def add_text(self, run: Run, text: str) -> None:
        """Add characters, as XML."""
        number = self._runs.setdefault(run.look, len(self._tags))
        if number == len(self._tags):
            self._tags.append((run.opening, run.closing))
        for place, part in enumerate(_SHOWN_BREAK.split(text) if self._words.line_ends else [text]):
            if place % 2:
                self._literal[self.add("break", [])] = part
            elif part:
                self._items.append(_Item("text", number, part))

    def add(self, kind: str, raw: "Raw", text: str = "", field: str = "") -> int:
        """Add another part; returns its number."""
        self._items.append(self._made(kind, raw, text, field))
        self.nested += [part for part in raw if isinstance(part, Paragraph)]
        return len(self._raw) - 1

    def add_range(self, name: str, tag: str) -> None:
        """Note that the part added last is an end of a range: the beginning stays before the end."""
        found, number = _RANGE.fullmatch(name), len(self._raw) - 1
        if found is None:
            return
        key = found[1], next((value for one, value in attributes(tag) if one.rpartition(":")[2] in _RANGE_IDS), "")
        if found[2].lower() == "start":
            self._firsts[key] = number
        elif (first := self._firsts.get(key)) is not None:
            self._ranges[first] = self._ranges[number] = first, number

    def fold(self, written: str) -> bool:
        """Add properties to a group, if it has just begun."""
        is_first = bool(self._items) and self._items[-1].kind == "open"
        if is_first:
            self._raw[self._items[-1].number].append(written)
        return is_first

    def close(self, number: int, written: str) -> None:
        """Add the end of a group."""
        self._closings[number] = written
        self._items.append(_Item("close", number))

    def characters(self) -> str:
        """Return all characters, without their entities."""
        return unescape(
            "".join(self._literal.get(one.number, "") if one.kind == "break" else one.text for one in self._items)
        )

    def finish(self) -> None:
        """Make the content, after all parts."""
        self._items = items = self._grouped()
        for _ in range(MAX_NESTED):
            while items and self._is_outside(items[-1]):
                self._tail.append(items.pop())
            first = next((index for index, item in enumerate(items) if not self._is_outside(item)), 0)
            self._head += items[:first]
            del items[:first]
            if not items or items[0].kind != "open" or items[-1] != _Item("close", items[0].number):
                break
            self._head.append(items.pop(0))
            self._tail.append(items.pop())
        self._tail.reverse()
        if any(item.kind == "text" and has_words(item.text) for item in items):
            self.content = self._as_xml()

    def _is_outside(self, item: _Item) -> bool:
        """True for a part that stays at an end of the paragraph."""
        return item.kind in {"mark", "break"} and item.number not in self._literal

    def _made(self, kind: str, raw: "Raw", text: str = "", field: str = "") -> _Item:
        self._raw.append(raw)
        return _Item(kind, len(self._raw) - 1, text, field)

    def _grouped(self) -> list[_Item]:
        """Return the items with Word's fields as groups and holes, and with no group around nothing."""
        done, begun = list[_Item](), list[int]()  # indices of groups and fields that have begun
        last = -1, -1  # indices of the group that was closed last
        for item in self._items:
            done.append(item)
            if item.kind == "open" or (item.field == "begin" and len(begun) < 2 * MAX_NESTED):
                begun.append(len(done) - 1)
            elif item.kind == "close":
                while done[begun[-1]].kind != "open":
                    begun.pop()  # a field that ends elsewhere
                first = begun.pop()
                self._close_group(done, first, last)
                last = first, len(done) - 1
            elif item.field == "end" and begun and done[begun[-1]].field == "begin":
                self._close_field(done, begun.pop())
        # Fields over several paragraphs: their parts keep their order.
        return [item._replace(kind="break") if item.kind == "mark" and item.field else item for item in done]

    def _close_group(self, done: list[_Item], first: int, last: tuple[int, int]) -> None:
        opening, inside = done[first], done[first + 1 : -1]
        is_white = bool(inside) and all(item.kind == "text" and item.text.isspace() for item in inside)
        if is_white and opening.number in self.looks:
            done[first:] = inside  # white space looks like its neighbours
        elif not any(item.kind == "text" for item in inside) or _is_kept(opening.field, inside):
            self._merge(done, first, inside)
        elif last == (first + 1, len(done) - 2):  # two groups around the same
            inner = done[first + 1].number
            self._raw[opening.number] += self._raw[inner]
            self._closings[opening.number] = self._closings[inner] + self._closings[opening.number]
            del done[-2], done[first + 1]

    def _close_field(self, done: list[_Item], first: int) -> None:
        """Make a group of a field that shows words, and a mark or hole of another one."""
        separate = next((at for at in range(len(done) - 1, first, -1) if done[at].field == "separate"), len(done) - 1)
        before, inside, end = done[first : separate + 1], done[separate + 1 : -1], done[-1]
        depths = [sum((item.kind == "open") - (item.kind == "close") for item in items) for items in (before, inside)]
        instruction = "".join(item.field for item in before if item.field not in _STATES)
        if any(depths):
            return  # a group begins in the field and ends after it
        if _is_kept(f" {instruction}", inside):
            self._merge(done, first, inside)
            return
        opening = self._made("open", self._raw_of(before))
        self._closings[opening.number] = "".join(map(str, self._raw_of([end])))
        done[first:] = [opening, *inside, _Item("close", opening.number)]

    def _merge(self, done: list[_Item], first: int, shown: Sequence[_Item]) -> None:
        """Make one mark of the last items, or a hole that shows characters."""
        text = "".join(item.text for item in shown if item.kind in {"text", "hole"})
        kind = "break" if any(item.kind == "break" for item in shown) else "hole" if text.strip() else "mark"
        done[first:] = [self._made(kind, self._raw_of(done[first:]), text)]

    def _raw_of(self, items: Sequence[_Item]) -> "Raw":
        """Return what stands in the file for items."""
        raw: Raw = []
        for kind, number, text, _ in items:
            if kind == "text":
                raw.append(self._run(number, text))
            elif kind == "close":
                raw.append(self._closings[number])
            elif number in self._literal:
                raw.append(self._run(len(self._tags) - 1, self._literal[number]))
            else:
                raw += self._raw[number]
        return raw

    def _run(self, number: int, text: str) -> str:
        """Write characters of a run."""
        opening, closing = self._tags[number]
        text = text.replace("]]>", "]]&gt;")
        if not self.element:
            return f"{opening}{text}{closing}"
        space = ' xml:space="preserve"' if self._words.preserve and text != text.strip() else ""
        return f"{opening}<{self.element}{space}>{text}</{self.element}>{closing}"

    def _as_xml(self) -> str:
        """Write the items as XML; characters of the most frequent run have no tag."""
        single = self._group_runs()
        written, bases, run = list[str](), [self._base], -1
        for index, (kind, number, text, _) in enumerate(self._items):
            tagged = number if kind == "text" and number != bases[-1] else -1
            if kind == "text" and text.isspace():
                tagged = run  # white space looks like its neighbours
            if run >= 0 and kind not in {"mark", "hole"} and tagged != run:
                written.append("</r>")
                run = -1
            if tagged >= 0 and run < 0:
                written.append(f'<r i="{number}">')
                run = number
            if kind == "text":
                written.append(text)
            elif kind == "open":
                self._bases[number] = single.get(number, bases[-1])
                bases.append(self._bases[number])
                written.append(f'<g i="{number}">')
            elif kind == "close":
                bases.pop()
                written.append("</g>")
            elif kind == "hole" and not self._is_in_word(index):
                written.append(f'<x i="{number}" translate="no">{text}</x>')
            else:
                written.append(f'<{"br" if kind == "break" else "m"} i="{number}"/>')
        return "".join(written) + ("</r>" if run >= 0 else "")

    def _group_runs(self) -> dict[int, int]:
        """Find the most frequent run; returns the run of each group that has only one."""
        lengths, single = dict[int, int](), dict[int, int]()
        begun = list[tuple[int, set[int]]]()
        for kind, number, text, _ in self._items:
            if kind == "text":
                lengths[number] = lengths.get(number, 0) + len(text)
                for _, runs in begun:
                    runs.add(number)
            elif kind == "open":
                begun.append((number, set()))
            elif kind == "close":
                group, runs = begun.pop()
                if len(runs) == 1:
                    single[group] = runs.pop()
        self._base = max(lengths, key=lengths.__getitem__)
        return single

    def _is_in_word(self, index: int) -> bool:
        """True if a hole would be a part of a longer word for the model, as in ``a.7`` and ``7a``."""
        before, after = self._beside(index, -1)[-1:], self._beside(index, 1)[:2]
        begins = not before or before.isspace() or before in "([{"
        return not begins or (not after[:1].isspace() and any(map(str.isalnum, after)))

    def _beside(self, index: int, step: int) -> str:
        """Return the characters before an item or after it, with nothing but tags and marks between them."""
        for at in range(index + step, index + MAX_MARKS * step, step):
            if not 0 <= at < len(self._items) or self._items[at].kind == "break":
                break
            if self._items[at].text:
                return self._items[at].text
        return ""

    def write(self, translations: Mapping[str, str]) -> str:
        """Write the paragraph, with those within it.

        Args:
            translations: translations of contents; without one the content stays.
        """
        translation = translations.get(self.content, self.content)
        content = self._translated(translation) if self.content else self._raw_of(self._items)
        raw = [*self._raw_of(self._head), *content, *self._raw_of(self._tail)]
        return "".join([part if isinstance(part, str) else part.write(translations) for part in raw])

    def _translated(self, content: str) -> "Raw":
        """Return what stands in the file for a translation."""
        written: Raw = []
        opened = [("", -1, self._base)]  # elements, with the run of characters that have no tag
        pending, met, is_shown = list[str](), {item.number for item in self._head}, False

        def flush() -> None:
            if text := "".join(pending):
                written.append(self._run(opened[-1][2], text))
            pending.clear()

        for token in scan(content, html=False):
            if token.kind is Kind.TEXT:
                pending += [] if is_shown else [token.written]
                continue
            number = int(token.written.split('"', 2)[1]) if token.kind is not Kind.END else -1
            if token.name == "br" and number in self._literal:
                pending.append(self._literal[number])
                continue
            flush()
            if token.name == "x":
                is_shown = token.kind is Kind.START
            if token.kind is Kind.END:
                if token.name != "x":
                    name, ended, _ = opened.pop()
                    written.append(self._closings[ended] if name == "g" else "")
            elif token.name == "r":
                opened.append(("r", number, number))
            else:
                if number in self._ranges:
                    first, last = self._ranges[number]
                    number = last if first in met else first
                    met.add(number)
                written += self._raw[number]
                if token.name == "g":
                    opened.append(("g", number, self._bases[number]))
        flush()
        return written


Raw: TypeAlias = list[str | Paragraph]
"""What stands in a file."""


def _is_kept(instruction: str, shown: Sequence[_Item]) -> bool:
    """True if what a field shows is not translated; an empty instruction is of no field."""
    words = instruction.split(None, 1)
    return bool(instruction) and (
        (bool(words) and words[0].upper() in KEPT_FIELDS)
        or not any(item.kind == "text" and has_words(item.text) for item in shown)
    )


class Element:
    """Tokens of a paragraph of a document, with those of all within it.

    Args:
        names: short name of each token.
    """

    def __init__(self, words: Vocabulary, tokens: Sequence[Token], names: Sequence[str]) -> None:
        self._words = words
        self._tokens = tokens
        self._names = names
        self._ends: dict[int, int] = {}
        self._bound: set[int] = set()  # content controls whose text comes from elsewhere
        opened = list[int]()
        for index, token in enumerate(tokens):
            if names[index] == BINDING and len(opened) > 1:
                self._bound.add(opened[-2])
            if token.kind is Kind.END:
                self._ends[opened.pop()] = index
            elif token.kind is Kind.START:
                opened.append(index)
        self._groups = {first for first in self._ends if names[first] in words.groups} - self._bound

    def paragraph(self, first: int = 0, depth: int = 1) -> Paragraph:
        """Return the paragraph that begins with a token.

        Args:
            depth: number of paragraphs around its text.

        Raises:
            XmlError: there are too many.
        """
        if depth > MAX_NESTED:
            raise XmlError(1, f"has more than {MAX_NESTED} paragraphs within each other", "nest fewer")
        made, last = Paragraph(self._words), self._ends[first]
        made.add("mark", [self._tokens[first].written])
        runs, groups, index = [Run()], list[tuple[int, int]](), first + 1
        while index < last:
            if groups and groups[-1][1] == index:
                made.close(groups.pop()[0], self._tokens[index].written)
                index += 1
            elif index in self._groups and len(groups) < MAX_NESTED:
                groups.append((self._add_group(made, index), self._ends[index]))
                index += 1
            else:
                index = self._add(made, index, runs, depth)
        made.add("mark", [self._tokens[last].written])
        made.finish()
        return made

    def _add_group(self, made: Paragraph, index: int) -> int:
        """Add the beginning of a group; returns its number."""
        written, instruction = self._tokens[index].written, ""
        if self._names[index] == _FIELD:
            instruction = " " + next((value for key, value in attributes(written) if key.endswith(":instr")), "")
        number = made.add("open", [written], field=instruction)
        if self._names[index] in self._words.looks:
            made.looks.add(number)
        return number

    def _add(self, made: Paragraph, index: int, runs: list[Run], depth: int) -> int:
        """Add what begins with a token; returns the index of the token after it."""
        words, token, name = self._words, self._tokens[index], self._names[index]
        after = self._ends.get(index, index) + 1
        if token.kind in {Kind.TEXT, Kind.CDATA}:
            if not words.characters:
                made.add_text(runs[-1], _characters(token))
            elif not token.written.isspace():
                made.add("mark", [token.written])
        elif token.kind is Kind.END:
            if name == words.run and len(runs) > 1:
                runs.pop()
        elif token.kind is Kind.START and name == words.run:
            runs.append(Run("r", token.written, f"</{token.name}>"))
            return index + 1
        elif token.kind is Kind.START and name in words.open:
            return index + 1
        elif name == words.properties and len(runs) > 1:
            opening, closing = runs[-1][1:]
            runs[-1] = Run(f"r{self._look(index, after)}", opening + self._written(index, after), closing)
        elif name and name == words.characters:
            made.element = token.name
            text = "".join(map(_characters, self._tokens[index:after]))
            made.add_text(runs[-1], text.strip() if words.preserve and "preserve" not in token.written else text)
        elif name in words.written:
            made.add_text(runs[-1], words.written[name])
        elif name not in words.dropped and not (name in words.folded and made.fold(self._written(index, after))):
            self._add_other(made, index, after, runs[-1], depth)
        return after

    def _add_other(self, made: Paragraph, index: int, after: int, run: Run, depth: int) -> None:
        """Add a mark, hole or break."""
        token, name = self._tokens[index], self._names[index]
        raw = self._raw(index, after, depth)
        shown = field = ""
        if name == _STATE:
            field = next((value for key, value in attributes(token.written) if key.endswith(":fldchartype")), "")
        elif name == _INSTRUCTION:
            field = "".join(map(_characters, self._tokens[index:after])) or " "
        elif name.startswith(self._words.shown) and len(raw) == 1:
            shown = "".join(
                _characters(self._tokens[at])
                for at in range(index, after)
                if not self._words.characters or self._names[at - 1] == self._words.characters
            )
        kind = "break" if name in self._words.breaks else "hole" if shown.strip() else "mark"
        made.add(kind, [run.opening, *raw, run.closing] if run.opening else raw, shown, field)
        made.add_range(name, token.written)

    def _raw(self, first: int, after: int, depth: int) -> Raw:
        """Return what stands in the file, with the paragraphs within."""
        parts: Raw = []
        done = index = first
        while index < after:
            last = self._ends.get(index, index)
            if index in self._bound:
                index = last
            elif last > index and self._names[index] in self._words.paragraphs:
                parts += [self._written(done, index), self.paragraph(index, depth + 1)]
                done, index = last + 1, last
            index += 1
        return [*parts, self._written(done, after)]

    def _written(self, first: int, after: int) -> str:
        return "".join([token.written for token in self._tokens[first:after]])

    def _look(self, first: int, after: int) -> str:
        """Return the properties of a run that change its look."""
        parts = [_NOISE.sub("", self._tokens[first].written)]
        index = first + 1
        while index < after:
            if self._names[index] in self._words.ignored:
                index = self._ends.get(index, index)
            else:
                parts.append(self._tokens[index].written)
            index += 1
        look = "".join(parts)
        return "" if _NOTHING.fullmatch(look) else look


def _characters(token: Token) -> str:
    """Return the characters of a token as XML; none of a tag."""
    if token.kind is Kind.CDATA:
        return escape(token.written[9:-3])
    return token.written if token.kind is Kind.TEXT else ""
