"""Subtitles: SubRip (SRT) and WebVTT. The text of each cue is translated; numbers, times and settings stay."""

import html
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from jumok_serve.text.files.document import (
    MAX_READ,
    FileFormat,
    Parts,
    Piece,
    Text,
    has_letters,
    refuse,
    separate,
    shown,
    unchanged,
    unread,
    with_end,
    with_ends,
)
from jumok_serve.text.markup.scanner import Kind, scan

_SRT_TIME: Final = r"\d{1,3}:[0-5]\d:[0-5]\d[,.]\d{1,3}"
_VTT_TIME: Final = r"(?:\d{2,}+:)?[0-5]\d:[0-5]\d\.\d{3}"
_SRT_TIMES: Final = re.compile(rf"\s*+{_SRT_TIME}\s*+-->\s*+{_SRT_TIME}(?:\s++\S.*+)?\s*+")
_VTT_TIMES: Final = re.compile(rf"\s*+{_VTT_TIME}[ \t]++-->[ \t]++{_VTT_TIME}(?:[ \t]++\S.*+)?\s*+")
_SRT_EXAMPLE: Final = "00:00:01,000 --> 00:00:02,500"
_VTT_EXAMPLE: Final = "00:00:01.000 --> 00:00:02.500"
_ARROW: Final = "-->"
_COMMENT: Final = re.compile(r"(?:NOTE|STYLE|REGION)(?:\s|$)")
_CODE: Final = re.compile(r"\{\\[^{}]*+\}\s*+")
"""Override code at the beginning of a cue."""
_CUT: Final = re.compile(r"(<\d[\d:.]*+>)")
"""Times inside of a cue."""
_TAG: Final = re.compile(r"<[^<>]*+>")
_DASH: Final = re.compile(r"[-\u2010-\u2015]\s*+\S")
"""Beginning of a line of one of several speakers."""
_UNBROKEN: Final = re.compile(r"<[^<>]*+>|[^\s<]++|<|\s++")

_Lines = Sequence[str]


def srt_pieces(content: str) -> Iterator[Piece]:
    """Yield the pieces of a SubRip file.

    Raises:
        InvalidArgumentError: wrong times, or text before the first cue.
    """
    lines = content.split("\n")
    index, in_cue = 0, False
    while index < len(lines):
        line = lines[index]
        numbered = line.strip().isdecimal() and index + 1 < len(lines) and _ARROW in lines[index + 1]
        if numbered or _ARROW in line:
            if numbered:
                yield f"{line}\n"
                index += 1
            _check_times(_SRT_TIMES, lines[index], index, _SRT_EXAMPLE)
            yield with_end(lines, index)
            index, in_cue = index + 1, True
        elif not line.strip():
            yield with_end(lines, index)
            index += 1
            continue
        elif not in_cue:
            refuse(index + 1, f"a cue must begin with times, as {_SRT_EXAMPLE}, got {shown(line)}: mend it")
        after = index
        while after < len(lines) and lines[after].strip() and not _begins_cue(lines, after):
            after += 1
        yield from _cue(lines, index, after, _srt_markup, _srt_text)
        index = after


def vtt_pieces(content: str) -> Iterator[Piece]:
    """Yield the pieces of a WebVTT file.

    Raises:
        InvalidArgumentError: no WEBVTT in the first line, or a cue without times, or with wrong ones.
    """
    lines = content.split("\n")
    if re.match(r"WEBVTT(?:[ \t\r]|$)", lines[0]) is None:
        refuse(1, f"the first line must be WEBVTT, got {shown(lines[0])}: mend it, or give the format srt")
    index = _paragraph_end(lines, 0)
    yield with_ends(lines, 0, index)
    while index < len(lines):
        after = _paragraph_end(lines, index)
        if after == index:
            yield with_end(lines, index)
            index += 1
            continue
        if _COMMENT.match(lines[index]):
            yield with_ends(lines, index, after)
            index = after
            continue
        if _ARROW not in lines[index] and index + 1 < after:
            yield with_end(lines, index)  # the name of the cue
            index += 1
        _check_times(_VTT_TIMES, lines[index], index, _VTT_EXAMPLE)
        yield with_end(lines, index)
        yield from _cue(lines, index + 1, after, str, str)
        index = after


