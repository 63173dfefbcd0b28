"""PO files of gettext: empty and fuzzy translations are made; all else stays."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from jumok_serve.text.files.document import (
    MAX_READ,
    MAX_SHOWN,
    FileFormat,
    Piece,
    Text,
    has_letters,
    refuse,
    separate,
    shown,
    unread,
    with_end,
    with_ends,
)

_LINE: Final = re.compile(r'[ \t]*+(msgctxt|msgid_plural|msgid|msgstr(?:\[\d++\])?)[ \t]*+"')
_MORE: Final = re.compile(r'[ \t]*+"')
_ESCAPE: Final = re.compile(r"\\(?:x([0-9A-Fa-f]{1,8})|([0-7]{1,3})|(.))", re.DOTALL)
_SOME: Final = re.compile(rf"(?:[^\\]{{1,64}}|{_ESCAPE.pattern}){{1,1024}}", re.DOTALL)
"""A part of a string; escapes of a whole file would take much memory at once."""
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_WRITTEN: Final = str.maketrans(
    {"\\": "\\\\", '"': '\\"', **{character: f"\\{name}" for name, character in _ESCAPED.items()}}
)
_FUZZY: Final = re.compile(r"fuzzy(?<=[#,\s]fuzzy)(?=[#,\s]|$)")
"""Begins with a literal text, which makes the search fast."""
_CHARSET: Final = re.compile(r"charset=([\w.:-]+)", re.IGNORECASE)
_PLURALS: Final = re.compile(r"nplurals=\s*+(\d++)")
MAX_FORMS: Final = 16
"""Plural forms of an entry; no language has more than six."""
MAX_DIGITS: Final = 9
"""Digits of a number of plural forms."""
_UNICODE: Final = {"utf-8", "utf8", "us-ascii", "ascii", "charset"}


class _Source:
    """Source text of an entry, read once for all of its plural forms."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.before, self.content, self.after = separate(text)
        self.has_letters = has_letters(self.content)
        self._copies: dict[str, str] = {}

    def copied(self, end: str) -> str:
        """Return the text as strings."""
        if end not in self._copies:
            self._copies[end] = _strings(self.text, end)
        return self._copies[end]


@dataclass(slots=True)
class _Entry:
    """An entry up to a line.

    Attributes:
        strings: by keyword, those before its translations.
        done: keywords of its translations.
        sources: texts that were translated, by keyword.
    """

    fuzzy: bool = False
    strings: dict[str, str] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    sources: dict[str, _Source] = field(default_factory=dict)

    def source(self, keyword: str) -> _Source:
        """Return the text of a keyword."""
        if keyword not in self.sources:
            self.sources[keyword] = _Source(self.strings[keyword])
        return self.sources[keyword]


def po_pieces(content: str) -> Iterator[Piece]:
    """Yield the pieces of a PO file.

    Raises:
        InvalidArgumentError: a line is none of a PO file, a keyword comes too often, a translation has no text, or a
            charset is not Unicode.
    """
    lines = content.split("\n")
    entry, plurals, index = _Entry(), 2, 0
    while index < len(lines):
        line, first = lines[index], index
        index += 1
        if not line.strip() or line.lstrip().startswith("#"):
            if entry.done:
                entry = _Entry()
            if line.lstrip().startswith("#,") and _FUZZY.search(line):
                entry.fuzzy = True
            yield with_end(lines, first)
            continue
        found = _match(_LINE, line)
        if found is None:
            refuse(first + 1, f"a PO file has no such line: {shown(line)}; mend it, as msgfmt --check shows")
        start, string = found
        keyword, strings = start[1], [string]
        while index < len(lines) and (more := _match(_MORE, lines[index])):
            strings.append(more[1])
            index += 1
        value = _characters(strings)
        whole = with_ends(lines, first, index)
        if not keyword.startswith("msgstr"):
            if entry.done:
                entry = _Entry()
            _check_new(keyword, entry.strings, first)
            entry.strings[keyword] = value
            yield whole
            continue
        if "msgid" not in entry.strings:
            refuse(first + 1, "a msgstr needs a msgid before it: add the msgid, or remove the line")
        _check_new(keyword, entry.done, first)
        entry.done.add(keyword)
        if not entry.strings["msgid"] and "msgctxt" not in entry.strings:
            plurals = _read_header(value, first, plurals)
            yield whole
        elif value and not entry.fuzzy:
            yield whole
        else:
            begin = start.end() - 1
            after = len(whole.removesuffix("\n").removesuffix("\r").rstrip(" \t"))
            yield whole[:begin]
            yield _translated(entry, keyword, plurals, whole[begin:after], value, line=first + 1)
            yield whole[after:]


