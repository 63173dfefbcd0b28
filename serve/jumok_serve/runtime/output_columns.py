"""Columns of the logits: all target tokens, or the batch's shortlists."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from onnxruntime import OrtValue

from jumok_serve.bundle.shortlist import WIDTH_STEP
from jumok_serve.runtime.binding import Tensors
from jumok_serve.runtime.graphs import Floats, Graphs, Integers
from jumok_serve.search import NO_CONSTRAINTS, NO_ENTRIES, Constraints, Entries

BIAS = "bias"
"""The decoder's input [B, U] that is added to a sentence's logits: -inf at tokens outside the sentence's shortlist."""

_ABSENT = -1


class Columns(Protocol):
    """The columns of a batch with sentences in slots 0 .. n-1."""

    @property
    def width(self) -> int:
        """The number of columns, U; up to date after `inputs`."""

    def join(self, slots: Sequence[int], lists: Sequence[Integers | None]) -> None:
        """Add new sentences' shortlists: ascending token ids; None: the whole vocabulary."""

    def leave(self, slots: Sequence[int]) -> None:
        """Empty some slots; their sentences need no columns any more."""

    def move(self, slots: Sequence[int], to: Sequence[int]) -> None:
        """Move sentences to other slots; no slot is in both lists."""

    def inputs(self, sentences: int) -> Mapping[str, OrtValue]:
        """The decoder's inputs for the columns; the same object until they change."""

    def to_columns(self, constraints: Constraints) -> Constraints:
        """Convert constraints from tokens to columns; drops tokens without a column."""

    def tokens(self, columns: Integers) -> Integers:
        """Convert columns to token ids; the next call may overwrite them."""


def make_columns(graphs: Graphs) -> Columns:
    """The columns that the decoder's logits have."""
    return ShortlistColumns(graphs) if graphs.listed else VocabularyColumns(graphs)


class VocabularyColumns:
    """A column for every token, in the order of the vocabulary."""

    def __init__(self, graphs: Graphs) -> None:
        self.width = graphs.vocabulary
        self._inputs: Tensors = {}

    def join(self, slots: Sequence[int], lists: Sequence[Integers | None]) -> None:
        """See `Columns`."""

    def leave(self, slots: Sequence[int]) -> None:
        """See `Columns`."""

    def move(self, slots: Sequence[int], to: Sequence[int]) -> None:
        """See `Columns`."""

    def inputs(self, sentences: int) -> Mapping[str, OrtValue]:
        """See `Columns`."""
        return self._inputs

    def to_columns(self, constraints: Constraints) -> Constraints:
        """See `Columns`."""
        return constraints

    def tokens(self, columns: Integers) -> Integers:
        """See `Columns`."""
        return columns


class ShortlistColumns:
    """Union of the batch's shortlists, ascending, padded to `WIDTH_STEP`.

    Tokens outside a sentence's own list have -inf in the sentence's rows, so that its results do not depend on the
    batch. Weights are gathered when sentences join, and when half of the sentences have left.

    Args:
        graphs: the model, with the decoder for shortlists.
    """

    def __init__(self, graphs: Graphs) -> None:
        self._graphs = graphs
        self._lists: dict[int, Integers | None] = {}  # by slot; None: the slot is empty
        self._gathered_for = 0  # sentences; 0: weights must be gathered
        self._tokens: Integers = np.zeros(0, np.int64)  # [U]
        self._column_of: Integers = np.full(graphs.vocabulary, _ABSENT)  # [V]
        self._weights: Tensors = {}
        self._biases: Floats = np.zeros((0, 0), np.float32)  # [slots, U]
        self._inputs: dict[int, Tensors] = {}  # by the number of sentences
        self._found: Integers = np.zeros((0, 0), np.int64)  # tokens of the last step, [R, C]

    @property
    def width(self) -> int:
        """See `Columns`."""
        return len(self._tokens)

    def join(self, slots: Sequence[int], lists: Sequence[Integers | None]) -> None:
        """See `Columns`."""
        for slot, listed in zip(slots, lists, strict=True):
            self._lists[slot] = np.arange(self._graphs.vocabulary) if listed is None else np.asarray(listed, np.int64)
        self._gathered_for = 0

    def leave(self, slots: Sequence[int]) -> None:
        """See `Columns`."""
        self._lists.update(dict.fromkeys(slots))

    def move(self, slots: Sequence[int], to: Sequence[int]) -> None:
        """See `Columns`."""
        for slot, other in zip(slots, to, strict=True):
            self._lists[other] = self._lists[slot]
        if self._gathered_for:
            self._biases[list(to)] = self._biases[list(slots)]

    def inputs(self, sentences: int) -> Mapping[str, OrtValue]:
        """See `Columns`."""
        if 2 * sentences <= self._gathered_for or not self._gathered_for:
            self._gather(sentences)
        if sentences not in self._inputs:
            biases = OrtValue.ortvalue_from_numpy(self._biases[:sentences])
            self._inputs[sentences] = {**self._weights, BIAS: biases}
        return self._inputs[sentences]

    def _gather(self, sentences: int) -> None:
        self._lists = {slot: self._lists[slot] for slot in range(sentences)}
        some = next(listed for listed in self._lists.values() if listed is not None)
        lists = [some if listed is None else listed for listed in self._lists.values()]
        tokens = lists[0]
        if len(lists) > 1:
            in_any: NDArray[np.bool_] = np.zeros(self._graphs.vocabulary, np.bool_)
            for listed in lists:
                in_any[listed] = True
            tokens = np.flatnonzero(in_any)
        self._column_of[self._tokens] = _ABSENT
        self._column_of[tokens] = np.arange(len(tokens))
        self._tokens = np.concatenate((tokens, np.full(-len(tokens) % WIDTH_STEP, tokens[-1])))
        self._weights = self._graphs.columns(self._tokens)
        bias = self._weights.pop(BIAS).numpy() if BIAS in self._weights else np.zeros(len(self._tokens), np.float32)
        self._biases = np.full((sentences, len(bias)), -np.inf, np.float32)
        for row, listed in zip(self._biases, lists, strict=True):
            columns = self._column_of[listed]
            row[columns] = bias[columns]
        self._gathered_for = sentences
        self._inputs.clear()

    def to_columns(self, constraints: Constraints) -> Constraints:
        """See `Columns`."""
        if constraints is NO_CONSTRAINTS:
            return constraints
        factors, biases = self._entries(constraints.factors), self._entries(constraints.biases)
        return NO_CONSTRAINTS if factors is biases is NO_ENTRIES else Constraints(factors, biases)

    def _entries(self, entries: Entries) -> Entries:
        """The entries of tokens that have a column."""
        if entries is NO_ENTRIES:
            return entries
        columns = self._column_of[entries.places[:, 1]]
        present = columns != _ABSENT
        if not present.any():
            return NO_ENTRIES
        return Entries(np.stack((entries.places[present, 0], columns[present]), axis=1), entries.values[present])

    def tokens(self, columns: Integers) -> Integers:
        """See `Columns`."""
        if self._found.shape != columns.shape:
            self._found = np.empty_like(columns)
        return self._tokens.take(columns, out=self._found, mode="clip")  # all are columns; "raise" would copy
