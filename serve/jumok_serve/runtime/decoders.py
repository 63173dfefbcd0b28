"""Decoders: one step of the decoder graph, and the two kinds of state.

n sentences take part with K rows each, R = n * K. E: cache entries, S: source length, P: rows of the last step,
U: columns of the logits, C: candidates of a row.

    engine.batch.Batch.step
      |   DecoderInputs         tokens [slots, K]  positions [slots]  parents [slots, K]  lengths [slots]
      |   SelectionParameters   scores [R]  candidates C  constraints (row, column)  renormalize [R]
      v
    InPlaceDecoder.step                                     GatheringDecoder.step
      |   KVCache.allocate      entries [slots, K]            |   RowState.first_rows       [n, 1]
      |   by slot, as bound:                                  |   by slot, as bound:
      |     memory.*            [slots, ..., S, ...]          |     memory.*        [n, ..., S, ...]
      |     state.*             [slots, ..., E, ...]          |   given before each step:
      |     visible             [slots, K, E]                 |     state.*         [P, ...]
      |   gathered for the step:                              |   gathered for the step:
      |     token_ids           [n, K]                        |     token_ids       [R]
      |     positions           [n, K]                        |     positions       [R]
      |     places              [n, K, 3]: slot, 0, entry     |     parents         [R]: row in P
      |     entry_positions     [n, E]                        |
      |     source_lengths      [n]                           |     source_lengths  [n]
      |   with a shortlist:     bias [n, U] and the columns' weights
      v
    DecoderStep.run             scores [R]  candidates [1]  logit_rows [1]: R or 0  renormalize [N]: row numbers
      |                         {logit, log_prob}_{factors, biases}.places [N]: row * U + column, .values [N]
      v
    ONNX Runtime                decoder with log-softmax, constraints and top-k as its epilogue
      |
      v
    DecoderStep.run returns     tokens [R, C]: columns  totals [R, C]: running scores; on demand logits [R, U]
                                next_state.*: the buffers of state.* themselves, others, or new tensors [R, ...]
"""

import ctypes
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnxruntime import OrtValue

from jumok_serve.manifest.manifest import DEVICE_INPUT, TensorSpec
from jumok_serve.native import address, function, pointer
from jumok_serve.runtime.graphs import LOGIT_ROWS, Floats, Graphs, Integers, constraint_arrays
from jumok_serve.runtime.step_selection import Columns, SelectionParameters
from jumok_serve.runtime.tensors import DecoderInputs, KVCache, SlotBuffers, Slots, Tensors, View, as_value
from jumok_serve.search.constraints import NO_CONSTRAINTS, Constraints


