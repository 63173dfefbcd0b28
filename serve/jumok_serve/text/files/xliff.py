"""XLIFF 1.2 and 2: empty and new targets are made of their sources; all else stays."""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

from jumok_proto.markup import MarkupRules
from jumok_serve.manifest.languages import primary_language
from jumok_serve.text.files.document import MAX_SHOWN, FileFormat, Parts, Piece, Text, has_letters, refuse, separate
from jumok_serve.text.files.xml_catalogues import Document, local, opened, read_document
from jumok_serve.text.markup.scanner import Kind, Token, attributes
from jumok_serve.text.markup.strings import Numbered
from jumok_serve.text.plurals import locale_name

UNITS: Final = frozenset({"trans-unit", "segment"})
"""Elements with a source and its target, of versions 1 and 2."""
NEW: Final = dict.fromkeys(("new", "needs-translation"), "needs-review-translation") | {"initial": "translated"}
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
_SPACE: Final = re.compile(r" *+[\t\r\n]\s*+|  ++")
_STATE: Final = re.compile(r"(?<=\sstate=)([\"'])[\w-]*+[\"']")
_SUBSTATE: Final = re.compile(r"\ssubState=(?:\"[^\"]*+\"|'[^']*+')")
_CODE_NAMES: Final = frozenset((*CODES, *PAIRS, *PAIRS.values()))


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


def xliff_pieces(content: str, language: str = "", source: str = "") -> Iterator[Piece]:
    """Yield the pieces of an XLIFF file.

    Args:
        language: target language of the request; empty: not known.
        source: source language of the request; empty: not known.

    Raises:
        InvalidArgumentError: no well-formed XML, no XLIFF, or XLIFF of other languages.
    """
    document, root = yield from read_document(content, "xliff")
    version = document.attributes(root).get("version", "1.2")
    if version.partition(".")[0] not in {"1", "2"}:
        refuse(1, f"the version {version[:MAX_SHOWN]!r} of XLIFF is unknown: export the file as 1.2 or 2.1")
    around, done = [_Around()], 0
    for index, token in enumerate(document.tokens):
        if token.kind is Kind.START:
            around.append(around[-1].inside(token))
            name = document.name(index)
            if name in _LANGUAGES:
                document.tokens[index] = _with_languages(token, name, source, language, document.line(index))
            elif name in UNITS and around[-1].translated and done <= index:
                text, after = _unit(document, index, preserve=around[-1].preserve)
                yield document.written(done, index)
                yield document.written(index, after) if text is None else text
                done = after
        elif token.kind is Kind.END and len(around) > 1:
            around.pop()
    yield document.written(done, len(document.tokens))


def _with_languages(token: Token, element: str, source: str, language: str, line: int) -> Token:
    """Check the languages of a file against those of the request, and declare the target language if it is missing."""
    names, found = _LANGUAGES[element], dict(attributes(token.written))
    if names[0].lower() not in found:
        return token
    for name, wanted, role in zip(names, (source, language), ("source", "target"), strict=True):
        value = found.get(name.lower(), "")
        if value and wanted and primary_language(value) != primary_language(wanted):
            other = f"the request's {role} language is {wanted!r}"
            refuse(line, f"the file's {name} is {value[:MAX_SHOWN]!r}, but {other}: change one of them")
    if not language or found.get(names[1].lower()):
        return token
    added = f'{names[1]}="{locale_name(language)}"'
    written, count = re.subn(rf"(?<=\s){names[1]}\s*+=\s*+(?:\"\"|'')", added, token.written, count=1)
    return token._replace(written=written if count else f"{token.written[:-1].rstrip(' ')} {added}>")


