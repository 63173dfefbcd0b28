"""Placeholders in a translation: each exactly once, in place of its copy or where alignment puts it."""

import re
import unicodedata
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

from jumok_serve.tasks.particles import particles
from jumok_serve.tasks.word_alignment import Pair, Place, words
from jumok_serve.text.holes import HANGUL, UNSPACED
from jumok_serve.text.messages import gaps
from jumok_serve.text.placeholders import MARK, Placeholder

_OPENING, _CLOSING = frozenset(("Ps", "Pi")), frozenset(("Pe", "Pf"))
"""Unicode's categories of punctuation that no white space follows, or precedes."""
_STOPS = frozenset(".,;:!?%…、。")
"""Other punctuation that no white space precedes, also in full width."""
PERCENT_SIGNS: Final = frozenset("%\uff05\u066a")
_APOSTROPHES: Final = frozenset("'\u2019")
_MARKS: Final = frozenset("%${}<>\\&@#")
"""Characters that placeholders begin or end with."""
_TAG: Final = re.compile(r"[<\[](/?)([\w:.-]+)[^<>\[\]]*[>\]]|[!^]?\[|(\]\().*")
"""A tag in plain text, or a side of a link."""
_STATEMENT: Final = re.compile(r"\{%-?\s*(?:if|unless|for|el|end|with|block|case|when)|\{\{(?:[#^/]|\s*else)")
_UNSPACED: Final = re.compile(f"[{UNSPACED}]")
_HANGUL: Final = re.compile(f"[{HANGUL}]+")
_WORD: Final = re.compile(f"[^\\W{UNSPACED}{HANGUL}]")
_PERCENTAGE: Final = re.compile(
    r"(?:[%\u066a]\s?|百分之)?(?<!\d)(?<!\d[.,])\d{1,15}(?:[.,'\u2019\u00a0\u202f]\d{3}(?!\d)|[.,]\d{1,15}){0,5}"
    r"(?:\s?(?:[%\uff05\u066a]|(?i:pro[sz]ent|procent|per\s?cent|pour\s?cent|por\s?cien|процент|퍼센트|프로|パーセント)))?"
)
_DIGIT: Final = re.compile(r"[.,]?\d")
_GLUED: Final = re.compile(rf"(?!s\b){_WORD.pattern}")
"""Letter behind a copy that is no ending of it, as of a genitive."""

_BEGUN: Final = re.compile(r"((?:(?<=d)(?:e[mnrs]?|ie|as|u)|(?<=u)nd|(?<=[is])i?s?e)(?= \w))|(?<=[ds])[aeiouäöü]\w{2}")
"""What models make of a conversion's letter: `%die Seiten` has an article, which goes, and `%dateien` another word."""


class Edit(NamedTuple):
    """A change of a translation.

    Attributes:
        first, after: the part that is replaced.
        number: index of the placeholder in its place; -1: none.
    """

    first: int
    after: int
    number: int = -1


class Spliced(NamedTuple):
    """A translation with placeholders.

    Attributes:
        text: the translation.
        placeholders: placeholders of the text, [n].
        places: their places in the translation, [n].
        missing: numbers of those that the model did not write.
        edits: changes that made it, with the characters before and after the parts that they replaced.
    """

    text: str
    placeholders: Sequence[Placeholder]
    places: tuple[Place, ...]
    missing: frozenset[int]
    edits: tuple[tuple[Edit, int], ...]

    def moved(self, index: int) -> int:
        """Return the place of a character that was not replaced."""
        number = bisect_right(self.edits, index, key=lambda one: one[0].after)
        return index + self.edits[number - 1][1] if number else index

    def words(self, pairs: Sequence[Pair]) -> list[Pair]:
        """Return the aligned words of the translation; each placeholder is one."""
        firsts = [edit.first for edit, _ in self.edits]
        kept = list[Pair]()
        for (first, after), source, shares in pairs:
            number = bisect_left(firsts, after)
            if not number or self.edits[number - 1][0].after <= first:
                kept.append(Pair((self.moved(first), self.moved(first) + after - first), source, shares))
        placed = (Pair(place, one.place) for place, one in zip(self.places, self.placeholders, strict=True))
        return sorted([*kept, *placed])


