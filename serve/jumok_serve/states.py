"""The decoder's state of the sentences that are decoded together, and the step that continues it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from onnxruntime import OrtValue

from jumok_serve.columns import Columns
from jumok_serve.manifest import TensorSpec
from jumok_serve.memory import SlotBuffers
from jumok_serve.session import Floats, Graphs, Integers, Tensors

NO_ANCESTOR = -1
"""Stands where a row has decoded nothing."""

TIME_SLACK = 32
"""Cache entries beyond the longest row's that are carried along before a gathered cache is cut to size."""


class DecoderState(Protocol):
    """The state of sentences in slots 0 .. n-1, K rows each."""

    def join(self, slots: Sequence[int], first_state: Tensors) -> None:
        """Gives sentences, each in the slot named for it, the state that decoding starts from.

        Args:
            slots: of the sentences; nothing is kept of what was there.
            first_state: what the encoder gave for them, [B, ...]; empty where a decoder starts from nothing.
        """

    def move(self, slot: int, to: int) -> None:
        """Puts the sentence of one slot into another."""

    def step(  # noqa: PLR0917 - what the graph contract has
        self,
        tokens: Integers,
        positions: Integers,
        parents: Integers,
        lengths: Integers,
        memory: SlotBuffers,
        columns: Columns,
    ) -> OrtValue:
        """Decodes one token of every row.

        Args:
            tokens: [n, K], what is fed.
            positions: [n], how many tokens each sentence's rows have decoded.
            parents: [n, K], which of its sentence's rows each row continues.
            lengths: [n], of the sources.
            memory: the encoder's, by slot.
            columns: that logits are to have.

        Returns:
            Logits [n * K, U]. They may lie where those of the next step will.
        """


def make_state(graphs: Graphs, beam_size: int) -> DecoderState:
    """The state that suits a decoder: in place where it takes `ancestors`, gathered where it takes `parents`."""
    return InPlaceState(graphs, beam_size) if graphs.in_place else GatheredState(graphs, beam_size)


class GatheredState:
    """State that every step makes anew: the decoder picks for each row the one it continues, by `parents`.

    Args:
        graphs: the model.
        beam_size: K.
    """

    def __init__(self, graphs: Graphs, beam_size: int) -> None:
        self._graphs = graphs
        self._beam_size = beam_size
        self._state = graphs.empty_state()
        self._first_rows: dict[int, int] = {}  # of the sentence in each slot, in `_state`

    def join(self, slots: Sequence[int], first_state: Tensors) -> None:
        """See `DecoderState`: first states are appended to the rows; where there are none, any row will do."""
        before = 0
        if first_state:
            before = next(iter(self._state.values())).shape()[0]
            self._state = {
                name: _appended(value, first_state.get(name), len(slots)) for name, value in self._state.items()
            }
        for number, slot in enumerate(slots):
            self._first_rows[slot] = before + number if first_state else 0

    def move(self, slot: int, to: int) -> None:
        """See `DecoderState`."""
        self._first_rows[to] = self._first_rows[slot]

    def step(  # noqa: PLR0917 - what the graph contract has
        self,
        tokens: Integers,
        positions: Integers,
        parents: Integers,
        lengths: Integers,
        memory: SlotBuffers,
        columns: Columns,
    ) -> OrtValue:
        """See `DecoderState`."""
        sentences = len(tokens)
        first = np.array([self._first_rows[slot] for slot in range(sentences)])
        logits, self._state = self._graphs.step(
            tokens.ravel(),
            np.repeat(positions, self._beam_size),
            (first[:, None] + parents).ravel(),
            lengths,
            {**memory.view(sentences), **columns.inputs(sentences)},
            self._fitting(int(positions.max())),
        )
        self._first_rows = {slot: slot * self._beam_size for slot in range(sentences)}
        return logits

    def _fitting(self, longest: int) -> Tensors:
        """The state, its time axis cut where rows that have left made it much longer than any row needs."""
        specs = self._graphs.state_specs
        cached = max((_time(spec, self._state[spec.name]) for spec in specs), default=0)
        if cached <= longest + TIME_SLACK:
            return self._state
        return {spec.name: _cut(spec, self._state[spec.name], longest) for spec in specs}


def _appended(value: OrtValue, first: OrtValue | None, sentences: int) -> OrtValue:
    """Rows of state with those of new sentences behind them."""
    rows = value.numpy()
    if first is None:  # such as a cache beside a recurrent state, which begins empty
        return OrtValue.ortvalue_from_numpy(np.concatenate((rows, np.zeros((sentences, *rows.shape[1:]), rows.dtype))))
    return OrtValue.ortvalue_from_numpy(np.concatenate((rows, first.numpy())))


def _time(spec: TensorSpec, value: OrtValue) -> int:
    return max((int(size) for axis, size in zip(spec.axes, value.shape(), strict=True) if axis == "T"), default=0)


