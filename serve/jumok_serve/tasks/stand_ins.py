"""Placeholders of a text, and what a model reads in their place."""

import re
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache, partial
from itertools import count
from typing import Final, NamedTuple, Protocol

from jumok_serve.tokenizers.tokenizer import Tokenizer

MAX_TOKENS: Final = 2
"""Most tokens of a placeholder that the model reads itself: it spells longer ones in its own way."""
APART: Final = 400
"""Characters between equal stand-ins."""
MAX_CACHED: Final = 4096
MAX_READ: Final = 64
"""Most characters of such a placeholder."""
_SYMBOLS: Final = ("${}", "%{}", "$(ARG{})")
"""Placeholders that a model may know from its training text as one token, with a number in place of the braces."""
_FIRST_NUMBER: Final = 11
"""Models without such tokens read numbers: all copy them, and those of two digits in one or two tokens."""


class Hole(NamedTuple):
    """A part of a text that is not language.

    Attributes:
        first, after: its place in the text.
        kind: a kind of `text.holes.KINDS`; in messages also `quote` and `number`, which stands for `#`. `term`:
            a term over a pivot language.
        content: what the translation has, if it is something else.
    """

    first: int
    after: int
    kind: str
    content: str = ""


class HoleFinder(Protocol):
    """Finds the placeholders of a request's texts."""

    @property
    def keeps_percentages(self) -> bool:
        """True if a percentage, which is text, becomes a placeholder if a translation lacks it."""

    def find(self, text: str) -> Sequence[Hole]:
        """Return the placeholders of a text in their order; they share no character."""


class StandIns:
    """Chooses what a model reads in place of placeholders.

    Args:
        tokenizer: the model's.
        writes: returns the tokens of a part of a translation, or none if the tokenizer cannot write it.

    Attributes:
        reads: function that returns true for a placeholder that the model reads itself.
    """

    def __init__(self, tokenizer: Tokenizer, writes: Callable[[str], Sequence[int]]) -> None:
        self._tokenizer = tokenizer
        self._writes = writes
        self.reads = lru_cache(MAX_CACHED)(partial(_reads, tokenizer, writes))

    @cached_property
    def _symbols(self) -> tuple[str, ...]:
        """Placeholders that are one token each."""
        found = (pattern.format(number) for pattern in _SYMBOLS for number in range(1, 10))
        return tuple(one for one in found if one in self._tokenizer.tokens(self._writes(one)))

    def of(self, text: str) -> Callable[[int], str]:
        """Return a function that gives the stand-in at a place of a text, which does not have it itself.

        Only stand-ins far from each other, in different sentences, are equal.
        """
        numbers = frozenset(re.findall(r"[0-9]+", text))
        pool = [one for one in self._symbols if one not in text]
        pool += [one for one in map(str, range(_FIRST_NUMBER, 100)) if one not in numbers]
        others = (one for one in map(str, count(100)) if one not in numbers)
        used = dict.fromkeys(pool, -APART)

        def stand_in(place: int) -> str:
            for one, last in used.items():
                if place - last >= APART:
                    used[one] = place
                    return one
            return next(others)

        return stand_in


def _reads(tokenizer: Tokenizer, writes: Callable[[str], Sequence[int]], content: str) -> bool:
    if len(content) > MAX_READ or any(map(str.isspace, content)):
        return False
    tokens = tokenizer.encode(content)
    return (
        len(tokens) <= MAX_TOKENS and tokenizer.source_unknown not in tokens and 0 < len(writes(content)) <= MAX_TOKENS
    )
