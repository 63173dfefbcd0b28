"""Subtitles: SubRip (SRT), WebVTT and SubStation Alpha (ASS, SSA). The text of each cue is translated; all else stays.

Tags and override codes inside of a text are written as elements, those without a partner as empty ones. Those around
it stay, so that a tag may be opened in one cue and closed in the next.
"""

import html
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from jumok_serve.text.files.document import (
    MAX_READ,
    FileFormat,
    Parts,
    Piece,
    Text,
    has_letters,
    in_steps,
    refuse,
    shown,
    unchanged,
    unread,
)

_SRT_TIME: Final = r"\d{1,3}:[0-5]\d:[0-5]\d[,.]\d{1,3}"
_VTT_TIME: Final = r"(?:\d++:)?[0-5]\d:[0-5]\d\.\d{3}"
_SRT_TIMES: Final = re.compile(rf"\s*+{_SRT_TIME}\s*+-->\s*+{_SRT_TIME}(?:\s++\S.*+)?\s*+")
_VTT_TIMES: Final = re.compile(rf"\s*+{_VTT_TIME}[ \t]*+-->[ \t]*+{_VTT_TIME}(?:[ \t]++\S.*+)?\s*+")
_ASS_TIME: Final = re.compile(r"\d{1,3}:[0-5]?\d:[0-5]?\d[.:]\d{1,3}")
_ANY_TIME: Final = r"-?\d++:\d++(?::\d++)?[,.;]\d++"
_WRONG_TIMES: Final = re.compile(rf"\s*+{_ANY_TIME}[\s=<>\u2192\u2010-\u2015-]*+(?:(?<=\D){_ANY_TIME}(?:\s.*+)?)?\s*+")
"""Line of times, with or without the arrow."""
_EXAMPLE: Final = "00:00:01{0}000 --> 00:00:02{0}500"
_ARROW: Final = "-->"
_COMMENT: Final = re.compile(r"(?:NOTE|STYLE|REGION)(?:\s|$)")
_LINE: Final = re.compile(r"[^\r\n]*+(?:\r\n?|\n)|[^\r\n]++")
_SECTION: Final = re.compile(r"\[[^\[\]]*[a-z][^\[\]]*\]")
"""Header of a section; lines of fonts and pictures have no small letters."""
_ASS_FIELDS: Final = "layer start end style name marginl marginr marginv effect text".split()  # noqa: SIM905
_MAX_FIELDS: Final = 64


def srt_pieces(content: str) -> Iterator[Piece]:
    """Yield the pieces of a SubRip file.

    Raises:
        InvalidArgumentError: wrong times, or text before the first cue.
    """
    lines = yield from in_steps(_lines(content))
    yield from _cues(lines, 0, _SRT)


def vtt_pieces(content: str) -> Iterator[Piece]:
    """Yield the pieces of a WebVTT file.

    Raises:
        InvalidArgumentError: no WEBVTT in the first line, or a cue without times, or with wrong ones.
    """
    lines = yield from in_steps(_lines(content))
    if re.match(r"WEBVTT(?:\s|$)", content) is None:
        first = shown(lines[0] if lines else "")
        refuse(1, f"the first line must be WEBVTT, got {first}: mend it, or give the format srt")
    index = _end_of_cue(lines, 0)  # of the header
    yield from lines[:index]
    yield from _cues(lines, index, _VTT)


def _cues(lines: Sequence[str], index: int, markup: "_Markup") -> Iterator[Piece]:
    """Yield the pieces of the lines from one on; in a cue of SubRip a paragraph without times is more of its text."""
    in_cue = False
    while index < len(lines):
        if not lines[index].strip():
            yield lines[index]
            index += 1
            continue
        times = _times_of_cue(lines, index, named=not in_cue)
        has_times = _has_times(lines[times])
        if markup is _VTT and not has_times and _COMMENT.match(lines[index]):
            after = _end_of_cue(lines, index)
            yield from lines[index:after]
            index = after
            continue
        if has_times or not in_cue:
            yield from lines[index:times]
            _check_times(lines[times], times, is_vtt=markup is _VTT)
            yield lines[times]
            index, in_cue = times + 1, markup is _SRT
        after = _end_of_cue(lines, index)
        text = "".join(lines[index:after])
        yield from _cue(text, index + 1, _SRT_WITH_PATHS if markup is _SRT and ":\\" in text else markup)
        index = after