class DecoderStep:
    """A decoder step with its selection, over tensors with constant addresses.

    Args:
        arrays: the decoder's inputs by row and by sentence, which the caller writes into; others are ignored.
        memory: encoder memory, [B, ...], or by slot; other tensors are ignored.
        state: KV cache by slot, written in place; empty if `give_state` gives a state before each run.
        columns: inputs that describe the columns of the logits.
        width: columns of the logits, U.
        addresses: addresses of arrays, for native code.

    Attributes:
        memory: the given tensors, to detect moved memory.
        columns: the given inputs, to detect changed columns.
        rows: R.
        width: U.
    """

    def __init__(
        self,
        graphs: Graphs,
        arrays: Mapping[str, NDArray[Any]],
        memory: Mapping[str, OrtValue | View],
        state: Mapping[str, OrtValue | View],
        *,
        columns: Mapping[str, OrtValue] = MappingProxyType({}),
        width: int,
        addresses: tuple[int, ...] = (),
    ) -> None:
        self.arrays = arrays
        self.memory = memory
        self.columns = columns
        self.addresses = addresses
        self.rows = math.prod(arrays["token_ids"].shape)
        self.width = width
        self._binding = graphs.bind_decoder(self.rows)
        self._inputs = graphs.decoder_inputs
        self._for_device = graphs.for_device
        self._state: Tensors = {}  # given last
        self._selection: SelectionParameters | None = None  # bound; None: to be compared with what is bound
        self._scores: Floats | None = None
        self._candidates = 0
        self._with_logits = False
        self._renormalize: NDArray[np.bool_] | None = None
        self._on_logits = self._on_log_probs = NO_CONSTRAINTS
        self._tokens = np.zeros((self.rows, 0), np.int64)
        self._totals = np.zeros((self.rows, 0), np.float32)
        for name, array in arrays.items():
            if name in graphs.decoder_inputs:
                self._binding.bind_shared_array(name, array if graphs.in_place else array.reshape(-1))
        for name, value in {**memory, **columns, **state}.items():
            if name in graphs.decoder_inputs:
                self._binding.bind_input(name, value)
        self._bind_sizes()
        self._bind_renormalize(None)
        self._bind_constraints("logit", NO_CONSTRAINTS)
        self._bind_constraints("log_prob", NO_CONSTRAINTS)
        self._binding.bind_output("logits")
        for name, value in state.items():
            self._binding.bind_output(f"next_{name}", value)

    def give_columns(self, columns: Mapping[str, OrtValue], width: int) -> None:
        """Bind the inputs that describe the columns of the next runs, if they are others."""
        bound, self.columns = self.columns, columns
        for name, value in columns.items():
            if name in self._inputs and value is not bound.get(name):
                self._binding.bind_input(name, value)
        if width == self.width:
            return
        self.width = width
        self._binding.bind_output("logits")  # a binding keeps the shape that an output had
        if min(self._candidates, width) != self._tokens.shape[1]:
            self._candidates = 0  # to be bound before the next run
        self._give_constraints(NO_CONSTRAINTS, NO_CONSTRAINTS)  # whose places do not depend on the width
        self._selection = None

    def give_state(self, state: Tensors, following: Tensors) -> None:
        """Bind the state [P, ...] of the next run, unless it is bound; release the last.

        Args:
            following: tensors for the state that the run makes, [R, ...]; empty: the run allocates them.
        """
        if state is self._state and following:
            return
        self._state = state
        for name, value in state.items():
            self._binding.bind_input(name, value)
            self._binding.bind_output(f"next_{name}", following.get(name))

    def new_state(self) -> Tensors:
        """Return the state [R, ...] that the last run made."""
        _, *values = self._binding.outputs()[: 1 + len(self._state)]
        return dict(zip(self._state, values, strict=True))

    def run(self, selection: SelectionParameters) -> tuple[Integers, Floats]:
        """Run the decoder, after binding the inputs that have changed.

        Returns:
            Columns and running scores [R, C] of the best candidates. The next run overwrites them.
        """
        if selection is not self._selection:
            self._give(selection)
        self._binding.run()
        return self._tokens, self._totals

    def logits(self) -> OrtValue:
        """The logits [R, U] of the last run, decoded again if necessary."""
        if not self._with_logits:
            self._return_logits(True)
            self._selection = None  # its next run returns none
            self._binding.run()
        return self._binding.outputs()[0]

    def _give(self, selection: SelectionParameters) -> None:
        """Bind those parameters of a selection that are not bound."""
        if selection.scores is not self._scores:
            self._scores = selection.scores
            self._binding.bind_shared_array("scores", selection.scores)
        if selection.with_logits != self._with_logits:
            self._return_logits(selection.with_logits)
        if selection.renormalize is not self._renormalize:
            self._renormalize = selection.renormalize
            self._bind_renormalize(selection.renormalize)
        self._give_constraints(selection.on_logits, selection.on_log_probs)
        if selection.candidates != self._candidates:
            self._bind_candidates(selection.candidates)
        self._selection = selection

    def _give_constraints(self, on_logits: Constraints, on_log_probs: Constraints) -> None:
        """Bind constraints, unless they are bound."""
        if on_logits is not self._on_logits:
            self._on_logits = on_logits
            self._bind_constraints("logit", on_logits)
        if on_log_probs is not self._on_log_probs:
            self._on_log_probs = on_log_probs
            self._bind_constraints("log_prob", on_log_probs)

    def _bind_sizes(self) -> None:
        """Bind sizes on the host; copies them if the device reads them."""
        self._binding.bind_input("candidates", as_value(np.array([self._candidates])))
        self._binding.bind_input(LOGIT_ROWS, as_value(np.array([self.rows if self._with_logits else 0])))

    def _bind_candidates(self, candidates: int) -> None:
        self._candidates = candidates
        self._bind_sizes()
        shape = (self.rows, min(candidates, self.width))
        self._tokens, self._totals = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        self._binding.bind_output("tokens", as_value(self._tokens))
        self._binding.bind_output("totals", as_value(self._totals))

    def _return_logits(self, with_logits: bool) -> None:
        self._with_logits = with_logits
        self._bind_sizes()
        self._binding.bind_output("logits")  # a binding keeps the shape that an output had

    def _bind_constraints(self, stage: str, constraints: Constraints) -> None:
        arrays = constraint_arrays(stage, constraints, self.width, for_device=self._for_device)
        for name, array in arrays.items():
            self._binding.bind_array(name, array)

    def _bind_renormalize(self, renormalize: NDArray[np.bool_] | None) -> None:
        rows = np.zeros(0, np.int64) if renormalize is None else np.flatnonzero(renormalize)
        if self._for_device:  # takes no empty tensors: one row at least, that may not ask for it
            self._binding.bind_array(DEVICE_INPUT, np.full(max(1, len(rows)), len(rows) > 0))
            rows = rows if len(rows) else np.zeros(1, np.int64)
        self._binding.bind_array("renormalize", rows)


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


