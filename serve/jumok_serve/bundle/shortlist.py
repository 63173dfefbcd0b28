"""Lexical shortlists: target tokens that may translate a text's source tokens."""

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

WIDTH_STEP = 128
"""The number of shortlist columns, U, is padded to a multiple of this, the columns of a block of weights."""


MAX_BYTES = 2**30
"""Bytes of all lists, which are compressed in their file."""

_UNREADABLE = (KeyError, ValueError, TypeError, AttributeError, EOFError, NotImplementedError, MemoryError)
"""Errors of NumPy for other files; MemoryError: an array declares a size that its data does not have."""


class Shortlist:
    """Target tokens for each source token, and tokens in every list.

    A text may be translated with the tokens of all its source tokens' lists, as in "Vocabulary manipulation for neural
    machine translation" (Mi et al., 2016).

    Args:
        offsets: beginning and end of each source token's list in `targets`, [source vocabulary + 1].
        targets: token ids of all lists in a row.
        always: token ids that are in every list.
        vocabulary: number of target tokens, V.

    Raises:
        ValueError: the arrays are not such lists, or an id is not in the vocabulary.
    """

    def __init__(
        self, offsets: NDArray[np.integer], targets: NDArray[np.integer], always: NDArray[np.integer], vocabulary: int
    ) -> None:
        arrays = (offsets, targets, always)
        if any(array.ndim != 1 or array.dtype.kind not in "iu" for array in arrays):
            raise ValueError("its arrays must be integers in one axis")
        if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(targets) or (offsets[1:] < offsets[:-1]).any():
            raise ValueError(f"its offsets must ascend from 0 to {len(targets)}, the number of entries")
        for ids in (targets, always):
            if len(ids) and not 0 <= ids.min() <= ids.max() < vocabulary:
                raise ValueError(f"it lists {ids.max()}, which is not in the target vocabulary of {vocabulary} tokens")
        if not len(always):
            raise ValueError("it must have tokens that are in every list, such as EOS")
        self._targets = targets
        self._always = always
        self._bounds: list[int] = offsets.tolist()
        self._vocabulary = vocabulary

    @property
    def sources(self) -> int:
        """Number of source tokens with a list."""
        return len(self._bounds) - 1

    def of(self, source_ids: Sequence[int]) -> Integers:
        """Return the token ids that a text may be translated with, ascending, [U].

        Args:
            source_ids: token ids of the text, [S].
        """
        listed = np.zeros(self._vocabulary, np.bool_)
        bounds, targets = self._bounds, self._targets
        lists = [targets[bounds[token] : bounds[token + 1]] for token in set(source_ids)]
        listed[np.concatenate((self._always, *lists), dtype=np.int64)] = True  # the type that indexes fastest
        return listed.nonzero()[0]

    def save(self, path: Path) -> None:
        """Write the lists to a file with the suffix ".npz"."""
        np.savez_compressed(
            path,
            offsets=np.array(self._bounds, np.int64),
            targets=self._targets.astype(np.int32),
            always=self._always.astype(np.int32),
        )

    @classmethod
    def load(cls, path: Path, *, sources: int, vocabulary: int) -> Self:
        """Read a file of `save`.

        Raises:
            ValueError: the file is not a shortlist, or not of these vocabularies.
            OSError: the file cannot be read.
        """
        try:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
                inflated = sum(member.file_size for member in file.zip.infolist())
                if inflated > MAX_BYTES:
                    raise ValueError(f"{inflated} bytes, at most {MAX_BYTES} are read")
                offsets, targets, always = (file[name] for name in ("offsets", "targets", "always"))
        except (*_UNREADABLE, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"it has no arrays offsets, targets and always: {error}") from error
        shortlist = cls(offsets, targets, always, vocabulary)
        if shortlist.sources != sources:
            raise ValueError(f"it has lists for {shortlist.sources} source tokens, and the vocabulary has {sources}")
        return shortlist
