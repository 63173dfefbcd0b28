"""Search for texts with `*` in them, all at once and in time proportional to the length of the text."""

import re
import sys
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from typing import Final

_PART: Final = re.compile(r"\w+|\W")
_PATTERN_PART: Final = re.compile(r"[\w*]+|\W")
_BLOCK: Final = 1024
"""Parts of a text that are looked at together, and as many more as the longest pattern has."""


class Patterns:
    """Texts in which `*` stands for one or more letters, digits or `_`.

    A text has parts: runs of letters, digits and `_`, and single other characters. A pattern matches whole parts, as
    many as it has itself. So one integer holds the patterns that match from a place on, a bit for each part of each
    pattern, and a part of the text changes it with one shift and one mask (Shift-And, Baeza-Yates and Gonnet, 1992).
    Going backwards, it says at each place which patterns begin there.

    Args:
        patterns: at each place the first one that matches counts; one in which a letter follows `*` matches nothing.

    Attributes:
        num_bytes: memory that they take.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        split = [_PATTERN_PART.findall(pattern) for pattern in patterns]
        self._lengths = [len(parts) for parts in split]
        firsts = list(accumulate(self._lengths, initial=0))
        self._numbers = {1 << first: number for number, first in enumerate(firsts[:-1])}
        self._firsts = sum(self._numbers)
        self._lasts = sum(1 << after - 1 for after in firsts[1:])
        self._whole: dict[str, int] = {}  # bits by part, and by the beginning of a longer run
        self._begun: dict[str, int] = {}
        for place, part in enumerate(part for parts in split for part in parts):
            begin = part.rstrip("*")
            bits = self._whole if begin == part else self._begun
            if "*" not in begin:
                bits[begin] = bits.get(begin, 0) | 1 << place
        self._begun_lengths = sorted({len(begin) for begin in self._begun})
        masks = (self._numbers, *self._whole.values(), *self._begun.values(), self._whole, self._begun)
        self.num_bytes = sum(map(sys.getsizeof, masks))

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the place of the first pattern at each place where one begins; places may overlap."""
        parts, known, longest = _PART.finditer(text), list[re.Match[str]](), max(self._lengths)
        while True:
            known += islice(parts, _BLOCK + longest - len(known))
            if not known:
                return
            begun = self._begun_at([part[0] for part in known])
            for place in range(min(_BLOCK, len(known))):
                if (number := begun[place]) is not None:
                    yield known[place].start(), known[place + self._lengths[number] - 1].end()
            del known[:_BLOCK]

    def _begun_at(self, parts: Sequence[str]) -> list[int | None]:
        """Return for each part the first pattern that begins there, or None."""
        bits = {part: self._bits(part) for part in set(parts)}
        numbers, matched = list[int | None](), 0
        for part in reversed(parts):
            matched = (matched >> 1 | self._lasts) & bits[part]
            begun = matched & self._firsts
            numbers.append(self._numbers[begun & -begun] if begun else None)
        numbers.reverse()
        return numbers

    def _bits(self, part: str) -> int:
        """Return the bits of the parts of patterns that match a part of a text."""
        bits = self._whole.get(part, 0)
        if self._begun and (part[0].isalnum() or part[0] == "_"):
            for length in self._begun_lengths:
                if length >= len(part):
                    break
                bits |= self._begun.get(part[:length], 0)
        return bits
