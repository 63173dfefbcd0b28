"""Words of a sentence and its translation, aligned by cross-attention."""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise, takewhile
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from jumok_serve.tasks.particles import particles

Floats: TypeAlias = npt.NDArray[np.floating[Any]]

Place: TypeAlias = tuple[int, int]
"""First character of a part of a text, and the character after it."""

SAME = 1.0
"""Added to the weight of a source word that is written like the target's, if both occur once."""

LEAST_SUM = 1e-3
"""Least sum of the weights of a source word that they are divided by."""
OTHER_KIND = 0.1
"""Factor of the weight between a word and a sign."""
POWER = 3
"""Of the weights of source words that a target word has shares of."""
SURE_SHARE, LEAST_SHARE = 0.98, 0.01
"""Share of a source word from which others do not count, and least share that counts."""
DIGITS = 9
"""Decimal digits of weights that are compared."""
MAX_BATCH = 2**16
"""Weights of sentences that are aligned at once, padding included; a longer sentence is aligned alone."""
SURE = 4
"""Equal characters after which two texts go on together, as single ones are equal by chance."""
AHEAD = 256
"""Characters that are looked through for them; bounds the work for each character."""
MAX_WORDS = 2**11
"""Words of a text that are aligned each by itself; a token can be many signs."""

# Scripts without spaces between words: Thai, Lao, Myanmar, Khmer, kana and Chinese characters.
_WORD = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
    r"|(?:(?![\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff])\w)+|[^\w\s]"
)
_BOTH_FORMS = re.compile(r"(?:을\(를|를\(을|이\(가|가\(이|은\(는|는\(은|와\(과|과\(와)\)|\((?:으|이)\)[가-힣]+")
"""Particles in both forms, as after a word that is not known yet."""
MAX_LOOKED = 16
"""Characters at the end of a word in which a particle is looked for; more than the longest has."""
LONG_ENOUGH = 2
"""Syllables of a noun after which most particles count: many nouns of two end like a particle, as 사이 and 정도."""
_MARKS = "\u2581\u0120 "
"""Characters of a token that stand for a space."""


def words(text: str) -> list[Place]:
    """Return the words and signs of a text; in scripts without spaces, its characters.

    A Korean particle is no part of the word before it: "파일" of "파일을" is a word, and "을" is none.
    """
    return [place for place, is_particle in _parts(text) if not is_particle]


def _parts(text: str) -> Iterator[tuple[Place, bool]]:
    """Yield the words and signs of a text, and the particles after them, which are marked."""
    both = {found.start(): found.end() for found in _BOTH_FORMS.finditer(text)} if "(" in text else {}
    done = 0
    for found in _WORD.finditer(text):
        start, end = found.span()
        if start < done:
            continue
        if first := next((place for place in (start, end - 1) if place in both), 0):
            if start < first:
                yield (start, first), False
            done = both[first]
            yield (first, done), True
            continue
        word = found[0][-MAX_LOOKED:]
        if after := next((length for length in particles(word) if _is_noun(word[:-length], word[-length:])), 0):
            yield (start, end - after), False
            yield (end - after, end), True
        else:
            yield (start, end), False


def _is_noun(text: str, particle: str) -> bool:
    """True if what is before a particle is long enough to be a noun, or written in another script."""
    return particle in {"을", "를"} or len(text) >= LONG_ENOUGH or not "가" <= text[-1] <= "힣"


def after_particle(text: str, place: int) -> int:
    """Return the end of the particle that follows a word, or the end of the word without one."""
    if (both := _BOTH_FORMS.match(text, place)) is not None:
        return both.end()
    while place < len(text) and "가" <= text[place] <= "힣":
        place += 1
    return place


def token_places(tokens: Sequence[str], text: str) -> list[Place]:
    """Return the part of a text that each token spells, by its characters; empty for tokens without text.

    The time is proportional to the characters, whatever a tokenizer leaves out of the text or adds to it.
    """
    of_tokens, of_text = ["".join(map(_letters, token)) for token in tokens], list(map(_letters, text))
    mine, others = "".join(of_tokens), "".join(of_text)
    if len(others) == len(of_text) - of_text.count(""):
        written = [index for index, letters in enumerate(of_text) if letters]
    else:
        written = [index for index, letters in enumerate(of_text) for _ in letters]
    if others.startswith(mine):
        ends = [0, *accumulate(map(len, of_tokens))]
        return [(written[first], written[end - 1] + 1) if first < end else (0, 0) for first, end in pairwise(ends)]
    spelled = [token for token, letters in enumerate(of_tokens) for _ in letters]
    common = set(mine) & set(others)  # most differences are characters that one side has nowhere
    mine_kept = [index for index, letter in enumerate(mine) if letter in common]
    others_kept = [index for index, letter in enumerate(others) if letter in common]
    mine, others = "".join(map(mine.__getitem__, mine_kept)), "".join(map(others.__getitem__, others_kept))
    places = [(0, 0)] * len(tokens)
    for first_mine, first_others, size in _equal_parts(mine, others, SURE):
        for step in range(size):
            token, index = spelled[mine_kept[first_mine + step]], written[others_kept[first_others + step]]
            first, after = places[token]
            places[token] = (first, index + 1) if after else (index, index + 1)
    return places


