"""Vocabulary maps of CTranslate2, `vmap.txt`, as the lexicon of a bundle's shortlist."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from jumok_export.shortlists.lexicon import Lexicon
from jumok_export.shortlists.sources import ShortlistError, ShortlistPlan
from jumok_serve.files import UnusableFileError, read_file
from jumok_serve.tokenizers.tokenizer import Tokenizer

FILE = "vmap.txt"
MOST_BYTES = 2**30


def find_map(folder: Path, added: Collection[str] = ()) -> "VocabularyMap | None":
    """The map of a folder; None without one, or if it is empty.

    Args:
        added: tokens that the model has around texts.
    """
    path = folder / FILE
    return VocabularyMap(path, frozenset(added)) if path.is_file() and path.stat().st_size else None


@dataclass(frozen=True)
class VocabularyMap:
    """A file whose lines have source tokens, a tab, and the target tokens that they may be translated with.

    Without a source token a line lists target tokens of every text. The target tokens of a phrase, several source
    tokens, are listed for its first token: a list then has all that CTranslate2 takes, and more.

    Attributes:
        added: tokens around texts, whose lines CTranslate2 does not look up.

    Raises:
        ShortlistError: an unreadable file, or a line without a tab.
    """

    path: Path
    added: frozenset[str] = frozenset()

    @property
    def origin(self) -> str:
        """See `LexiconSource`."""
        return f"CTranslate2's vocabulary map {self.path.name}"

    @cached_property
    def _lines(self) -> dict[str, dict[str, None]]:
        """Target tokens by source token, "" for those of every text."""
        try:
            content = read_file(self.path, MOST_BYTES).decode("utf-8")
        except (OSError, UnusableFileError, UnicodeDecodeError) as error:
            raise ShortlistError(f"{self.path.name} cannot be read: {error}") from error
        listed: dict[str, dict[str, None]] = {}
        for number, line in enumerate(content.split("\n"), start=1):
            source, tab, targets = line.partition("\t")
            if line and not tab:
                raise ShortlistError(f"{self.path.name}, line {number}: no tab after the source tokens: {line[:80]!r}")
            first = source.partition(" ")[0]
            if first not in self.added:
                listed.setdefault(first, {}).update(dict.fromkeys(targets.split(" ")))
        return listed

    @property
    def plan(self) -> ShortlistPlan:
        """The plan of a bundle's shortlist with all listed tokens."""
        longest = max(map(len, self._lines.values()), default=0)
        return ShortlistPlan(lexicon=self, best=max(1, longest), frequent=len(self._lines.get("", ())))

    def lexicon(self, tokenizer: Tokenizer, progress: Callable[[str], None]) -> Lexicon:
        """See `LexiconSource`; all listed tokens are equally likely.

        Raises:
            ShortlistError: the file names no tokens of the model.
        """
        progress(f"reading {self.path.name}")
        sources, vocabulary = tokenizer.source_vocab_size, tokenizer.vocab_size
        target_ids = {token: number for number, token in enumerate(tokenizer.tokens(range(vocabulary)))}
        rows = [
            sorted({target_ids[token] for token in self._lines.get(source, ()) if token in target_ids})
            for source in tokenizer.source_tokens(range(sources))
        ]
        always = [target_ids[token] for token in self._lines.get("", ()) if token in target_ids]
        if not any(rows):
            raise ShortlistError(
                f"{self.path.name} names no tokens of the model's vocabularies; give the model's own map, or remove it"
            )
        frequencies = np.zeros(vocabulary)
        frequencies[always] = 1
        targets = np.concatenate([np.array(row, np.int64) for row in rows])
        return Lexicon(
            offsets=np.cumsum([0, *map(len, rows)]),
            targets=targets,
            probabilities=np.ones(len(targets), np.float32),
            frequencies=frequencies,
        )
