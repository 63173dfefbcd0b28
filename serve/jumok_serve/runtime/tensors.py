"""Tensors of sessions: bindings, buffers by slot, and the KV cache."""

import ctypes
import math
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnxruntime import OrtValue

from jumok_serve.manifest.manifest import TensorSpec
from jumok_serve.native import address, function, pointer

Tensors = dict[str, OrtValue]
"""Encoder memory or decoder state by name: `memory.<name>`, `state.<name>`."""

DeviceId: TypeAlias = tuple[str, int]
"""ONNX Runtime's name of a device, and the device's number."""


@dataclass(frozen=True, slots=True)
class View:
    """The beginning of a buffer on a device, as a tensor.

    Attributes:
        shape: shape of the tensor; no larger than the buffer.
    """

    buffer: OrtValue
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @classmethod
    def whole(cls, value: OrtValue, dtype: str) -> "View":
        """A view of a whole tensor."""
        return cls(value, np.dtype(dtype), tuple(value.shape()))

    def first(self, slots: int) -> "View":
        """A view of the first slots."""
        return View(self.buffer, self.dtype, (slots, *self.shape[1:]))


def as_value(array: NDArray[Any]) -> OrtValue:
    """Wrap an array as an ONNX Runtime tensor; contiguous: no copy."""
    return OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))


def on_device(array: NDArray[Any], device_id: DeviceId) -> OrtValue:
    """Copy an array to a device."""
    return OrtValue.ortvalue_from_numpy(np.array(array, order="C"), *device_id)


class Binding:
    """Inputs and outputs of a session, each bound until bound again.

    Args:
        session: ONNX Runtime's session of a graph.
        device_id: device with the memory of inputs and outputs; None: the host.
    """

    def __init__(self, session: Any, device_id: DeviceId | None = None) -> None:
        self._session = session
        self._device_id = device_id
        self._binding = session.io_binding()
        self._held: dict[str, object] = {}  # ONNX Runtime's binding keeps no memory alive
        self._shared: dict[str, tuple[OrtValue, NDArray[Any]]] = {}

    def bind_shared_array(self, name: str, array: NDArray[Any]) -> None:
        """Bind an input to an array that the caller changes between runs.

        A device gets a copy before each run.
        """
        if self._device_id is None:
            self.bind_input(name, as_value(array))
            return
        copy = on_device(array, self._device_id)
        self._shared[name] = copy, array
        self.bind_input(name, copy)

    def bind_array(self, name: str, array: NDArray[Any]) -> None:
        """Bind an input to the present content of an array."""
        self.bind_input(name, as_value(array) if self._device_id is None else on_device(array, self._device_id))

    def bind_input(self, name: str, value: View | OrtValue) -> None:
        """Bind an input; copies host tensors that the device reads."""
        self._held[name] = value
        if isinstance(value, View):
            self._binding.bind_input(name, *self._device, value.dtype, value.shape, value.buffer.data_ptr())
        else:
            self._binding.bind_ortvalue_input(name, value)

    def bind_output(self, name: str, value: View | OrtValue | None = None) -> None:
        """Bind an output to a tensor; default: ONNX Runtime allocates it."""
        self._held[f"output {name}"] = value
        if value is None:
            self._binding.bind_output(name, *self._device)
        elif isinstance(value, View):
            self._binding.bind_output(name, *self._device, value.dtype, value.shape, value.buffer.data_ptr())
        else:
            self._binding.bind_ortvalue_output(name, value)

    @property
    def _device(self) -> DeviceId:
        return self._device_id or ("cpu", 0)

    def run(self) -> None:
        """Run the session once."""
        for shared, array in self._shared.values():
            shared.update_inplace(np.ascontiguousarray(array))
        self._session.run_with_iobinding(self._binding)

    def outputs(self) -> list[OrtValue]:
        """All outputs of the last run, in the order of their binding."""
        values: list[OrtValue] = self._binding.get_outputs()
        return values


