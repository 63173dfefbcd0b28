"""XLIFF 1.2 and 2: empty and new targets are made of their sources; all else stays."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from jumok_proto.errors import InvalidArgumentError
from jumok_proto.markup import MarkupRules
from jumok_serve.manifest.languages import primary_language
from jumok_serve.text.files.document import (
    MAX_SHOWN,
    FileFormat,
    Parts,
    Piece,
    Text,
    has_letters,
    in_steps,
    refuse,
    separate,
)
from jumok_serve.text.markup.scanner import Kind, Token, XmlError, attributes, read_xml, scan
from jumok_serve.text.markup.structure import find_ends
from jumok_serve.text.plurals import locale_name

UNITS: Final = frozenset({"trans-unit", "segment"})
"""Elements with a source and its target, of versions 1 and 2."""
NEW: Final = {
    "new": "needs-review-translation",
    "needs-translation": "needs-review-translation",
    "initial": "translated",
}
"""States of targets that are made again, and those that they get."""
KEPT: Final = frozenset({"final", "signed-off"})
"""States of targets that are kept, even if they are empty."""
CODES: Final = ("ph", "bpt", "ept", "it", "sub")
"""Elements whose content is code of the original document."""
INLINE: Final = (*CODES, "g", "x", "bx", "ex", "mrk", "pc", "sc", "ec", "cp", "sm", "em")
PAIRS: Final = {"bpt": "ept", "bx": "ex", "sc": "ec", "sm": "em"}
"""Elements that begin and end a part of a text."""
_LANGUAGES: Final = {"file": ("source-language", "target-language"), "xliff": ("srcLang", "trgLang")}
"""Attributes of the languages, of versions 1 and 2, by their elements."""
_DECLARED: Final = re.compile(r"\s*+<\?xml[^>]{0,1000}\sencoding\s*+=\s*+[\"']([^\"']*+)")
_UNICODE: Final = {"utf-8", "utf-16", "us-ascii"}
_SPACE: Final = re.compile(r" *+[\t\r\n]\s*+|  ++")
_STATE: Final = re.compile(r"(?<=\sstate=)([\"'])[\w-]*+[\"']")
_SUBSTATE: Final = re.compile(r"\ssubState=(?:\"[^\"]*+\"|'[^']*+')")
_NUMBERED: Final = re.compile(r"<x[chw] i=\"(\d{1,9})\"")
_CODE_NAMES: Final = frozenset((*CODES, *PAIRS, *PAIRS.values()))


_Range = tuple[int, int]
"""Indices of the first and the last token of an element; equal without content."""


class _Around(NamedTuple):
    """What an element says about those in it."""

    translated: bool = True
    preserve: bool = False

    def inside(self, token: Token) -> "_Around":
        """Return what counts inside of an element."""
        if "=" not in token.written:
            return self
        found = dict(attributes(token.written))
        return _Around(
            found.get("translate", "" if self.translated else "no") != "no" and found.get("mtype") != "protected",
            found.get("xml:space", "preserve" if self.preserve else "") == "preserve",
        )


_AROUND: Final = _Around()


def xliff_pieces(content: str, language: str = "", source: str = "") -> Iterator[Piece]:
    """Yield the pieces of an XLIFF file.

    Args:
        language: target language of the request; empty: not known.
        source: source language of the request; empty: not known.

    Raises:
        InvalidArgumentError: no well-formed XML, no XLIFF, or XLIFF of other languages.
    """
    declared = _DECLARED.match(content)
    if declared is not None and declared[1].lower() not in _UNICODE:
        refuse(1, f"the encoding {declared[1][:MAX_SHOWN]} is not UTF-8: convert the file, and change its first line")
    tokens = list[Token]()
    try:
        yield from in_steps(read_xml(content), tokens)
    except XmlError as error:
        refuse(error.line, f"it {error.problem}; {error.remedy}")
    _check_root(next((token for token in tokens if token.kind in {Kind.START, Kind.EMPTY}), None))
    ends = find_ends(tokens)
    around = [_Around()]
    line, done = 1, 0
    for index, token in enumerate(tokens):
        if token.kind is Kind.START:
            around.append(around[-1].inside(token))
            name = _local(token)
            if name in _LANGUAGES:
                tokens[index] = _with_languages(token, source, language, line)
            elif name in UNITS and around[-1].translated and done <= index:
                parts = _parts(tokens, ends, index)
                if "source" in parts:
                    unit = _Unit(tokens, ends, index, parts, preserve=around[-1].preserve)
                    yield _written(tokens, done, index)
                    yield unit.text(line) if unit.is_new else _written(tokens, index, unit.after)
                    done = unit.after
        elif token.kind is Kind.END and len(around) > 1:
            around.pop()
        line += token.written.count("\n")
    yield _written(tokens, done, len(tokens))


def _check_root(root: Token | None) -> None:
    if root is None or _local(root) != "xliff":
        name = "none" if root is None else root.name[:MAX_SHOWN]
        refuse(1, f"the outermost element must be xliff, got {name}: give the format of the file")
    version = dict(attributes(root.written)).get("version", "1.2")
    if version.partition(".")[0] not in {"1", "2"}:
        refuse(1, f"the version {version[:MAX_SHOWN]!r} of XLIFF is unknown: export the file as 1.2 or 2.1")


def _with_languages(token: Token, source: str, language: str, line: int) -> Token:
    """Check the languages of a file against those of the request, and declare the target language if it is missing."""
    names, found = _LANGUAGES[_local(token)], dict(attributes(token.written))
    if names[0].lower() not in found:
        return token
    for name, wanted, role in zip(names, (source, language), ("source", "target"), strict=True):
        value = found.get(name.lower(), "")
        if value and wanted and primary_language(value) != primary_language(wanted):
            refuse(
                line,
                f"the file's {name} is {value[:MAX_SHOWN]!r}, but the request's {role} language is {wanted!r}: "
                "change one of them",
            )
    if not language or found.get(names[1].lower()):
        return token
    added = f'{names[1]}="{locale_name(language)}"'
    written, count = re.subn(rf"(?<=\s){names[1]}\s*+=\s*+(?:\"\"|'')", added, token.written, count=1)
    return token._replace(written=written if count else f"{token.written[:-1].rstrip()} {added}>")


def _local(token: Token) -> str:
    return token.name.rpartition(":")[2]


def _parts(tokens: Sequence[Token], ends: dict[int, int], unit: int) -> dict[str, _Range]:
    """Return the source, seg-source and target of a unit, not those of its alternatives."""
    parts = dict[str, _Range]()
    index = unit + 1
    while index < ends.get(unit, unit):
        last = ends.get(index, index)
        if tokens[index].kind in {Kind.START, Kind.EMPTY}:
            parts.setdefault(_local(tokens[index]), (index, last))
        index = last + 1
    return {name: parts[name] for name in ("source", "seg-source", "target") if name in parts}


class _Unit:
    """A unit with its source and target.

    Attributes:
        is_new: True if its target is made.
        after: index of the token after its source and target.
    """

    def __init__(
        self, tokens: Sequence[Token], ends: dict[int, int], unit: int, parts: dict[str, _Range], *, preserve: bool
    ) -> None:
        self._tokens = tokens
        self._ends = ends
        self._unit = unit
        self.after = max(last for _, last in parts.values()) + 1
        self._source = parts.get("seg-source", parts["source"])
        self._target = parts.get("target", (self.after, self.after - 1))
        self._has_target = "target" in parts
        of_unit = dict(attributes(tokens[unit].written))
        of_target = dict(attributes(tokens[self._target[0]].written)) if self._has_target else {}
        self._holder = self._target[0] if "state" in of_target else unit
        state = of_target.get("state", of_unit.get("state", ""))
        first, last = parts["source"]
        self._preserve = _Around(preserve=preserve).inside(tokens[first]).preserve
        is_empty = not self._has_text(self._target)
        self._segments = self._marked(self._source)
        prepared = self._marked(self._target)
        self._skeleton = self._source
        if prepared and state not in NEW:
            empty = {name: place for name, place in prepared.items() if not self._has_text(place)}
            is_empty = bool(empty)
            self._segments = {name: place for name, place in self._segments.items() if name in empty}
            self._skeleton = self._target
        letters = any(self._has_letters(place) for place in (self._segments or {"": (first, last)}).values())
        self._is_kept = of_unit.get("approved") == "yes" or state in KEPT
        self.is_new = (
            letters and not self._is_kept and (is_empty or state in NEW) and not (prepared and not self._segments)
        )

    def _has_text(self, place: _Range) -> bool:
        """True if an element has text beside its codes."""
        first, last = place
        return any(
            one.kind is Kind.CDATA or (one.kind is Kind.TEXT and one.written.strip())
            for one in self._outside_codes(first + 1, last)
        )

    def _has_letters(self, place: _Range) -> bool:
        first, last = place
        return any(
            one.kind in {Kind.TEXT, Kind.CDATA} and has_letters(one.written) for one in self._tokens[first + 1 : last]
        )

    def _outside_codes(self, first: int, after: int) -> Iterator[Token]:
        while first < after:
            token = self._tokens[first]
            if token.kind is Kind.START and _local(token) in CODES:
                first = self._ends[first]
            else:
                yield token
            first += 1

    def _marked(self, place: _Range) -> dict[str, _Range]:
        """Return the segments inside of an element, by their ids."""
        found = dict[str, _Range]()
        for index in range(place[0] + 1, place[1]):
            token = self._tokens[index]
            if token.kind in {Kind.START, Kind.EMPTY} and (name := _segment(token)):
                found[name] = index, self._ends.get(index, index)
        return found

    def text(self, line: int) -> Text:
        """Return the text from the start of the unit to the end of its target."""
        tokens, (start, end) = self._tokens, self._target
        line += sum(one.written.count("\n") for one in tokens[self._unit : self._source[0]])
        places = self._segments or {"": self._source}
        inner = tuple(
            (name, _Inline(tokens, self._ends, place, preserve=self._preserve)) for name, place in places.items()
        )
        content = "".join(f"<xs>{one.content}</xs>" if self._segments else one.content for _, one in inner)
        unit, opening = tokens[self._unit].written, tokens[start].written if self._has_target else ""
        if self._holder != self._unit:
            opening = _stated(opening)
        elif _local(tokens[self._unit]) == "segment":
            unit = _stated(unit)
        closing = f"</{tokens[start].name}>"
        if not self._has_target:
            above = tokens[self._source[0] - 1].written
            name = re.sub("(?:seg-)?source$", "target", tokens[self._source[0]].name)
            opening, closing = f"{above[len(above.rstrip()) :]}<{name}>", f"</{name}>"
        written = _written(tokens, self._unit, self.after)
        end_of_target = len(_written(tokens, end + 1, self.after))
        place = (
            len(tokens[self._unit].written),
            len(written) - end_of_target - len(_written(tokens, start, end + 1)),
            len(written) - end_of_target,
        )
        old = _written(tokens, start + 1, end) if self._has_target else None
        skeleton = list(self._filled(self._skeleton)) if self._segments else _WHOLE
        return Text(
            content,
            written,
            line,
            partial(_with_target, written, place, (unit, _opened(opening), closing), old, inner, skeleton),
        )

    def _filled(self, place: _Range) -> Iterator[tuple[str, str]]:
        """Yield the content of an element without that of its segments, and the name of the segment after each part."""
        index, parts = place[0] + 1, list[str]()
        while index < place[1]:
            token = self._tokens[index]
            name = _segment(token) if token.kind in {Kind.START, Kind.EMPTY} else ""
            parts.append(_opened(token.written) if name in self._segments else token.written)
            if name in self._segments:
                yield "".join(parts), name
                parts = [f"</{token.name}>"]
                index = self._ends.get(index, index)
            index += 1
        yield "".join(parts), ""


_WHOLE: Final = (("", ""),)
"""Content without segments."""


def _with_target(  # noqa: PLR0917 - a unit in parts: a text keeps no tokens
    written: str,
    places: tuple[int, int, int],
    tags: tuple[str, str, str],
    old: str | None,
    inner: "Sequence[tuple[str, _Inline]]",
    skeleton: Sequence[tuple[str, str]],
    translation: str,
) -> str:
    """Write a unit with the translation of its content, or of its segments.

    Args:
        places: where the unit's start tag ends, its target begins, and its target ends.
        tags: start tag of the unit, and tags of the target.
        old: content of the target that is replaced; None: there is no target.
        skeleton: parts of the new content, and the name of the segment after each.
    """
    translated = [translation] if skeleton is _WHOLE else _split(translation)
    if len(translated) != len(inner):
        raise InvalidArgumentError("the translation has other segments than the text", field="contents")
    made = {name: one.write(new) for (name, one), new in zip(inner, translated, strict=True)}
    inside = "".join(f"{part}{made.get(name, '')}" for part, name in skeleton)
    if inside == old:
        return written
    unit, opening, closing = tags
    first, start, end = places
    return f"{unit}{written[first:start]}{opening}{inside}{closing}{written[end:]}"


def _segment(token: Token) -> str:
    """Return the id of a segment that begins; empty if none does."""
    found = dict(attributes(token.written)) if _local(token) == "mrk" else {}
    return found.get("mid", "") if found.get("mtype") == "seg" else ""


def _opened(tag: str) -> str:
    """Return the start tag of an element without content."""
    return f"{tag.removesuffix('/>').rstrip()}>" if tag.endswith("/>") else tag


def _stated(tag: str) -> str:
    """Return a start tag with the state after translation; a segment without a state is new."""
    state = dict(attributes(tag)).get("state", "")
    if not state:
        return f'{tag[:-1].rstrip()} state="{NEW["initial"]}">'
    if state not in NEW:
        return tag
    return _SUBSTATE.sub("", _STATE.sub(rf"\g<1>{NEW[state]}\g<1>", tag, count=1), count=1)


class _Inline:
    """The content of an element for translation, and back.

    In `content`, an element ``xc`` stands for a pair of codes or a code with a prefix, ``xh`` for protected text, and
    ``xw`` for white space that is preserved.
    """

    __slots__ = ("_after", "_before", "_originals", "content")

    def __init__(self, tokens: Sequence[Token], ends: Mapping[int, int], place: _Range, *, preserve: bool) -> None:
        self._originals = list[tuple[str, str]]()
        self._before, self.content, self._after = "", "".join(self._parts(tokens, ends, place, preserve)), ""
        if not preserve:
            self._before, self.content, self._after = separate(self.content)

    def _parts(self, tokens: Sequence[Token], ends: Mapping[int, int], place: _Range, preserve: bool) -> Iterator[str]:
        pairs = _pairs(tokens, ends, place)
        closing = dict[int, _Range]()  # number of a pair, and its last token, by the first token of its end
        index, after = place[0] + 1, place[1]
        while index < after:
            token, last, name = tokens[index], ends.get(index, index), _local(tokens[index])
            protected = name == "mrk" and last > index and not _AROUND.inside(token).translated
            if index in closing:
                number, last = closing[index]
                self._originals[number] = self._originals[number][0], _written(tokens, index, last + 1)
                yield "</xc>"
            elif index in pairs:
                closing[pairs[index][0]] = len(self._originals), pairs[index][1]
                yield self._put("xc", _written(tokens, index, last + 1), ">")
            elif protected:
                shown = (one.written for one in tokens[index + 1 : last] if one.kind is Kind.TEXT)
                whole = _written(tokens, index, last + 1)
                yield self._put("xh", whole, f' translate="no">{"".join(shown)}</xh>')
            elif ":" in token.name and name in INLINE:
                if last == index or name in CODES:
                    yield self._put("xc", _written(tokens, index, last + 1))
                else:
                    closing[last] = len(self._originals), last
                    yield self._put("xc", token.written, ">")
                    last = index
            elif token.kind is Kind.TEXT and preserve:
                end = 0
                for found in _SPACE.finditer(token.written):
                    yield token.written[end : found.start()]
                    yield self._put("xw", found[0])
                    end = found.end()
                yield token.written[end:]
            else:
                last = index
                yield token.written
            index = last + 1

    def _put(self, name: str, written: str, end: str = "/>") -> str:
        self._originals.append((written, ""))
        return f'<{name} i="{len(self._originals) - 1}"{end}'

    def write(self, translation: str) -> str:
        """Write a translation of the content as XLIFF."""
        written, around, is_kept = [self._before], list[int](), False
        for token in scan(translation, html=False):
            if (found := _NUMBERED.match(token.written)) and int(found[1]) < len(self._originals):
                written.append(self._originals[int(found[1])][0])
                is_kept = token.name == "xh"
                if token.kind is Kind.START:
                    around.append(int(found[1]))
            elif token.kind is Kind.END and token.name in {"xc", "xh"} and around:
                written.append(self._originals[around.pop()][1])
                is_kept = False
            elif not is_kept:
                written.append(token.written)
        return "".join((*written, self._after))


def _pairs(tokens: Sequence[Token], ends: Mapping[int, int], place: _Range) -> dict[int, _Range]:
    """Return the end of each code that begins a part of a text, by its first token, if they are nested."""
    found = dict[int, _Range]()
    levels = [dict[str, int]()]  # open codes of each element
    index = place[0] + 1
    while index < place[1]:
        token, last, name = tokens[index], ends.get(index, index), _local(tokens[index])
        if name in _CODE_NAMES and (token.kind is Kind.EMPTY or last > index):
            known = dict(attributes(token.written))
            key = known.get("startref") or known.get("rid") or known.get("id", "")
            if name in PAIRS:
                levels[-1][f"{PAIRS[name]} {key}"] = index
            elif (start := levels[-1].get(f"{name} {key}")) is not None:
                found[start] = index, last
                while levels[-1].popitem()[1] != start:
                    pass  # codes that are crossed are marks
            index = last
        elif token.kind is Kind.START:
            levels.append({})
        elif token.kind is Kind.END and len(levels) > 1:
            levels.pop()
        index += 1
    return found


def _split(translation: str) -> list[str]:
    """Return the contents of the segments of a translation."""
    found, parts = list[str](), list[str]()
    for token in scan(translation, html=False):
        if token.name != "xs":
            parts.append(token.written)
        elif token.kind is Kind.END:
            found.append("".join(parts))
        parts = [] if token.name == "xs" else parts
    return found


def _written(tokens: Sequence[Token], first: int, after: int) -> str:
    return "".join(token.written for token in tokens[first:after])


FORMATS: Final = {
    "xliff": FileFormat(
        xliff_pieces,
        "xml",
        MarkupRules(ignore_tags=CODES, non_splitting_tags=(*INLINE, "xc", "xh"), splitting_tags=("xs", "xw")),
        Parts(name="tags, attributes and entities", marks="<=&", size=380, most=450_000),
        copies=6,
        takes_language=True,
        takes_source=True,
    )
}
