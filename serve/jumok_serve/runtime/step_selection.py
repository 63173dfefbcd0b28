"""Selection of the candidates of a step, and the columns of the output layer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnxruntime import OrtValue

from jumok_serve.bundle.shortlist import WIDTH_STEP
from jumok_serve.runtime.graphs import Booleans, Floats, Graphs, Integers
from jumok_serve.runtime.tensors import Tensors
from jumok_serve.search.constraints import (
    NO_CONSTRAINTS,
    NO_ENTRIES,
    Constraints,
    Entries,
    concatenate_constraints,
    with_boosts,
)
from jumok_serve.search.step_arrays import BatchSearch, SharedConstraints

BIAS = "bias"
"""The decoder's input [B, U] that is added to a sentence's logits: -inf at tokens outside the sentence's shortlist."""

_ABSENT = -1


class VocabularyColumns:
    """A column for every token of the vocabulary, for a batch with sentences in slots 0 .. n-1.

    Attributes:
        width: number of columns, U; up to date after `inputs`.
    """

    def __init__(self, graphs: Graphs) -> None:
        self.width = graphs.vocabulary
        self._inputs: Tensors = {}

    def join(self, slots: Sequence[int], lists: Sequence[Integers | None]) -> None:
        """Add new sentences' shortlists: ascending token ids; None: the whole vocabulary."""

    def leave(self, slots: Sequence[int]) -> None:
        """Empty some slots; their sentences need no columns any more."""

    def move(self, slots: Sequence[int], to: Sequence[int]) -> None:
        """Move sentences to other slots; no slot is in both lists."""

    def inputs(self, sentences: int) -> Mapping[str, OrtValue]:
        """The decoder's inputs for the columns; the same object until they change."""
        return self._inputs

    def to_columns(self, constraints: Constraints) -> Constraints:
        """Convert constraints from tokens to columns; drops tokens without a column."""
        return constraints

    def tokens(self, columns: Integers) -> Integers:
        """Convert columns to token ids; the next call may overwrite them."""
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
        """See `VocabularyColumns`."""
        return len(self._tokens)

    def join(self, slots: Sequence[int], lists: Sequence[Integers | None]) -> None:
        """See `VocabularyColumns`."""
        for slot, listed in zip(slots, lists, strict=True):
            self._lists[slot] = np.arange(self._graphs.vocabulary) if listed is None else np.asarray(listed, np.int64)
        self._gathered_for = 0

    def leave(self, slots: Sequence[int]) -> None:
        """See `VocabularyColumns`."""
        self._lists.update(dict.fromkeys(slots))

    def move(self, slots: Sequence[int], to: Sequence[int]) -> None:
        """See `VocabularyColumns`."""
        for slot, other in zip(slots, to, strict=True):
            self._lists[other] = self._lists[slot]
        if self._gathered_for:
            self._biases[list(to)] = self._biases[list(slots)]

    def inputs(self, sentences: int) -> Mapping[str, OrtValue]:
        """See `VocabularyColumns`."""
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
        """See `VocabularyColumns`."""
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
        """See `VocabularyColumns`."""
        if self._found.shape != columns.shape:
            self._found = np.empty_like(columns)
        return self._tokens.take(columns, out=self._found, mode="clip")  # all are columns; "raise" would copy


Columns: TypeAlias = VocabularyColumns | ShortlistColumns
"""The columns of a batch's logits."""


def make_columns(graphs: Graphs) -> Columns:
    """The columns that the decoder's logits have."""
    return ShortlistColumns(graphs) if graphs.listed else VocabularyColumns(graphs)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionParameters:
    """Parameters of log-softmax, constraints and top-k at the end of a step.

    Attributes:
        scores: running scores, [R]; an array that the caller may change between steps.
        candidates: candidates of each row, C; at most U are given.
        on_logits: constraints before the log-softmax.
        on_log_probs: constraints after the log-softmax.
        renormalize: True if a second log-softmax follows, [R]; None: in no row.
        with_logits: True if the logits of the step will be read too.
    """

    scores: Floats
    candidates: int
    on_logits: Constraints = NO_CONSTRAINTS
    on_log_probs: Constraints = NO_CONSTRAINTS
    renormalize: Booleans | None = None
    with_logits: bool = False


