"""Marian's binary shortlists, `lex.*.bin`, as the lexicon of a bundle's shortlist."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jumok_export.shortlists.lexicon import Lexicon
from jumok_export.shortlists.sources import ShortlistError, ShortlistPlan
from jumok_serve.files import UnusableFileError, read_file
from jumok_serve.tokenizers.tokenizer import Tokenizer

MAGIC = 0xF11A48D5013417F5
_HEADER = 6 * 8
MOST_BYTES = 2**30


@dataclass(frozen=True, kw_only=True)
class BinaryShortlist:
    """Target tokens of each source token, by ids of the model's vocabularies.

    Attributes:
        name: file name, for messages.
        frequent: number of the first target tokens, which are in every list.
        best: most target tokens in a list.
        offsets: beginning and end of each list in `targets`, [source tokens + 1].
    """

    name: str
    frequent: int
    best: int
    offsets: NDArray[np.int64]
    targets: NDArray[np.int64]

    @property
    def origin(self) -> str:
        """See `LexiconSource`."""
        return f"Marian's shortlist {self.name}"

    @property
    def plan(self) -> ShortlistPlan:
        """The plan of a bundle's shortlist with these lists."""
        return ShortlistPlan(lexicon=self, best=max(1, self.best), frequent=self.frequent)

    def lexicon(self, tokenizer: Tokenizer, progress: Callable[[str], None]) -> Lexicon:
        """See `LexiconSource`; all listed tokens are equally likely.

        Raises:
            ShortlistError: the lists are of another vocabulary.
        """
        sources, vocabulary = tokenizer.source_vocab_size, tokenizer.vocab_size
        largest = int(self.targets.max(initial=-1))
        if len(self.offsets) - 1 != sources or largest >= vocabulary:
            raise ShortlistError(
                f"{self.name} is the shortlist of another vocabulary: it lists {len(self.offsets) - 1} source tokens "
                f"and target tokens up to {largest}, the model has {sources} and {vocabulary}; give the model's own "
                "shortlist, or leave it out"
            )
        frequencies = np.zeros(vocabulary)
        frequencies[: self.frequent] = np.arange(min(self.frequent, vocabulary), 0, -1)
        return Lexicon(
            offsets=self.offsets,
            targets=self.targets,
            probabilities=np.ones(len(self.targets), np.float32),
            frequencies=frequencies,
        )


def read_shortlist(path: Path) -> BinaryShortlist:
    """Read a binary shortlist.

    Raises:
        UnusableFileError: another file, or a damaged one; the message continues the file's name.
        OSError: the file cannot be opened.
    """
    content = read_file(path, MOST_BYTES)
    if len(content) < _HEADER:
        raise UnusableFileError(f"is no binary shortlist: it has {len(content)} bytes")
    magic, checksum, frequent, best, offsets, targets = np.frombuffer(content[:_HEADER], "<u8").tolist()
    if magic != MAGIC:
        raise UnusableFileError(f"is no binary shortlist: it begins with {magic:#x} instead of {MAGIC:#x}")
    expected = _HEADER + 8 * offsets + 4 * targets
    if not offsets or len(content) != expected:
        raise UnusableFileError(f"is damaged: it has {len(content)} bytes instead of {expected}; download it again")
    if checksum_of(content[16:]) != checksum:
        raise UnusableFileError("is damaged: its checksum is wrong; download it again")
    bounds = np.frombuffer(content, "<u8", offsets, _HEADER)
    listed = np.frombuffer(content, "<u4", targets, _HEADER + 8 * offsets)
    if bounds[0] != 0 or bounds[-1] != targets or (bounds[1:] < bounds[:-1]).any():
        raise UnusableFileError(f"is damaged: its offsets do not ascend from 0 to {targets}")
    return BinaryShortlist(
        name=path.name,
        frequent=min(frequent, 2**31),
        best=min(best, 2**31),
        offsets=bounds.astype(np.int64),
        targets=listed.astype(np.int64),
    )


def checksum_of(content: bytes) -> int:
    """Marian's checksum of all complete numbers of 64 bits: `boost::hash_combine` of each."""
    seed = 0
    for number in np.frombuffer(content, "<u8", len(content) // 8).tolist():
        seed ^= (number + 0x9E3779B9 + (seed << 6) + (seed >> 2)) & 0xFFFFFFFFFFFFFFFF
    return seed