def _unit(document: Document, unit: int, *, preserve: bool) -> tuple[Text | None, int]:
    """Return the text of a unit up to the end of its target, None if that is not made, and the token after it."""
    parts = dict[str, int]()
    for part in document.inside(unit):
        if document.name(part) in {"source", "seg-source", "target"}:
            parts.setdefault(document.name(part), part)
    if "source" not in parts:
        return None, unit
    after = max(map(document.end, parts.values())) + 1
    source, target = parts.get("seg-source", parts["source"]), parts.get("target", after)
    has_target = "target" in parts
    of_unit, of_target = document.attributes(unit), document.attributes(target) if has_target else {}
    state = of_target.get("state", of_unit.get("state", ""))
    segments, prepared = _segments(document, source), _segments(document, target) if has_target else {}
    place, is_made = source, state in NEW or not has_target or _is_empty(document, target)
    if prepared and state not in NEW:
        place = target
        empty = {name for name, one in prepared.items() if _is_empty(document, one)}
        segments = {name: one for name, one in segments.items() if name in empty}
    if prepared:
        is_made = bool(segments)
    letters = any(any(map(has_letters, _texts(document, one))) for one in segments.values() or [source])
    if not letters or not is_made or of_unit.get("approved") == "yes" or state in KEPT:
        return None, after

    preserve = _Around(preserve=preserve).inside(document.tokens[parts["source"]]).preserve
    inline = _Inline(document, place, segments, preserve=preserve)
    written, first = document.written(unit, after), document.tokens[unit].written
    begin, start, end = len(first), len(document.written(unit, target)), len(written)
    old, above, name = None, document.tokens[source - 1].written, document.tokens[source].name
    name = re.sub("(?:seg-)?source$", "target", name)
    opening = f"{above[len(above.rstrip()) :]}<{name}>"
    if has_target:
        old = document.written(target + 1, document.end(target))
        opening, name = document.tokens[target].written, document.tokens[target].name
        end = len(document.written(unit, document.end(target) + 1))
    if "state" in of_target:
        opening = _stated(opening)
    elif document.name(unit) == "segment":
        first = _stated(first)
    tags, places = (first, opened(opening), f"</{name}>"), (begin, start, end)
    write = partial(_with_target, written, places, tags, old, inline)
    return Text(inline.content, written, document.line(source), write), after


def _with_target(  # noqa: PLR0917 - a unit in parts: a text keeps no tokens
    written: str,
    places: tuple[int, int, int],
    tags: tuple[str, str, str],
    old: str | None,
    inline: "_Inline",
    translation: str,
) -> str:
    """Write a unit with a translation.

    Args:
        places: where the unit's start tag ends, its target begins, and its target ends.
        tags: start tag of the unit, and tags of the target.
        old: content of the target that is replaced; None: there is no target.
    """
    made, (first, opening, closing), (begin, start, end) = inline.write(translation), tags, places
    return written if made == old else f"{first}{written[begin:start]}{opening}{made}{closing}{written[end:]}"


def _texts(document: Document, element: int) -> Iterator[str]:
    """Yield the texts of an element outside of its codes."""
    index = element + 1
    while index < document.end(element):
        token = document.tokens[index]
        if token.kind in {Kind.TEXT, Kind.CDATA}:
            yield token.written
        index = (document.end(index) if document.name(index) in CODES else index) + 1


def _is_empty(document: Document, element: int) -> bool:
    """True if an element has white space at most, outside of its codes."""
    return not any(map(str.strip, _texts(document, element)))


def _segments(document: Document, element: int) -> dict[str, int]:
    """Return the segments inside of an element, by their ids."""
    inside = range(element + 1, document.end(element))
    return {name: index for index in inside if (name := _segment(document.tokens[index]))}


def _segment(token: Token) -> str:
    """Return the id of a segment that begins; empty if none does."""
    if token.kind not in {Kind.START, Kind.EMPTY} or local(token) != "mrk":
        return ""
    found = dict(attributes(token.written))
    return found.get("mid", "") if found.get("mtype") == "seg" else ""


def _stated(tag: str) -> str:
    """Return a start tag with the state after translation; a segment without a state is new."""
    state = dict(attributes(tag)).get("state", "")
    if not state:
        return f'{tag[:-1].rstrip()} state="{NEW["initial"]}">'
    if state not in NEW:
        return tag
    return _SUBSTATE.sub("", _STATE.sub(rf"\g<1>{NEW[state]}\g<1>", tag, count=1), count=1)


