"""Where a bundle's shortlist comes from: parallel text, or a lexical table that others have made."""

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
"""Of more sentence pairs, so many are taken, evenly spread."""
MOST_TOKENS = 200
"""Pairs with a longer side are left out: the more tokens, the less is known of which belong together."""
MOST_NAMED = 5
"""Lines of a table that an error names."""


class ShortlistError(JumokError, ValueError):
    """What no shortlist can be made of; the message says why."""


class LexiconSource(Protocol):
    """What gives a lexicon over the tokens of any model."""

    @property
    def origin(self) -> str:
        """What it comes from, for people."""

    def lexicon(self, tokenizer: Tokenizer, progress: Callable[[str], None]) -> Lexicon:
        """The lexicon.

        Raises:
            ShortlistError: there is none for these tokens.
        """


@dataclass(frozen=True, kw_only=True)
class ShortlistPlan:
    """How a shortlist is to be made.

    The numbers are those that are usual with shortlists; of a model that was trained on Multi30k they leave BLEU as it
    was.

    Attributes:
        lexicon: where it comes from.
        best: most target tokens in the list of a source token.
        frequent: how many of the most frequent target tokens are in every list.

    Raises:
        ShortlistError: a number cannot be one.
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
    """Sentences and their translations, which `jumok_export.shortlists.ibm_model1.align` aligns.

    Attributes:
        sources: texts.
        targets: their translations.
    """

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
    """A lexical table in a text file, plain or gzip, in the form that Moses and Marian have.

    A line has a target token, a source token, and the probability of the first given the second, with white space in
    between. Tokens are spelled as in the model's vocabularies; lines with others, such as NULL, are left out. Frequent
    are those tokens that translate many.

    Attributes:
        path: of the file.
    """

    path: Path

    @property
    def origin(self) -> str:
        """See `LexiconSource`."""
        return f"lexical table {self.path.name}"

    def lexicon(self, tokenizer: Tokenizer, progress: Callable[[str], None]) -> Lexicon:
        """See `LexiconSource`.

        Raises:
            CorpusError: the file cannot be read.
        """
        progress("reading the lexical table")
        sources, vocabulary = tokenizer.source_vocab_size, tokenizer.vocab_size
        source_ids = {token: number for number, token in enumerate(tokenizer.source_tokens(range(sources)))}
        target_ids = {token: number for number, token in enumerate(tokenizer.tokens(range(vocabulary)))}
        entries: dict[int, float] = {}  # by source * vocabulary + target
        wrong: list[str] = []
        turned = 0
        for number, line in enumerate(read_lines(self.path), start=1):
            fields = line.split()
            probability = _probability(fields)
            if probability is None:
                wrong += [f"\n  line {number}: {line[:80]!r}"] if fields else []
            elif fields[0] in target_ids and fields[1] in source_ids:
                entries[source_ids[fields[1]] * vocabulary + target_ids[fields[0]]] = probability
            else:
                turned += fields[0] in source_ids and fields[1] in target_ids
        if wrong:
            more = f"\n  and {len(wrong) - MOST_NAMED} more" if len(wrong) > MOST_NAMED else ""
            raise ShortlistError(
                f"{self.path}: a line must be `target source probability`:{''.join(wrong[:MOST_NAMED])}{more}"
            )
        if not entries:
            hint = "; its lines begin with the source token, and must begin with the target token" if turned else ""
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
    """That of a line with three fields, if it can be one."""
    try:
        _, _, number = fields
        probability = float(number)
    except ValueError:
        return None
    return probability if 0 <= probability <= 1 else None
