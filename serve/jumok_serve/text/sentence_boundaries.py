"""Sentence boundaries of a text, found by sentencex in pieces of bounded length."""

import logging
import re
from collections.abc import Iterator
from itertools import accumulate, islice

from jumok_serve.errors import ForeignCodeError
from jumok_serve.foreign import ForeignCode
from jumok_serve.interrupts import check
from jumok_serve.text.boundary_rules import ends_sentence, list_items

logger = logging.getLogger(__name__)

MAX_PIECE = 2048
"""Most characters that the library sees at once. Its time grows with their square, and it holds Python's lock."""
MAX_STOPS = 64
"""Most runs of punctuation in them; in Catalan and Danish each takes the library 0.2 ms."""
MIN_PIECE = 512
"""With more stops in fewer characters, a text is split by punctuation alone: no language is written like this."""
LOOKAHEAD = ADVANCE = 4
"""Shares of a piece, as divisors: its end only shows how the sentences before go on, and the next piece begins after
its first part at the earliest."""

_SENTENCEX = ForeignCode("sentencex")
_WIDE_SPACE_BEFORE_STOP = re.compile(r"[^\S\x00-\x7f](?=\.)")
"""White space that the library fails on after a capital letter, as it takes all white space for one byte."""
_WIDE_TERMINATORS = "\u3002\uff01\uff1f\uff61\uff0e"
_TERMINATORS = (
    "!?\u0589\u061d\u061e\u061f\u06d4\u0700\u0701\u0702\u07f9\u0837\u0839\u083d\u083e\u0964\u0965\u104a\u104b"
    "\u1362\u1367\u1368\u166e\u1735\u1736\u1803\u1809\u1944\u1945\u1aa8\u1aa9\u1aaa\u1aab\u1b5a\u1b5b\u1b5e\u1b5f"
    "\u1b7d\u1b7e\u1c3b\u1c3c\u1c7e\u1c7f\u2024\u203c\u203d\u2047\u2048\u2049\u2e2e\u2e3c\u2e53\u2e54\ua4ff\ua60e"
    "\ua60f\ua6f3\ua6f7\ua876\ua877\ua8ce\ua8cf\ua92f\ua9c8\ua9c9\uaa5d\uaa5e\uaa5f\uaaf0\uaaf1\uabeb\ufe52\ufe56"
    "\ufe57\U00010a56\U00010a57\U00010f55\U00010f56\U00010f57\U00010f58\U00010f59\U00010f86\U00010f87\U00010f88"
    "\U00010f89\U00011047\U00011048\U000110be\U000110bf\U000110c0\U000110c1\U00011141\U00011142\U00011143"
    "\U000111c5\U000111c6\U000111cd\U000111de\U000111df\U00011238\U00011239\U0001123b\U0001123c\U000112a9"
    "\U0001144b\U0001144c\U000115c2\U000115c3\U000115c9\U000115ca\U000115cb\U000115cc\U000115cd\U000115ce"
    "\U000115cf\U000115d0\U000115d1\U000115d2\U000115d3\U000115d4\U000115d5\U000115d6\U000115d7\U00011641"
    "\U00011642\U0001173c\U0001173d\U0001173e\U00011944\U00011946\U00011a42\U00011a43\U00011a9b\U00011a9c"
    "\U00011c41\U00011c42\U00011ef7\U00011ef8\U00011f43\U00011f44\U00016a6e\U00016a6f\U00016af5\U00016b37"
    "\U00016b38\U00016b44\U00016e98\U0001bc9f\U0001da88\u2026"
)
"""Characters with the Unicode property Sentence_Terminal, as the library knows them, and the ellipsis."""
_ALL_TERMINATORS = "." + _WIDE_TERMINATORS + _TERMINATORS
_MARKED = {**dict.fromkeys(map(ord, _TERMINATORS), "."), **dict.fromkeys(map(ord, _WIDE_TERMINATORS), "\u3002")}
_COUNTED = str.maketrans({**dict.fromkeys(_ALL_TERMINATORS, "\u3002"), **dict.fromkeys(".!?", "."), "\u2026": "\u2026"})
_STOP = re.compile("[.][. \t]*|\u2026+|\u3002")
"""A run of punctuation, as the library takes it at once; other full stops than these are runs of one."""
_PLAIN_END = re.compile("(?<![.\u3002])[.\u3002]+[\"'\u201d\u2019\u00bb)\\]]*(?:\\s+(?![\\da-z])|(?<=\u3002))")
_LAST_SPACE = re.compile(r"(?s).*\s")
_ASTRAL_TERMINATORS = [one for one in _ALL_TERMINATORS if one > "\uffff"]
_MAYBE_STOP = re.compile(
    f"[{re.escape(''.join(set(_ALL_TERMINATORS).difference(_ASTRAL_TERMINATORS)))}"
    f"{min(_ASTRAL_TERMINATORS)}-{max(_ASTRAL_TERMINATORS)}]"
)
"""All terminators, and some letters: one range for those that are rare makes the search 15 times as fast."""
_INNER_STOP = re.compile(rf"[{re.escape(_ALL_TERMINATORS)}]\s*+[^\s.{re.escape(_TERMINATORS)}]")
"""End of a sentence with another after it, possibly."""


