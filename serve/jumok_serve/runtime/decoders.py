"""Decoders of a batch: they keep its state by slot, and bind its steps."""

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnxruntime import OrtValue

from jumok_serve.native import address, function, pointer
from jumok_serve.runtime.binding import Tensors
from jumok_serve.runtime.decoder_step import DecoderStep
from jumok_serve.runtime.graphs import Floats, Graphs, Integers
from jumok_serve.runtime.output_columns import Columns
from jumok_serve.runtime.state.gathered_state import GatheredState, RowState
from jumok_serve.runtime.state.kv_cache import KVCache, Slots
from jumok_serve.runtime.state.recurrent_state import RecurrentState
from jumok_serve.runtime.step_inputs import DecoderInputs, SelectionParameters

_FEED_ARGUMENTS = (ctypes.c_void_p, *[ctypes.c_int64] * 2, *[ctypes.c_void_p] * 8)
"""Types of the arguments of the native functions ``jumok_feed`` and ``jumok_feed_rows``."""


class _Repeated(NamedTuple):
    """A step of n sentences, to be run again: the arguments that feed it, and the parameters of its selection."""

    sentences: int
    step: DecoderStep
    fed: tuple[Any, ...]
    selection: SelectionParameters


class Decoder(ABC):
    """The decoder of one batch, with its state by slot.

    Attributes:
        graphs: the model. Between two steps the same graphs in other sessions may replace them.
    """

    def __init__(self, graphs: Graphs, beam_size: int) -> None:
        self.graphs = graphs
        self._beam_size = beam_size
        self._steps: dict[tuple[Graphs, int, int], DecoderStep] = {}  # by the number of sentences, and the turn
        self._last: DecoderStep | None = None
        self._given: tuple[Integers, DecoderInputs, Slots, Columns, SelectionParameters] | None = None

    @abstractmethod
    def join(self, slots: Sequence[int], first_state: Tensors, rows: Sequence[int]) -> None:
        """Give sentences the state that decoding starts from.

        Args:
            slots: slot ids, [n]; earlier state in these slots is dropped.
            first_state: the encoder's `state.*`, [B, ...]; empty if the decoder starts without state.
            rows: each sentence's row of `first_state`, [n].
        """

    def leave(self, slots: Sequence[int]) -> None:  # noqa: B027 - no decoder has anything to do
        """Empty slots; their state is never read again."""

    @abstractmethod
    def move(self, slots: Sequence[int], to: Sequence[int]) -> None:
        """Move sentences to other slots; no slot is in both lists."""

    def step(
        self, slots: Integers, inputs: DecoderInputs, memory: Slots, columns: Columns, selection: SelectionParameters
    ) -> tuple[Integers, Floats]:
        """Decode one token of every row, and find the next token's candidates.

        Args:
            slots: slot ids, ascending, [n]: any if `Graphs.by_slot`, else 0 .. n-1.
            inputs: tokens, positions, parents and source lengths by slot.
            memory: encoder memory by slot.
            columns: columns of the logits.
            selection: parameters of the selection, for rows [R].

        Returns:
            Columns and running scores [R, C], best first. The next step may overwrite them.
        """
        self._given = slots, inputs, memory, columns, selection
        return self._step(*self._given)

    def step_again(self) -> tuple[Integers, Floats]:
        """Step with the arguments of the last `step`, whose arrays have other values by now.

        Only if nothing joined, left or moved since, and `graphs` are the same.
        """
        assert self._given is not None
        return self._step(*self._given)

    @abstractmethod
    def _step(
        self, slots: Integers, inputs: DecoderInputs, memory: Slots, columns: Columns, selection: SelectionParameters
    ) -> tuple[Integers, Floats]:
        """See `step`."""

    def logits(self) -> OrtValue:
        """The logits [R, U] of the last step, valid until the next."""
        assert self._last is not None
        return self._last.logits()

    def _bound_step(self, sentences: int, memory: Mapping[str, Any], columns: Columns, *, turn: int = 0) -> DecoderStep:
        """The step for n sentences, bound again if tensors have moved; each turn has its own."""
        column_inputs, key = columns.inputs(sentences), (self.graphs, sentences, turn)
        step = self._steps.get(key)
        if step is None or step.memory is not memory:
            step = self._steps[key] = self._bind(sentences, memory, column_inputs, columns.width)
        elif step.columns is not column_inputs:
            step.give_columns(column_inputs, columns.width)
        self._last = step
        return step

    @abstractmethod
    def _bind(
        self, sentences: int, memory: Mapping[str, Any], columns: Mapping[str, OrtValue], width: int
    ) -> DecoderStep:
        """Bind a step for n sentences."""


