"""String catalogues of Xcode: each string gets a translation in the target language; those that it has stay."""

import json
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from jumok_serve.manifest.languages import tag_key
from jumok_serve.text.files.document import (
    PARTS_PER_STEP,
    FileFormat,
    Piece,
    Text,
    refuse,
    string_text,
    wrapped,
)
from jumok_serve.text.files.json_catalogues import STRINGS, Event, Strings, characters_of, read_json, space_before
from jumok_serve.text.markup.strings import RULES
from jumok_serve.text.plurals import is_unused, locale_name, missing_categories

MAX_DEPTH: Final = 32
"""Values within each other; a catalogue has about ten."""
_UNIT: Final = "stringUnit"
_NOTHING: Final = (0, 0, ())


@dataclass(slots=True)
class _Node:
    """A value.

    Attributes:
        start, after: its place.
        members: of an object, by key, each with the place of its key.
    """

    start: int
    after: int
    members: "dict[str, tuple[Event, _Node]] | None" = None

    def of(self, key: str) -> "_Node | None":
        """Return the value of a key."""
        return (self.members or {}).get(key, (None, None))[1]


def _read(content: str) -> Generator[str, None, _Node]:
    """Read a file; elements of arrays, which no format has, are left out."""
    last = Event("key", 0, 0)
    stack = [_Node(0, 0, {})]
    for number, event in enumerate(read_json(content)):
        if number % PARTS_PER_STEP == 0:
            yield ""
        if event.kind == "key":
            last = event
        elif event.kind in "}]":
            stack.pop().after = event.after
        else:
            node, members = _Node(event.start, event.after, {} if event.kind == "{" else None), stack[-1].members
            if members is not None:
                key = characters_of(content, last) if len(stack) > 1 else ""
                if key in members:
                    line = content.count("\n", 0, last.start) + 1
                    refuse(line, f"it has the key {key[:60]!r} twice: remove one")
                members[key] = last, node
            if event.kind in "{[":
                stack.append(node)
                if len(stack) > MAX_DEPTH:
                    line = content.count("\n", 0, event.start) + 1
                    refuse(line, f"it has more than {MAX_DEPTH} values within each other: it is no string catalogue")
    return (stack[0].members or {})[""][1]


def xcstrings_pieces(content: str, language: str = "") -> Iterator[Piece]:
    """Yield the pieces of a string catalogue.

    Raises:
        InvalidArgumentError: no JSON, no string catalogue, or the language is unknown.
    """
    root = yield from _read(content)
    strings, source = root.of("strings"), root.of("sourceLanguage")
    if strings is None or strings.members is None or source is None or content[source.start] != '"':
        refuse(1, "a string catalogue has sourceLanguage and strings: give the format json for another JSON file")
    if not language:
        refuse(1, "a string catalogue has all languages in one file: give the target language")
    catalogue, done = _Catalogue(content, json.loads(content[source.start : source.after]), language), 0
    if catalogue.target != tag_key(locale_name(catalogue.source)):
        for number, (name, (key, entry)) in enumerate(strings.members.items()):
            if number % PARTS_PER_STEP == 0:
                yield ""
            start, after, pieces = catalogue.entry(name, key, entry)
            if any(isinstance(piece, Text) for piece in pieces):
                yield content[done:start]
                yield from pieces
                done = after
    yield content[done:]