def _cut(spec: TensorSpec, value: OrtValue, longest: int) -> OrtValue:
    place = tuple(slice(longest) if axis == "T" else slice(None) for axis in spec.axes)
    return OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value.numpy()[place]))


class InPlaceState:
    """State that stays where it is: every row writes into its sentence's buffer, and finds its past by `ancestors`.

    Inputs and outputs of the decoder are bound to these buffers once, until they grow.

    Args:
        graphs: the model.
        beam_size: K.
    """

    def __init__(self, graphs: Graphs, beam_size: int) -> None:
        self._graphs = graphs
        self._beam_size = beam_size
        self._buffers = SlotBuffers(graphs.state_specs, "T", beam_size=beam_size)
        self._ancestors: Integers = np.zeros((0, beam_size, 0), np.int64)  # [slots, K, T]
        self._logits: Floats = np.zeros(0, np.float32)  # room for [slots * K, U]
        self._steps: dict[int, _BoundStep] = {}  # by the number of sentences
        self._slots = 0  # that hold something
        self._longest = 0  # tokens that any of them holds

    def join(self, slots: Sequence[int], first_state: Tensors) -> None:
        """See `DecoderState`."""
        self._reserve(max(slots) + 1, self._longest + 1)
        self._slots = max(self._slots, max(slots) + 1)
        self._ancestors[slots] = NO_ANCESTOR

    def move(self, slot: int, to: int) -> None:
        """See `DecoderState`."""
        self._buffers.move(slot, to, int((self._ancestors[slot, 0] != NO_ANCESTOR).sum()))
        self._ancestors[to] = self._ancestors[slot]

    def step(  # noqa: PLR0917 - what the graph contract has
        self,
        tokens: Integers,
        positions: Integers,
        parents: Integers,
        lengths: Integers,
        memory: SlotBuffers,
        columns: Columns,
    ) -> OrtValue:
        """See `DecoderState`."""
        sentences = len(tokens)
        self._slots, self._longest = sentences, int(positions.max()) + 1
        self._reserve(sentences, self._longest)
        sentence, row = np.arange(sentences)[:, None], np.arange(self._beam_size)
        ancestors = self._ancestors[:sentences]
        if self._beam_size > 1:
            ancestors[:] = ancestors[sentence, parents]
        ancestors[sentence, row, positions[:, None]] = row
        step = self._steps.get(sentences)
        view, inputs = memory.view(sentences), columns.inputs(sentences)
        if step is None or step.memory is not view or step.columns is not inputs:
            step = self._steps[sentences] = self._bind(sentences, view, inputs, columns.width)
        step.token_ids[:] = tokens.ravel()
        step.positions[:] = np.repeat(positions, self._beam_size)
        step.source_lengths[:] = lengths
        step.run()
        return step.logits

    def _reserve(self, slots: int, length: int) -> None:
        if not self._buffers.reserve(slots, length, self._slots):
            return
        old = self._ancestors[: self._slots, :, : self._buffers.length]
        self._ancestors = np.full(
            (self._buffers.capacity, self._beam_size, self._buffers.length), NO_ANCESTOR, np.int64
        )
        self._ancestors[: len(old), :, : old.shape[2]] = old
        self._steps.clear()

    def _bind(
        self, sentences: int, memory: dict[str, OrtValue], columns: Mapping[str, OrtValue], width: int
    ) -> "_BoundStep":
        rows = sentences * self._beam_size
        if rows * width > len(self._logits):
            self._logits = np.empty(self._buffers.capacity * self._beam_size * width, np.float32)
        token_ids, positions = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        source_lengths = np.zeros(sentences, np.int64)
        logits = OrtValue.ortvalue_from_numpy(self._logits[: rows * width].reshape(rows, width))
        run = self._graphs.bind_step(
            {
                "token_ids": OrtValue.ortvalue_from_numpy(token_ids),
                "positions": OrtValue.ortvalue_from_numpy(positions),
                "ancestors": OrtValue.ortvalue_from_numpy(self._ancestors[:sentences].reshape(rows, -1)),
                "source_lengths": OrtValue.ortvalue_from_numpy(source_lengths),
            },
            {**memory, **columns},
            self._buffers.view(sentences),
            logits,
        )
        return _BoundStep(
            token_ids=token_ids,
            positions=positions,
            source_lengths=source_lengths,
            memory=memory,
            columns=columns,
            logits=logits,
            run=run,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _BoundStep:
    """A decoder step whose tensors have their places: what changes is written into the arrays.

    Attributes:
        token_ids: [R].
        positions: [R].
        source_lengths: [n].
        memory: the encoder's, as it was bound.
        columns: likewise what says which columns logits have.
        logits: [R, U], where they come to lie.
        run: decodes.
    """

    token_ids: Integers
    positions: Integers
    source_lengths: Integers
    memory: dict[str, OrtValue]
    columns: Mapping[str, OrtValue]
    logits: OrtValue
    run: Callable[[], None]