def make_decoder(graphs: Graphs, beam_size: int) -> Decoder:
    """Make a batch's decoder: in place if its cache is by slot.

    Otherwise the decoder gathers its state by row.
    """
    return InPlaceDecoder(graphs, beam_size) if graphs.in_place else GatheringDecoder(graphs, beam_size)


class InPlaceDecoder(Decoder):
    """A decoder that writes each row's new token into the KV cache."""

    def __init__(self, graphs: Graphs, beam_size: int) -> None:
        super().__init__(graphs, beam_size)
        self._cache = KVCache(graphs.make_slots("state"), beam_size, with_positions=graphs.reads_entry_positions)
        self._visible = self._cache.visible  # as bound
        self._feed = function("jumok_feed", _FEED_ARGUMENTS)

    def join(self, slots: Sequence[int], first_state: Tensors, rows: Sequence[int]) -> None:
        """See `Decoder`."""
        self._cache.join(slots)

    def move(self, slots: Sequence[int], to: Sequence[int]) -> None:
        """See `Decoder`."""
        self._cache.move(slots, to)

    def _step(
        self, slots: Integers, inputs: DecoderInputs, memory: Slots, columns: Columns, selection: SelectionParameters
    ) -> tuple[Integers, Floats]:
        """See `Decoder`."""
        cache, sentences = self._cache, len(slots)
        entries = cache.allocate(inputs, int(slots[-1]) + 1)  # [slots, K]
        if cache.visible is not self._visible:  # the cache has moved
            self._visible = cache.visible
            self._steps.clear()
        view = memory.view(memory.capacity if self.graphs.by_slot else sentences)
        step = self._bound_step(sentences, view, columns)
        arrays = step.arrays
        if self._feed is None:
            arrays["token_ids"][:] = inputs.tokens[slots]  # [n, K]
            arrays["positions"][:] = inputs.positions[slots, None]  # [n, K]
            arrays["places"][:, :, 0] = slots[:, None]  # [n, K, 3]
            arrays["places"][:, :, 2] = entries[slots]
            arrays["source_lengths"][:] = inputs.lengths[slots]  # [n]
        else:
            tokens, positions, _, lengths = inputs.addresses
            self._feed(
                *(pointer(slots), sentences, self._beam_size),
                *(tokens, positions, lengths, cache.entries_address, *step.addresses),
            )
        if self.graphs.reads_entry_positions:
            arrays["entry_positions"][:] = cache.entry_positions[slots]  # [n, E]
        return step.run(selection)

    def _bind(
        self, sentences: int, memory: Mapping[str, Any], columns: Mapping[str, OrtValue], width: int
    ) -> DecoderStep:
        buffers, beam_size = self._cache.buffers, self._beam_size
        slots = buffers.capacity if self.graphs.by_slot else sentences
        arrays: dict[str, NDArray[Any]] = {
            "token_ids": np.zeros((sentences, beam_size), np.int64),
            "positions": np.zeros((sentences, beam_size), np.int64),
            "places": np.zeros((sentences, beam_size, 3), np.int64),
            "source_lengths": np.zeros(sentences, np.int64),
        }
        addresses = tuple(map(address, arrays.values()))
        arrays["visible"] = self._cache.visible[:slots]  # [slots, K, E]
        arrays["entry_positions"] = np.zeros((sentences, buffers.length), np.int64)
        state = buffers.view(slots)
        return DecoderStep(self.graphs, arrays, memory, state, columns=columns, width=width, addresses=addresses)


