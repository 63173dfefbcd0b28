"""PO files of gettext: empty and fuzzy translations are made; all else stays."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from gettext import c2py
from itertools import islice
from typing import Final

from jumok_serve.text.files.document import (
    MAX_READ,
    MAX_SHOWN,
    FileFormat,
    Parts,
    Piece,
    Text,
    in_steps,
    lines_of,
    refuse,
    separate,
    shown,
    unread,
    wrapped,
)
from jumok_serve.text.markup.catalogue import RULES, Message
from jumok_serve.text.plurals import plural_categories

_LINE: Final = re.compile(r'[ \t]*+(msgctxt|msgid_plural|msgid|msgstr(?:\[\d++\])?)[ \t]*+(?="|\r?+$)')
_MORE: Final = re.compile(r'[ \t]*+(?=")')
_STRING: Final = re.compile(r'"((?:[^"\\]++|\\.)*)"[ \t]*+')
_ESCAPE: Final = re.compile(r"\\(?:x([0-9A-Fa-f]{1,8})|([0-7]{1,3})|(.))", re.DOTALL)
_SOME: Final = re.compile(rf"(?:[^\\]{{1,64}}|{_ESCAPE.pattern}){{1,1024}}", re.DOTALL)
"""A part of a string; escapes of a whole file would take much memory at once."""
ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
"""Characters of escapes in C."""
WRITTEN: Final = {
    **{code: f"\\{code:03o}" for code in (*range(32), 127)},
    **str.maketrans({"\\": "\\\\", '"': '\\"', **{one: f"\\{name}" for name, one in ESCAPED.items()}}),
}
_FUZZY: Final = re.compile(r"fuzzy(?<=[#,\s]fuzzy)(?=[#,\s]|$)")
"""Begins with a literal text, which makes the search fast."""
_CHARSET: Final = re.compile(r"charset=([\w.:-]+)", re.IGNORECASE)
_PLURALS: Final = re.compile(r"nplurals=\s*+(\d++)(?:[^;\n]*+;\s*+plural=([^;\n]*+))?")
_ACCELERATOR: Final = re.compile(r"^X-Accelerator-Marker:[ \t]*+(\S)[ \t]*+$", re.MULTILINE)
_FLAG: Final = re.compile(r"[a-z][\w+-]*-format")
NO_FORM: Final = -1
MAX_FLAGS: Final = 32
"""Flags of an entry that are read."""
SEEN_NUMBERS: Final = 1000
"""Numbers whose plural forms are compared with that of one."""
MAX_FORMS: Final = 16
"""Plural forms of an entry; no language has more than six."""
MAX_DIGITS: Final = 9
"""Digits of a number of plural forms."""
_UNICODE: Final = {"utf-8", "utf8", "charset"}


@dataclass(slots=True)
class _Header:
    """What the header says about the entries.

    Attributes:
        forms: number of plural forms; 0: not known.
        singular: form of the number one; `NO_FORM` in languages with one form.
        is_alone: True if the form of one has no other number.
        accelerator: mark of accelerators; empty: not known.
    """

    forms: int = 0
    singular: int = 0
    is_alone: bool = True
    accelerator: str = ""


class _Source:
    """Source text of an entry, read once for all of its plural forms."""

    def __init__(self, text: str, flags: Sequence[str], accelerator: str) -> None:
        self.text = text
        self.before, content, self.after = separate(text)
        self.message = Message(content, flags, accelerator)
        self.copied = cache(partial(_strings, text))  # the text as strings, with an end of lines


@dataclass(slots=True)
class _Entry:
    """An entry up to a line.

    Attributes:
        flags: for programming languages, such as `c-format`.
        strings: by keyword, those before its translations.
        done: keywords of its translations.
        is_made: True if one of them is made.
        sources: texts that were translated, by keyword.
    """

    fuzzy: bool = False
    flags: list[str] = field(default_factory=list)
    strings: dict[str, str] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    is_made: bool = False
    sources: dict[str, _Source] = field(default_factory=dict)

    def add_flags(self, line: str) -> None:
        """Read a line of flags; inside of the entry it would be none for other tools."""
        if not self.strings:
            self.fuzzy = self.fuzzy or _FUZZY.search(line) is not None
            self.flags += (flag[0] for flag in islice(_FLAG.finditer(line), MAX_FLAGS - len(self.flags)))

    def source(self, keyword: str, accelerator: str) -> _Source:
        """Return the text of a keyword."""
        if keyword not in self.sources:
            self.sources[keyword] = _Source(self.strings[keyword], self.flags, accelerator)
        return self.sources[keyword]


def po_pieces(content: str, language: str = "") -> Iterator[Piece]:
    """Yield the pieces of a PO file.

    Args:
        language: that of the translations, which counts if the header has no plural forms; empty: not known.

    Raises:
        InvalidArgumentError: a line is none of a PO file, a keyword comes too often or is missing, a translation has no
            text, or a charset is not Unicode.
    """
    lines = yield from in_steps(lines_of(content))
    header, entry, index = _Header(), _Entry(), 0
    if plural_categories(language) == ("other",):
        header.singular = NO_FORM
    while index < len(lines):
        line, first = lines[index].lstrip(" \t"), index
        if not line.strip() or line.startswith("#"):
            entry = _after_comment(entry, line, first)
            yield lines[first]
            index += 1
            continue
        keyword, value, index = _read(lines, first)
        whole = "".join(lines[first:index])
        if not keyword.startswith("msgstr"):
            entry = _Entry() if entry.done else entry
            _check_new(keyword, entry.strings, first)
            entry.strings[keyword] = value
            yield whole
            continue
        if "msgid" not in entry.strings or (keyword == "msgstr" and entry.done and keyword not in entry.done):
            refuse(first + 1, "a msgstr needs a msgid before it: add the msgid, or remove the line")
        _check_new(keyword, entry.done, first)
        entry.done.add(keyword)
        if not entry.strings["msgid"]:
            if "msgctxt" not in entry.strings:
                _read_header(header, value, first, content)
            yield whole
        elif value and not entry.fuzzy:
            yield whole
        else:
            entry.is_made = True
            yield from _made(header, entry, keyword, whole, value, line=first + 1)
        if entry.is_made and not _goes_on(lines, index):
            yield from _missing(header, entry, whole, line=first + 1)
    _check_complete(entry, content.count("\n"))


def _after_comment(entry: _Entry, line: str, index: int) -> _Entry:
    """Return the entry that goes on after a comment or an empty line, or an empty one."""
    obsolete = line.startswith("#~")
    if line.startswith("#") and (entry.done or obsolete):
        _check_complete(entry, index)
        entry = entry if not entry.done and line.startswith("#~|") else _Entry()  # other lines use up the flags
    if line.startswith("#,"):
        entry.add_flags(line)
    return entry


def _check_complete(entry: _Entry, index: int) -> None:
    if entry.strings and not entry.done:
        refuse(index + 1, "the entry before this line has no msgstr: add it, or remove the entry")


def _read(lines: Sequence[str], first: int) -> tuple[str, str, int]:
    """Return a keyword, the characters of its strings, and the line after them."""
    index, found, strings = first, _LINE.match(lines[first]), list[str]()
    more = _read_strings(lines[first][found.end() :]) if found else None
    while found and more is not None:
        strings += more
        index += 1
        if index == len(lines) or not _MORE.match(lines[index]):
            if strings:
                return found[1], _characters(strings), index
            break
        more = _read_strings(lines[index])
    index = index if more is None else first
    return refuse(index + 1, f"a PO file has no such line: {shown(lines[index])}; mend it, as msgfmt --check shows")


def _goes_on(lines: Sequence[str], index: int) -> bool:
    """True if the next line that is not empty is a plural form."""
    while index < len(lines) and not lines[index].strip():
        index += 1
    return index < len(lines) and lines[index].lstrip(" \t").startswith("msgstr[")


def _check_new(keyword: str, before: Collection[str], index: int) -> None:
    """Refuse a keyword that its entry has, and too many plural forms."""
    if keyword in before:
        refuse(index + 1, f"the entry has {keyword[:MAX_SHOWN]} twice: mend it, as msgfmt --check shows")
    if len(before) == MAX_FORMS:
        refuse(index + 1, f"an entry has at most {MAX_FORMS} plural forms: remove {keyword[:MAX_SHOWN]}")


def _read_header(header: _Header, value: str, index: int, content: str) -> None:
    """Check the charset of a file, and read the number of its plural forms and its mark of accelerators."""
    charset = _CHARSET.search(value, 0, MAX_READ)
    if charset is not None and charset[1].lower() not in _UNICODE:
        name = charset[1][:MAX_SHOWN]
        remedy = "convert the file with msgconv --to-code=UTF-8"
        if not content.isascii():
            remedy = "the file is UTF-8, so write charset=UTF-8"
        refuse(index + 1, f"the charset {name} is not UTF-8: {remedy}")
    if (mark := _ACCELERATOR.search(value, 0, MAX_READ)) is not None:
        header.accelerator = mark[1]
    number = _PLURALS.search(value, 0, MAX_READ)
    if number is None:
        return
    if len(number[1]) > MAX_DIGITS:
        refuse(index + 1, f"nplurals={number[1][:MAX_SHOWN]}... is no number of plural forms: mend it, as nplurals=2")
    header.forms = int(number[1])
    try:
        form = c2py((number[2] or "").strip() or "n != 1")
        header.singular = form(1) if header.forms > 1 else NO_FORM
        header.is_alone = all(form(count) != header.singular for count in range(SEEN_NUMBERS) if count != 1)
    except (ValueError, ArithmeticError):
        refuse(index + 1, f"plural={number[2][:MAX_SHOWN]} is no expression: mend it, as plural=(n != 1)")


def _made(header: _Header, entry: _Entry, keyword: str, whole: str, value: str, *, line: int) -> Iterator[Piece]:
    """Yield the pieces of a translation that is made; a plural form that the language lacks is left out."""
    form = int(keyword[7:-1]) if keyword.startswith("msgstr[") else 0
    if form and header.forms and form >= header.forms and "msgid_plural" in entry.strings:
        yield ""
        return
    begin = whole.index('"')
    after = len(whole.rstrip(" \t\r\n"))
    yield whole[:begin]
    written = whole[begin:after]
    end = "\r\n" if whole.endswith("\r\n") else "\n"
    yield _translated(header, entry, form, written, value, end=end, line=line)
    yield whole[after:]


def _missing(header: _Header, entry: _Entry, whole: str, *, line: int) -> Iterator[Piece]:
    """Yield the plural forms that the language has and the entry lacks."""
    end = "\r\n" if "\r\n" in whole else "\n"
    for form in range(min(header.forms, MAX_FORMS)):
        if f"msgstr[{form}]" not in entry.done and "msgid_plural" in entry.strings:
            before = f"{'' if whole.endswith(chr(10)) else end}msgstr[{form}] "
            yield wrapped(before, _translated(header, entry, form, "", "", end=end, line=line), end)


def _translated(header: _Header, entry: _Entry, form: int, written: str, value: str, *, end: str, line: int) -> Piece:
    """Make the text of a translation; without letters it is the source text."""
    named = "msgid_plural" if "msgid_plural" in entry.strings and form != header.singular else "msgid"
    if len(entry.strings[named]) > MAX_READ:
        return unread(entry.strings[named], written, line)
    source = entry.source(named, header.accelerator)
    if named == "msgid" and not header.is_alone and 0 < len(entry.strings.get("msgid_plural", "")) <= MAX_READ:
        plural = entry.source("msgid_plural", header.accelerator)
        source = source if source.message.conversions == plural.message.conversions else plural
    if not source.message.has_letters:
        return written if source.text == value else source.copied(end)

    def write(translation: str) -> str:
        text = f"{source.before}{source.message.write(translation)}{source.after}"
        return written if text == value else _strings(text, end)

    return Text(source.message.markup, written, line, write)


def _read_strings(line: str) -> list[str] | None:
    """Return the strings of a line, without their quotation marks; None if it has others parts."""
    text = line.strip(" \t\r\n")
    bare = text.replace(r"\\", "").replace(r"\"", "")
    if bare.count('"') == 2 and bare[0] == bare[-1] == '"':  # as nearly all; the pattern would stop other threads
        return [text[1:-1]]
    strings, end = list[str](), 0
    while len(text) <= MAX_READ and (found := _STRING.match(text, end)):
        strings.append(found[1])
        end = found.end()
    return strings if end == len(text) else None


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
        return ESCAPED.get(found[3], found[3])
    code = int(found[1], 16) if found[1] else int(found[2], 8)
    return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else "\ufffd"


def _strings(text: str, end: str) -> str:
    """Write characters as strings, one a line if there are several lines."""
    parts = re.findall(r"[^\n]*\n|[^\n]+", text) if "\n" in text.rstrip("\n") else [text]
    strings = [f'"{part.translate(WRITTEN)}"' for part in parts]
    return strings[0] if len(strings) == 1 else end.join(['""', *strings])


_PARTS: Final = Parts(name="lines and marks", marks="\n<&%{", size=250, most=500_000)
FORMATS: Final = {"po": FileFormat(po_pieces, "xml", RULES, _PARTS, copies=6, conversion="msgconv --to-code=UTF-8")}
