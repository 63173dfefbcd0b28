"""Buffers that hold tensors of the sentences that are decoded together: each sentence has one slot, and stays there."""

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
"""Buffers are this many positions longer or shorter at a time, so that they are seldom made anew.

Sums over a number of positions that is no multiple of the vector width are grouped differently when another sentence
makes a buffer longer: in the last bit that would make a sentence depend on its company.
"""


def padded_length(length: int) -> int:
    """Positions that a buffer has for so many tokens."""
    return -(-length // LENGTH_STEP) * LENGTH_STEP


KEPT_LENGTH = 32
"""Positions that a buffer keeps, needed or not: one short sentence after the other would have it shrink and grow."""

KEPT_AHEAD = 256
"""The same of a buffer with positions ahead, which cost next to nothing. It has `KEPT_LENGTH` at the least.

Up to this length it keeps its slots, too, where it has room for them: steps are bound anew to a buffer that moves."""

ALONE_BYTES = 2**20
"""Fewer bytes are copied before any other thread runs Python again."""

_COPY_ARGUMENTS = (
    *(ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p),
    *(ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p),
    *(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64),
)
"""Of ``jumok_copy_slots`` in ``kernels/searches.cc``."""

ROOM = 16
"""A buffer becomes so many times as long before memory is asked for again: for a moment there are two of them then."""


class SlotBuffers:
    """Tensors by slot. Slots 0 .. n-1 are in use; writing or moving one copies one sentence, not all of them.

    What was once needed is kept for the next sentences: memory that is new costs as much as a copy of it.

    Args:
        specs: inputs of the decoder; axis 0 is the slot.
        axis: the symbol of the axis that is as long as the longest sentence needs: "S" or "E".
        ahead: whether a buffer has more positions than are needed, and becomes half as long again where it must be
            longer. It moves seldom then: for decoders that only read the positions that a sentence has.
    """

    def __init__(self, specs: Sequence[TensorSpec], axis: str, *, ahead: bool = False) -> None:
        self._specs = specs
        self._axis = axis
        self._ahead = ahead
        self._capacity = 0
        self._length = 0
        self._stores: dict[str, mmap.mmap | bytes] = {spec.name: b"" for spec in specs}
        self._buffers: dict[str, NDArray[np.generic]] = {}
        self._views: dict[int, dict[str, OrtValue]] = {}
        self._axis_of = {spec.name: spec.axes.index(axis) if axis in spec.axes else None for spec in specs}

    @property
    def length(self) -> int:
        """Positions of every slot, padding included."""
        return self._length

    @property
    def capacity(self) -> int:
        """Slots that there is room for."""
        return self._capacity

    def reserve(self, slots: int, length: int, used: int) -> bool:
        """Makes room for so many slots and positions; the first `used` slots keep their content.

        Positions that are far more than needed are given up, so that one long sentence does not slow down those that
        come after it; with positions ahead, where they are too many to be kept. So are slots where positions change,
        but for those that `KEPT_AHEAD` has it keep.

        Returns:
            Whether the buffers are new ones, so that earlier views are of no more use.
        """
        needed = padded_length(length)
        fits = needed <= self._length <= max(2 * needed, KEPT_AHEAD if self._ahead else KEPT_LENGTH)
        if slots <= self._capacity and fits:
            return False
        if self._ahead:
            needed = self._length if fits else padded_length(max(needed + needed // 2, KEPT_LENGTH))
        capacity = max(slots, used)
        if slots > self._capacity:
            capacity = max(slots, 2 * used)
        elif self._ahead and needed <= KEPT_AHEAD and self._has_room_for(self._capacity, needed):
            capacity = self._capacity
        for spec in self._specs:
            shape, size = _shape(spec, capacity, needed), _size(spec, capacity, needed)
            grows = len(self._stores[spec.name]) < size
            if grows:
                self._stores[spec.name] = _untouched(size)
            before = self._buffers.get(spec.name)
            after = np.frombuffer(self._stores[spec.name], spec.dtype, math.prod(shape)).reshape(shape)
            self._buffers[spec.name] = after
            if before is not None and (grows or before.strides != after.strides):
                place = (slice(used), *self._place(spec, min(needed, self._length)))
                _carry_over(before[place], after[place])
        self._capacity, self._length = capacity, needed
        self._views.clear()
        return True

    def _has_room_for(self, capacity: int, length: int) -> bool:
        """Whether so many slots and positions need no more memory than was asked for."""
        return all(_size(spec, capacity, length) <= len(self._stores[spec.name]) for spec in self._specs)

    def _place(self, spec: TensorSpec, length: int) -> tuple[slice, ...]:
        """So many positions of one slot."""
        return tuple(slice(length) if axis == self._axis else slice(None) for axis in spec.axes[1:])

    def join(self, slots: Sequence[int], values: Mapping[str, OrtValue], rows: Sequence[int]) -> None:
        """Copies some rows of `values` [B, ...], one for each slot, into slots; see `write`."""
        self.write(slots, {name: value.numpy() for name, value in values.items()}, rows)

    def write(
        self, slots: Sequence[int], values: Mapping[str, NDArray[np.generic]], rows: Sequence[int] | None = None
    ) -> None:
        """Copies rows of `values` [B, ...] into slots, those named or as many; what lies behind is masked anyway."""
        moves = _Moves(range(len(slots)) if rows is None else rows, slots)
        for spec in self._specs:
            moves.copy(values[spec.name], self._buffers[spec.name], self._axis_of[spec.name])

    def move(self, slots: Sequence[int], to: Sequence[int], length: int) -> None:
        """Copies so many positions of slots over others, none of which is among them."""
        moves = _Moves(slots, to)
        for spec in self._specs:
            buffer = self._buffers[spec.name]
            moves.copy(buffer, buffer, self._axis_of[spec.name], length)

    def view(self, slots: int) -> dict[str, OrtValue]:
        """The first `slots` slots as the decoder's inputs, [slots, ...], without a copy."""
        if slots not in self._views:
            self._views[slots] = {
                name: OrtValue.ortvalue_from_numpy(buffer[:slots]) for name, buffer in self._buffers.items()
            }
        return self._views[slots]


class _Moves:
    """Copies some rows of tensors [B, ...] over slots of others, each into the one that is named for it."""

    def __init__(self, rows: Sequence[int], slots: Sequence[int]) -> None:
        self._rows, self._slots = np.array(rows, np.int64), np.array(slots, np.int64)
        self._pointers = pointer(self._rows), pointer(self._slots)

    def copy(
        self, source: NDArray[np.generic], into: NDArray[np.generic], axis: int | None, length: int | None = None
    ) -> None:
        """Copies of every row the first `length` positions of an axis, or as many as both have, where there is one.

        Raises:
            ValueError: they differ in another axis.
        """
        others = [size for number, size in enumerate(source.shape) if number not in {0, axis}]
        if others != [size for number, size in enumerate(into.shape) if number not in {0, axis}]:
            raise ValueError(f"rows of shape {source.shape[1:]} do not fit slots of shape {into.shape[1:]}")
        inner, blocks = source.shape[1:], 1
        if axis is not None:
            length = min(source.shape[axis], into.shape[axis], source.shape[axis] if length is None else length)
            inner, blocks = (length, *source.shape[axis + 1 :]), math.prod(source.shape[1:axis])
        size = math.prod(inner) * source.itemsize
        whole = len(self._rows) * blocks * size
        copy = function("jumok_copy_slots", _COPY_ARGUMENTS, alone=whole < ALONE_BYTES)
        if copy is None or source.dtype != into.dtype or not source.flags.c_contiguous:
            place = (slice(None),) * ((axis or 1) - 1) + (slice(length),) * (axis is not None)
            into[self._slots, *place] = source[self._rows, *place]
            return
        copy(
            *(pointer(source), source.strides[0], source.strides[axis - 1] if axis else 0, self._pointers[0]),
            *(pointer(into), into.strides[0], into.strides[axis - 1] if axis else 0, self._pointers[1]),
            *(len(self._rows), blocks, size),
        )


def _shape(spec: TensorSpec, capacity: int, length: int) -> tuple[int, ...]:
    """Of a tensor with so many slots and positions."""
    return (capacity, *(axis if isinstance(axis, int) else length for axis in spec.axes[1:]))


def _size(spec: TensorSpec, capacity: int, length: int) -> int:
    """Its bytes."""
    return math.prod(_shape(spec, capacity, length)) * np.dtype(spec.dtype).itemsize


def _untouched(size: int) -> mmap.mmap:
    """`ROOM` times so many bytes, or just so many where the process may not have more.

    Those that nothing is written to take no room, of which other ways to get memory are less sure.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        return mmap.mmap(-1, size * ROOM, flags=flags)
    except OSError:  # such as where address space is limited, or nothing may be overcommitted
        return mmap.mmap(-1, size, flags=flags)


def _carry_over(before: NDArray[np.generic], after: NDArray[np.generic]) -> None:
    """Copies slots [n, ...] to where they lie from now on, which may be the same memory, but for their distance."""
    slots = range(len(before))
    # One by one, so that nothing is overwritten before it is copied; within a slot NumPy takes care of that.
    for slot in reversed(slots) if after.strides[0] > before.strides[0] else slots:
        after[slot] = before[slot]