class GatheringDecoder(Decoder):
    """A decoder that gathers a new state at every step by `parents`."""

    def __init__(self, graphs: Graphs, beam_size: int) -> None:
        super().__init__(graphs, beam_size)
        self._state: RowState
        constant = all(isinstance(axis, int) for spec in graphs.state_specs for axis in spec.axes[1:])
        if constant and not graphs.for_device:  # for a device, inputs are copied when they are bound
            self._state = RecurrentState(graphs.state_specs, beam_size)
        else:
            self._state = GatheredState(graphs.state_specs, graphs.empty_state(), beam_size)
        self._feed = function("jumok_feed_rows", _FEED_ARGUMENTS)
        self._repeated: dict[int, _Repeated] = {}  # by turn

    def join(self, slots: Sequence[int], first_state: Tensors, rows: Sequence[int]) -> None:
        """See `Decoder`."""
        self._state.join(slots, first_state, rows)

    def move(self, slots: Sequence[int], to: Sequence[int]) -> None:
        """See `Decoder`."""
        self._state.move(slots, to)

    def step(
        self, slots: Integers, inputs: DecoderInputs, memory: Slots, columns: Columns, selection: SelectionParameters
    ) -> tuple[Integers, Floats]:
        """See `Decoder`."""
        self._repeated.clear()
        return super().step(slots, inputs, memory, columns, selection)

    def step_again(self) -> tuple[Integers, Floats]:
        """See `Decoder`."""
        repeated = self._repeated.get(self._state.turn)
        if repeated is None:
            return super().step_again()
        sentences, step, fed, selection = repeated
        self._last = step
        self._feed(*fed)
        candidates = step.run(selection)
        self._state.replace(step.new_state, sentences)
        return candidates

    def _step(
        self, slots: Integers, inputs: DecoderInputs, memory: Slots, columns: Columns, selection: SelectionParameters
    ) -> tuple[Integers, Floats]:
        """See `Decoder`."""
        sentences, turn = len(slots), self._state.turn
        step = self._bound_step(sentences, memory.view(sentences), columns, turn=turn)
        first_rows, positions = self._state.first_rows(sentences), inputs.positions[:sentences]
        if self._feed is None:
            arrays = step.arrays
            arrays["token_ids"][:] = inputs.tokens[:sentences]  # [n, K], bound as [R]
            arrays["positions"][:] = positions[:, None]  # [n, K]
            np.add(first_rows, inputs.parents[:sentences], out=arrays["parents"])  # [n, K]
            arrays["source_lengths"][:] = inputs.lengths[:sentences]  # [n]
        else:
            fed = pointer(first_rows), sentences, self._beam_size, *inputs.addresses, *step.addresses
            self._feed(*fed)
            if isinstance(self._state, RecurrentState):  # whose tensors stay where they are
                self._repeated[turn] = _Repeated(sentences, step, fed, selection)
        step.give_state(*self._state.tensors(sentences, positions))  # [P, ...], [R, ...]
        candidates = step.run(selection)
        self._state.replace(step.new_state, sentences)
        return candidates

    def _bind(
        self, sentences: int, memory: Mapping[str, Any], columns: Mapping[str, OrtValue], width: int
    ) -> DecoderStep:
        rows = (sentences, self._beam_size)
        arrays: dict[str, NDArray[Any]] = {
            name: np.zeros(rows, np.int64) for name in ("token_ids", "positions", "parents")
        }
        arrays["source_lengths"] = np.zeros(sentences, np.int64)
        addresses = tuple(map(address, arrays.values()))
        return DecoderStep(self.graphs, arrays, memory, {}, columns=columns, width=width, addresses=addresses)
