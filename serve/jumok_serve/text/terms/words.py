"""Words of a text, for glossaries."""

import re
import sys
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from jumok_serve.tokenizers.character_classes import ranges

_UNSPACED: Final = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Characters of scripts without spaces: Thai, Lao, Burmese, Khmer, kana, Han. Each counts as a word."""


class Word(NamedTuple):
    """A word, or a single other character.

    Attributes:
        text: its text, case-folded, after a space if there is white space before it.
        first, after: its place in the text.
    """

    text: str
    first: int
    after: int


def words(text: str) -> Iterator[Word]:
    """Yield the words of a text, with marks such as vowel signs, and all other characters but white space."""
    end = 0
    for found in _pattern().finditer(text):
        space = " " if found.start() > end else ""
        end = found.end()
        yield Word(space + found[0].casefold(), found.start(), end)


@lru_cache(maxsize=1)
def _pattern() -> re.Pattern[str]:
    of_words = ranges(mark for mark in map(chr, range(sys.maxunicode)) if unicodedata.category(mark)[0] == "M")
    return re.compile(f"[{_UNSPACED}][{of_words}]*|(?:(?![{_UNSPACED}])[\\w{of_words}])+|[^\\w\\s]")
