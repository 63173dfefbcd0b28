"""The decoder's state of the sentences that are decoded together, and the step that continues it."""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from onnxruntime import OrtValue

from jumok_serve.manifest.manifest import TensorSpec
from jumok_serve.native import address, function, pointer
from jumok_serve.runtime.decoder_step import Choice
from jumok_serve.runtime.graphs import Booleans, DecoderStep, Floats, Graphs, Integers, Slots, Tensors
from jumok_serve.runtime.output_columns import Columns

_PLACE_ARGUMENTS = (*[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 3, ctypes.c_void_p)
"""Of ``jumok_place`` in ``kernels/searches.cc``."""
_FEED_ARGUMENTS = (ctypes.c_void_p, *[ctypes.c_int64] * 2, *[ctypes.c_void_p] * 8)
"""Of ``jumok_feed`` there."""

TIME_SLACK = 32
"""Cache entries beyond the longest row's that are carried along before a gathered cache is cut to size."""


class Fed:
    """What steps are fed, by slot, in arrays that stay where they are; for others there is another one.

    Args:
        tokens: [slots, K].
        positions: how many tokens each sentence's rows have decoded; with 0 they see nothing of a state that is in
            place, [slots].
        parents: which of its sentence's rows each row continues, [slots, K].
        lengths: of the sources, [slots].

    Attributes:
        addresses: of these four, which are attributes too, for native code.
    """

    def __init__(self, tokens: Integers, positions: Integers, parents: Integers, lengths: Integers) -> None:
        self.tokens = tokens
        self.positions = positions
        self.parents = parents
        self.lengths = lengths
        self.addresses = tuple(map(address, (tokens, positions, parents, lengths)))


class DecoderState(Protocol):
    """The state of sentences in slots, K rows each.

    Attributes:
        graphs: the model; between two steps the same graphs in other sessions may take their place.
    """

    graphs: Graphs

    def join(self, slots: Sequence[int], first_state: Tensors, rows: Sequence[int]) -> None:
        """Gives sentences, each in the slot named for it, the state that decoding starts from.

        Args:
            slots: of the sentences; nothing is kept of what was there.
            first_state: what the encoder gave for them and others, [B, ...]; empty where a decoder starts from nothing.
            rows: of that, each sentence's.
        """

    def move(self, slots: Sequence[int], to: Sequence[int]) -> None:
        """Puts the sentences of some slots into others, none of which is among them."""

    def step(
        self, slots: Integers, fed: Fed, memory: Slots, columns: Columns, choice: Choice
    ) -> tuple[Integers, Floats]:
        """Decodes one token of every row of some sentences, and finds the candidates for the next.

        Args:
            slots: of the sentences, ascending, [n]: any where `Graphs.by_slot`, elsewhere 0 .. n-1.
            fed: what these and maybe others are fed.
            memory: the encoder's, by slot.
            columns: that logits are to have.
            choice: what candidates are asked for, of rows [n * K].

        Returns:
            Columns and running scores [n * K, C], best first. They may lie where those of the next step will.
        """

    def logits(self) -> OrtValue:
        """Logits [n * K, U] of the last step. They may lie where those of the next step will."""


def make_state(graphs: Graphs, beam_size: int) -> DecoderState:
    """The state that suits a decoder: in place where it takes `places`, gathered where it takes `parents`."""
    return InPlaceState(graphs, beam_size) if graphs.in_place else GatheredState(graphs, beam_size)


class GatheredState:
    """State that every step makes anew: the decoder picks for each row the one it continues, by `parents`.

    Args:
        graphs: the model.
        beam_size: K.
    """

    def __init__(self, graphs: Graphs, beam_size: int) -> None:
        self.graphs = graphs
        self._beam_size = beam_size
        self._state = graphs.empty_state()
        self._steps: dict[tuple[Graphs, int], _Step] = {}  # by the number of sentences
        self._last: _Step | None = None
        self._first_rows: dict[int, int] = {}  # of the sentence in each slot, in `_state`

    def join(self, slots: Sequence[int], first_state: Tensors, rows: Sequence[int]) -> None:
        """See `DecoderState`: first states are appended to the rows; where there are none, any row will do."""
        before = 0
        if first_state:
            before = next(iter(self._state.values())).shape()[0]
            self._state = {name: _appended(value, first_state.get(name), rows) for name, value in self._state.items()}
        for number, slot in enumerate(slots):
            self._first_rows[slot] = before + number if first_state else 0

    def move(self, slots: Sequence[int], to: Sequence[int]) -> None:
        """See `DecoderState`."""
        for slot, place in zip(slots, to, strict=True):
            self._first_rows[place] = self._first_rows[slot]

    def step(
        self, slots: Integers, fed: Fed, memory: Slots, columns: Columns, choice: Choice
    ) -> tuple[Integers, Floats]:
        """See `DecoderState`."""
        sentences = len(slots)
        view, inputs = memory.view(sentences), columns.inputs(sentences)
        step = self._steps.get((self.graphs, sentences))
        if step is None or step.memory is not view or step.columns is not inputs:
            step = self._steps[self.graphs, sentences] = self._bind(sentences, view, inputs, columns.width)
        first = [self._first_rows[slot] for slot in range(sentences)]
        step.token_ids[:] = fed.tokens[:sentences]
        step.positions[:] = fed.positions[:sentences, None]
        step.links[:] = np.array(first)[:, None] + fed.parents[:sentences]
        step.source_lengths[:] = fed.lengths[:sentences]
        step.bound.give_state(self._fitting(int(step.positions.max())))
        chosen = step.bound.run(choice)
        self._state, self._last = step.bound.state, step
        self._first_rows = {slot: slot * self._beam_size for slot in range(sentences)}
        return chosen

    def logits(self) -> OrtValue:
        """See `DecoderState`."""
        assert self._last is not None
        return self._last.bound.logits()

    def _bind(
        self, sentences: int, memory: dict[str, OrtValue], columns: Mapping[str, OrtValue], width: int
    ) -> "_Step":
        token_ids, positions, parents = (np.zeros((sentences, self._beam_size), np.int64) for _ in range(3))
        source_lengths = np.zeros(sentences, np.int64)
        rows = {"token_ids": token_ids, "positions": positions, "parents": parents, "source_lengths": source_lengths}
        bound = self.graphs.bind_step(
            {name: array.reshape(-1) for name, array in rows.items()},
            {**memory, **columns},
            {},
            width=width,
        )
        return _Step(
            token_ids=token_ids,
            positions=positions,
            links=parents,
            source_lengths=source_lengths,
            entry_positions=source_lengths[:0],
            memory=memory,
            columns=columns,
            bound=bound,
        )

    def _fitting(self, longest: int) -> Tensors:
        """The state, its time axis cut where rows that have left made it much longer than any row needs."""
        specs = self.graphs.state_specs
        cached = max((_time(spec, self._state[spec.name]) for spec in specs), default=0)
        if cached <= longest + TIME_SLACK:
            return self._state
        return {spec.name: _cut(spec, self._state[spec.name], longest) for spec in specs}


def _appended(value: OrtValue, first: OrtValue | None, rows: Sequence[int]) -> OrtValue:
    """Rows of state with some of new sentences' behind them."""
    present = value.numpy()
    new = np.zeros((len(rows), *present.shape[1:]), present.dtype)  # as a cache beside a recurrent state begins
    if first is not None:
        new = first.numpy()[list(rows)]
    return OrtValue.ortvalue_from_numpy(np.concatenate((present, new)))


def _time(spec: TensorSpec, value: OrtValue) -> int:
    return max((int(size) for axis, size in zip(spec.axes, value.shape(), strict=True) if axis == "T"), default=0)


def _cut(spec: TensorSpec, value: OrtValue, longest: int) -> OrtValue:
    place = tuple(slice(longest) if axis == "T" else slice(None) for axis in spec.axes)
    return OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value.numpy()[place]))


