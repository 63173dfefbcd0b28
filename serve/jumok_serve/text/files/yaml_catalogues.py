"""YAML catalogues, such as those of Rails: values are translated; keys, comments, their order and styles stay."""

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import yaml

from jumok_serve.text.files.document import (
    MAX_READ,
    PARTS_PER_STEP,
    FileFormat,
    Parts,
    Piece,
    refuse,
    string_text,
    wrapped,
)
from jumok_serve.text.markup.strings import RULES
from jumok_serve.text.plurals import CATEGORIES, locale_name, missing_categories

MAX_DEPTH: Final = 200
"""Values within each other."""
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_RESOLVER: Final[Any] = yaml.resolver.Resolver()
_FILE: Final = yaml.SequenceStartEvent(None, None, True, flow_style=False)
"""Event of what is around all documents of a file."""
_STRING: Final = "tag:yaml.org,2002:str"
_LOCALE: Final = re.compile(r"[a-z]{2,3}(?:[-_][A-Za-z0-9]{2,8})*")
_PROPERTIES: Final = re.compile(r"(?:[&!]\S*+\s++)*")
_NOT_PRINTED: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]")
_ESCAPED: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"})


@dataclass(slots=True)
class _Open:
    """A mapping or sequence that is open, in a file.

    Attributes:
        kind: its first event.
        is_key: True if it is a part of a key.
        key: event of the key whose value comes next; None before a key, and in a sequence.
        forms: plural forms, by category, each with the events of key and value; None if it has others.
    """

    kind: Any
    is_key: bool
    key: Any = None
    forms: dict[str, tuple[Any, Any]] | None = field(default_factory=dict)

    @property
    def takes_key(self) -> bool:
        """True if a key comes next."""
        return isinstance(self.kind, yaml.MappingStartEvent) and self.key is None

    def add(self, event: Any) -> None:
        """Add a key or a value that ends with an event."""
        if self.takes_key:
            self.key = event
            if not isinstance(event, yaml.ScalarEvent) or event.value not in CATEGORIES:
                self.forms = None
        elif self.key is not None:
            if self.forms is not None:
                self.forms[self.key.value] = self.key, event
            self.key = None


def _events(content: str) -> Iterator[tuple[int, Any]]:
    """Yield the events of a file, each with the number of values around what comes next.

    Raises:
        InvalidArgumentError: no YAML, or values within too many others.
    """
    loader, depth = _LOADER(content), 0
    try:
        while loader.check_event():
            event = loader.get_event()
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                refuse(event.start_mark.line + 1, f"it has more than {MAX_DEPTH} values within each other: nest fewer")
            yield depth, event
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "it has a wrong character"
        refuse(1 if mark is None else mark.line + 1, f"it is no YAML: {problem}; mend it")
    finally:
        loader.dispose()


def _language_key(content: str) -> Generator[str, None, int]:
    """Return the place of the only key of a file, if it names a language; -1 otherwise."""
    keys = list[Any]()
    for number, (depth, event) in enumerate(_events(content)):
        if number % PARTS_PER_STEP == 0:
            yield ""
        if depth == 1 and isinstance(event, yaml.ScalarEvent) and len(keys) < 2:
            keys.append(event)
    return int(keys[0].start_mark.index) if len(keys) == 1 and _LOCALE.fullmatch(keys[0].value) else -1


def yaml_pieces(content: str, language: str = "") -> Iterator[Piece]:
    """Yield the pieces of a YAML file. A single key that names its language gets the language of the translations.

    Raises:
        InvalidArgumentError: no YAML.
    """
    root = yield from _language_key(content)
    done, opened = 0, [_Open(_FILE, is_key=False)]
    for number, (_, event) in enumerate(_events(content)):
        if number % PARTS_PER_STEP == 0:
            yield ""
        if isinstance(event, yaml.CollectionEndEvent):
            closed = opened.pop()
            place, added = _missing_forms(content, closed, language)
            if added:
                yield content[done:place]
                yield from added
                done = place
        elif not isinstance(event, (yaml.NodeEvent, yaml.AliasEvent)):
            continue
        parent = opened[-1]
        is_key = parent.takes_key
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append(_Open(event, is_key or parent.is_key))
            continue
        parent.add(event)
        if not isinstance(event, yaml.ScalarEvent):
            continue
        start, after = _place(content, event)
        if is_key and language and start == root:
            piece: Piece = _literal(content[start:after], event.style, "k: {}", "", locale_name(language))
        elif not is_key and not parent.is_key and _is_string(event):
            piece = _text(content, event, in_flow=parent.kind.flow_style)
        else:
            continue
        yield content[done:start]
        yield piece
        done = after
    yield content[done:]