class _Catalogue:
    """A catalogue that gets a language.

    Attributes:
        source, target: its source language, and in one spelling the language that it gets.
    """

    def __init__(self, content: str, source: str, language: str) -> None:
        self.source = source
        self.target = tag_key(locale_name(language))
        self._language = language
        self._content = content
        self._strings = Strings(content)
        self._colon = " : " if '" : ' in content else ": "

    def entry(self, name: str, key: Event, entry: _Node) -> tuple[int, int, Sequence[Piece]]:
        """Return the place of what a string gets, which may be empty, and the pieces.

        Args:
            name: its key, which is its text if it has none in the source language.
        """
        found = entry.of("localizations")
        flags = {self._written(node) for flag in ("shouldTranslate", "extractionState") if (node := entry.of(flag))}
        if entry.members is None or (found is not None and found.members is None) or flags & {"false", '"stale"'}:
            return _NOTHING
        localizations = (found.members if found is not None else None) or {}
        own = localizations.get(self.source, (None, None))[1]
        source = {_UNIT: {"value": name}} if own is None else json.loads(self._written(own))
        line = self._strings.line(key.start)
        for tag, (_, node) in localizations.items():
            if tag_key(locale_name(tag)) == self.target:
                return self._begun(node, source, line)
        name, space = locale_name(self._language), space_before(self._content, key.start)
        node, member, value, inner = entry, "localizations", {name: source}, self._deeper(space)
        if found is not None:
            node, member, value, space, inner = found, name, source, inner, self._deeper(inner)
        place, before, after, space = self._among(node, json.dumps(member), space=inner, outer=space)
        return *place, [before, *self._pieces(value, space, line), after]

    def _begun(self, node: _Node, source: Any, line: int) -> tuple[int, int, Sequence[Piece]]:
        """Return the pieces of a translation that Xcode has added and that is new or empty."""
        found, wanted = node.of(_UNIT), source.get(_UNIT) if isinstance(source, dict) else None
        if found is None or found.members is None or wanted is None:
            return _NOTHING
        unit = json.loads(self._written(found))
        if unit.get("state") != "new" and unit.get("value"):
            return _NOTHING
        space = next((space_before(self._content, key.start) for key, _ in found.members.values()), "")
        piece = self._unit(wanted, space.removesuffix("  "), line)
        return found.start, found.after, [wrapped("", piece, written=self._written(found))]

    def _written(self, node: _Node) -> str:
        return self._content[node.start : node.after]

    @staticmethod
    def _deeper(space: str) -> str:
        return f"{space}  " if "\n" in space else space

    def _among(self, node: _Node, member: str, *, space: str, outer: str) -> tuple[tuple[int, int], str, str, str]:
        """Return the place of a new member of an object, in the order of keys.

        Args:
            member: its key.
            space, outer: white space before its key and before the end of the object, if the object is empty.

        Returns:
            The place, what stands before and after the value, and the white space before the key.
        """
        opening = f"{member}{self._colon}"
        if not node.members:
            return (node.start + 1, node.after - 1), f"{space}{opening}", outer, space
        for key, value in node.members.values():
            space, after = space_before(self._content, key.start), value.after
            if self._content[key.start : key.after] > member:
                return (key.start, key.start), opening, f",{space}", space
        return (after, after), f",{space}{opening}", "", space

    def _pieces(self, value: Any, space: str, line: int) -> Iterator[Piece]:
        """Yield the pieces of a value in the source language, in the target language.

        Args:
            space: white space before its key.
        """
        if not isinstance(value, dict):
            yield json.dumps(value, ensure_ascii=False)
            return
        inner = self._deeper(space)
        for number, (name, member) in enumerate(value.items()):
            yield f"{',' if number else '{'}{inner}{self._strings.write(name)}{self._colon}"
            if name == _UNIT:
                yield self._unit(member, inner, line)
            elif name == "plural" and isinstance(member, dict):
                yield from self._pieces(self._forms(member), inner, line)
            else:
                yield from self._pieces(member, inner, line)
        yield f"{space}}}" if value else "{}"

    def _forms(self, forms: dict[str, Any]) -> dict[str, Any]:
        """Return the plural forms that the language needs; new ones are those of other numbers."""
        if "other" not in forms:
            return forms
        kept = {name: form for name, form in forms.items() if not is_unused(self._language, name)}
        missing = missing_categories(self._language, forms)
        return dict(sorted({**kept, **dict.fromkeys(missing, forms["other"])}.items()))

    def _unit(self, unit: Any, space: str, line: int) -> Piece:
        """Return the text of a unit; its translation is to be reviewed."""
        characters = unit.get("value", "") if isinstance(unit, dict) else ""
        inner = self._deeper(space)

        def written(state: str, value: str) -> str:
            opening = f'{{{inner}"state"{self._colon}"{state}",{inner}"value"{self._colon}'
            return f"{opening}{self._strings.write(value)}{space}}}"

        text = string_text(characters, str, line, str) if isinstance(characters, str) else ""
        if isinstance(text, str):
            return written("translated", text)
        return replace(
            text,
            written=written("new", characters),
            write=lambda translation: written("needs_review", text.write(translation)),
        )


_PARTS: Final = replace(STRINGS, size=300, most=400_000)
FORMATS: Final = {"xcstrings": FileFormat(xcstrings_pieces, "html", RULES, _PARTS)}
