"""Buffers by slot on the host; each sentence keeps one slot."""

import ctypes
import math
import mmap
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from onnxruntime import OrtValue

from jumok_serve.manifest.manifest import TensorSpec
from jumok_serve.native import function, pointer

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