class InPlaceState:
    """State that stays where it is: rows write into entries of their sentence's buffer, and see those of their past.

    An entry is shared by all rows that continue the one that wrote it, and free when none is left that sees it. A new
    token takes the lowest that is free, so that the entries in use stay few and low: about as many as a row has tokens,
    and a few for each row where these differ.

    Inputs and outputs of the decoder are bound to these buffers once, until they grow.

    Args:
        graphs: the model.
        beam_size: K.
    """

    def __init__(self, graphs: Graphs, beam_size: int) -> None:
        self.graphs = graphs
        self._beam_size = beam_size
        self._buffers = graphs.make_slots("state")
        self._visible: Booleans = np.zeros((0, beam_size, 0), np.bool_)  # [slots, K, E]
        self._used: Booleans = np.zeros((0, beam_size), np.bool_)  # [slots, E + K]: by any row; the last K never are
        self._rows: Integers = np.zeros((0, beam_size), np.int64)  # [slots, K]: numbers of the rows of `_visible`
        self._entry_positions: Integers = np.zeros((0, 0), np.int64)  # [slots, E]
        self._steps: dict[tuple[Graphs, int], _Step] = {}  # by the number of sentences
        self._last: _Step | None = None
        self._slots = 0  # that hold something
        self._native = function("jumok_place", _PLACE_ARGUMENTS)
        self._feed = function("jumok_feed", _FEED_ARGUMENTS)
        self._places: Integers = np.zeros((0, beam_size), np.int64)  # [slots, K], that the native one chooses
        self._addresses = 0, 0  # of what it writes, `_visible` and `_places`

    def join(self, slots: Sequence[int], first_state: Tensors, rows: Sequence[int]) -> None:
        """See `DecoderState`."""
        self._visible[[slot for slot in slots if slot < len(self._visible)]] = False
        self._reserve(max(slots) + 1, max(_end(self._visible[: self._slots]), self._beam_size))
        self._slots = max(self._slots, max(slots) + 1)

    def move(self, slots: Sequence[int], to: Sequence[int]) -> None:
        """See `DecoderState`."""
        moved, free = list(slots), list(to)
        self._buffers.move(moved, free, _end(self._visible[moved]))
        self._visible[free] = self._visible[moved]
        self._entry_positions[free] = self._entry_positions[moved]

    def step(
        self, slots: Integers, fed: Fed, memory: Slots, columns: Columns, choice: Choice
    ) -> tuple[Integers, Floats]:
        """See `DecoderState`."""
        self._slots = int(slots[-1]) + 1
        places = self._place(fed, self._slots)
        sentences, by_slot = len(slots), self.graphs.by_slot
        view = memory.view(memory.capacity if by_slot else sentences)
        step, inputs = self._steps.get((self.graphs, sentences)), columns.inputs(sentences)
        if step is None or step.memory is not view or step.columns is not inputs:
            step = self._steps[self.graphs, sentences] = self._bind(sentences, view, inputs, columns.width)
        if self._feed is None:
            step.token_ids[:] = fed.tokens[slots]
            step.positions[:] = fed.positions[slots, None]
            step.links[:, :, 0] = slots[:, None]
            step.links[:, :, 2] = places[slots]
            step.source_lengths[:] = fed.lengths[slots]
        else:
            tokens, positions, _, lengths = fed.addresses
            self._feed(
                *(pointer(slots), sentences, self._beam_size),
                *(tokens, positions, lengths, self._addresses[1], *step.addresses),
            )
        if self.graphs.reads_entry_positions:
            step.entry_positions[:] = self._entry_positions[slots]
        self._last = step
        return step.bound.run(choice)

    def logits(self) -> OrtValue:
        """See `DecoderState`."""
        assert self._last is not None
        return self._last.bound.logits()

    def _place(self, fed: Fed, sentences: int) -> Integers:
        """Gives each row an entry [n, K] for its new token, and has it see what the row sees that it continues."""
        entries = self._visible.shape[-1]
        if self._native is None:
            places = self._chosen(fed.positions[:sentences], fed.parents[:sentences])
            last = int(places.max())
        else:
            places = self._places[:sentences]
            last = self._native(
                *(self._addresses[0], *fed.addresses[1:3]),
                *(sentences, self._beam_size, entries, self._addresses[1]),
            )
        if last >= entries:
            self._reserve(sentences, last + 1)
        if last >= entries or self._native is None:
            self._visible.reshape(-1)[self._rows[:sentences] * self._visible.shape[-1] + places] = True
        if self.graphs.reads_entry_positions:
            self._entry_positions[np.arange(sentences)[:, None], places] = fed.positions[:sentences, None]
        return places

    def _chosen(self, positions: Integers, parents: Integers) -> Integers:
        """The same, but that no row sees its own entry yet."""
        sentences, beam_size = parents.shape
        self._visible[:sentences][positions == 0] = False
        if beam_size == 1:  # whose tokens lie in their order
            return positions[:, None]
        visible, used = self._visible[:sentences], self._used[:sentences]
        rows = self._rows[:sentences, :1] + parents
        visible[:] = self._visible.reshape(-1, self._visible.shape[-1]).take(rows, axis=0)
        visible.any(axis=1, out=used[:, :-beam_size])
        return used.argsort(axis=1, kind="stable")[:, :beam_size]

    def _reserve(self, slots: int, entries: int) -> None:
        """Makes room."""
        if not self._buffers.reserve(slots, entries, self._slots):
            return
        capacity, length, beam_size = self._buffers.capacity, self._buffers.length, self._beam_size
        self._visible = _resized(self._visible, self._slots, (capacity, beam_size, length))
        self._used = np.zeros((capacity, length + beam_size), np.bool_)
        self._rows = np.arange(capacity * beam_size).reshape(capacity, beam_size)
        self._entry_positions = _resized(self._entry_positions, self._slots, (capacity, length))
        self._places = _resized(self._places, self._slots, (capacity, beam_size))
        self._addresses = address(self._visible), address(self._places)
        self._steps.clear()

    def _bind(
        self,
        sentences: int,
        memory: dict[str, OrtValue],
        columns: Mapping[str, OrtValue],
        width: int,
    ) -> "_Step":
        token_ids, positions = (np.zeros((sentences, self._beam_size), np.int64) for _ in range(2))
        places = np.zeros((sentences, self._beam_size, 3), np.int64)
        source_lengths = np.zeros(sentences, np.int64)
        entry_positions = np.zeros((sentences, self._buffers.length), np.int64)
        slots = self._buffers.capacity if self.graphs.by_slot else sentences
        bound = self.graphs.bind_step(
            {
                "token_ids": token_ids,
                "positions": positions,
                "places": places,
                "visible": self._visible[:slots],
                "entry_positions": entry_positions,
                "source_lengths": source_lengths,
            },
            {**memory, **columns},
            self._buffers.view(slots),
            width=width,
        )
        return _Step(
            token_ids=token_ids,
            positions=positions,
            links=places,
            source_lengths=source_lengths,
            entry_positions=entry_positions,
            addresses=tuple(map(address, (token_ids, positions, places, source_lengths))),
            memory=memory,
            columns=columns,
            bound=bound,
        )