def _check_new(keyword: str, before: Collection[str], index: int) -> None:
    """Refuse a keyword that its entry has, and too many plural forms."""
    if keyword in before:
        refuse(index + 1, f"the entry has {keyword[:MAX_SHOWN]} twice: mend it, as msgfmt --check shows")
    if len(before) == MAX_FORMS:
        refuse(index + 1, f"an entry has at most {MAX_FORMS} plural forms: remove {keyword[:MAX_SHOWN]}")


def _read_header(value: str, index: int, plurals: int) -> int:
    """Check the charset of a file, and return its number of plural forms."""
    charset = _CHARSET.search(value, 0, MAX_READ)
    if charset is not None and charset[1].lower() not in _UNICODE:
        refuse(
            index + 1,
            f"the charset {charset[1][:MAX_SHOWN]} is not UTF-8: convert the file with msgconv --to-code=UTF-8",
        )
    number = _PLURALS.search(value, 0, MAX_READ)
    if number is None:
        return plurals
    if len(number[1]) > MAX_DIGITS:
        refuse(index + 1, f"nplurals={number[1][:MAX_SHOWN]}... is no number of plural forms: mend it, as nplurals=2")
    return int(number[1])


def _translated(entry: _Entry, keyword: str, plurals: int, written: str, value: str, *, line: int) -> Piece:
    """Make the text of a translation; without letters it is the source text."""
    singular = keyword in {"msgstr", "msgstr[0]"} and (keyword == "msgstr" or plurals > 1)
    named = "msgid" if singular or "msgid_plural" not in entry.strings else "msgid_plural"
    if len(entry.strings[named]) > MAX_READ:
        return unread(entry.strings[named], written, line)
    source = entry.source(named)
    end = "\r\n" if "\r\n" in written else "\n"
    if not source.has_letters:
        return written if source.text == value else source.copied(end)

    def write(translation: str) -> str:
        text = f"{source.before}{translation}{source.after}"
        return written if text == value else _strings(text, end)

    return Text(source.content, written, line, write)


def _match(pattern: re.Pattern[str], line: str) -> tuple[re.Match[str], str] | None:
    """Match a line's beginning, and the string that ends it, with an escape before each quotation mark inside."""
    found = pattern.match(line)
    if found is None:
        return None
    string = line.removesuffix("\r").rstrip(" \t")[found.end() :]
    bare = string.replace(r"\\", "").replace(r"\"", "")
    return (found, string[:-1]) if bare and bare.find('"') == len(bare) - 1 else None


def _characters(strings: list[str]) -> str:
    """Return the characters that strings mean; if they are more than `MAX_READ`, the strings as they are written."""
    parts, count = list[str](), 0
    for string in strings:
        for some in _SOME.finditer(string):
            parts.append(_ESCAPE.sub(_unescaped, some[0]))
            count += len(parts[-1])
            if count > MAX_READ:
                return "".join(strings)
    return "".join(parts)


def _unescaped(found: re.Match[str]) -> str:
    if found[3] is not None:
        return _ESCAPED.get(found[3], found[3])
    code = int(found[1], 16) if found[1] else int(found[2], 8)
    return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else "\ufffd"


def _strings(text: str, end: str) -> str:
    """Write characters as strings, one a line if there are several lines."""
    parts = re.findall(r"[^\n]*\n|[^\n]+", text) if "\n" in text.rstrip("\n") else [text]
    strings = [f'"{part.translate(_WRITTEN)}"' for part in parts]
    return strings[0] if len(strings) == 1 else end.join(['""', *strings])


FORMATS: Final = {"po": FileFormat(po_pieces)}