def run_once(
    session: Any, names: Sequence[str], feeds: Mapping[str, OrtValue], device_id: DeviceId | None = None
) -> list[OrtValue]:
    """Run a session with tensors; return the outputs with these names.

    `InferenceSession.run_with_ort_values` takes 30 us longer: a C++ exception tells it that it has read all results
    (2026-11-27).

    Args:
        device_id: device with the memory of the outputs; None: the host.
    """
    binding = Binding(session, device_id)
    for name, value in feeds.items():
        binding.bind_input(name, value)
    for name in names:
        binding.bind_output(name)
    binding.run()
    return binding.outputs()


LENGTH_STEP = 8
"""Buffers have a multiple of this many positions, so that they are seldom reallocated.

A multiple of the vector width also keeps the grouping of sums. Otherwise a longer buffer, needed by another sentence,
would change the last bit of a sum.
"""

KEPT_LENGTH = 32
"""Positions that a buffer keeps even if unused: short sentences would make it shrink and grow in turn."""

KEPT_AHEAD = 256
"""Positions up to which a buffer keeps unused ones: they cost next to nothing.

Up to this length the buffer also keeps its slots if memory suffices: steps must be bound again to a buffer that moves.
"""

GIL_HELD_BYTES = 2**20
"""Smaller copies hold Python's global lock: waiting for the lock afterwards takes longer than the copy."""

GROWTH_FACTOR = 16
"""A buffer may grow by this factor before it is reallocated: for a moment two buffers exist then."""

_COPY_ARGUMENTS = (
    *(ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p),
    *(ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p),
    *(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64),
)
"""Types of the arguments of the native function ``jumok_copy_slots``."""


