"""Terms of a request: glossary, and parts of texts that are copied."""

import re
import sys
import unicodedata
from array import array
from bisect import bisect_right
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from functools import lru_cache
from heapq import merge
from itertools import accumulate, islice
from typing import Final, NamedTuple, Self

from jumok_proto.errors import InvalidArgumentError
from jumok_proto.glossaries import read_tsv
from jumok_proto.text_options import TermOptions
from jumok_serve.interrupts import check
from jumok_serve.tasks.particles import particles
from jumok_serve.tasks.stand_ins import Hole
from jumok_serve.tasks.terms import MAX_TERMS, TermFinder, TermMatch
from jumok_serve.text.holes import BIDI, DEFAULT_KINDS, HANGUL, KINDS, MAX_HOLE, UNSPACED, find_holes
from jumok_serve.tokenizers.sentencepiece import ranges


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
    return re.compile(f"[{UNSPACED}][{of_words}]*|(?:(?![{UNSPACED}])[\\w{of_words}])+|[^\\w\\s]")


class Terminology:
    """Glossaries of a request; a `TermFinder`.

    Args:
        finders: the first come first: a term that overlaps one of an earlier finder does not count.
    """

    def __init__(self, *finders: TermFinder) -> None:
        self._finders = finders

    def find(self, text: str) -> list[TermMatch]:
        """Return the terms of a text in their order; of more than `MAX_TERMS` some, and one more than that."""
        found = list[TermMatch]()
        for finder in self._finders:
            earlier = tuple(found)
            others = (
                one
                for one in finder.find(text)
                if not any(one.first < other.after and other.first < one.after for other in earlier)
            )
            found += islice(others, MAX_TERMS + 1 - len(found))
        return sorted(found)


def terminology(options: TermOptions, stored: TermFinder | None = None) -> Terminology | None:
    """Return the terms that options give, or None without any.

    Args:
        stored: a stored glossary, which counts last.

    Raises:
        InvalidArgumentError: the glossary cannot be used.
    """
    finders = list[TermFinder]()
    if glossary := options.get("glossary"):
        finders.append(Glossary(glossary))
    if stored is not None:
        finders.append(stored)
    return Terminology(*finders) if finders else None


_PART: Final = re.compile(rf"[^\W{UNSPACED}{HANGUL}]+|[{HANGUL}]+|[{UNSPACED}]|\W")
_PATTERN_PART: Final = re.compile(rf"(?:[^\W{UNSPACED}{HANGUL}]|\*)+|[{HANGUL}*]+|[{UNSPACED}]|\W")
_BLOCK: Final = 1024
"""Parts of a text that are looked at together, and as many more as the longest pattern has."""


