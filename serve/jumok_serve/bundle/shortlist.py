"""The lexical shortlist of a bundle: the target tokens that a text may be translated with, by its source tokens."""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

WIDTH_STEP = 128
"""The logits of shortlists are as wide as a multiple of this: their weights lie in blocks of so many columns."""


class Shortlist:
    """Lists of target tokens by source token, and those that are in every list.

    A text may be translated with all tokens of its source tokens' lists, as in "Vocabulary manipulation for neural
    machine translation" (Mi et al., 2016).

    Args:
        offsets: [source vocabulary + 1], where in `targets` the list of each source token begins and ends.
        targets: token ids, list after list.
        always: token ids that are in every list.
        vocabulary: number of target tokens.

    Raises:
        ValueError: the arrays are no lists, or an id lies beyond the vocabulary.
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
                raise ValueError(f"it lists {ids.max()}, which lies beyond the target vocabulary of {vocabulary}")
        if not len(always):
            raise ValueError("it must have tokens that are in every list, such as the one that ends a translation")
        self._targets = targets
        self._always = always
        self._bounds: list[int] = offsets.tolist()
        self._vocabulary = vocabulary

    @property
    def sources(self) -> int:
        """Number of source tokens that have a list."""
        return len(self._bounds) - 1

    @property
    def entries(self) -> int:
        """Entries of all lists, without the tokens that are in every one."""
        return len(self._targets)

    def of(self, source_ids: Sequence[int]) -> Integers:
        """The tokens that a text may be translated with, ascending, each once.

        Args:
            source_ids: of the text.
        """
        listed = np.zeros(self._vocabulary, np.bool_)
        listed[self._always] = True
        for token in set(source_ids):
            listed[self._targets[self._bounds[token] : self._bounds[token + 1]]] = True
        return np.flatnonzero(listed)

    def save(self, path: Path) -> None:
        """Writes the lists to a file with the suffix ".npz"."""
        np.savez_compressed(
            path,
            offsets=np.array(self._bounds, np.int64),
            targets=self._targets.astype(np.int32),
            always=self._always.astype(np.int32),
        )

    @classmethod
    def load(cls, path: Path, *, sources: int, vocabulary: int) -> Self:
        """Reads what `save` wrote.

        Args:
            path: of the file.
            sources: number of source tokens.
            vocabulary: number of target tokens.

        Raises:
            ValueError: the file holds something else, or lists of other vocabularies.
            OSError: it cannot be read.
        """
        try:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
                offsets, targets, always = (file[name] for name in ("offsets", "targets", "always"))
        except (KeyError, ValueError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"it has no arrays offsets, targets and always: {error}") from error
        shortlist = cls(offsets, targets, always, vocabulary)
        if shortlist.sources != sources:
            raise ValueError(f"it has lists for {shortlist.sources} source tokens, and the vocabulary has {sources}")
        return shortlist