def padded_length(length: int) -> int:
    """Positions of a buffer for a number of tokens."""
    return -(-length // LENGTH_STEP) * LENGTH_STEP


def spec_shape(spec: TensorSpec, slots: int, length: int) -> tuple[int, ...]:
    """The shape of a tensor with `slots` slots and `length` positions."""
    return (slots, *(axis if isinstance(axis, int) else length for axis in spec.axes[1:]))


class SlotBuffers:
    """Tensors by slot; slots 0 .. n-1 are in use.

    Writing or moving a slot copies one sentence.

    Memory is kept for later sentences: new memory costs as much as a copy of it.

    Args:
        specs: inputs of the decoder; axis 0 is the slot.
        axis: symbol of the axis that is as long as the longest sentence needs: "S" or "E".
        ahead: True to allocate half as many positions again as needed, so that the buffer seldom moves. Only for
            decoders that read just the positions of a sentence.
    """

    def __init__(self, specs: Sequence[TensorSpec], axis: str, *, ahead: bool = False) -> None:
        self._specs = specs
        self._axis = axis
        self._ahead = ahead
        self.capacity = 0
        """Slots of the buffers."""
        self.length = 0
        """Positions of every slot, padding included."""
        self._stores: dict[str, mmap.mmap | bytes] = {spec.name: b"" for spec in specs}
        self._buffers: dict[str, NDArray[np.generic]] = {}
        self._views: dict[int, dict[str, OrtValue]] = {}
        self._axis_of = {spec.name: spec.axes.index(axis) if axis in spec.axes else None for spec in specs}

    def reserve(self, slots: int, length: int, used: int) -> bool:
        """Reserve slots and positions; the first `used` slots keep their content.

        Positions far beyond the need are given up, so that one long sentence does not slow down later ones. Slots are
        given up together with positions. `KEPT_LENGTH` and `KEPT_AHEAD` bound what is given up.

        Returns:
            True if the buffers are new, so that earlier views are stale.
        """
        needed = padded_length(length)
        fits = needed <= self.length <= max(2 * needed, KEPT_AHEAD if self._ahead else KEPT_LENGTH)
        if slots <= self.capacity and fits:
            return False
        if self._ahead:
            needed = self.length if fits else padded_length(max(needed + needed // 2, KEPT_LENGTH))
        capacity = max(slots, used)
        if slots > self.capacity:
            capacity = max(slots, 2 * used)
        elif self._ahead and needed <= KEPT_AHEAD and self._memory_suffices(self.capacity, needed):
            capacity = self.capacity
        for spec in self._specs:
            shape, size = spec_shape(spec, capacity, needed), _size(spec, capacity, needed)
            grows = len(self._stores[spec.name]) < size
            if grows:
                self._stores[spec.name] = _allocate(size)
            before = self._buffers.get(spec.name)
            after = np.frombuffer(self._stores[spec.name], spec.dtype, math.prod(shape)).reshape(shape)
            self._buffers[spec.name] = after
            if before is not None and (grows or before.strides != after.strides):
                part = (slice(used), *self._positions(spec, min(needed, self.length)))
                _carry_over(before[part], after[part])
        self.capacity, self.length = capacity, needed
        self._views.clear()
        return True

    def _memory_suffices(self, capacity: int, length: int) -> bool:
        return all(_size(spec, capacity, length) <= len(self._stores[spec.name]) for spec in self._specs)

    def _positions(self, spec: TensorSpec, length: int) -> tuple[slice, ...]:
        """An index of the first positions of a slot."""
        return tuple(slice(length) if axis == self._axis else slice(None) for axis in spec.axes[1:])

    def join(self, slots: Sequence[int], values: Mapping[str, OrtValue], rows: Sequence[int]) -> None:
        """Copy rows of `values` [B, ...] into slots, as `write` does."""
        self.write(slots, {name: value.numpy() for name, value in values.items()}, rows)

    def write(
        self, slots: Sequence[int], values: Mapping[str, NDArray[np.generic]], rows: Sequence[int] | None = None
    ) -> None:
        """Copy rows of `values` [B, ...] into slots.

        The decoder masks positions after a sentence's length.

        Args:
            slots: slot ids, [n].
            rows: row of each slot, [n]; None: rows 0 .. n-1.
        """
        copies = _RowCopies(range(len(slots)) if rows is None else rows, slots)
        for spec in self._specs:
            copies.copy(values[spec.name], self._buffers[spec.name], self._axis_of[spec.name])

    def move(self, slots: Sequence[int], to: Sequence[int], length: int) -> None:
        """Copy the first `length` positions of slots over other slots."""
        copies = _RowCopies(slots, to)
        for spec in self._specs:
            buffer = self._buffers[spec.name]
            copies.copy(buffer, buffer, self._axis_of[spec.name], length)

    def view(self, slots: int) -> dict[str, OrtValue]:
        """The first slots as decoder inputs, [slots, ...], without a copy.

        The object stays the same until the slots move.
        """
        if slots not in self._views:
            self._views[slots] = {
                name: OrtValue.ortvalue_from_numpy(buffer[:slots]) for name, buffer in self._buffers.items()
            }
        return self._views[slots]


class _RowCopies:
    """Copies of rows of tensors [B, ...] over slots of other tensors."""

    def __init__(self, rows: Sequence[int], slots: Sequence[int]) -> None:
        self._rows, self._slots = np.array(rows, np.int64), np.array(slots, np.int64)
        self._last_row = max(rows, default=-1)
        self._pointers = pointer(self._rows), pointer(self._slots)

    def copy(
        self, source: NDArray[np.generic], into: NDArray[np.generic], axis: int | None, length: int | None = None
    ) -> None:
        """Copy each row; of the axis `axis`, only the first positions.

        Args:
            source: [B, ...].
            into: [slots, ...].
            axis: the axis whose sizes may differ; None: no axis.
            length: positions to copy; None: as many as both tensors have.

        Raises:
            ValueError: shapes that differ in another axis.
        """
        before, after = (slice(1, axis), slice(axis + 1, None)) if axis else (slice(0, 0), slice(1, None))
        if source.shape[before] != into.shape[before] or source.shape[after] != into.shape[after]:
            raise ValueError(f"rows of shape {source.shape[1:]} do not fit slots of shape {into.shape[1:]}")
        if self._last_row >= len(source):
            raise ValueError(f"row {self._last_row} is not among the {len(source)} that a graph made")
        inner, blocks = source.shape[1:], 1
        if axis is not None:
            length = min(source.shape[axis], into.shape[axis], source.shape[axis] if length is None else length)
            inner, blocks = (length, *source.shape[axis + 1 :]), math.prod(source.shape[1:axis])
        size = math.prod(inner) * source.itemsize
        whole = len(self._rows) * blocks * size
        copy = function("jumok_copy_slots", _COPY_ARGUMENTS, keep_gil=whole < GIL_HELD_BYTES)
        if copy is None or source.dtype != into.dtype or not source.flags.c_contiguous:
            part = (slice(None),) * ((axis or 1) - 1) + (slice(length),) * (axis is not None)
            into[self._slots, *part] = source[self._rows, *part]
            return
        copy(
            *(pointer(source), source.strides[0], source.strides[axis - 1] if axis else 0, self._pointers[0]),
            *(pointer(into), into.strides[0], into.strides[axis - 1] if axis else 0, self._pointers[1]),
            *(len(self._rows), blocks, size),
        )


def _size(spec: TensorSpec, capacity: int, length: int) -> int:
    """Bytes of a tensor."""
    return math.prod(spec_shape(spec, capacity, length)) * np.dtype(spec.dtype).itemsize


def _allocate(size: int) -> mmap.mmap:
    """Reserve `GROWTH_FACTOR` times the bytes, or fewer if memory is limited.

    Pages of a private mapping take no memory until they are written.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        return mmap.mmap(-1, size * GROWTH_FACTOR, flags=flags)
    except OSError:  # address space is limited, or overcommitting is forbidden
        return mmap.mmap(-1, size, flags=flags)


def _carry_over(before: NDArray[np.generic], after: NDArray[np.generic]) -> None:
    """Copy slots [n, ...] to slots of another size, in place or elsewhere."""
    slots = range(len(before))
    # One by one, so that no slot is overwritten before it is copied; NumPy takes care of overlap within a slot.
    for slot in reversed(slots) if after.strides[0] > before.strides[0] else slots:
        after[slot] = before[slot]


POSITIONS_STEP = 32
"""Buffers have a multiple of this many positions, and a power of two of slots: few shapes occur then."""


class DeviceSlots:
    """Tensors by slot in the memory of a device; see `SlotBuffers`.

    The graphs `grow` and `write` copy on the device: new sentences, moved sentences, and all when a buffer grows.

    Args:
        grow: session of the graph that copies buffers into longer ones; None without specs.
        write: session of the graph that copies rows into slots; None without specs.
    """

    def __init__(self, specs: Sequence[TensorSpec], axis: str, *, device_id: DeviceId, grow: Any, write: Any) -> None:
        self._specs = specs
        self._axis = axis
        self._device_id = device_id
        self._grow = grow
        self._write = write
        self.capacity = 0
        """Slots of the buffers."""
        self.length = 0
        """Positions of every slot, padding included."""
        self._buffers: dict[str, View] = {}
        self._views: dict[int, dict[str, View]] = {}

    def reserve(self, slots: int, length: int, used: int) -> bool:
        """See `SlotBuffers`."""
        needed = -(-max(1, length) // POSITIONS_STEP) * POSITIONS_STEP
        if slots <= self.capacity and needed <= self.length <= 2 * needed:
            return False
        capacity = 1 << (max(slots, used) - 1).bit_length()
        if capacity <= self.capacity <= 4 * capacity:
            capacity = self.capacity
        if self._specs:
            self._grow_to(capacity, needed, used)
        self.capacity, self.length = capacity, needed
        self._views.clear()
        return True

    def _grow_to(self, capacity: int, length: int, used: int) -> None:
        """Copy the first `used` slots into new buffers, padded with zeros."""
        before = {name: view.first(used) for name, view in self._buffers.items()} if used else self._zeros()
        binding = Binding(self._grow, self._device_id)
        for size in self._grow.get_inputs():
            if size.name in {"slots", "length"}:
                binding.bind_input(size.name, as_value(np.array([capacity if size.name == "slots" else length])))
        for spec in self._specs:
            shape, dtype = spec_shape(spec, capacity, length), np.dtype(spec.dtype)
            binding.bind_input(f"from.{spec.name}", before[spec.name])
            buffer = View(OrtValue.ortvalue_from_shape_and_type(shape, dtype, *self._device_id), dtype, shape)
            self._buffers[spec.name] = buffer
            binding.bind_output(f"grown.{spec.name}", buffer)
        binding.run()

    def _zeros(self) -> dict[str, View]:
        """One slot of one position of zeros."""
        return {
            spec.name: View.whole(on_device(np.zeros(spec_shape(spec, 1, 1), spec.dtype), self._device_id), spec.dtype)
            for spec in self._specs
        }

    def join(self, slots: Sequence[int], values: Mapping[str, OrtValue], rows: Sequence[int]) -> None:
        """See `SlotBuffers`; zeros follow after the length of a sentence."""
        self._copy({spec.name: View.whole(values[spec.name], spec.dtype) for spec in self._specs}, rows, slots)

    def move(self, slots: Sequence[int], to: Sequence[int], length: int) -> None:
        """See `SlotBuffers`; whole slots are copied."""
        self._copy(self._buffers, slots, to)

    def _copy(self, source: Mapping[str, View], rows: Sequence[int], slots: Sequence[int]) -> None:
        if not self._specs:
            return
        binding = Binding(self._write, self._device_id)
        binding.bind_array("rows", np.array(rows, np.int64))
        binding.bind_array("slots", np.array(slots, np.int64)[:, None])
        for name, view in self._buffers.items():
            binding.bind_input(f"into.{name}", view)
            binding.bind_input(f"from.{name}", source[name])
            binding.bind_output(f"written.{name}", view)
        binding.run()

    def view(self, slots: int) -> dict[str, View]:
        """See `SlotBuffers`."""
        if slots not in self._views:
            self._views[slots] = {name: view.first(slots) for name, view in self._buffers.items()}
        return self._views[slots]


Slots: TypeAlias = SlotBuffers | DeviceSlots
"""Tensors by slot, on the host or on a device."""


@dataclass(eq=False)
class DecoderInputs:
    """Decoder inputs by slot, in arrays that stay where they are.

    Attributes:
        tokens: the last token of each row, [slots, K].
        positions: tokens that each sentence's rows have decoded, [slots]. At 0 a row sees no earlier state.
        parents: row of the same sentence that each row continues, [slots, K].
        lengths: source lengths, [slots].
        addresses: addresses of the four arrays, in this order, for native code.
    """

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    parents: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def __post_init__(self) -> None:
        self.addresses = tuple(map(address, (self.tokens, self.positions, self.parents, self.lengths)))


_PLACE_ARGUMENTS = (*[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 3, ctypes.c_void_p)
"""Types of the arguments of the native function ``jumok_place``."""


class KVCache:
    """KV cache by slot, with K rows and E entries each.

    An entry holds one token's keys and values. The rows that continue the row that wrote an entry share it; the entry
    is free once no row sees it. A new token takes the lowest free entry. So the entries in use stay few and low:
    about as many as a row has tokens, and a few more for each row if the rows differ.

    Args:
        buffers: the decoder's tensors `state.*`, [slots, ..., E, ...].
        with_positions: True if the decoder reads `entry_positions`.

    Attributes:
        buffers: the given buffers, which the decoder writes into.
        visible: True if a row sees an entry, [slots, K, E]. Another array after the buffers have grown.
        entries: the entries that native code chose last, [slots, K].
        entries_address: its address, for native code.
        entry_positions: position of the token in each entry, [slots, E].
    """

    def __init__(self, buffers: Slots, beam_size: int, *, with_positions: bool) -> None:
        self.buffers = buffers
        self.visible: NDArray[np.bool_] = np.zeros((0, beam_size, 0), np.bool_)
        self.entries: NDArray[np.int64] = np.zeros((0, beam_size), np.int64)
        self.entry_positions: NDArray[np.int64] = np.zeros((0, 0), np.int64)
        self._beam_size = beam_size
        self._with_positions = with_positions
        self._used: NDArray[np.bool_] = np.zeros((0, beam_size), np.bool_)  # [slots, E + K]; the last K are never used
        self._rows: NDArray[np.int64] = np.zeros((0, beam_size), np.int64)  # [slots, K]: slot * K + row
        self._slots = 0  # in use
        self._native = function("jumok_place", _PLACE_ARGUMENTS)
        self._visible_address = self.entries_address = 0

    def join(self, slots: Sequence[int]) -> None:
        """Empty some slots for new sentences."""
        self.visible[[slot for slot in slots if slot < len(self.visible)]] = False
        self._reserve(max(slots) + 1, max(_end(self.visible[: self._slots]), self._beam_size))
        self._slots = max(self._slots, max(slots) + 1)

    def move(self, slots: Sequence[int], to: Sequence[int]) -> None:
        """Copy slots over other slots."""
        moved, free = list(slots), list(to)
        self.buffers.move(moved, free, _end(self.visible[moved]))
        self.visible[free] = self.visible[moved]
        self.entry_positions[free] = self.entry_positions[moved]

    def allocate(self, inputs: DecoderInputs, slots: int) -> NDArray[np.int64]:
        """Choose and make visible an entry for each row's next token.

        Args:
            inputs: positions and parents of the rows.
            slots: slots up to the last one of the step.

        Returns:
            Entries, [slots, K]. The next call may overwrite them.
        """
        self._slots = slots
        size = self.visible.shape[-1]
        if self._native is None:
            entries = self._choose(inputs.positions[:slots], inputs.parents[:slots])
            last = int(entries.max())
        else:
            entries = self.entries[:slots]
            last = self._native(
                *(self._visible_address, *inputs.addresses[1:3]),
                *(slots, self._beam_size, size, self.entries_address),
            )
        if last >= size:
            self._reserve(slots, last + 1)
        if last >= size or self._native is None:
            self.visible.reshape(-1)[self._rows[:slots] * self.visible.shape[-1] + entries] = True
        if self._with_positions:
            self.entry_positions[np.arange(slots)[:, None], entries] = inputs.positions[:slots, None]
        return entries

    def _choose(self, positions: NDArray[np.int64], parents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Choose entries as the native function does, but make none visible."""
        slots, beam_size = parents.shape
        self.visible[:slots][positions == 0] = False
        if beam_size == 1:  # tokens lie in their order
            return positions[:, None]
        visible, used = self.visible[:slots], self._used[:slots]
        rows = self._rows[:slots, :1] + parents
        visible[:] = self.visible.reshape(-1, self.visible.shape[-1]).take(rows, axis=0)
        visible.any(axis=1, out=used[:, :-beam_size])
        return used.argsort(axis=1, kind="stable")[:, :beam_size]

    def _reserve(self, slots: int, entries: int) -> None:
        if not self.buffers.reserve(slots, entries, self._slots):
            return
        capacity, length, beam_size = self.buffers.capacity, self.buffers.length, self._beam_size
        self.visible = _resized(self.visible, self._slots, (capacity, beam_size, length))
        self._used = np.zeros((capacity, length + beam_size), np.bool_)
        self._rows = np.arange(capacity * beam_size).reshape(capacity, beam_size)
        self.entry_positions = _resized(self.entry_positions, self._slots, (capacity, length))
        self.entries = _resized(self.entries, self._slots, (capacity, beam_size))
        self._visible_address, self.entries_address = address(self.visible), address(self.entries)


def _end(visible: NDArray[np.bool_]) -> int:
    """Entries up to the last one that is visible in [..., E]."""
    used = np.flatnonzero(visible.any(axis=tuple(range(visible.ndim - 1))))
    return int(used[-1]) + 1 if len(used) else 0


def _resized(array: NDArray[Any], slots: int, shape: Sequence[int]) -> NDArray[Any]:
    """Copy the first slots of an array into another, padded with zeros."""
    resized = np.zeros(shape, array.dtype)
    kept = array[:slots, ..., : shape[-1]]
    resized[: len(kept), ..., : kept.shape[-1]] = kept
    return resized