def _place(content: str, event: Any) -> tuple[int, int]:
    """Return the place of a string without its anchor and its tag."""
    start, after = event.start_mark.index, event.end_mark.index
    found = _PROPERTIES.match(content, start, after)
    return start if found is None else found.end(), after


def _is_string(event: Any) -> bool:
    """True if a scalar is a string, and no symbol of Ruby."""
    if event.tag not in {None, "!", _STRING} or len(event.value) > MAX_READ:
        return event.tag is None
    return bool(event.style in {"'", '"', "|", ">"} or (_is_plain(event.value) and not event.value.startswith(":")))


def _is_plain(value: str) -> bool:
    """True if characters without quotation marks are a string, no number, date, or such."""
    return bool(_RESOLVER.resolve(yaml.ScalarNode, value, (True, False)) == _STRING)


def _text(content: str, event: Any, *, in_flow: bool) -> Piece:
    written = content[slice(*_place(content, event))]
    value = event.value.rstrip("\n") if event.style in {"|", ">"} else event.value
    around = "{{k: {}}}" if in_flow else "k: {}"
    write = partial(_literal, written, event.style, around, event.value[len(value) :])
    return string_text(written, lambda _: value, event.start_mark.line + 1, write)


def _literal(written: str, style: str | None, around: str, ending: str, value: str) -> str:
    """Write characters in the style of a string, or in quotation marks.

    Args:
        around: a format of YAML that has a string where this one stands.
        ending: line breaks that a block has at its end.
    """
    tail = written[len(written.rstrip(" \r\n")) :]  # other white space is that of the value
    is_block = style in {"|", ">"}
    if not _NOT_PRINTED.search(value):
        if is_block and "\n" not in value[len(value.rstrip()) :] and (made := _block(written, style or "", value)):
            return made + tail.lstrip(" ")
        if style == "'" and "\n" not in value:
            return "'" + value.replace("'", "''") + "'"
        if style in {None, ""} and "\n" not in value and _stays_plain(value, around):
            return value
    escaped = _NOT_PRINTED.sub(lambda found: f"\\u{ord(found[0]):04x}", (value + ending).translate(_ESCAPED))
    return f'"{escaped}"' + (tail if is_block else "")


def _stays_plain(value: str, around: str) -> bool:
    """True if characters mean themselves without quotation marks."""
    try:
        events = list(yaml.parse(around.format(value), Loader=_LOADER))
    except yaml.YAMLError:
        return False
    scalars = [event.value for event in events if isinstance(event, yaml.ScalarEvent)]
    return scalars == ["k", value] and _is_plain(value) and not value.startswith((":", "&", "!"))


def _block(written: str, style: str, value: str) -> str:
    """Write lines as a block; empty if a block cannot have them without further marks."""
    header, newline, body = written.partition("\n")
    first = body.lstrip("\r\n")
    indent = first[: len(first) - len(first.lstrip(" "))]
    indented = value.split("\n") if style == ">" else [value]
    if not indent or value.startswith("\n") or any(one.startswith((" ", "\t")) for one in indented):
        return ""
    if style == ">":
        value = re.sub("\n+", lambda found: found[0] + "\n", value)
    end = newline if not header.endswith("\r") else "\r\n"
    return header.removesuffix("\r") + end + end.join(f"{indent}{one}" if one else "" for one in value.split("\n"))


def _missing_forms(content: str, mapping: _Open, language: str) -> tuple[int, list[Piece]]:
    """Return the plural forms that a language needs beside those of a mapping, and their place."""
    forms = mapping.forms or {}
    missing = missing_categories(language, forms) if len(forms) > 1 else []
    values = [value for _, value in forms.values()]
    if not missing or not all(isinstance(one, yaml.ScalarEvent) and one.style not in {"|", ">"} for one in values):
        return 0, []
    key, other = forms["other"]
    if not _is_string(other):
        return 0, []
    begin = key.start_mark.index - key.start_mark.column
    end = "\r\n" if content.startswith("\r\n", max(0, begin - 2)) else "\n"
    space = ", " if mapping.kind.flow_style else f"{end}{' ' * key.start_mark.column}"
    text = _text(content, other, in_flow=bool(mapping.kind.flow_style))
    place = max(value.end_mark.index for value in values)
    return place, [wrapped(f"{space}{name}: ", text) for name in missing]


_PARTS: Final = Parts(name="lines, brackets and tags", marks="\n[{,:<&", size=200, most=500_000)
FORMATS: Final = {"yaml": FileFormat(yaml_pieces, "html", RULES, _PARTS)}
