"""Places of tags in the translation of a block, by an alignment of words.

Each span over the source takes one interval of the target's words, inside of its parent's and apart from its siblings.
Among all such intervals, in the order in which the siblings' words stand in the target, those with the largest sum of
gains are taken: a word gains the share of its source words inside of the span, less `THRESHOLD`.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from jumok_serve.tasks.word_alignment import Pair, Place, after_particle, words
from jumok_serve.text.markup.parser import Block, Span, all_spans

THRESHOLD = 0.5
"""A word gains if more than this share of its source words is inside of the span."""
UNALIGNED = -0.05
"""Gain of a word without source word: a span has none at its ends, but may go over one."""
OUTSIDE = -64.0
"""Gain of words of sentences that the span is not in."""
EMPTY = -1e6
"""Gain of a span without words: only if there are more spans than words."""

MAX_CELLS = 2**19
"""Spans times words of a block whose gains are compared; further spans are placed by the order of the source."""
MAX_STEPS = 256
"""Words of the source that are looked at for the neighbour of a mark."""


class Word(NamedTuple):
    """A word of the target.

    Attributes:
        start, end: indices of the source text that it is aligned to most; equal without alignment.
        sentence: index of its sentence.
        shares: parts of the source with its share of each, if several count.
    """

    start: int
    end: int
    sentence: int
    shares: Sequence[tuple[Place, float]] = ()


class WrittenForm(NamedTuple):
    """A part of a translation that is written as in the source, and no tag divides.

    Attributes:
        first, after: its place in the translation.
        text: what is written, markup included.
    """

    first: int
    after: int
    text: str


def needs_alignment(block: Block) -> bool:
    """True if a span or a mark begins or ends inside of the text."""
    return any(not {span.start, span.end} <= {0, len(block.text)} for span in all_spans(block.spans))


def write_block(
    block: Block,
    sources: Sequence[Place],
    kept_texts: Sequence[str],
    translations: Sequence[str],
    aligned_words: Sequence[Sequence[Pair] | None],
    *,
    forms: Sequence[WrittenForm] = (),
) -> str:
    """Write the translation of a block with its tags.

    Args:
        sources: places of its sentences, [n].
        kept_texts: text before, between and after their translations, [n + 1].
        translations: of the sentences, [n].
        aligned_words: aligned words of each sentence; None: all tags are around it, [n].
        forms: placeholders of the translation, in their order.
    """
    aligned: list[Word] = []
    places: list[Place] = []
    sentences: list[Place] = []
    target = ""

    def add(written: str, source: Place, pairs: Iterable[Pair]) -> None:
        nonlocal target
        at, shift, sentence = len(target), source[0], len(sentences)
        for (first, after), (start, end), of_words in pairs:
            places.append((at + first, at + after))
            shares = [((shift + begin, shift + stop), share) for (begin, stop), share in of_words]
            aligned.append(Word(shift + start, shift + end, sentence, shares))
        sentences.append(source)
        target += written

    end = 0
    for index, (kept, place) in enumerate(zip(kept_texts, (*sources, (len(block.text),) * 2), strict=True)):
        add(kept, (end, place[0]), [Pair(word, word) for word in words(kept)] if kept else ())
        if index < len(translations):
            written, pairs = translations[index], aligned_words[index]
            if pairs is None:
                everything = -place[0], len(block.text) - place[0]  # all spans have all words
                pairs = [Pair(word, everything) for word in words(written)]
            add(written, place, pairs)
        end = place[1]
    intervals = transfer(block.spans, block.text, aligned, sentences)
    return write_spans(block.spans, intervals, target, places, block.escape, forms)


Interval: TypeAlias = tuple[int, int]
"""First word of a span, and the word after its last."""


def transfer(
    spans: Sequence[Span], text: str, words: Sequence[Word], sentences: Sequence[tuple[int, int]]
) -> dict[Span, Interval]:
    """Return the interval of each span; that of a mark is empty.

    Args:
        spans: outermost spans.
        text: source text.
        words: words of the target, sentence by sentence.
        sentences: first index of each source sentence, and the index after it.
    """
    target = _Target(text, words, sentences)
    found: dict[Span, Interval] = {}
    waiting = [(list(spans), 0, len(text), (0, len(words)))]
    while waiting:
        siblings, start, end, within = waiting.pop()
        placed = _place(target, [one for one in siblings if not one.is_mark], within)
        found |= placed
        apart = sorted((first, after, one.start) for one, (first, after) in placed.items())
        for one in siblings:
            if one.is_mark:
                found[one] = _mark(target, one.start, (start, end), within, apart)
            if one.children:
                waiting.append((one.children, one.start, one.end, found[one]))
    return found


class _Target:
    """The target's words, with the part of the source and the sentence of each."""

    def __init__(self, text: str, words: Sequence[Word], sentences: Sequence[tuple[int, int]]) -> None:
        self.text = text
        self.words = words
        self.cells = MAX_CELLS  # that are left
        self._starts = [start for start, _ in sentences]
        self._sentences = [word.sentence for word in words]
        # Words with a source word, by its end and by its start.
        self._by_end = sorted((word.end, place) for place, word in enumerate(words) if word.start < word.end)
        self._by_start = sorted((word.start, place) for place, word in enumerate(words) if word.start < word.end)

    @cached_property
    def _solid(self) -> list[int]:
        """Indices of the characters that are not white space."""
        return [index for index, character in enumerate(self.text) if not character.isspace()]

    @cached_property
    def _reached(self) -> list[int]:
        """Return how far in the source each word or one before it is."""
        return list(accumulate((word.start for word in self.words), max))

    def in_order(self, spans: Sequence[Span], window: Interval) -> dict[Span, Interval]:
        """Place siblings with text where the source first gets to them."""
        return {one: (self._place_of(one.start, window), self._place_of(one.end, window)) for one in spans}

    def _place_of(self, index: int, window: Interval) -> int:
        return bisect_left(self._reached, index, *window)

    def around(self, index: int) -> tuple[int, int]:
        """Return the end of the last character before a place that is not white space, and the start of the next."""
        place = bisect_left(self._solid, index)
        before = self._solid[place - 1] + 1 if place else 0
        return before, self._solid[place] if place < len(self._solid) else len(self.text)

    def neighbours(self, index: int, window: Interval) -> tuple[int | None, int | None]:
        """Return the words of a window whose source words are nearest before a place, and after it."""
        lo, hi = window
        end, start = bisect_left(self._by_end, (index + 1,)), bisect_left(self._by_start, (index,))
        before = reversed(self._by_end[max(0, end - MAX_STEPS) : end])
        after = self._by_start[start : start + MAX_STEPS]
        left, right = (next((place for _, place in some if lo <= place < hi), None) for some in (before, after))
        return left, right

    def sentences(self, start: int, end: int) -> tuple[int, int]:
        """Return the first sentence of a part of the text, and the last."""
        first = bisect_right(self._starts, start) - 1
        last = bisect_left(self._starts, max(end, start + 1)) - 1
        return max(first, 0), max(last, 0)

    def window(self, start: int, end: int, within: Interval) -> Interval:
        """Return the words of a source part's sentences; all words within the interval if there are none."""
        first, last = self.sentences(start, end)
        lo = max(within[0], bisect_left(self._sentences, first))
        hi = min(within[1], bisect_right(self._sentences, last))
        return (lo, hi) if lo < hi else within

    def gains(self, span: Span, window: Interval) -> list[float]:
        """Return the gain of each word of a window."""
        first, after = span.start, span.end
        gains = []
        for start, end, _, shares in self.words[slice(*window)]:
            if end <= start:
                gains.append(UNALIGNED)
            elif not shares and first <= start and end <= after:
                gains.append(1 - THRESHOLD)
            else:
                gains.append(
                    sum(
                        share * max(min(stop, after) - max(begin, first), 0) / (stop - begin)
                        for (begin, stop), share in shares or [((start, end), 1.0)]
                    )
                    - THRESHOLD
                )
        return gains


