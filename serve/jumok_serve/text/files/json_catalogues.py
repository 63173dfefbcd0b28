"""JSON catalogues: those of i18next and others, Chrome's messages, and ARB. Values are translated; all else stays."""

import json
import re
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Final, NamedTuple

from jumok_serve.text.files.document import (
    MAX_READ,
    PARTS_PER_STEP,
    FileFormat,
    Lines,
    Parts,
    Piece,
    after_all,
    refuse,
    shown,
    string_text,
    wrapped,
)
from jumok_serve.text.markup.strings import RULES, Markup
from jumok_serve.text.plurals import CATEGORIES, locale_name, missing_categories

_SPACE: Final = re.compile(r"[ \t\r\n]{0,8192}+")
_STRING: Final = re.compile(r'(?:[^"\\\x00-\x1f]{1,64}+|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})){0,256}')
"""A part of a string; all of a long one would hold up other threads."""
_OTHER: Final = re.compile(r"true|false|null|-?(?:0|[1-9]\d{0,400})(?:\.\d{1,400})?(?:[eE][+-]?\d{1,9})?", re.ASCII)
_AFTER_OTHER: Final = re.compile(r"[\w.+-]")
_VALUE, _FIRST_VALUE, _KEY, _FIRST_KEY, _COLON = '"{[v', '"{[v]', '"', '"}', ":"
_EXPECTED: Final = {
    _VALUE: "a value",
    _FIRST_VALUE: "a value or ]",
    _KEY: "a key in quotation marks",
    _FIRST_KEY: "a key in quotation marks or }",
    _COLON: "a colon",
    ",}": "a comma or }",
    ",]": "a comma or ]",
    "": "nothing more",
}
"""What may come next, by the characters that begin it; ``v`` stands for numbers and names."""
_FORMS: Final = tuple(f"_{category}" for category in CATEGORIES)
_DOLLARS: Final = re.compile(r"\$\$+")
"""Escaped dollars of Chrome's messages."""
_ORDINAL: Final = "_ordinal"


class Event(NamedTuple):
    """A part of a JSON file.

    Attributes:
        kind: a bracket, ``key``, ``"`` for a string that is a value, or ``v`` for another value.
        start, after: its place.
    """

    kind: str
    start: int
    after: int


def read_json(content: str) -> Iterator[Event]:
    """Yield the parts of a JSON file; time and memory are proportional to it at any depth.

    Raises:
        InvalidArgumentError: no JSON.
    """
    opened, expected, position = list[str](), _VALUE, 0
    while True:
        position = after_all(_SPACE, content, position)
        first = content[position : position + 1]
        if not first and not expected:
            return
        kind = first if first in '{}[],:"' else "v"
        if not first or kind not in expected:
            got = shown(content[position : position + 80]) if first else "the end of the file"
            _refuse(content, position, f"{_EXPECTED[expected]} must stand here, got {got}")
        after = position + 1
        if kind == '"':
            after = _after_string(content, position)
        elif kind == "v":
            found = _OTHER.match(content, position)
            after = position if found is None else found.end()
            if after == position or _AFTER_OTHER.match(content, after):
                _refuse(content, position, f"no value is as {shown(content[position : position + 80])}")
        elif kind in "{[":
            opened.append(kind)
        elif kind in "}]":
            opened.pop()
        if kind in ",:":
            expected = _KEY if kind == "," and opened[-1] == "{" else _VALUE
        else:
            is_key = kind == '"' and expected in {_KEY, _FIRST_KEY}
            yield Event("key" if is_key else kind, position, after)
            after_value = (",}" if opened[-1] == "{" else ",]") if opened else ""
            expected = {"{": _FIRST_KEY, "[": _FIRST_VALUE}.get(kind, _COLON if is_key else after_value)
        position = after


def _refuse(content: str, position: int, problem: str) -> None:
    refuse(content.count("\n", 0, position) + 1, f"it is no JSON: {problem}; mend it, as 'python -m json.tool' shows")


def _after_string(content: str, position: int) -> int:
    first, position = position, after_all(_STRING, content, position + 1)
    if not content.startswith('"', position):
        _refuse(content, position, f"no string is as {shown(content[first : first + 80])}")
    return position + 1


def characters_of(content: str, event: Event) -> str:
    """Return the characters of a string; of one that is too long to be translated, as they are written."""
    written = content[event.start : event.after]
    return str(json.loads(written)) if len(written) <= MAX_READ else written


def space_before(content: str, position: int) -> str:
    """Return the white space before a place."""
    before = content[max(0, position - 1000) : position]
    return before[len(before.rstrip(" \t\r\n")) :]