class StepSelection:
    """Makes the parameters of each step's selection."""

    def __init__(self, beam_size: int) -> None:
        self._beam_size = beam_size
        self._constrained: dict[int, _StepConstraints] = {}  # by the number of sentences
        self._candidates: tuple[Integers | None, int, int] = None, 0, 0  # of each row, with their slots and `changes`
        self._scores: _RowScores | None = None
        self._last: tuple[_StepConstraints, SelectionParameters] | None = None

    def parameters(self, slots: Integers, searches: BatchSearch, columns: Columns) -> SelectionParameters:
        """Make the selection's parameters, without constraints on rows that draw.

        The object and its scores stay the same as long as nothing but the values of the scores changes.

        Args:
            slots: slots of the step, ascending, [n].
            searches: searches by slot.
            columns: columns of the logits.
        """
        inputs, arrays = columns.inputs(len(slots)), searches.arrays
        kept = self._constrained.get(len(slots))
        # Most steps have the constraints of an earlier step, maybe of other sentences.
        if kept is None or not kept.hold(inputs, searches, slots):
            draws, acting = arrays.draws[slots].tolist(), arrays.on_logits[slots].tolist()
            renormalizes = arrays.renormalizes[slots]
            on_logits, on_log_probs = (
                columns.to_columns(
                    concatenate_constraints(
                        (index * self._beam_size, searches.constraints[slot])
                        for index, slot in enumerate(slots.tolist())
                        if not draws[index] and acting[index] == of_logits
                    )
                )
                for of_logits in (True, False)
            )
            kept = self._constrained[len(slots)] = _StepConstraints(
                version=searches.constraints_version,
                slots=slots,
                shared=searches.shared_constraints(slots),
                inputs=inputs,
                on_logits=on_logits,
                on_log_probs=on_log_probs,
                renormalize=np.repeat(renormalizes, self._beam_size) if renormalizes.any() else None,
                with_logits=any(draws),
            )
        elif kept.slots is not slots or kept.version != searches.constraints_version:
            kept = self._constrained[len(slots)] = replace(kept, slots=slots, version=searches.constraints_version)
        on_log_probs = kept.on_log_probs
        if searches.has_boosts:
            on_log_probs = with_boosts(on_log_probs, columns.to_columns(searches.boosts(slots)))
        scores, candidates = self._scores_of(slots, arrays.scores), self._candidates_of(slots, searches)
        if self._last is not None and self._last[0] is kept:
            last = self._last[1]
            if last.scores is scores and last.candidates == candidates and last.on_log_probs is on_log_probs:
                return last
        parameters = SelectionParameters(
            scores=scores,
            candidates=candidates,
            on_logits=kept.on_logits,
            on_log_probs=on_log_probs,
            renormalize=kept.renormalize,
            with_logits=kept.with_logits,
        )
        self._last = kept, parameters
        return parameters

    def renew_scores(self) -> None:
        """Give the last parameters the present scores of the same slots."""
        if self._scores is not None:
            self._scores.renew()

    def _scores_of(self, slots: Integers, scores: Floats) -> Floats:
        """Return the running scores of the step's rows, [R], in the same array as long as possible."""
        rows = self._scores
        if rows is None or rows.slots is not slots or rows.by_slot is not scores:
            rows = self._scores = _RowScores.of(slots, scores, rows)
        rows.renew()
        return rows.scores

    def _candidates_of(self, slots: Integers, searches: BatchSearch) -> int:
        """Return the candidates that the next step needs of each row, C."""
        arrays = searches.arrays
        known, changes, candidates = self._candidates
        if known is not slots or changes != arrays.changes:
            candidates = int(np.maximum.reduce(arrays.num_candidates[slots]))
            self._candidates = slots, arrays.changes, candidates
        return candidates


class _RowScores(NamedTuple):
    """Running scores of the rows of a step.

    Attributes:
        slots: slots of the step, [n].
        by_slot: running scores by slot, [slots, K].
        scores: running scores of the rows, [R]; part of `by_slot` if the slots are 0 .. n-1.
        gathered: the same memory [n, K], to be filled before a step; None: part of `by_slot`.
    """

    slots: Integers
    by_slot: Floats
    scores: Floats
    gathered: Floats | None

    def renew(self) -> None:
        """Gather the present scores, if they are gathered."""
        if self.gathered is not None:
            self.by_slot.take(self.slots, axis=0, out=self.gathered, mode="clip")  # "raise" would copy once more

    @classmethod
    def of(cls, slots: Integers, by_slot: Floats, earlier: "_RowScores | None") -> "_RowScores":
        """Make the scores of a step, in the array of earlier ones if it fits; gathered ones have no values yet."""
        first = bool(slots[-1] == len(slots) - 1)
        fits = earlier is not None and earlier.by_slot is by_slot and len(earlier.slots) == len(slots)
        if earlier is not None and fits and first == (earlier.gathered is None):
            return earlier._replace(slots=slots)
        if first:
            return cls(slots, by_slot, by_slot[: len(slots)].reshape(-1), None)
        gathered = np.empty((len(slots), by_slot.shape[1]), by_slot.dtype)
        return cls(slots, by_slot, gathered.reshape(-1), gathered)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepConstraints:
    """Constraints of all sentences of a step, concatenated.

    Attributes:
        version: `BatchSearch.constraints_version` at that step.
        slots: slots of the step, [n].
        shared: constraints that all sentences share, or None.
        inputs: decoder inputs for the columns.
        on_logits: constraints on columns of logits.
        on_log_probs: constraints on columns of log-probabilities.
        renormalize: True if a log-softmax follows them, [n * K]; None: in no row.
        with_logits: True if some rows draw.
    """

    version: int
    slots: Integers
    shared: SharedConstraints | None
    inputs: Mapping[str, object]
    on_logits: Constraints
    on_log_probs: Constraints
    renormalize: Booleans | None
    with_logits: bool

    def hold(self, inputs: Mapping[str, object], searches: BatchSearch, slots: Integers) -> bool:
        """True if these parameters hold for the next step in `slots` too."""
        if self.inputs is not inputs:
            return False
        if self.slots is slots and self.version == searches.constraints_version:
            return True
        return self.shared is not None and self.shared.equals(searches.shared_constraints(slots))