TIME_SLACK = 32
"""Positions beyond the longest row's that a gathered cache may have before it is cut."""
_NO_AXIS = ""


class RecurrentState:
    """State in two buffers that take turns.

    Row k of the sentence in slot b is row b * K + k. Nothing is allocated or moved between two steps.

    Args:
        specs: the decoder's inputs `state.*`, [P, ...], without an axis that grows.

    Attributes:
        turn: number of the tensors that hold the state; 0 if none take turns.
    """

    def __init__(self, specs: Sequence[TensorSpec], beam_size: int) -> None:
        self._specs = specs
        self._beam_size = beam_size
        self._buffers = SlotBuffers(specs, _NO_AXIS), SlotBuffers(specs, _NO_AXIS)
        self.turn = 0
        self._slots = 0  # that have been used
        self._first_rows: NDArray[np.int64] = np.zeros((0, 1), np.int64)

    def join(self, slots: Sequence[int], first_state: Tensors, rows: Sequence[int]) -> None:
        """Give sentences their rows of first states.

        Args:
            slots: slot ids, [n].
            first_state: the encoder's `state.*`, [B, ...]; for one that is missing, zeros or any row serve.
            rows: each sentence's row of `first_state`, [n].
        """
        used = self._slots
        self._slots = max(used, *(slot + 1 for slot in slots))
        for buffers in self._buffers:
            buffers.reserve(self._slots * self._beam_size, 0, used * self._beam_size)
        given = {name: value.numpy() for name, value in first_state.items()}
        for spec in self._specs:
            if spec.name not in given:
                shape = [size for size in spec.axes[1:] if isinstance(size, int)]
                given[spec.name] = np.zeros((max(rows) + 1, *shape), spec.dtype)
        self._buffers[self.turn].write([slot * self._beam_size for slot in slots], given, rows)

    def move(self, slots: Sequence[int], to: Sequence[int]) -> None:
        """Take the rows of slots along to other slots."""
        size = self._beam_size
        rows, places = ([slot * size + row for slot in some for row in range(size)] for some in (slots, to))
        self._buffers[self.turn].move(rows, places, 0)

    def first_rows(self, sentences: int) -> NDArray[np.int64]:
        """The first row in P of the sentences in slots, [n, 1]."""
        if sentences > len(self._first_rows):
            self._first_rows = np.arange(2 * sentences)[:, None] * self._beam_size
        return self._first_rows[:sentences]

    def tensors(self, sentences: int, positions: NDArray[np.int64]) -> tuple[Tensors, Tensors]:
        """The state [P, ...], and tensors for the next, [R, ...].

        Without tensors for the next, the step allocates them.

        Args:
            sentences: number of sentences in the next step, n.
            positions: tokens that their rows have decoded, [n].
        """
        rows = sentences * self._beam_size
        return self._buffers[self.turn].view(rows), self._buffers[1 - self.turn].view(rows)

    def replace(self, made: Callable[[], Tensors], sentences: int) -> None:
        """Go on to a step's new state, which `made` returns, [R, ...]."""
        self.turn = 1 - self.turn