class _Candidate(NamedTuple):
    span: Span
    window: Interval
    gains: Sequence[float]


def _place(target: _Target, spans: Sequence[Span], within: Interval) -> dict[Span, Interval]:
    """Place siblings with text, those with common words together."""
    found: dict[Span, Interval] = {}
    group: list[tuple[Span, Interval]] = []
    end = within[0]
    for span in spans:
        window = target.window(span.start, span.end, within)
        if group and window[0] >= end:
            found |= _place_group(target, group)
            group = []
        group.append((span, window))
        end = max(end, window[1])
    return found | (_place_group(target, group) if group else {})


def _middle(one: _Candidate) -> float:
    """Return the mean place of the words that gain, or the middle of the best."""
    inside = [place for place, gain in enumerate(one.gains) if gain > 0]
    inside = inside or [one.gains.index(max(one.gains)) if one.gains else 0]
    return one.window[0] + sum(inside) / len(inside)


def _place_group(target: _Target, spans: Sequence[tuple[Span, Interval]]) -> dict[Span, Interval]:
    """Place siblings in the order of the source or of the target, whichever gains more."""
    lo, hi = min(window[0] for _, window in spans), max(window[1] for _, window in spans)
    target.cells -= len(spans) * (hi - lo)
    if target.cells < 0:
        return target.in_order([span for span, _ in spans], (lo, hi))
    group = [_Candidate(span, window, target.gains(span, window)) for span, window in spans]
    orders = [sorted(group, key=_middle)]
    orders += [] if orders[0] == group else [group]
    found = [(order, *best_intervals([_widened(one, lo, hi) for one in order])) for order in orders]
    order, _, intervals = max(found, key=itemgetter(1))
    return {one.span: (lo + first, lo + after) for one, (first, after) in zip(order, intervals, strict=True)}