def ass_pieces(content: str) -> Iterator[Piece]:
    """Yield the pieces of a file of SubStation Alpha: the texts of its dialogues.

    Raises:
        InvalidArgumentError: no section in the first line, a dialogue without a field or with wrong times, or a format
            whose last field is not the text.
    """
    section, fields = "", _ASS_FIELDS
    for number, line in enumerate(_lines(content), start=1):
        stripped = line.strip()
        kind = line.partition(":")[0].strip().lower() if section == "[events]" else ""
        if _SECTION.fullmatch(stripped):
            section = stripped.lower()
        elif stripped and not section and not stripped.startswith((";", "!:")):
            refuse(number, f"a section, as [Script Info], must begin the file, got {shown(line)}: mend it")
        elif kind == "format":
            fields = [name.strip().lower() for name in line.partition(":")[2].split(",", _MAX_FIELDS)]
            if fields[-1] != "text":
                refuse(number, f"Text must be the last of at most {_MAX_FIELDS} fields, got {shown(line)}: mend it")
        elif kind == "dialogue":
            values = line.partition(":")[2].split(",", len(fields) - 1)
            if len(values) < len(fields):
                refuse(number, f"a dialogue must have {len(fields)} fields, as Format says, got {shown(line)}: mend it")
            for name, value in zip(fields, values, strict=True):
                if name in {"start", "end"} and not _ASS_TIME.fullmatch(value.strip()):
                    refuse(number, f"times must be as 0:00:01.00, got {shown(value)}: mend them")
            yield line[: len(line) - len(values[-1])]
            yield from _cue(values[-1], number, _ASS)
            continue
        yield line


def _lines(content: str) -> Iterator[str]:
    """Yield the lines of a file with their ends."""
    return (found[0] for found in _LINE.finditer(content))


def _has_times(line: str) -> bool:
    return _ARROW in line or _WRONG_TIMES.fullmatch(line) is not None


def _times_of_cue(lines: Sequence[str], index: int, *, named: bool) -> int:
    """Return the index of the line that has the times of a cue, or should have them.

    Args:
        named: True if any line may stand before them, and not only a number.
    """
    after = lines[index + 1] if index + 1 < len(lines) else ""
    number = lines[index].strip().isdecimal()
    found = _has_times(after) and (number or named)
    return index + (not _has_times(lines[index]) and (found or (number and named and bool(after.strip()))))


def _check_times(line: str, index: int, *, is_vtt: bool) -> None:
    if (_VTT_TIMES if is_vtt else _SRT_TIMES).fullmatch(line) is None:
        example = _EXAMPLE.format("." if is_vtt else ",")
        if _has_times(line):
            refuse(index + 1, f"the times of a cue must be as {example}, got {shown(line)}: mend them")
        refuse(index + 1, f"a cue must begin with times, as {example}, got {shown(line)}: mend it")


def _end_of_cue(lines: Sequence[str], index: int) -> int:
    """Return the index after a cue's last line; some files have no empty line there."""
    while index < len(lines) and lines[index].strip():
        line = lines[index + (lines[index].strip().isdecimal() and index + 1 < len(lines))]
        if _SRT_TIMES.fullmatch(line) or _VTT_TIMES.fullmatch(line) or _WRONG_TIMES.fullmatch(line):
            break
        index += 1
    return index


