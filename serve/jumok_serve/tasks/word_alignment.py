"""Words of a sentence and its translation, aligned by cross-attention."""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.floating[Any]]

Place: TypeAlias = tuple[int, int]
"""First character of a part of a text, and the character after it."""

SAME = 1.0
"""Added to the weight of a source word that is written like the target's, if both occur once."""

LEAST_SUM = 1e-3
"""Least sum of the weights of a source word that they are divided by."""
OTHER_KIND = 0.1
"""Factor of the weight between a word and a sign."""

# Scripts without spaces between words: Thai, Lao, Myanmar, Khmer, kana and Chinese characters.
_WORD = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
    r"|(?:(?![\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff])\w)+|[^\w\s]"
)
_MARKS = "\u2581\u0120 "
"""Characters of a token that stand for a space."""


def words(text: str) -> list[Place]:
    """Return the words and signs of a text; in scripts without spaces, its characters."""
    return [found.span() for found in _WORD.finditer(text)]


def token_places(tokens: Sequence[str], text: str) -> list[Place]:
    """Return the part of a text that each token spells, by its characters; empty for tokens without text."""
    of_tokens, of_text = [_letters(token) for token in tokens], [_letters(raw) for raw in text]
    written = [index for index, letters in enumerate(of_text) for _ in letters]
    mine, others = "".join(of_tokens), "".join(of_text)
    if mine == others:
        ends = [0, *accumulate(map(len, of_tokens))]
        return [(written[first], written[end - 1] + 1) if first < end else (0, 0) for first, end in pairwise(ends)]
    spelled = [token for token, letters in enumerate(of_tokens) for _ in letters]
    places = [(0, 0)] * len(tokens)
    for block in SequenceMatcher(None, mine, others, autojunk=False).get_matching_blocks():
        for step in range(block.size):
            token, index = spelled[block.a + step], written[block.b + step]
            first, after = places[token]
            places[token] = (first, index + 1) if after else (index, index + 1)
    return places


@lru_cache(maxsize=2**14)
def _letters(text: str) -> str:
    """Return characters to compare by, without spaces and in one form."""
    return unicodedata.normalize("NFKC", text.strip(_MARKS)).casefold().replace(" ", "")


def align_words(
    attention: Floats, source: str, source_tokens: Sequence[Place], target: str, target_tokens: Sequence[Place]
) -> list[Place]:
    """Return the source word that each word of the target is aligned to; empty if none.

    Args:
        attention: cross-attention, [T, S].
        source_tokens: part of the source that each column spells, [S].
        target_tokens: part of the target that each row spells, [T].
    """
    of_source, of_target = words(source), words(target)
    if not of_source:
        return [(0, 0)] * len(of_target)
    weights: Floats = _shares(of_target, target_tokens) @ attention @ _shares(of_source, source_tokens).T
    weights = _rows(weights)
    # A source word that all words of the target attend to a little, as a full stop, says nothing about one of them.
    weights = _rows(weights / np.maximum(weights.sum(axis=0, keepdims=True), LEAST_SUM))
    weights += SAME * _same(source, of_source, target, of_target)
    mine, others = _are_signs(source, of_source), _are_signs(target, of_target)
    weights = np.where(mine[None, :] != others[:, None], OTHER_KIND * weights, weights)
    best = weights.argmax(axis=1)
    signs = others & ~mine[best]  # a sign of its own
    return [
        (0, 0) if sign or row[word] <= 0 else of_source[word]
        for word, row, sign in zip(best.tolist(), weights, signs, strict=True)
    ]


def _rows(weights: Floats) -> Floats:
    """Scale rows to a sum of 1."""
    scaled: Floats = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-9)
    return scaled


def _are_signs(text: str, places: Sequence[Place]) -> npt.NDArray[np.bool_]:
    """Return True for signs, False for words."""
    return np.array([not text[start:end].isalnum() for start, end in places], bool)


def _shares(of_text: Sequence[Place], tokens: Sequence[Place]) -> Floats:
    """Return the share of each token's characters in each word, [words, tokens]."""
    first, after = np.array(of_text, float).reshape(-1, 2).T[:, :, None]
    token_first, token_after = np.array(tokens, float).reshape(-1, 2).T[:, None, :]
    common = np.minimum(after, token_after) - np.maximum(first, token_first)
    shares: Floats = np.maximum(common, 0) / np.maximum(token_after - token_first, 1)
    return shares


def _same(source: str, of_source: Sequence[Place], target: str, of_target: Sequence[Place]) -> Floats:
    """Return 1 for words that both texts have once, [target words, source words]."""
    mine = [source[slice(*place)].casefold() for place in of_source]
    others = [target[slice(*place)].casefold() for place in of_target]
    once = Counter(mine)
    once_there = Counter(others)
    index = {word: place for place, word in enumerate(mine) if once[word] == 1 and word.isalnum()}
    same = np.zeros((len(others), len(mine)))
    for row, word in enumerate(others):
        if once_there[word] == 1 and word in index:
            same[row, index[word]] = 1
    return same