def sentence_spans(text: str, language: str, *, deadline: float | None = None) -> Iterator[tuple[int, int]]:
    """Yield first and end index of each sentence, without the white space around it.

    A line break always ends a sentence; a full stop after an abbreviation or an ordinal does not, although the library
    may say so. Markers of a list inside of a line are sentences of their own. A line of at most `MAX_PIECE` characters
    and `MAX_STOPS` stops is split as a whole; in a longer one, quotation marks and brackets over more than a quarter of
    a piece may be missed. The time is proportional to the text's length.

    Args:
        language: ISO 639 code of one language, without script or region.
        deadline: moment of ``time.monotonic()``; None: no limit.

    Raises:
        DeadlineExceededError: the deadline has passed.
    """
    first = 0
    for line in text.splitlines(keepends=True):
        begin = 0
        for end, sure in () if line.isspace() else _with_items(line, _ends(line, language, deadline)):
            if not sure and end < len(line) and not ends_sentence(line, begin, end, language):
                continue
            part = line[begin:end]
            if sentence := part.strip():
                start = first + begin + len(part) - len(part.lstrip())
                yield start, start + len(sentence)
            begin = end
        first += len(line)


def _with_items(line: str, ends: Iterator[int]) -> Iterator[tuple[int, bool]]:
    """Yield ends of a line in order, with True for those around markers of lists, which the library may miss."""
    items = list_items(line)
    item = next(items, None)
    last = 0
    for end in ends:
        while item is not None and item[0] < end:
            if item[0] > last:
                yield item[0], True
            last = item[1]
            yield last, True
            item = next(items, None)
        if end > last:
            yield end, False


def possible_ends(text: str) -> int:
    """Count the places where a sentence may end inside of a text, up to 16."""
    return sum(1 for _ in islice(_inner_stops(text), 16)) + len(text.split("\n", 16)) - 1


def _inner_stops(text: str) -> Iterator[re.Match[str]]:
    """Yield the matches of `_INNER_STOP`."""
    begin = 0
    while maybe := _MAYBE_STOP.search(text, begin):
        begin = maybe.end()
        if found := _INNER_STOP.match(text, maybe.start()):
            yield found
            begin = found.end()


def _ends(line: str, language: str, deadline: float | None) -> Iterator[int]:
    """Yield the end of each sentence of a line."""
    if next(_inner_stops(line), None) is None:
        yield len(line)
        return
    begin = 0
    while begin < len(line):
        check(deadline, "a text was split into sentences")
        piece = _piece(line, begin)
        length = len(piece)
        last = begin + length == len(line)
        ends = _split(piece, language) if last or length >= MIN_PIECE else _split_plainly(piece)
        if not last:
            first, usable = length // ADVANCE, length - length // LOOKAHEAD
            ends = [end for end in ends if end <= usable]
            # A sentence that is longer goes on in the next piece.
            length = ends[-1] if ends and ends[-1] >= first else _last_space(piece, first, usable)
        yield from (begin + end for end in ends)
        begin += length


def _piece(line: str, begin: int) -> str:
    """Return the next piece of a line; in a long one with an even number of quotation marks if possible.

    With an odd number the library takes pairs of them for marks that do not belong together.
    """
    piece = line[begin : begin + MAX_PIECE]
    stop = next(islice(_STOP.finditer(piece.translate(_COUNTED)), MAX_STOPS, None), None)
    if stop is not None:
        piece = piece[: max(1, stop.start())]
    if begin + len(piece) < len(line) and piece.count('"') % 2:
        last = piece.rindex('"')
        return piece[:last] if last >= len(piece) - len(piece) // LOOKAHEAD else piece
    return piece


def _last_space(piece: str, first: int, end: int) -> int:
    """Return the index after the last white space of ``piece[first:end]``, or ``end`` without any."""
    found = _LAST_SPACE.match(piece, first, end)
    return found.end() if found else end


def _split(piece: str, language: str) -> list[int]:
    """Return the end of each sentence of a piece; by punctuation alone if the library fails."""
    from sentencex import segment  # noqa: PLC0415 - loaded only to split

    try:
        with _SENTENCEX:
            parts = segment(language, _WIDE_SPACE_BEFORE_STOP.sub(" ", piece))
    except ForeignCodeError as error:
        logger.warning("%s; the text is split at its punctuation instead", error)
        return _split_plainly(piece)
    ends = list(accumulate(map(len, parts)))
    return ends if ends and ends[-1] == len(piece) else _split_plainly(piece)  # which loses no character


def _split_plainly(piece: str) -> list[int]:
    """Return the end of each sentence of a piece by its punctuation alone."""
    return [*(found.end() for found in _PLAIN_END.finditer(piece.translate(_MARKED))), len(piece)]