@dataclass(frozen=True, slots=True)
class _Markup:
    """Markup inside of the cues of a format.

    Attributes:
        marks: pattern of tags, override codes and ends of lines, as a group.
        to_html, from_html: write text as HTML, and the other way.
    """

    marks: re.Pattern[str]
    to_html: Callable[[str], str]
    from_html: Callable[[str], str]


_NEW_LINE: Final = re.compile(r"(?:</\w>)?[\r\n]|\\[Nn]")
_EACH_LINE: Final = re.compile(r"<([ibu])>[^<>\r\n]*+</\1>(?:[\r\n]++<\1>[^<>\r\n]*+</\1>)+\s*+")
"""Cue whose lines have the same tags each; these are a part of the ends of lines."""
_OPAQUE: Final = (
    (re.compile(r"(?i)<rt\b"), re.compile(r"(?i)</r")),
    (re.compile(r"\{[^{}]*?\\p[1-9]"), re.compile(r"\{[^{}]*?\\p0")),
)
"""Marks around what is no text, readings and drawings: beginning and end."""


def _tokens(text: str, markup: _Markup) -> list[str]:
    """Return the parts of a cue: texts, and with odd indices marks and ends of lines.

    A drawing or a reading is one mark with the marks around it. An object for each part would double the memory.
    """
    found = markup.marks.split(text)
    tokens, index = found[:1], 1
    while index < len(found):
        end = next((end for begin, end in _OPAQUE if begin.match(found[index])), None)
        if end is None:
            tokens += found[index : index + 2]
            index += 2
            continue
        last = next((last for last in range(index + 2, len(found), 2) if end.match(found[last])), len(found))
        closes = last < len(found) and not found[last].lower().startswith("</ruby")
        tokens += ("".join(found[index : last + closes]), found[last + 1] if closes else "")
        index = last + 2 * closes
    return tokens


_SPACE: Final = " \t\r\n\f\v\u00a0\u3000"
_EDGE: Final = rf"(?:[{_SPACE}\u2669-\u266c]|\\h)*"
"""White space, and notes of music."""
_DASH: Final = r"(?:[-\u2010-\u2015]++(?!\d)|(?:>|&gt;){2,3})\s*+"
_BEFORE: Final = re.compile(rf"{_EDGE}(?:{_DASH})?{_EDGE}")
_AFTER: Final = re.compile(rf"(?:[{_SPACE}\u2669-\u266c]|h\\)*+")
"""The same, backwards."""
_NAME: Final = r"[^\W\d_][\w .'\u2019-]{1,30}:"
_SPEAKER: Final = re.compile(rf"{_NAME}(?:\s++|$)")
_SPEECH: Final = re.compile(rf"\s*+(?:{_DASH}(?:\S|$)|[\[\u2669-\u266c]|{_NAME}(?=\s|$))")
"""Beginning of a line of one of several speakers, of a song, or of a sound."""
_VOICE: Final = re.compile(r"</?v\b")


def _begins_speech(text: str) -> bool:
    """True if a line is not the rest of the one before it; names of speakers have capital letters alone."""
    found = _SPEECH.match(text)
    return found is not None and (not found[0].endswith(":") or found[0].isupper())


def _cue(text: str, line: int, markup: _Markup) -> Iterator[Piece]:
    """Yield the pieces of a cue's text; lines and spans of several speakers are texts of their own."""
    if not has_letters(text):
        yield text
        return
    if len(text) > MAX_READ:
        yield unread(text, text, line)
        return
    if each := _EACH_LINE.fullmatch(text):
        ends = rf"(</{each[1]}>[\r\n]++<{each[1]}>|{markup.marks.pattern[1:]}"
        markup = replace(markup, marks=re.compile(ends))
    tokens = _tokens(text, markup)
    start, fresh, sound = 0, -1, False  # first parts of the speech, and of the line if it has no text yet
    for index, written in enumerate(tokens):
        after = start
        if index % 2 == 0:
            if written.strip():
                if fresh > start and (sound or _begins_speech(written)):
                    after = fresh
                fresh, sound = -1, written.rstrip().endswith("]")
        elif _NEW_LINE.match(written):
            fresh = index + 1
        elif _VOICE.match(written):
            after, fresh = index, -1
        if after > start:
            yield from _speech(tokens, start, after, line, markup)
            line += sum(written.count("\n") for written in tokens[start:after])
            start = after
    yield from _speech(tokens, start, len(tokens), line, markup)