def _equal_parts(mine: str, others: str, sure: int) -> Iterator[tuple[int, int, int]]:
    """Yield the first characters of equal parts of two texts, and their length; parts are in order.

    Args:
        sure: characters that are equal after others that are not; shorter parts are sought between such ones alone.
    """
    first = other = 0
    while first < len(mine) and other < len(others):
        skipped, skipped_others = _next_equal(mine, others, first, other, sure)
        if skipped + skipped_others > AHEAD:  # of the side that has more left
            if len(others) - other > len(mine) - first:
                other += AHEAD
            else:
                first += AHEAD
            continue
        if skipped and skipped_others and sure > 1:
            between = mine[first : first + skipped], others[other : other + skipped_others]
            for start, start_others, size in _equal_parts(*between, 1):
                yield first + start, other + start_others, size
        first, other, start = first + skipped, other + skipped_others, first + skipped
        most = min(len(mine), first + len(others) - other)
        shift = other - first
        while first < most and mine[first] == others[first + shift]:
            first += 1
        yield start, other, first - start
        other = first + shift


def _next_equal(mine: str, others: str, first: int, other: int, sure: int) -> tuple[int, int]:
    """Return the fewest characters to skip on both sides until some are equal; more than AHEAD without any."""
    best = 0, AHEAD + 1
    for skipped in range(min(AHEAD, len(mine) - first - 1) + 1):
        if skipped >= sum(best):
            break
        start = first + skipped
        most = sum(best) - skipped - 1
        found = others.find(sought := mine[start : start + sure], other, other + most + len(sought))
        if found >= 0:
            best = skipped, found - other
    return best


@lru_cache(maxsize=2**14)
def _letters(character: str) -> str:
    """Return what to compare a character by, in one form; nothing for spaces."""
    return "" if character in _MARKS else unicodedata.normalize("NFKD", character).casefold().replace(" ", "")


class TokenAlignment(NamedTuple):
    """A sentence and its translation, with the alignment of their tokens.

    Attributes:
        attention: cross-attention, [T, S].
        source_tokens: part of the source that each column spells, [S].
        target_tokens: part of the target that each row spells, [T].
    """

    attention: Floats
    source: str
    source_tokens: Sequence[Place]
    target: str
    target_tokens: Sequence[Place]


class Pair(NamedTuple):
    """A word of a translation.

    Attributes:
        place: its place.
        source: the source word that it is aligned to most; an empty place without one.
        shares: source words with its share of each, if several count.
    """

    place: Place
    source: Place
    shares: Sequence[tuple[Place, float]] = ()


def align_words(sentences: Sequence[TokenAlignment], check: Callable[[str], None] = lambda _: None) -> list[list[Pair]]:
    """Return the words of the targets, aligned to those of the sources.

    Args:
        check: called for each sentence, may raise; see `Deadline.check`.
    """
    sides = []
    for one in sentences:
        read = max((after for _, after in one.source_tokens), default=0)  # of a source that was truncated
        sides.append((_Words(one.source, read), _Words(one.target, len(one.target))))
    aligned: list[list[Pair]] = [[] for _ in sentences]
    batch: list[int] = []
    most = 0
    # Arrays of many sentences at once: each operator takes far longer to call than to work on one sentence.
    for index in sorted(range(len(sentences)), key=lambda index: sentences[index].attention.size):
        check("words were aligned")
        sizes = zip(sides[index], sentences[index].attention.shape[::-1], strict=True)
        size = max(max(len(side.places), tokens) for side, tokens in sizes)
        if batch and (len(batch) + 1) * max(most, size) ** 2 > MAX_BATCH:
            _align_batch(sentences, sides, batch, aligned)
            batch, most = [], 0
        batch.append(index)
        most = max(most, size)
    if batch:
        _align_batch(sentences, sides, batch, aligned)
    return aligned