class Splicing:
    """A translation that gets the placeholders of its text.

    Args:
        text: the text as the model reads it.
        placeholders: its placeholders, [n].
        target: the translation.
        begin: index in the translation after the target prefix, which stays as it is.
        percentages: True: percentages that the translation lacks are placeholders too.

    Attributes:
        complete: True if the translation has a copy of each, and words between copies of tags.
    """

    def __init__(
        self, text: str, placeholders: Sequence[Placeholder], target: str, begin: int = 0, *, percentages: bool = False
    ) -> None:
        self._text = text
        self._placeholders = [*placeholders]
        self._target = target
        self._begin = begin
        edits = list[Edit]()
        if target == text:
            edits = [Edit(*one.place, number) for number, one in enumerate(placeholders)]
        else:
            waiting: dict[str, deque[int]] = {}
            for number, one in enumerate(placeholders):
                waiting.setdefault(text[one.start : one.end], deque()).append(number)
            for first, after in _copies_of(waiting, target):
                if numbers := waiting[target[first:after]]:
                    end = placeholders[number := numbers.popleft()].end
                    can_begin = target[first] == "%" and first >= begin and not text[end : end + 1].isalnum()
                    begun = _BEGUN.match(target, after) if can_begin else None
                    edits.append(Edit(first, after + (len(begun[1] or "") or -1 if begun else 0), number))
                elif first >= begin:
                    edits.append(_widened(target, first, after, begin))
        self._pairs = list(_pairs_of(placeholders))
        self._tight = set[int]()  # tags that spaces inside of them were taken from
        self._copies = {edit.number: edit[:2] for edit in edits if edit.number >= 0}
        self._edits = list(self._with_marks(sorted(edits)))
        self._kept = [(edit.first, edit.after) for edit in self._edits]
        if percentages and target != text:
            self._add_percentages()
        self._hollow = [pair for pair in self._pairs if self._is_hollow(*pair)]
        self.complete = len(self._copies) == len(self._placeholders) and not self._hollow

    def _is_hollow(self, start: int, end: int) -> bool:
        """True if the copies of two tags have no word between them, but the tags do in the text."""
        given = self._text[self._placeholders[start].end : self._placeholders[end].start]
        if not (start in self._copies and end in self._copies and any(map(str.isalnum, given))):
            return False
        left, right = sorted((self._copies[start], self._copies[end]))
        return self._begin <= left[0] and not self._target[left[1] : right[0]].strip()

    def _fill(self, pairs: Sequence[Pair]) -> None:
        """Put tags without words between them around the words that alignment finds for those of the text."""
        for start, end in self._hollow:
            first, after = self._placeholders[start].end, self._placeholders[end].start
            found = (place for place, source, _ in pairs if first <= source[0] < source[1] <= after)
            run = _longest([place for place in found if self._is_free(place)], self._target)
            if run is not None:
                left, right = sorted((self._copies[start], self._copies[end]))
                self._copies.update({start: (run[0], run[0]), end: (run[1], run[1])})
                kept = (edit for edit in self._edits if edit.number not in {start, end})
                removed = _widened(self._target, left[0], right[1], self._begin)
                self._edits = sorted([*kept, removed, Edit(run[0], run[0], start), Edit(run[1], run[1], end)])

    def _is_free(self, place: Place) -> bool:
        """True if a word of the translation is in no copy, nor in the target prefix."""
        number = bisect_left(self._kept, (place[1],))
        return place[0] >= self._begin and (not number or self._kept[number - 1][1] <= place[0])

    def _add_percentages(self) -> None:
        """Add percentages that the translation lacks; others that it has instead are their copies."""
        written: dict[str, deque[Place]] = {}
        for place, digits in _percentages(self._target, self._kept):
            if place[0] >= self._begin:
                written.setdefault(digits, deque()).append(place)
        lacking = list[Place]()
        for place, digits in _percentages(self._text, [one.place for one in self._placeholders]):
            if found := written.get(digits):
                insort(self._kept, found.popleft())
            elif not PERCENT_SIGNS.isdisjoint(self._text[slice(*place)]):
                lacking.append(place)
        surplus = deque(sorted(chain.from_iterable(written.values())))
        for first, after in lacking:
            if surplus:
                self._copies[len(self._placeholders)] = surplus[0]
                insort(self._edits, Edit(*surplus[0], len(self._placeholders)))
                insort(self._kept, surplus.popleft())
            self._placeholders.append(Placeholder(first, after, self._text[first:after], (), spliced=True))

    def _with_marks(self, edits: Sequence[Edit]) -> Iterator[Edit]:
        """Yield changes that replace marks beside copies too, which would make other placeholders, as `%` of `%%s`.

        Marks that the text has itself stay.
        """
        between = gaps([one.place for one in self._placeholders], 0, len(self._text))
        marks = self._marks = _MARKS.difference(*(self._text[first:after] for first, after in between))
        done = self._begin
        for index, edit in enumerate(edits):
            following = edits[index + 1].first if index + 1 < len(edits) else len(self._target)
            first, after = edit.first, edit.after
            while first > done and self._target[first - 1] in marks:
                first -= 1
            while self._begin <= first and after < following and self._target[after] in marks:
                after += 1
            yield Edit(first, after, edit.number)
            done = after

    def spliced(self, pairs: Sequence[Pair] | None) -> Spliced:
        """Return the translation with each placeholder once.

        Args:
            pairs: aligned words of the translation; None: the model does not align, or all have copies.
        """
        self._fill(pairs or ())
        missing = () if self.complete else self._missing(pairs)
        return self._written(self._in_pairs(sorted([*self._edits, *missing])))

    def _in_pairs(self, edits: list[Edit]) -> list[Edit]:
        """Change the start tag and the end tag of a pair for each other if they are in the wrong order.

        Statements of templates are in the order of the text.
        """
        places = {edit.number: place for place, edit in enumerate(edits)}
        for start, end in self._pairs:
            place, other = places[end], places[start]
            if place < other and self._begin <= edits[place].first:
                for changed, one_of_pair in ((place, start), (other, end)):
                    edits[changed] = edits[changed]._replace(number=one_of_pair)
                place, other = other, place
            self._tighten(edits, other, place)
        statements = [number for number, one in enumerate(self._placeholders) if _STATEMENT.match(one.content)]
        if not self._begin:
            for number, place in zip(statements, sorted(places[number] for number in statements), strict=True):
                edits[place] = edits[place]._replace(number=number)
        return edits

    def _tighten(self, edits: list[Edit], start: int, end: int) -> None:
        """Take the spaces inside of two tags into the changes that write them if the text has none there."""
        given, copy = self._placeholders[edits[start].number], edits[start]
        until = edits[start + 1].first if start + 1 < len(edits) else len(self._target)
        if self._begin <= copy.first < copy.after < until and self._target[copy.after] == " " != self._text[given.end]:
            edits[start] = copy._replace(after=copy.after + 1)
            self._tight.add(copy.number)
        given, copy = self._placeholders[edits[end].number], edits[end]
        since = max(self._begin, edits[end - 1].after if end else 0)
        if since < copy.first < copy.after and self._target[copy.first - 1] == " " != self._text[given.start - 1]:
            edits[end] = copy._replace(first=copy.first - 1)
            self._tight.add(copy.number)

    def _missing(self, pairs: Sequence[Pair] | None) -> Iterator[Edit]:
        """Yield the changes that write placeholders without a copy."""

        target = self._target
        free = [pair for pair in pairs or [Pair(word, (0, 0)) for word in words(target)] if self._is_free(pair.place)]
        aligned = [(pair.source, pair.place) for pair in free if pair.source[0] < pair.source[1]]
        aligned += [((one.start, one.end), self._copies[number]) for number, one in self._numbered(missing=False)]
        by_start, by_end = sorted(aligned), sorted(((start, end)[::-1], word) for (start, end), word in aligned)
        edges = sorted({self._begin, *(edge for pair in free for edge in pair.place), len(target)})
        rests: dict[str, deque[Place]] = {}  # of copies that broke, by what is left
        for pair in free:
            if self._marks.issuperset(written := target[slice(*pair.place)]):
                rests.setdefault(written, deque()).append(pair.place)
        used = set[int]()
        for number, one in self._numbered(missing=True):
            read = self._text[one.start : one.end]
            inside = by_start[bisect_left(by_start, ((one.start,),)) : bisect_left(by_start, ((one.end,),))]
            run = _longest([word for (_, end), word in inside if end <= one.end], target)
            written = target[slice(*run)] if run else ""
            is_number = written.isdecimal() and read[0].isdecimal() and written not in self._text
            copy = run if written and (is_number or _stands_for(written, read)) else None
            for left in rests.values():
                while left and left[0][0] in used:
                    left.popleft()
            own = [left[0] for mark, left in rests.items() if left and set(mark) <= set(read)]
            if copy := copy or min(own, default=None):
                used.update(range(*copy))
                yield Edit(*copy, number)
                continue
            place = run[0] if run else max(self._begin, self._beside(one, by_start, by_end, edges))
            if read == MARK and (not one.start or one.end == len(self._text)):
                place = len(target) if one.start else self._begin
            yield Edit(place, place, number)

    def _numbered(self, *, missing: bool) -> Iterator[tuple[int, Placeholder]]:
        numbered = enumerate(self._placeholders)
        return ((number, one) for number, one in numbered if (number not in self._copies) is missing)

    def _beside(
        self,
        one: Placeholder,
        by_start: Sequence[tuple[Place, Place]],
        by_end: Sequence[tuple[Place, Place]],
        edges: Sequence[int],
    ) -> int:
        """Return the place of a placeholder by those of its neighbours, or by its share of the text.

        Args:
            by_start: source places with their words.
            by_end: source places, the end first, with their words.
            edges: beginnings and ends of words.
        """
        left, right = bisect_left(by_end, ((one.start + 1,),)) - 1, bisect_left(by_start, ((one.end,),))
        if left >= 0 and (right == len(by_start) or one.start - by_end[left][0][0] <= by_start[right][0][0] - one.end):
            return by_end[left][1][1]
        if right < len(by_start):
            return by_start[right][1][0]
        wanted = self._begin + (len(self._target) - self._begin) * one.start // len(self._text)
        nearest = bisect_left(edges, wanted)
        return min(edges[max(0, nearest - 1) : nearest + 1], key=lambda edge: abs(edge - wanted))

    def _is_particle(self, index: int) -> bool:
        """True if a Korean particle begins at a place, which follows without a space."""
        found = _HANGUL.match(self._target, index)
        return found is not None and found.end() - index in particles("a" + found[0])

    def _are_joined(self, *edits: Edit) -> bool:
        """True if two placeholders have nothing between them in the text, as those in elements of their own."""
        left, right = (self._placeholders[edit.number] if edit.number >= 0 else None for edit in edits)
        return left is not None and right is not None and left.end == right.start

    def _written(self, edits: Sequence[Edit]) -> Spliced:
        """Change the translation."""
        parts, length, done, last = list[str](), 0, 0, ""
        places: list[Place] = [(0, 0)] * len(self._placeholders)
        moved = list[tuple[Edit, int]]()

        def add(text: str) -> None:
            nonlocal length, last
            parts.append(text)
            length += len(text)
            last = text[-1:] or last

        for edit in edits:
            touches = bool(moved) and moved[-1][0].number >= 0 and moved[-1][0].after == edit.first
            between = self._target[done : edit.first]
            if not (between.isspace() and moved and self._are_joined(moved[-1][0], edit)):
                add(between)
            done = max(done, edit.after)
            if edit.number >= 0:
                one = self._placeholders[edit.number]
                inserted = edit.first == edit.after or edit.number in self._tight
                is_free = edit.first >= self._begin  # of the target prefix, which stays
                if inserted or touches or (is_free and _WORD.match(last)):  # as a word is
                    add(space_between(last, "a", self._text[max(0, one.start - 1) : one.start]))
                places[edit.number] = length, length + len(one.content)
                add(one.content)
                following, neighbour = self._target[done : done + 1], self._text[one.end : one.end + 1]
                if is_free and (neighbour, following) == ("\u00a0", " "):
                    add("\u00a0")
                    done += 1
                is_glued = is_free and _GLUED.match(self._target, done) and neighbour not in _APOSTROPHES
                if is_glued or (inserted and not self._is_particle(done)):
                    add(space_between("a", following, neighbour))
            moved.append((edit, length - done))
        add(self._target[done:])
        missing = frozenset(number for number, _ in self._numbered(missing=True))
        return Spliced("".join(parts), self._placeholders, tuple(places), missing, tuple(moved))