def _end(visible: Booleans) -> int:
    """How many entries there are up to the last that is visible [..., E]."""
    used = np.flatnonzero(visible.any(axis=tuple(range(visible.ndim - 1))))
    return int(used[-1]) + 1 if len(used) else 0


def _resized(array: NDArray[Any], slots: int, shape: Sequence[int]) -> NDArray[Any]:
    """An array of another shape, with what the first slots hold as far as there is room."""
    resized = np.zeros(shape, array.dtype)
    kept = array[:slots, ..., : shape[-1]]
    resized[: len(kept), ..., : kept.shape[-1]] = kept
    return resized


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A decoder step whose tensors have their places: what changes is written into the arrays.

    Attributes:
        token_ids: [n, K].
        positions: [n, K].
        links: of a decoder in place, where new tokens go: slot, 0, entry [n, K, 3]; of another, the rows of state that
            rows continue [n, K].
        source_lengths: [n].
        entry_positions: of a decoder in place, [n, E]; of another, nothing.
        addresses: of a decoder in place, of the first four, for native code.
        memory: the encoder's, as it was bound.
        columns: likewise what says which columns logits have.
        bound: decodes.
    """

    token_ids: Integers
    positions: Integers
    links: Integers
    source_lengths: Integers
    entry_positions: Integers
    memory: dict[str, OrtValue]
    columns: Mapping[str, OrtValue]
    bound: DecoderStep
    addresses: tuple[int, ...] = ()
