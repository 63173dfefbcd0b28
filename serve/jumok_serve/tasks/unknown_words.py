"""Unknown tokens of translations, replaced by the source words that they are aligned to."""

import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jumok_proto.results import AppliedTerm
from jumok_serve.runtime.graphs import Floats
from jumok_serve.tasks.word_alignment import token_places, words
from jumok_serve.tokenizers.tokenizer import Tokenizer

_OPENING = {"Ps", "Pi"}
"""Unicode categories of signs without a space after them."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """A text with source words in place of unknown tokens.

    Attributes:
        changes: place of each replaced part in the text before, and by how much longer its word is.
    """

    text: str
    changes: tuple[tuple[int, int], ...]

    def moved(self, terms: Sequence[AppliedTerm]) -> tuple[AppliedTerm, ...]:
        """Return terms with their places in the new text."""
        return tuple(
            term if term.target_span is None else term.moved(0, self._shift(term.target_span.first)) for term in terms
        )

    def _shift(self, place: int) -> int:
        return sum(longer for start, longer in self.changes if start < place)


def source_words(text: str, source_tokens: Sequence[str]) -> list[str]:
    """Return the word of a text that each of its tokens begins in; empty for tokens without one.

    Args:
        source_tokens: spelling of the source tokens, empty for special ones, [S].
    """
    of_text = words(text)
    ends = [end for _, end in of_text]
    found = []
    for first, after in token_places(source_tokens, text):
        start, end = of_text[index] if (index := bisect_right(ends, first)) < len(of_text) else (after, after)
        found.append(text[start:end] if start < after else "")
    return found


def aligned_words(attention: Floats, rows: Sequence[int], word_of: Sequence[str]) -> list[str]:
    """Return the source word that each of some target tokens attends to most; empty if the source has no word.

    Args:
        attention: cross-attention, [T, S].
        rows: places of the target tokens.
        word_of: word of each source token, [S].
    """
    spelled = np.array([bool(word) for word in word_of])
    if not spelled.any():
        return [""] * len(rows)
    return [word_of[int(np.where(spelled, attention[row], -np.inf).argmax())] for row in rows]


def replace_unknown(
    tokenizer: Tokenizer, token_ids: Sequence[int], text: str, found: Sequence[tuple[int, str]], *, spaced: bool
) -> Replaced:
    """Write words into a text instead of unknown tokens.

    Args:
        token_ids: tokens of the text.
        text: the text that the tokenizer makes of them.
        found: place of each unknown token among the tokens, and its word.
        spaced: True if the language writes spaces between words.
    """
    written, done = "", 0
    changes: list[tuple[int, int]] = []
    for place, word in found:
        before, through = tokenizer.decode(token_ids[:place]), tokenizer.decode(token_ids[: place + 1])
        if not word or len(before) < done or not text.startswith(before) or not text.startswith(through):
            continue  # a decoder that writes tokens differently if others follow: leave its text
        start, end = len(before), len(through)
        written += text[done:start]
        lead = " " if spaced and written and not _ends_open(written) else ""
        trail = " " if spaced and start == end and text[end : end + 1].isalnum() else ""
        replacement = f"{lead}{word}{trail}"
        written += replacement
        changes.append((start, len(replacement) - (end - start)))
        done = end
    return Replaced(written + text[done:], tuple(changes))


def _ends_open(text: str) -> bool:
    """True if a word follows a text without a space."""
    return text[-1].isspace() or unicodedata.category(text[-1]) in _OPENING