def _begins_cue(lines: _Lines, index: int) -> bool:
    """True if a line has times, or a number before them; some files have no empty line before."""
    line = lines[index].strip()
    return _SRT_TIMES.fullmatch(lines[index + (line.isdecimal() and index + 1 < len(lines))]) is not None


def _check_times(times: re.Pattern[str], line: str, index: int, example: str) -> None:
    if times.fullmatch(line) is None:
        refuse(index + 1, f"the times of a cue must be as {example}, got {shown(line)}: mend them")


def _paragraph_end(lines: _Lines, index: int) -> int:
    while index < len(lines) and lines[index].strip():
        index += 1
    return index


def _cue(
    lines: _Lines, first: int, after: int, to_markup: Callable[[str], str], from_markup: Callable[[str], str]
) -> Iterator[Piece]:
    """Yield the pieces of a cue's text; lines of several speakers are texts of their own."""
    start = first
    for index in range(first, after):
        if index + 1 == after or _is_dialogue(lines[index + 1]):
            whole = with_ends(lines, start, index + 1)
            before = len(whole) - len(whole.lstrip())
            if (end := _after_all(_CODE, whole, before)) > before:
                yield whole[:end]
                whole = whole[end:]
            for number, part in enumerate(_CUT.split(whole)):
                if number % 2:
                    yield part
                else:
                    yield from _text(part, start + 1, to_markup, from_markup)
            start = index + 1


def _is_dialogue(line: str) -> bool:
    """True if a line is that of one of several speakers."""
    return _DASH.match(line, _after_all(_TAG, line, len(line) - len(line.lstrip()))) is not None


def _after_all(pattern: re.Pattern[str], text: str, position: int) -> int:
    """Return the place after all matches that follow each other from a place on."""
    while found := pattern.match(text, position):
        position = found.end()
    return position


def _text(part: str, line: int, to_markup: Callable[[str], str], from_markup: Callable[[str], str]) -> Iterator[Piece]:
    before, written, after = separate(part)
    yield before
    if not has_letters(written):
        yield written
    elif len(written) > MAX_READ:
        yield unread(written, written, line)
    else:
        content = to_markup(" ".join(written.split()))
        yield Text(content, written, line, unchanged(content, written, partial(_wrapped, written, from_markup)))
    yield after


def _wrapped(written: str, from_markup: Callable[[str], str], translation: str) -> str:
    """Write a translation in as many lines as its text has, of similar lengths."""
    text = from_markup(translation).replace(_ARROW, "->")
    count = written.count("\n") + 1
    end = "\r\n" if "\r\n" in written else "\n"
    words = _UNBROKEN.findall(text)
    total = sum(_width(word) for word in words)
    lines, width = [list[str]()], 0
    for index, word in enumerate(words):
        due = len(lines) < count and (2 * width + 1) * count >= 2 * total * len(lines)
        if due and word.isspace() and not _is_dialogue("".join(words[index + 1 : index + 8])):
            lines.append([])
        else:
            lines[-1].append(word)
        width += _width(word)
    return end.join("".join(line).strip() for line in lines)


def _width(word: str) -> int:
    return 0 if word.startswith("<") and word.endswith(">") else len(word)


def _srt_markup(text: str) -> str:
    """Write text of a SubRip file, where ``&`` is a character, as HTML."""
    return "".join(
        token.written
        if token.kind in {Kind.START, Kind.END, Kind.EMPTY}
        else token.written.replace("&", "&amp;").replace("<", "&lt;")
        for token in scan(text, html=True)
    )


def _srt_text(markup: str) -> str:
    return "".join(
        html.unescape(token.written) if token.kind is Kind.TEXT else token.written for token in scan(markup, html=True)
    )


_PARTS: Final = Parts(name="lines and tags", marks="\n<", size=250, most=500_000)
FORMATS: Final = {
    "srt": FileFormat(srt_pieces, "html", parts=_PARTS),
    "vtt": FileFormat(vtt_pieces, "html", parts=_PARTS),
}