def _speech(tokens: Sequence[str], first: int, after: int, line: int, markup: _Markup) -> Iterator[Piece]:
    """Yield the pieces of one text of a cue; what stands around it stays."""
    partners = _partners(tokens, first, after)
    begin, end = first, after

    def is_outside(index: int) -> bool:
        return index not in partners if index % 2 else _lead(tokens[index]) == len(tokens[index])

    while first < after:
        if is_outside(first):
            first += 1
            continue
        while is_outside(after - 1):
            after -= 1
        if partners.get(first) != after - 1:
            break
        first, after = first + 1, after - 1
    lead, inner, trail = "".join(tokens[begin:first]), list(tokens[first:after]), "".join(tokens[after:end])
    if inner and first % 2 == 0:
        cut = _lead(inner[0])
        lead, inner[0] = lead + inner[0][:cut], inner[0][cut:]
    if inner and after % 2:
        cut = len(inner[-1]) - _end(_AFTER, inner[-1][::-1])
        inner[-1], trail = inner[-1][:cut], inner[-1][cut:] + trail
    yield lead
    if any(map(has_letters, inner[first % 2 :: 2])):
        yield _text(inner, first, partners, line + lead.count("\n"), markup)
    else:
        yield "".join(inner)
    yield trail


def _lead(text: str) -> int:
    """Return the end of what stands before a text, as the name of a speaker, which has capital letters alone."""
    end = _end(_BEFORE, text)
    name = _SPEAKER.match(text, end)
    return name.end() if name and name[0].isupper() and not text[name.end() :].isupper() else end


def _end(pattern: re.Pattern[str], text: str) -> int:
    """Return the end of a match of a pattern that matches any text."""
    found = pattern.match(text)
    return 0 if found is None else found.end()


_TAG: Final = re.compile(r"<(/?)([A-Za-z]++)(?:[\s.][^<>]*+)?>")
_CODE: Final = re.compile(r"\\(fn|r|[1-4]?[A-Za-z]++)([^\\{}]*+)")
_TOGGLES: Final = frozenset("i b u s c 1c 2c 3c 4c alpha 1a 2a 3a 4a fn fs fsp fscx fscy bord shad be blur r".split())  # noqa: SIM905
"""Override codes that hold until another of their name, or until ``r``."""


def _partners(tokens: Sequence[str], first: int, after: int) -> dict[int, int]:
    """Return the index of the other mark of each mark that begins or ends a span."""
    partners: dict[int, int] = {}
    stack: list[tuple[str, int]] = []
    names: Counter[str] = Counter()
    for index in range(first | 1, after, 2):
        written = tokens[index]
        if tag := _TAG.fullmatch(written):
            name, closes, opens = tag[2].lower(), bool(tag[1]), not tag[1]
        else:
            codes = dict(_CODE.findall(written))
            if not codes or not _TOGGLES.issuperset(codes):
                continue
            name = stack[-1][0] if codes == {"r": ""} and stack else "\\".join(["", *codes])
            closes, opens = names[name] > 0, any(value.strip(" 0") for value in codes.values())
        if closes and names[name]:
            while stack[-1][0] != name:
                names[stack.pop()[0]] -= 1
            names[name] -= 1
            start = stack.pop()[1]
            partners[start], partners[index] = index, start
        elif opens:
            stack.append((name, index))
            names[name] += 1
    return partners


_WHITE_SPACE: Final = re.compile(r"[ \t\r\n\f]++")
_ORDERED: Final = re.compile(r"<\d|\{[^{}]*?\\[kK]")
"""Marks of times, which keep their order."""


