"""Sentences that are too long for the model, cut into parts."""

import re
import unicodedata
from collections.abc import Callable

_PLACES = (
    re.compile(r"[;:\u2014\u2013]\s+|[\uff1b\uff1a\u061b\u037e]\s*"),  # clauses
    re.compile(r"[,\u060c]\s+|[\uff0c\u3001]\s*"),  # commas
    re.compile(r"\s+"),
)
"""Places to cut after, best first."""


def cut(sentence: str, fits: Callable[[str], bool]) -> list[str]:
    """Cut a sentence into parts that fit, each cut near the middle of a part.

    Args:
        fits: True for texts that are short enough.

    Returns:
        Parts that are the sentence when concatenated, n >= 1, with white space at their ends; a part of one character
        may be one that does not fit.
    """
    parts: list[str] = []
    waiting = [sentence]
    while waiting:
        part = waiting.pop()
        middle = 0 if fits(part) else _middle(part)
        if middle:
            waiting += (part[middle:], part[:middle])
        else:
            parts.append(part)
    return parts


def _middle(part: str) -> int:
    """Return the index of the best place to cut a part; 0: none."""
    length = len(part)
    for place in _PLACES:
        for share in (4, 10):  # first in the half around the middle
            first, last = length // share, length - length // share
            ends = [found.end() for found in place.finditer(part, first, last) if 0 < found.end() < length]
            if ends:
                return min(ends, key=lambda end: abs(2 * end - length))
    whole = [index for index in range(1, length) if not unicodedata.combining(part[index])]
    return min(whole, key=lambda index: abs(2 * index - length), default=0)


def joint(before: str, after: str, *, source_spaces: bool, space: str) -> str:
    """Return the text between the translations of two parts.

    Args:
        source_spaces: True if the source language writes spaces; without one, the cut is inside of a word.
        space: space between two sentences of the target language.
    """
    white = before[len(before.rstrip()) :]
    if white not in {"", " "}:
        return white
    inside = source_spaces and not white and before[-1:].isalnum() and after[:1].isalnum()
    return "" if inside else space
