"""XLIFF 1.2 and 2: empty and new targets are made of their sources; all else stays."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from jumok_proto.markup import MarkupRules
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
from jumok_serve.text.markup.scanner import Kind, Token, XmlError, attributes, read_xml
from jumok_serve.text.markup.structure import find_ends

UNITS: Final = frozenset({"trans-unit", "segment"})
"""Elements with a source and its target, of versions 1 and 2."""
NEW: Final = frozenset({"new", "needs-translation", "initial"})
"""States of targets that are made again."""
CODES: Final = ("ph", "bpt", "ept", "it", "sub")
"""Elements whose content is code of the original document."""
INLINE: Final = (*CODES, "g", "x", "bx", "ex", "mrk", "pc", "sc", "ec", "cp", "sm", "em")
_DECLARED: Final = re.compile(r"\s*+<\?xml[^>]{0,1000}\sencoding\s*+=\s*+[\"']([^\"']*+)")
_UNICODE: Final = {"utf-8", "utf-16", "us-ascii"}


_Range = tuple[int, int]
"""Indices of the first and the last token of an element; equal without content."""


def xliff_pieces(content: str) -> Iterator[Piece]:
    """Yield the pieces of an XLIFF file.

    Raises:
        InvalidArgumentError: no well-formed XML, or no XLIFF.
    """
    declared = _DECLARED.match(content)
    if declared is not None and declared[1].lower() not in _UNICODE:
        refuse(1, f"the encoding {declared[1][:MAX_SHOWN]} is not UTF-8: convert the file, and change its first line")
    tokens = list[Token]()
    try:
        yield from in_steps(read_xml(content), tokens)
    except XmlError as error:
        refuse(error.line, f"it {error.problem}; {error.remedy}")
    root = next((token for token in tokens if token.kind in {Kind.START, Kind.EMPTY}), None)
    if root is None or _local(root) != "xliff":
        name = "none" if root is None else root.name[:MAX_SHOWN]
        refuse(1, f"the outermost element must be xliff, got {name}: give the format of the file")
    ends = find_ends(tokens)
    translated = [True]  # of the elements around a token
    line, done = 1, 0
    for index, token in enumerate(tokens):
        if token.kind is Kind.START:
            translated.append(_is_translated(token, translated[-1]))
            if translated[-1] and done <= index and _local(token) in UNITS:
                parts = _parts(tokens, ends, index)
                if "source" in parts:
                    yield from _unit(tokens, done, index, parts, line)
                    done = _after(parts)
        elif token.kind is Kind.END and len(translated) > 1:
            translated.pop()
        line += token.written.count("\n")
    yield "".join(token.written for token in tokens[done:])


def _is_translated(token: Token, inherited: bool) -> bool:
    value = next((value for name, value in attributes(token.written) if name == "translate"), None)
    return inherited if value is None else value != "no"


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


def _after(parts: dict[str, _Range]) -> int:
    return max(last for _, last in parts.values()) + 1


def _unit(tokens: Sequence[Token], done: int, unit: int, parts: dict[str, _Range], line: int) -> Iterator[Piece]:
    """Yield the pieces up to the target of a unit.

    Args:
        done: tokens that are written.
        unit: index of the unit's start tag, in this line.
    """
    first, last = parts["source"]
    before, content, after = separate(_written(tokens, first + 1, last))
    letters = any(one.kind in {Kind.TEXT, Kind.CDATA} and has_letters(one.written) for one in tokens[first + 1 : last])
    line += sum(one.written.count("\n") for one in tokens[unit:first])
    start, end = parts.get("target", (_after(parts), _after(parts) - 1))
    state = dict(attributes(tokens[start].written)) if "target" in parts else {}
    state = state if "state" in state else dict(attributes(tokens[unit].written))
    old = _written(tokens, start + 1, end)
    if not letters or (old.strip() and state.get("state") not in NEW):
        yield _written(tokens, done, _after(parts))
        return
    above = tokens[first - 1].written
    name = tokens[first].name.removesuffix("source") + "target"
    opening, closing = f"{above[len(above.rstrip()) :]}<{name}>", f"</{name}>"
    written = ""
    if "target" in parts:
        opening = tokens[start].written
        opening = opening if start < end else f"{opening.removesuffix('/>').rstrip()}>"
        closing = tokens[end].written if start < end else f"</{tokens[start].name}>"
        written = _written(tokens, start, end + 1)

    def write(translation: str) -> str:
        return f"{opening}{before}{translation}{after}{closing}"

    yield _written(tokens, done, start)
    yield Text(content, written, line, write)
    yield _written(tokens, end + 1, _after(parts))


def _written(tokens: Sequence[Token], first: int, after: int) -> str:
    return "".join(token.written for token in tokens[first:after])


FORMATS: Final = {
    "xliff": FileFormat(
        xliff_pieces,
        "xml",
        MarkupRules(ignore_tags=CODES, non_splitting_tags=INLINE),
        Parts(name="tags, attributes and entities", marks="<=&", size=380, most=450_000),
    )
}