class Strings:
    """The strings of a JSON file, read and written as the file has them.

    Args:
        markup: reads a string as HTML.

    Attributes:
        line: returns the line of a place; see `Lines`.
    """

    def __init__(self, content: str, markup: Callable[..., Markup] = Markup) -> None:
        self._content = content
        self._markup = markup
        self._ascii = content.isascii() and "\\u" in content
        self._slash = "\\/" in content
        self.line = Lines(content).at

    def write(self, characters: str) -> str:
        """Write a string, with escapes as the file has them."""
        written = json.dumps(characters, ensure_ascii=self._ascii)
        return written.replace("/", "\\/") if self._slash else written

    def text(self, event: Event) -> Piece:
        """Return the text of a string."""
        written = self._content[event.start : event.after]
        return string_text(written, json.loads, self.line(event.start), self.write, self._markup)


_Added = dict[int, list[tuple[str, Event, Event]]]
"""Keys to add after a place, each with key and string of the form that they are translated from."""


def _missing_forms(content: str, language: str) -> Generator[str, None, _Added]:
    """Find plural forms, such as ``key_few``, that a language needs beside those of a file."""
    added, stack, last = _Added(), list[dict[str, dict[str, tuple[Event, Event]]]](), Event("", 0, 0)
    for number, event in enumerate(read_json(content)):
        if number % PARTS_PER_STEP == 0:
            yield ""
        if event.kind == "key":
            last = event
        elif event.kind in "{[":
            stack.append({})
        elif event.kind in "}]":
            for base, forms in stack.pop().items():
                if len(forms) > 1 and not base.endswith(_ORDINAL):
                    place = max(value.after for _, value in forms.values())
                    missing = missing_categories(language, forms)
                    added[place] = [(f"{base}_{name}", *forms["other"]) for name in missing]
        elif event.kind == '"' and last.after > last.start and content.endswith(_FORMS, last.start, last.after - 1):
            base, _, category = characters_of(content, last).rpartition("_")
            stack[-1].setdefault(base, {})[category] = last, event
            last = Event("", 0, 0)
    return added


def json_pieces(content: str, language: str = "") -> Iterator[Piece]:
    """Yield the pieces of a JSON file whose strings are texts; plural forms that the language needs are added.

    Raises:
        InvalidArgumentError: no JSON.
    """
    added = yield from _missing_forms(content, language)
    yield from _pieces(content, lambda keys: True, added)


def _pieces(
    content: str,
    is_text: Callable[[list[str]], bool],
    added: _Added,
    locale: str = "",
    markup: Callable[..., Markup] = Markup,
) -> Iterator[Piece]:
    """Yield the pieces of a JSON file.

    Args:
        is_text: true for a string in objects with some keys; they are empty in arrays.
        locale: name of the language of the translations, which ``@@locale`` gets; empty: it stays.
        markup: reads a string as HTML.
    """
    strings, keys, done = Strings(content, markup), list[str](), 0
    for event in read_json(content):
        yield content[done : event.start]
        written = content[event.start : event.after]
        done = event.after
        if event.kind == '"' and locale and keys == ["@@locale"]:
            yield strings.write(locale)
        else:
            yield strings.text(event) if event.kind == '"' and is_text(keys) else written
        if event.kind == "key":
            keys[-1] = characters_of(content, event)
        elif event.kind in "{[":
            keys.append("")
        elif event.kind in "}]":
            keys.pop()
        for name, key, other in added.get(done, ()):
            opening = f",{space_before(content, key.start)}{strings.write(name)}{content[key.after : other.start]}"
            yield wrapped(opening, strings.text(other))
    yield content[done:]


def chrome_pieces(content: str) -> Iterator[Piece]:
    """Yield the pieces of a ``messages.json`` of a browser's extension.

    Raises:
        InvalidArgumentError: no JSON.
    """
    escaped = partial(Markup, known=_DOLLARS)
    return _pieces(content, lambda keys: len(keys) == 2 and keys[1] == "message", {}, markup=escaped)


def arb_pieces(content: str, language: str = "") -> Iterator[Piece]:
    """Yield the pieces of an ARB file.

    Raises:
        InvalidArgumentError: no JSON.
    """
    locale = locale_name(language, "_") if language else ""
    return _pieces(content, lambda keys: len(keys) == 1 and not keys[0].startswith("@"), {}, locale)


STRINGS: Final = Parts(name="strings, brackets and tags", marks='"{[<&', size=150, most=700_000)
FORMATS: Final = {
    "json": FileFormat(json_pieces, "html", RULES, STRINGS),
    "chrome": FileFormat(chrome_pieces, "html", RULES, STRINGS),
    "arb": FileFormat(arb_pieces, "html", RULES, STRINGS),
}
