"""Glossaries: source terms with the target terms that translate them."""

import re
import sys
from array import array
from bisect import bisect_right
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, Self

from jumok_proto.errors import InvalidArgumentError
from jumok_proto.glossaries.tsv import read_tsv
from jumok_serve.interrupts import check
from jumok_serve.tasks.terms import TermMatch
from jumok_serve.text.terms.words import words

MAX_ENTRIES: Final = 100_000
"""Most entries of a glossary; 100,000 of one word take about 13 MB of memory."""
MAX_CHARACTERS: Final = 256
"""Most characters of a term."""
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

    Terms match whole words in any case, with any white space between them. At each place the longest one counts.

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
        """Make a glossary of lines; see `jumok_proto.glossaries.tsv.read_tsv`.

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
        positions = {end: number for number, end in enumerate(accumulate(len(word.text) for word in found), start=1)}
        position = begin = looked = 0
        while position < len(found):
            if position >= looked:
                check(None, "terms were looked for")
                looked = position + WORDS_PER_LOOK
            match = self._match(folded, begin + found[position].text.startswith(" "), positions)
            if match is None:
                begin += len(found[position].text)
                position += 1
                continue
            number, begin = match
            after = positions[begin]
            targets = tuple(self._targets[number].split(_SEPARATOR))
            yield TermMatch(found[position].first, found[after - 1].after, targets)
            position = after

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