def _pairs_of(placeholders: Sequence[Placeholder]) -> Iterator[Place]:
    """Yield the numbers of the start tags and end tags that belong together."""
    opened: dict[str | None, list[int]] = {}
    for number, one in enumerate(placeholders):
        if (tag := _TAG.fullmatch(one.content)) is None:
            continue
        if not (tag[1] or tag[3]):
            opened.setdefault(tag[2], []).append(number)
        elif starts := opened.get(tag[2]):
            yield starts.pop(), number


def _percentages(text: str, taken: Sequence[Place] = ()) -> Iterator[tuple[Place, str]]:
    """Yield the places of a text's percentages, and their digits without separators.

    Args:
        taken: places in their order that no percentage overlaps.
    """
    for found in _PERCENTAGE.finditer(text):
        first, after = found.span()
        number = bisect_left(taken, (after,))
        is_number = found[0][0].isdecimal() and found[0][-1].isdecimal()
        if not is_number and (not number or taken[number - 1][1] <= first):
            yield (first, after), "".join(str(int(one)) for one in found[0] if one.isdecimal())


def _copies_of(texts: Collection[str], target: str) -> list[Place]:
    """Return the places of texts in a translation, the longest first, and then in order."""
    taken = bytearray(len(target))
    found = list[Place]()
    for text in sorted(texts, key=len, reverse=True):
        after = 0
        while (first := target.find(text, after)) >= 0:
            after = first + len(text)
            if not any(taken[first:after]) and _is_whole(
                text, target[max(0, first - 2) : first], target[after : after + 2]
            ):
                taken[first:after] = b"\1" * len(text)
                found.append((first, after))
    return sorted(found)