class GatheredState:
    """State that every step allocates anew, as growing caches; see `RecurrentState`.

    Args:
        specs: the decoder's inputs `state.*`, [P, ...].
        tensors: one dummy row, [1, ...].
    """

    turn = 0

    def __init__(self, specs: Sequence[TensorSpec], tensors: Tensors, beam_size: int) -> None:
        self._specs = specs
        self._tensors = tensors
        self._beam_size = beam_size
        self._first_rows: dict[int, int] = {}  # by slot, in P

    def join(self, slots: Sequence[int], first_state: Tensors, rows: Sequence[int]) -> None:
        """See `RecurrentState`."""
        first = 0
        if first_state:
            first = next(iter(self._tensors.values())).shape()[0]
            self._tensors = {
                name: _appended(value, first_state.get(name), rows) for name, value in self._tensors.items()
            }
        for number, slot in enumerate(slots):
            self._first_rows[slot] = first + number if first_state else 0

    def move(self, slots: Sequence[int], to: Sequence[int]) -> None:
        """See `RecurrentState`."""
        for slot, other in zip(slots, to, strict=True):
            self._first_rows[other] = self._first_rows[slot]

    def first_rows(self, sentences: int) -> NDArray[np.int64]:
        """See `RecurrentState`."""
        return np.array([self._first_rows[slot] for slot in range(sentences)])[:, None]

    def tensors(self, sentences: int, positions: NDArray[np.int64]) -> tuple[Tensors, Tensors]:
        """See `RecurrentState`; cuts a much too long time axis."""
        longest = int(positions.max())
        cached = max((_time(spec, self._tensors[spec.name]) for spec in self._specs), default=0)
        if cached <= longest + TIME_SLACK:
            return self._tensors, {}
        return {spec.name: _cut(spec, self._tensors[spec.name], longest) for spec in self._specs}, {}

    def replace(self, made: Callable[[], Tensors], sentences: int) -> None:
        """See `RecurrentState`."""
        self._tensors = made()
        self._first_rows = {slot: slot * self._beam_size for slot in range(sentences)}


RowState: TypeAlias = RecurrentState | GatheredState
"""State of the P rows of the last step; each row of the next step picks one."""


def _appended(value: OrtValue, first: OrtValue | None, rows: Sequence[int]) -> OrtValue:
    present = value.numpy()
    new = np.zeros((len(rows), *present.shape[1:]), present.dtype)  # a cache beside a recurrent state begins like this
    if first is not None:
        new = first.numpy()[list(rows)]
    return OrtValue.ortvalue_from_numpy(np.concatenate((present, new)))


def _time(spec: TensorSpec, value: OrtValue) -> int:
    return max((int(size) for axis, size in zip(spec.axes, value.shape(), strict=True) if axis == "T"), default=0)


def _cut(spec: TensorSpec, value: OrtValue, longest: int) -> OrtValue:
    part = tuple(slice(longest) if axis == "T" else slice(None) for axis in spec.axes)
    return OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value.numpy()[part]))


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
