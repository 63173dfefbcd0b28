"""Equal shortlists for jumok and CTranslate2, and a random lexicon."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jumok_export.shortlists.lexicon import Lexicon
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.tokenizers.tokenizer import Tokenizer

OF_MANY, FREQUENT = 90, 4000
"""Translations of every source token that come from the frequent target tokens, by Zipf's law."""
OF_ITS_OWN = 10
"""Translations of every source token among all others."""


@dataclass(frozen=True)
class MadeUpLexicon:
    """A random lexicon with lists as long as real text's.

    The lists also overlap as much.

    20 source tokens list some 1,000 target tokens, 32 such texts some 9,000 of 32,000.
    """

    origin: str = "made up"

    def lexicon(self, tokenizer: Tokenizer, progress: Callable[[str], None]) -> Lexicon:
        """See `jumok_export.shortlists.sources.LexiconSource`."""
        progress("making up a lexicon")
        random = np.random.default_rng(0)
        sources, targets = tokenizer.source_vocab_size, tokenizer.vocab_size
        frequent = random.permutation(targets)[: min(FREQUENT, targets)]
        shares = 1 / np.arange(1, len(frequent) + 1)
        rows = [
            np.unique(
                np.concatenate(
                    (
                        frequent[np.searchsorted(np.cumsum(shares), random.random(OF_MANY) * shares.sum())],
                        random.integers(targets, size=OF_ITS_OWN),
                    )
                )
            )
            for _ in range(sources)
        ]
        frequencies = np.zeros(targets)
        frequencies[frequent] = shares
        return Lexicon(
            offsets=np.cumsum([0, *map(len, rows)]),
            targets=np.concatenate(rows),
            probabilities=np.ones(sum(map(len, rows)), np.float32),
            frequencies=frequencies,
        )


def save_vocabulary_map(bundle: Bundle, path: Path) -> None:
    """Writes a bundle's shortlist in CTranslate2's format.

    Lines have a source token, a tab, and its target tokens.

    An empty source token stands for what is in every list. CTranslate2 takes the lists of a whole batch together.

    Raises:
        BundleError: the bundle has none.
    """
    shortlist, tokenizer = bundle.shortlist(), bundle.tokenizer
    spelled = tokenizer.tokens(range(tokenizer.vocab_size))
    always = shortlist.of([])
    lines = [("", always)]
    for source, token in enumerate(tokenizer.source_tokens(range(shortlist.sources))):
        own = np.setdiff1d(shortlist.of([source]), always, assume_unique=True)
        if len(own):
            lines.append((token, own))
    with path.open("w", encoding="utf-8") as file:
        for token, listed in lines:
            print(f"{token}\t{' '.join(spelled[target] for target in listed.tolist())}", file=file)