def _widened(one: _Candidate, lo: int, hi: int) -> Sequence[float]:
    """Return the gains of all words of the group."""
    return [*[OUTSIDE] * (one.window[0] - lo), *one.gains, *[OUTSIDE] * (hi - one.window[1])]


def best_intervals(gains: Sequence[Sequence[float]]) -> tuple[float, list[Interval]]:
    """Return disjoint intervals in order with the largest sum of gains, [k], and the sum.

    Plain numbers: sentences are short, and for them arrays take several times as long.

    Args:
        gains: gains of each word for each interval, [k][n].
    """
    best = [0.0] * (len(gains[0]) + 1)  # of the intervals so far within the first words
    steps: list[tuple[list[int], list[int]]] = []
    for of_one in gains:
        lasts, starts, ending_best = [0], [0], [best[0] + EMPTY]
        total, most, last = 0.0, ending_best[0], 0
        opened, first = best[0], 0  # before the first word of the interval
        for place, gain in enumerate(of_one, 1):
            before = best[place]
            total += gain
            ending, start = total + opened, first
            if ending < before + EMPTY:
                ending, start = before + EMPTY, place
            starts.append(start)
            if ending > most:
                most, last = ending, place
            ending_best.append(most)
            lasts.append(last)
            if before - total >= opened:
                opened, first = before - total, place
        best = ending_best
        steps.append((lasts, starts))
    intervals: list[Interval] = []
    place = len(best) - 1
    for lasts, starts in reversed(steps):
        after = lasts[place]
        place = starts[after]
        intervals.append((place, after))
    return best[-1], intervals[::-1]


def _mark(
    target: _Target, index: int, parent: tuple[int, int], within: Interval, apart: Sequence[tuple[int, int, int]]
) -> Interval:
    """Place a mark by the words beside it, inside of its parent and of no sibling.

    Args:
        apart: interval of each sibling with text, and the first index of its text; ascending.
    """
    place = _beside(target, index, parent, within)
    before = bisect_left(apart, (place,)) - 1
    if before >= 0 and place < apart[before][1]:
        place = apart[before][0] if index <= apart[before][2] else apart[before][1]
    return place, place


def _beside(target: _Target, index: int, parent: tuple[int, int], within: Interval) -> int:
    left_end, right_start = target.around(index)
    if left_end <= parent[0]:
        return within[0]
    if right_start >= parent[1]:
        return within[1]
    window = target.window(left_end - 1, left_end, within)
    if target.sentences(left_end - 1, left_end) != target.sentences(right_start, right_start + 1):
        return window[1]  # between two sentences
    left, right = target.neighbours(index, window)
    if right is not None and (left_end < index or left is None):
        return right
    return window[1] if left is None else left + 1


def write_spans(  # noqa: PLR0917 - the texts with their places
    spans: Sequence[Span],
    found: Mapping[Span, Interval],
    target: str,
    words: Sequence[tuple[int, int]],
    escape: Callable[[str], str],
    forms: Sequence[WrittenForm] = (),
) -> str:
    """Write a translation with the tags of its spans, each once.

    Args:
        found: interval of each span in the words.
        target: plain translation.
        words: first character of each word, and the character after it.
        forms: placeholders of the translation, in their order.
    """
    parts: list[str] = []
    done = 0
    left = deque(forms)

    def text_until(place: int) -> None:
        nonlocal done
        while left and left[0].first < place:
            form = left.popleft()
            parts.extend((escape(target[done : form.first]), form.text))
            done = form.after
        if place > done:
            parts.append(escape(target[done:place]))
            done = place

    waiting: list[tuple[Span, int, bool]] = []  # the last is true for the end of a span

    def add(siblings: Sequence[Span], limit: int) -> None:
        waiting.extend((span, limit, False) for span in sorted(siblings, key=found.__getitem__)[::-1])

    add(spans, len(target))
    while waiting:
        span, limit, is_end = waiting.pop()
        if is_end:
            text_until(limit)
            parts.append(span.closing)
            continue
        first, after = found[span]
        empty = first == after
        begin = words[first][0] if first < len(words) else 0
        if empty and first:
            begin = after_particle(target, words[first - 1][1])
        if empty and span.after_space and first < len(words) and words[first][0] <= limit:
            begin = words[first][0]
        text_until(begin)
        end = done if empty else words[after - 1][1]
        parts.append(span.opening)
        waiting.append((span, end, True))
        add(span.children, end)
    text_until(len(target))
    return "".join(parts)