class Patterns:
    """Texts in which `*` stands for one or more letters, digits or `_`.

    A text has parts: runs of letters, digits and `_`, runs of Hangul, and single other characters, such as those of
    scripts without spaces. A pattern matches whole parts, as many as it has itself; after its last one a Korean
    particle may follow. So one integer holds the patterns that match from a place on, a bit for each part of each
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
        self._tails = [0 if "*" in parts[-1] else len(parts[-1]) for parts in split]
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
                    last = known[place + self._lengths[number] - 1]
                    yield known[place].start(), last.start() + (self._tails[number] or len(last[0]))
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
        for length in particles(part):
            bits |= self._whole.get(part[:-length], 0) & self._lasts
        if self._begun and (part[0].isalnum() or part[0] == "_"):
            for length in self._begun_lengths:
                if length >= len(part):
                    break
                bits |= self._begun.get(part[:length], 0)
        return bits


MAX_PATTERNS: Final = 64
MAX_CHARACTERS: Final = 256


_MARK: Final = re.compile(rf"[%~<>\[\]_`⟦⟧{{}}$@/\\:&#{BIDI}]|\d+|--|(?<![^\W_])-[A-Za-z]|\.\w|XX|[Ww]ww")
"""What every placeholder has, and most sentences do not."""


def count_marks(text: str) -> int:
    """Count the places of a text at which placeholders may begin."""
    return len(_MARK.findall(text))


class Placeholders:
    """Kinds of placeholders, and patterns; a `HoleFinder`.

    A pattern is a text that matches itself; `*` in it stands for one or more letters, digits or `_`.

    Attributes:
        kinds: see `jumok_serve.text.holes.KINDS`.
        keeps_percentages: see `HoleFinder`.
        num_bytes: memory that they take, about.

    Raises:
        InvalidArgumentError: an unknown kind, too many patterns, or an empty or too long one.
    """

    def __init__(self, kinds: Collection[str] = (), patterns: Sequence[str] = ()) -> None:
        for kind in kinds:
            if kind not in KINDS:
                raise _refused_placeholder(f"unknown kind {kind!r}: choose of {', '.join(sorted(KINDS))}")
        if len(patterns) > MAX_PATTERNS:
            raise _refused_placeholder(f"at most {MAX_PATTERNS} patterns are possible, got {len(patterns)}")
        for pattern in patterns:
            _check_pattern(pattern)
        self._patterns = Patterns(patterns) if patterns else None
        self.kinds = frozenset(kinds)
        self.keeps_percentages = "percent" in kinds
        self.num_bytes = 0 if self._patterns is None else self._patterns.num_bytes

    def find(self, text: str) -> list[Hole]:
        """Return the parts of a text to copy, in their order; parts of more than `MAX_HOLE` characters are left out."""
        holes = find_holes(text, self.kinds) if self.kinds and _MARK.search(text) else []
        if self._patterns is None:
            return holes
        patterns = (Hole(*place, "copied") for place in self._patterns.find(text))
        found, position = list[Hole](), 0
        for hole in merge(patterns, holes, key=lambda hole: hole.first):  # of one place, a pattern
            if hole.first >= position:
                position = hole.after
                if hole.after - hole.first <= MAX_HOLE or hole.kind == "icu":
                    found.append(hole)
        return found


PLACEHOLDERS: Final = Placeholders(DEFAULT_KINDS)
"""The placeholders that are copied by default."""


def placeholders_of(options: TermOptions) -> Placeholders | None:
    """Return the parts of texts to copy that options give, or None without any.

    Raises:
        InvalidArgumentError: they cannot be used.
    """
    patterns, kinds = options.get("do_not_translate") or (), options.get("placeholders") or ()
    if isinstance(patterns, str) or isinstance(kinds, str):
        raise InvalidArgumentError(
            "do_not_translate and placeholders must be sequences of texts, got a text", field="do_not_translate"
        )
    if kinds is True and not patterns:
        return PLACEHOLDERS
    return Placeholders(DEFAULT_KINDS if kinds is True else kinds, patterns) if patterns or kinds else None


def _check_pattern(pattern: object) -> None:
    if not isinstance(pattern, str):
        raise _refused_placeholder(f"a pattern must be a string, got {type(pattern).__name__}")
    if not pattern.strip("* \t\r\n"):
        raise _refused_placeholder(f"the pattern {pattern!r} matches any word: write more than *")
    if len(pattern) > MAX_CHARACTERS:
        raise _refused_placeholder(f"a pattern has at most {MAX_CHARACTERS} characters, got {len(pattern)}")


def _refused_placeholder(message: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"do_not_translate: {message}", field="do_not_translate")


MAX_ENTRIES: Final = 100_000
"""Most entries of a glossary; 100,000 of one word take about 13 MB of memory."""
MAX_TARGETS: Final = 8
"""Most target terms of an entry."""
WORDS_PER_LOOK: Final = 1024
"""Words of a text between two looks at whether its caller has left."""
PREFIX: Final = "glossary: "
"""Beginning of the messages of errors."""
_SEPARATOR: Final = "\t"
_ENTRY_BYTES: Final = 20
"""Bytes of an entry besides its texts."""
_UNUSABLE: Final = re.compile("[\t\r\n\0\ud800-\udfff]")


class Glossary:
    """Entries that map a source term to target terms; a translation contains one of these.

    Terms match whole words in any case, with any white space between them, and before Korean particles. At each place
    the longest one counts.

    Args:
        entries: target terms by source term.

    Attributes:
        num_bytes: memory that it takes.

    Raises:
        InvalidArgumentError: too many entries, an empty or too long term, or two source terms that match alike.
    """

    def __init__(self, entries: Mapping[str, str | Sequence[str]]) -> None:
        if len(entries) > MAX_ENTRIES:
            raise _refused(f"a glossary takes at most {MAX_ENTRIES} entries, got {len(entries)}: leave some out")
        terms = dict[str, str]()
        for source, targets in entries.items():
            _add(terms, source, [targets] if isinstance(targets, str) else targets)
        self._arrange(terms)

    @classmethod
    def from_tsv(cls, text: str) -> Self:
        """Make a glossary of lines; see `jumok_proto.glossaries.read_tsv`.

        Raises:
            InvalidArgumentError: too many entries, or a line that cannot be used; names the line.
        """
        terms = dict[str, str]()
        try:
            for line in read_tsv(text):
                if len(terms) == MAX_ENTRIES:
                    raise _refused(
                        f"line {line.number} is one too many: a glossary takes at most {MAX_ENTRIES} entries"
                    )
                try:
                    _add(terms, line.source, line.targets)
                except InvalidArgumentError as error:
                    raise _refused(f"line {line.number}: {str(error).removeprefix(PREFIX)}") from error
        except InvalidArgumentError:
            raise
        except ValueError as error:
            raise _refused(str(error)) from error
        glossary = cls({})
        glossary._arrange(terms)
        return glossary

    def _arrange(self, terms: Mapping[str, str]) -> None:
        """Sort terms, so that those with which a text may begin are found by bisection and then one in another."""
        self._sources = sorted(terms)
        self._targets = [terms[source] for source in self._sources]
        self._parents = array("i")  # number of the longest other term with which each one begins, or -1
        begun = [-1]
        for number, source in enumerate(self._sources):
            while begun[-1] >= 0 and not source.startswith(self._sources[begun[-1]]):
                begun.pop()
            self._parents.append(begun[-1])
            begun.append(number)
        self._longest = max(map(len, self._sources), default=0)
        self.num_bytes = sum(map(sys.getsizeof, (*self._sources, *self._targets))) + _ENTRY_BYTES * len(terms)

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._sources)

    def find(self, text: str) -> Iterator[TermMatch]:
        """Yield the terms that occur in a text, the longest at each place; they share no character.

        Raises:
            CancelledError: of ``concurrent.futures``, the caller has left.
        """
        found = list(words(text))
        folded = "".join(word.text for word in found)
        ends = dict[int, tuple[int, int]]()  # ends of words and of their stems: the place in the text, the next word
        end = 0
        for number, word in enumerate(found, start=1):
            end += len(word.text)
            ends[end] = word.after, number
            for length in particles(word.text.strip()):
                ends[end - length] = word.after - length, number
        position = begin = looked = 0
        while position < len(found):
            if position >= looked:
                check(None, "terms were looked for")
                looked = position + WORDS_PER_LOOK
            match = self._match(folded, begin + found[position].text.startswith(" "), ends)
            if match is None:
                begin += len(found[position].text)
                position += 1
                continue
            number, begin = match
            after, following = ends[begin]
            begin += found[following - 1].after - after
            targets = tuple(self._targets[number].split(_SEPARATOR))
            yield TermMatch(found[position].first, after, targets)
            position = following

    def _match(self, folded: str, begin: int, ends: Container[int]) -> tuple[int, int] | None:
        """Return the longest entry at the beginning of a word: its number, and its end, which ends a word."""
        left = folded[begin : begin + self._longest]
        number = bisect_right(self._sources, left) - 1
        while number >= 0:  # all terms with which the text begins are this one, or begin it
            source = self._sources[number]
            if left.startswith(source) and begin + len(source) in ends:
                return number, begin + len(source)
            number = self._parents[number]
        return None


def _add(terms: dict[str, str], source: str, targets: object) -> None:
    key, checked = _key(source), _checked_targets(source, targets)
    if key in terms:
        raise _refused(f"two entries match {source!r}: put all target terms into one entry")
    terms[key] = _SEPARATOR.join(checked)


def _key(source: object) -> str:
    """Return the words of a term as they are compared."""
    _check_term(source, "a source term")
    return "".join(word.text for word in words(str(source).strip()))


def _checked_targets(source: str, targets: object) -> tuple[str, ...]:
    if not isinstance(targets, Sequence) or isinstance(targets, bytes):
        raise _refused(f"the entry {source!r} needs a target term or a list of them, got {type(targets).__name__}")
    if not 1 <= len(targets) <= MAX_TARGETS:
        raise _refused(f"the entry {source!r} needs 1 to {MAX_TARGETS} target terms, got {len(targets)}")
    for target in targets:
        _check_term(target, f"a target term of {source!r}")
    return tuple(dict.fromkeys(" ".join(target.split()) for target in targets))


def _check_term(term: object, name: str) -> None:
    if not isinstance(term, str):
        raise _refused(f"{name} must be a string, got {type(term).__name__}")
    if not term.strip():
        raise _refused(f"{name} is empty: write it, or leave the entry out")
    if len(term) > MAX_CHARACTERS:
        raise _refused(f"{name} has {len(term)} characters, at most {MAX_CHARACTERS} are possible: {term[:40]!r}...")
    if _UNUSABLE.search(term):
        raise _refused(f"{name} has a tab, a line break or an unusable character: {term!r}")


def _refused(message: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{PREFIX}{message}", field="glossary")