class _Words:
    """The words and signs that begin before an index of a text.

    Attributes:
        places: part of the text that each is; neighbours are one if they are more than MAX_WORDS.
        particles: True for particles, which have alignments of their own, so that those of their nouns are surer.
        signs: True for signs, False for words.
        once: index of each word that the text has once, -1 for others.
    """

    def __init__(self, text: str, before: int) -> None:
        parts = list(takewhile(lambda part: part[0][0] < before, _parts(text)))
        places, self.particles = [place for place, _ in parts], [is_particle for _, is_particle in parts]
        together = -(-len(places) // MAX_WORDS)
        if together > 1:
            starts = range(0, len(places), together)
            places = [(places[at][0], places[min(at + together, len(places)) - 1][1]) for at in starts]
            self.particles = [False] * len(places)
        self.places = places
        written = [text[start:end] for start, end in self.places]
        self.signs = [not word.isalnum() for word in written]
        self.once: dict[str, int] = {}
        for index, word in enumerate(map(str.casefold, written)):
            self.once[word] = -1 if word in self.once else index


def _align_batch(
    sentences: Sequence[TokenAlignment],
    sides: Sequence[tuple[_Words, _Words]],
    batch: Sequence[int],
    aligned: list[list[Pair]],
) -> None:
    """Align the words of some sentences, in arrays that are padded with zeros."""
    chosen = [sentences[index] for index in batch]
    sources, targets = zip(*(sides[index] for index in batch), strict=True)
    of_source = _shares(sources, [one.source_tokens for one in chosen])  # [B, source words, S]
    of_target = _shares(targets, [one.target_tokens for one in chosen])  # [B, target words, T]
    attention = np.zeros((len(batch), of_target.shape[2], of_source.shape[2]))
    for padded, one in zip(attention, chosen, strict=True):
        rows, columns = one.attention.shape
        padded[:rows, :columns] = one.attention
    weights = _rows(of_target @ attention @ of_source.transpose(0, 2, 1))
    # A source word that all words of the target attend to a little, as a full stop, says nothing about one of them.
    weights = _rows(weights / np.maximum(weights.sum(axis=1, keepdims=True), LEAST_SUM))
    same = [
        (number, row, column)
        for number, (source, target) in enumerate(zip(sources, targets, strict=True))
        for word, row in target.once.items()
        if row >= 0 and (column := source.once.get(word, -1)) >= 0 and word.isalnum()
    ]
    if same:
        weights[tuple(zip(*same, strict=True))] += SAME
    mine, others = _signs(sources, weights.shape[2]), _signs(targets, weights.shape[1])
    weights[mine[:, None, :] != others[:, :, None]] *= OTHER_KIND
    # Words that one token spells have equal weights: of such ones the first, whatever else is in the batch.
    weights = weights.round(DIGITS)
    best = weights.argmax(axis=2)
    found = np.take_along_axis(weights, best[:, :, None], 2)[:, :, 0] > 0
    found &= ~others | np.take_along_axis(mine, best, 1)  # else a sign of its own
    shares = _rows(weights**POWER).round(DIGITS)
    several = found & (shares.max(axis=2) < SURE_SHARE)
    counted: dict[tuple[int, int], list[tuple[Place, float]]] = {}
    for number, row, column in np.argwhere(several[:, :, None] & (shares > LEAST_SHARE)).tolist():
        share = sources[number].places[column], float(shares[number, row, column])
        counted.setdefault((number, row), []).append(share)
    for number, (of_one, is_found) in enumerate(zip(best.tolist(), found.tolist(), strict=True)):
        places, target = sources[number].places, targets[number]
        aligned[batch[number]] = [
            Pair(place, places[of_one[row]] if is_found[row] else (0, 0), counted.get((number, row), ()))
            for row, place in enumerate(target.places)
            if not target.particles[row]
        ]


def _rows(weights: Floats) -> Floats:
    """Scale rows to a sum of 1."""
    scaled: Floats = weights / np.maximum(weights.sum(axis=2, keepdims=True), 1e-9)
    return scaled


def _signs(sides: Sequence[_Words], most: int) -> npt.NDArray[np.bool_]:
    """Return True for signs, False for words and padding, [B, most]."""
    return np.array([one.signs + [False] * (most - len(one.signs)) for one in sides], bool)


def _shares(sides: Sequence[_Words], tokens: Sequence[Sequence[Place]]) -> Floats:
    """Return the share of each token's characters in each word, [B, words, tokens]."""
    most_words, most_tokens = max(1, *(len(one.places) for one in sides)), max(map(len, tokens))
    cells: list[int] = []
    shares: list[float] = []
    for number, (of_text, of_tokens) in enumerate(zip(sides, tokens, strict=True)):
        places = of_text.places
        ends = [end for _, end in places]
        first_cell = number * most_words * most_tokens
        for token, (first, after) in enumerate(of_tokens):
            word = bisect_right(ends, first) if first < after else len(places)
            while word < len(places) and (start := places[word][0]) < after:
                cells.append(first_cell + word * most_tokens + token)
                shares.append((min(after, ends[word]) - max(first, start)) / (after - first))
                word += 1
    found = np.zeros(len(sides) * most_words * most_tokens)
    found[cells] = shares
    return found.reshape(len(sides), most_words, most_tokens)
