"""Which columns the logits of a batch have: every token's, or those of the tokens that its sentences may write."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from onnxruntime import OrtValue

from jumok_serve.bundle.shortlist import WIDTH_STEP
from jumok_serve.runtime.graphs import Floats, Graphs, Integers, Tensors
from jumok_serve.search import NO_CONSTRAINTS, NO_ENTRIES, Constraints, Entries

BIAS = "bias"
"""The decoder's input [B, U] that is added to the logits of a sentence: -inf where it may not write a token."""

_ABSENT = -1


class Columns(Protocol):
    """The columns of a batch whose sentences are in slots 0 .. n-1."""

    @property
    def width(self) -> int:
        """How many there are, U; up to date after `inputs`."""

    def join(self, slots: Sequence[int], lists: Sequence[Integers | None]) -> None:
        """Takes note of what sentences may write, each in the slot named for it: ascending tokens, or None: all."""

    def leave(self, slots: Sequence[int]) -> None:
        """Has nobody in some slots; their columns may be any."""

    def move(self, slots: Sequence[int], to: Sequence[int]) -> None:
        """Puts the sentences of some slots into others, none of which is among them."""

    def inputs(self, sentences: int) -> Mapping[str, OrtValue]:
        """What the decoder needs to know of the columns for so many sentences; the same object while it is the same."""

    def places(self, constraints: Constraints) -> Constraints:
        """Constraints on columns, from constraints on tokens; there is nothing to constrain without a column."""

    def tokens(self, columns: Integers) -> Integers:
        """The tokens of columns."""


def make_columns(graphs: Graphs) -> Columns:
    """The columns that suit a decoder."""
    return ListedColumns(graphs) if graphs.listed else AllColumns(graphs)


class AllColumns:
    """A column for every token, in their order.

    Args:
        graphs: the model.
    """

    def __init__(self, graphs: Graphs) -> None:
        self._width = graphs.vocabulary
        self._inputs: Tensors = {}

    @property
    def width(self) -> int:
        """See `Columns`."""
        return self._width

    def join(self, slots: Sequence[int], lists: Sequence[Integers | None]) -> None:
        """See `Columns`."""

    def leave(self, slots: Sequence[int]) -> None:
        """See `Columns`."""

    def move(self, slots: Sequence[int], to: Sequence[int]) -> None:
        """See `Columns`."""

    def inputs(self, sentences: int) -> Mapping[str, OrtValue]:
        """See `Columns`."""
        return self._inputs

    def places(self, constraints: Constraints) -> Constraints:
        """See `Columns`."""
        return constraints

    def tokens(self, columns: Integers) -> Integers:
        """See `Columns`."""
        return columns


class ListedColumns:
    """Columns of the tokens that any of the sentences may write, ascending; the last ones may stand for nothing.

    What a sentence may not write is -inf in its rows, so that its results do not depend on its company. Weights are
    gathered when sentences join, and when half of them have left; until then some columns may be of no more use.

    Args:
        graphs: the model, with the decoder for shortlists.
    """

    def __init__(self, graphs: Graphs) -> None:
        self._graphs = graphs
        self._lists: dict[int, Integers | None] = {}  # by slot; None: it is empty
        self._gathered_for = 0  # sentences; 0: weights are to be gathered
        self._tokens: Integers = np.zeros(0, np.int64)  # [U]
        self._places: Integers = np.zeros(0, np.int64)  # [V]
        self._weights: Tensors = {}
        self._biases: Floats = np.zeros((0, 0), np.float32)  # [slots, U]
        self._inputs: dict[int, Tensors] = {}  # by the number of sentences

    @property
    def width(self) -> int:
        """See `Columns`."""
        return len(self._tokens)

    def join(self, slots: Sequence[int], lists: Sequence[Integers | None]) -> None:
        """See `Columns`."""
        for slot, listed in zip(slots, lists, strict=True):
            self._lists[slot] = np.arange(self._graphs.vocabulary) if listed is None else listed
        self._gathered_for = 0

    def leave(self, slots: Sequence[int]) -> None:
        """See `Columns`."""
        self._lists.update(dict.fromkeys(slots))

    def move(self, slots: Sequence[int], to: Sequence[int]) -> None:
        """See `Columns`."""
        for slot, place in zip(slots, to, strict=True):
            self._lists[place] = self._lists[slot]
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
        in_any: NDArray[np.bool_] = np.zeros(self._graphs.vocabulary, np.bool_)
        for listed in lists:
            in_any[listed] = True
        tokens = np.flatnonzero(in_any)
        self._places = np.full(len(in_any), _ABSENT)
        self._places[tokens] = np.arange(len(tokens))
        self._tokens = np.pad(tokens, (0, -len(tokens) % WIDTH_STEP), mode="edge")
        self._weights = self._graphs.columns(self._tokens)
        bias = self._weights.pop(BIAS).numpy() if BIAS in self._weights else np.zeros(len(self._tokens), np.float32)
        self._biases = np.full((sentences, len(bias)), -np.inf, np.float32)
        for row, listed in zip(self._biases, lists, strict=True):
            columns = self._places[listed]
            row[columns] = bias[columns]
        self._gathered_for = sentences
        self._inputs.clear()

    def places(self, constraints: Constraints) -> Constraints:
        """See `Columns`."""
        if constraints is NO_CONSTRAINTS:
            return constraints
        factors, biases = self._entries(constraints.factors), self._entries(constraints.biases)
        return NO_CONSTRAINTS if factors is biases is NO_ENTRIES else Constraints(factors, biases)

    def _entries(self, entries: Entries) -> Entries:
        """The entries that have a column."""
        columns = self._places[entries.places[:, 1]]
        present = columns != _ABSENT
        if not present.any():
            return NO_ENTRIES
        return Entries(np.stack((entries.places[present, 0], columns[present]), axis=1), entries.values[present])

    def tokens(self, columns: Integers) -> Integers:
        """See `Columns`."""
        return self._tokens[columns]
