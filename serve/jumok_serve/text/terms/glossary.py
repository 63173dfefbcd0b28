"""Glossaries: source terms with the target terms that translate them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Self

from jumok_proto.errors import InvalidArgumentError
from jumok_proto.glossaries.tsv import read_tsv
from jumok_serve.tasks.terms import TermMatch
from jumok_serve.text.terms.words import Word, words

MAX_ENTRIES: Final = 100_000
"""Most entries of a glossary; 100,000 of one word take about 50 MB of memory."""
MAX_WORDS: Final = 500_000
"""Most words of a glossary's source terms, less those that equal beginnings share: 100 MB of memory."""
MAX_CHARACTERS: Final = 256
"""Most characters of a term."""
MAX_TARGETS: Final = 8
"""Most target terms of an entry."""
PREFIX: Final = "glossary: "
"""Beginning of the messages of errors."""
_UNUSABLE: Final = re.compile("[\t\r\n\0\ud800-\udfff]")


class Glossary:
    """Entries that map a source term to target terms; a translation contains one of these.

    Terms match whole words in any case, with any white space between them. At each place the longest one counts.

    Args:
        entries: target terms by source term.

    Raises:
        InvalidArgumentError: too many entries, an empty or too long term, or two source terms that match alike.
    """

    def __init__(self, entries: Mapping[str, str | Sequence[str]]) -> None:
        # A trie of the words of source terms: its nodes are numbers, and 0 is the root.
        self._children: dict[tuple[int, str], int] = {}
        self._targets: dict[int, tuple[str, ...]] = {}  # by the node of the last word
        if len(entries) > MAX_ENTRIES:
            raise _refused(f"a glossary takes at most {MAX_ENTRIES} entries, got {len(entries)}: leave some out")
        for source, targets in entries.items():
            self._add(source, [targets] if isinstance(targets, str) else targets)

    @classmethod
    def from_tsv(cls, text: str) -> Self:
        """Make a glossary of lines; see `jumok_proto.glossaries.tsv.read_tsv`.

        Raises:
            InvalidArgumentError: too many entries, or a line that cannot be used; names the line.
        """
        glossary = cls({})
        try:
            for line in read_tsv(text):
                if len(glossary) == MAX_ENTRIES:
                    raise _refused(
                        f"line {line.number} is one too many: a glossary takes at most {MAX_ENTRIES} entries"
                    )
                try:
                    glossary._add(line.source, line.targets)
                except InvalidArgumentError as error:
                    raise _refused(f"line {line.number}: {str(error).removeprefix(PREFIX)}") from error
        except InvalidArgumentError:
            raise
        except ValueError as error:
            raise _refused(str(error)) from error
        return glossary

    def _add(self, source: str, targets: object) -> None:
        checked, node = _checked_targets(source, targets), 0
        for word in _key(source):
            node = self._children.setdefault((node, word), len(self._children) + 1)
        if len(self._children) > MAX_WORDS:
            raise _refused(f"source terms have more than {MAX_WORDS} words: leave some out")
        if node in self._targets:
            raise _refused(f"two entries match {source!r}: put all target terms into one entry")
        self._targets[node] = checked

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._targets)

    @property
    def num_words(self) -> int:
        """Number of different beginnings of source terms in words, which memory is proportional to."""
        return len(self._children)

    def find(self, text: str) -> Iterator[TermMatch]:
        """Yield the terms that occur in a text, the longest at each place; they share no character."""
        found = list(words(text))
        position = 0
        while position < len(found):
            match = self._match(found, position)
            if match is None:
                position += 1
                continue
            after, targets = match
            yield TermMatch(found[position].first, found[after - 1].after, targets)
            position = after

    def _match(self, found: Sequence[Word], position: int) -> tuple[int, tuple[str, ...]] | None:
        """Return the longest entry at a word: the position after it, and its target terms."""
        match = None
        node = self._children.get((0, found[position].text.lstrip()))
        while node is not None:
            position += 1
            if node in self._targets:
                match = position, self._targets[node]
            node = self._children.get((node, found[position].text)) if position < len(found) else None
        return match


def _key(source: object) -> tuple[str, ...]:
    _check_term(source, "a source term")
    first, *others = (word.text for word in words(str(source).strip()))
    return first.lstrip(), *others


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