class _Inline(Numbered):
    """The content of an element for translation, and back.

    In `content`, an element ``xc`` stands for a pair of codes or a code with a prefix, ``xh`` for protected text,
    ``xw`` for white space that is preserved, and ``xs`` for a segment with what stands before it.

    Args:
        segments: those that are translated, by their ids; all else stays. Empty: all is translated.
    """

    __slots__ = ("_after", "_before", "content")
    _ELEMENT = re.compile(r"<x[chsw] i=\"(\d{1,9})\"")
    _HOLE = "xh"

    def __init__(self, document: Document, element: int, segments: Mapping[str, int], *, preserve: bool) -> None:
        super().__init__()
        if not segments:
            self._before, self.content, self._after = self._inner(document, element, preserve=preserve)
            return
        parts, index, done = list[str](), element + 1, element + 1
        while index < document.end(element):
            token = document.tokens[index]
            if (name := _segment(token)) in segments:
                number = len(self._written)
                parts.append(self._put("xs", "", ">"))
                before, content, after = self._inner(document, segments[name], preserve=preserve)
                opening = f"{document.written(done, index)}{opened(token.written)}{before}"
                self._written[number] = opening, f"{after}</{token.name}>"
                parts += content, "</xs>"
                index = document.end(index)
                done = index + 1
            index += 1
        self._before, self.content, self._after = "", "".join(parts), document.written(done, document.end(element))

    def _inner(self, document: Document, element: int, *, preserve: bool) -> tuple[str, str, str]:
        content = "".join(self._codes(document, element, preserve))
        return ("", content, "") if preserve else separate(content)

    def _codes(self, document: Document, element: int, preserve: bool) -> Iterator[str]:
        pairs = _pairs(document, element)
        closing = dict[int, tuple[int, int]]()  # number of a pair, and its last token, by the first token of its end
        index = element + 1
        while index < document.end(element):
            token, last, name = document.tokens[index], document.end(index), document.name(index)
            if index in closing:
                number, last = closing[index]
                self._close(number, document.written(index, last + 1))
                yield "</xc>"
            elif index in pairs:
                closing[pairs[index][0]] = len(self._written), pairs[index][1]
                yield self._put("xc", document.written(index, last + 1), ">")
            elif name == "mrk" and last > index and not _Around().inside(token).translated:
                shown = (one.written for one in document.tokens[index + 1 : last] if one.kind is Kind.TEXT)
                whole = document.written(index, last + 1)
                yield self._put("xh", whole, f' translate="no">{"".join(shown)}</xh>')
            elif ":" in token.name and name in INLINE and (last == index or name in CODES):
                yield self._put("xc", document.written(index, last + 1))
            elif ":" in token.name and name in INLINE:
                closing[last] = len(self._written), last
                yield self._put("xc", token.written, ">")
                last = index
            elif token.kind is Kind.TEXT and preserve:
                yield _SPACE.sub(lambda found: self._put("xw", found[0]), token.written)
            else:
                last = index
                yield token.written
            index = last + 1

    def write(self, translation: str) -> str:
        """Write a translation of the content as XLIFF."""
        return f"{self._before}{''.join(part for _, part in self._parts(translation))}{self._after}"


def _pairs(document: Document, element: int) -> dict[int, tuple[int, int]]:
    """Return the end of each code that begins a part of a text, by its first token, if they are nested."""
    found = dict[int, tuple[int, int]]()
    levels = [dict[str, int]()]  # open codes of each element
    index = element + 1
    while index < document.end(element):
        token, last, name = document.tokens[index], document.end(index), document.name(index)
        if name in _CODE_NAMES and (token.kind is Kind.EMPTY or last > index):
            known = document.attributes(index)
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


_RULES: Final = MarkupRules(ignore_tags=CODES, non_splitting_tags=(*INLINE, "xc", "xh"), splitting_tags=("xs", "xw"))
_PARTS: Final = Parts(name="tags, attributes and entities", marks="<=&", size=380, most=450_000)
FORMATS: Final = {"xliff": FileFormat(xliff_pieces, "xml", _RULES, _PARTS, copies=6)}