def _is_whole(text: str, before: str, after: str) -> bool:
    """True if a text between two others is no part of a longer word or number."""
    if any(edge.isdecimal() and _DIGIT.match(side) for edge, side in ((text[0], before[::-1]), (text[-1], after))):
        return False
    is_word = text[0].isalnum() and text[-1].isalnum() and not text.isdecimal()
    return not (is_word and (_WORD.match(before[-1:]) or _WORD.match(after)))


def _widened(target: str, first: int, after: int, begin: int) -> Edit:
    """Return the removal of a surplus copy, with brackets or quotation marks around it, and a space beside it."""
    while begin < first and after < len(target) and _are_pair(target[first - 1], target[after]):
        first, after = first - 1, after + 1
    following = target[after : after + 1]
    if begin < first and target[first - 1].isspace() and (not following or following.isspace() or _is_stop(following)):
        first -= 1
    elif first == 0 and following.isspace():
        after += 1
    return Edit(first, after)


def _are_pair(left: str, right: str) -> bool:
    quoted = left == right and left in "\"'"
    return quoted or (unicodedata.category(left) in _OPENING and unicodedata.category(right) in _CLOSING)


def _is_stop(character: str) -> bool:
    return unicodedata.category(character) in _CLOSING or unicodedata.normalize("NFKC", character) in _STOPS


def _longest(found: Sequence[Place], target: str) -> Place | None:
    """Return the longest run of words with nothing but white space between them."""
    runs = list[Place]()
    for first, after in sorted(found):
        if runs and not target[runs[-1][1] : first].strip():
            runs[-1] = (runs[-1][0], after)
        else:
            runs.append((first, after))
    return max(runs, key=lambda run: run[1] - run[0], default=None)


def _stands_for(written: str, read: str) -> bool:
    """True if a part of a translation is a changed copy, or the translation of a word that is to be copied."""
    return read.isalpha() or set("".join(written.casefold().split())) <= set(read.casefold())


def space_between(left: str, right: str, neighbour: str) -> str:
    """Return a space if two characters would touch, but did not where the source has another neighbour."""
    if not (left and right) or any(one.isspace() or _UNSPACED.match(one) for one in (left, right)):
        return ""
    if unicodedata.category(left) in _OPENING or _is_stop(right):
        return ""
    return " " if neighbour.isspace() or (left.isalnum() and right.isalnum() and not neighbour.isalnum()) else ""
