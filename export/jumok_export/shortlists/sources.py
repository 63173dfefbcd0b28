"""Sources of a bundle's shortlist: parallel text, or a lexical table of another tool."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from jumok_export.shortlists.ibm_model1 import align
from jumok_export.shortlists.lexicon import Lexicon
from jumok_proto.errors import JumokError
from jumok_serve.evaluation.parallel_text import read_lines
from jumok_serve.tokenizers.tokenizer import Tokenizer

MOST_PAIRS = 1_000_000
"""Maximum of sentence pairs to align; of a larger text, evenly spread ones are taken."""
MOST_TOKENS = 200
"""Maximum of tokens of a sentence; longer pairs are left out, because their alignment is uncertain."""
MOST_NAMED = 5
"""Maximum of invalid lines in an error message."""


class ShortlistError(JumokError, ValueError):
    """A shortlist cannot be made; the message says why."""


class LexiconSource(Protocol):
    """A source of lexicons over the tokens of any model."""

    @property
    def origin(self) -> str:
        """Description of the source, for the manifest."""

    def lexicon(self, tokenizer: Tokenizer, progress: Callable[[str], None]) -> Lexicon:
        """Make the lexicon of a model's tokens.

        Raises:
            ShortlistError: no lexicon for these tokens.
        """


@dataclass(frozen=True, kw_only=True)
class ShortlistPlan:
    """Source and sizes of a shortlist.

    The defaults are usual for shortlists, and did not change BLEU of a model that was trained on Multi30k.

    Attributes:
        best: largest number of target tokens in the list of a source token.
        frequent: number of the most frequent target tokens, which are in every list.

    Raises:
        ShortlistError: a size is out of range.
    """

    lexicon: LexiconSource
    best: int = 100
    frequent: int = 100

    def __post_init__(self) -> None:
        for name, number, least in (("best", self.best, 1), ("frequent", self.frequent, 0)):
            if number < least:
                raise ShortlistError(f"{name} of a shortlist must be at least {least}, got {number}")


@dataclass(frozen=True, kw_only=True)
class ParallelText:
    """Sentences and translations, to be aligned by IBM Model 1."""

    sources: Sequence[str]
    targets: Sequence[str]

    def __post_init__(self) -> None:
        if len(self.sources) != len(self.targets):
            raise ShortlistError(
                f"a shortlist needs a translation of every source, got {len(self.sources)} and {len(self.targets)}"
            )

    @property
    def origin(self) -> str:
        """See `LexiconSource`."""
        return f"IBM Model 1 of {len(self.sources)} sentence pairs"

    def lexicon(self, tokenizer: Tokenizer, progress: Callable[[str], None]) -> Lexicon:
        """See `LexiconSource`."""
        step = max(1, -(-len(self.sources) // MOST_PAIRS))
        pairs = []
        for source, target in zip(self.sources[::step], self.targets[::step], strict=True):
            ids = tokenizer.encode(source), tokenizer.encode_target(target)
            if all(ids) and max(map(len, ids)) <= MOST_TOKENS:
                pairs.append((np.array(ids[0], np.int32), np.array(ids[1], np.int32)))
        if not pairs:
            raise ShortlistError(
                f"none of the {len(self.sources)} sentence pairs has 1 to {MOST_TOKENS} tokens on both sides: "
                "give some thousands of sentences and their translations"
            )
        return align(
            pairs,
            source_vocabulary=tokenizer.source_vocab_size,
            target_vocabulary=tokenizer.vocab_size,
            progress=progress,
        )


@dataclass(frozen=True, kw_only=True)
class LexicalTable:
    """A lexical table of Moses or Marian in a text file, plain or gzip.

    A line is a target token, a source token, and the probability of the target token given the source token, separated
    by white space. Lines with tokens outside of the model's vocabularies, such as NULL, are left out. A token's
    frequency is the sum of its probabilities.
    """

    path: Path

    @property
    def origin(self) -> str:
        """See `LexiconSource`."""
        return f"lexical table {self.path.name}"

    def lexicon(self, tokenizer: Tokenizer, progress: Callable[[str], None]) -> Lexicon:
        """See `LexiconSource`.

        Raises:
            CorpusError: an unreadable file.
        """
        progress("reading the lexical table")
        sources, vocabulary = tokenizer.source_vocab_size, tokenizer.vocab_size
        source_ids = {token: number for number, token in enumerate(tokenizer.source_tokens(range(sources)))}
        target_ids = {token: number for number, token in enumerate(tokenizer.tokens(range(vocabulary)))}
        entries: dict[int, float] = {}  # by source * vocabulary + target
        wrong: list[str] = []
        swapped = 0
        for number, line in enumerate(read_lines(self.path), start=1):
            fields = line.split()
            probability = _probability(fields)
            if probability is None:
                wrong += [f"\n  line {number}: {line[:80]!r}"] if fields else []
            elif fields[0] in target_ids and fields[1] in source_ids:
                entries[source_ids[fields[1]] * vocabulary + target_ids[fields[0]]] = probability
            else:
                swapped += fields[0] in source_ids and fields[1] in target_ids
        if wrong:
            more = f"\n  and {len(wrong) - MOST_NAMED} more" if len(wrong) > MOST_NAMED else ""
            raise ShortlistError(
                f"{self.path}: a line must be `target source probability`:{''.join(wrong[:MOST_NAMED])}{more}"
            )
        if not entries:
            hint = "; its lines begin with the source token, and must begin with the target token" if swapped else ""
            raise ShortlistError(
                f"{self.path} names no tokens of the model's vocabularies{hint}: it must be made of text in the "
                f"model's own tokens, such as {tokenizer.tokens([vocabulary // 2])[0]!r}"
            )
        keys = np.array(sorted(entries))
        probabilities = np.array([entries[key] for key in keys.tolist()], np.float32)
        return Lexicon(
            offsets=np.searchsorted(keys, np.arange(sources + 1) * vocabulary),
            targets=keys % vocabulary,
            probabilities=probabilities,
            frequencies=np.bincount(keys % vocabulary, weights=probabilities, minlength=vocabulary).astype(np.float64),
        )


def _probability(fields: Sequence[str]) -> float | None:
    """Probability in a line of three fields; None if the line is invalid."""
    try:
        _, _, number = fields
        probability = float(number)
    except ValueError:
        return None
    return probability if 0 <= probability <= 1 else None