def _text(tokens: Sequence[str], first: int, partners: Mapping[int, int], line: int, markup: _Markup) -> Text:
    """Return the text of parts of a cue.

    Args:
        first: index of the first one in the cue.
        partners: indices of partners in the cue.
    """
    parts, marks, ends = list[str](), dict[str, str](), list[str]()
    for index, written in enumerate(tokens, start=first):
        if index % 2 == 0:
            parts.append(markup.to_html(written))
        elif _NEW_LINE.match(written):
            parts.append(" ")
            ends.append(written)
        else:
            partner = partners.get(index)
            tag = f"t{(min(index, index if partner is None else partner) - first) // 2}"
            tag = f"<{tag}/>" if partner is None else f"<{tag}>" if index < partner else f"</{tag}>"
            marks[tag] = written
            parts.append(tag)
    content, written = _WHITE_SPACE.sub(" ", "".join(parts)), "".join(tokens)
    return Text(content, written, line, unchanged(content, written, partial(_written, marks, ends, markup)))


_UNBROKEN: Final = re.compile(r"<[^<>]*+>|[^ \t\r\n<]++|<|[ \t\r\n]++")


def _written(marks: Mapping[str, str], ends: Sequence[str], markup: _Markup, translation: str) -> str:
    """Write a translation in as many lines as its text has, of similar lengths."""
    words = _UNBROKEN.findall(translation)
    count, total = len(ends) + 1, sum(len(word) for word in words if word not in marks)
    ordered = iter([tag for tag, written in marks.items() if _ORDERED.match(written)])
    lines, width = [list[str]()], 0
    for index, word in enumerate(words):
        if word in marks:
            lines[-1].append(marks[next(ordered, word) if _ORDERED.match(marks[word]) else word])
            continue
        due = len(lines) < count and (2 * width + 1) * count >= 2 * total * len(lines)
        following = "".join(one for one in words[index + 1 : index + 8] if one not in marks) if due else ""
        if due and word.isspace() and not _begins_speech(following):
            lines.append([])
        else:
            lines[-1].append(" " if word.isspace() else markup.from_html(word))
        width += len(word)
    if ends and "<" in ends[0]:
        lines += [[]] * (count - len(lines))
    return (ends[0] if ends else "").join("".join(line).strip(" ") for line in lines)


def _srt_html(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _srt_text(word: str) -> str:
    return html.unescape(_vtt_text(word))


def _vtt_text(word: str) -> str:
    return word.replace(_ARROW, "->")


def _ass_text(word: str) -> str:
    return html.unescape(word).translate({ord("{"): "(", ord("}"): ")", ord("\u00a0"): "\\h"})


_SRT: Final = _Markup(
    re.compile(r"(\r\n?|\n|</?[A-Za-z][^<>]*+>|\{(?:\\|[A-Za-z]:)[^{}]*+\}|\\[Nn])"),
    lambda text: _srt_html(text).replace("\\h", "&nbsp;"),
    _srt_text,
)
_SRT_WITH_PATHS: Final = _Markup(re.compile(_SRT.marks.pattern.replace(r"|\\[Nn]", "")), _srt_html, _srt_text)
"""For cues in which backslashes separate names of folders."""
_VTT: Final = _Markup(re.compile(r"(\r\n?|\n|<[^<>]*+>|\{\\[^{}]*+\})"), str, _vtt_text)
_ASS: Final = _Markup(re.compile(r"((?<!\\)\{[^{}]*+\}|\\[Nn])"), _SRT.to_html, _ass_text)
_PARTS: Final = Parts(name="lines and marks", marks="\r\n<{\\", size=350, most=425_000)
FORMATS: Final = {
    "srt": FileFormat(srt_pieces, "html", parts=_PARTS),
    "vtt": FileFormat(vtt_pieces, "html", parts=_PARTS),
    "ass": FileFormat(ass_pieces, "html", parts=_PARTS),
}
