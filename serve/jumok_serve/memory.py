"""Buffers that hold tensors of the sentences that are decoded together: each sentence has one slot, and stays there."""

import math
import mmap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnxruntime import OrtValue

from jumok_serve.manifest import TensorSpec

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

KEPT_AHEAD = 128
"""The same of a buffer with positions ahead, which cost next to nothing. It has `KEPT_LENGTH` at the least."""

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
        come after it; with positions ahead, where they are too many to be kept.

        Returns:
            Whether the buffers are new ones, so that earlier views are of no more use.
        """
        needed = padded_length(length)
        fits = needed <= self._length <= max(2 * needed, KEPT_AHEAD if self._ahead else KEPT_LENGTH)
        if slots <= self._capacity and fits:
            return False
        if self._ahead:
            needed = self._length if fits else padded_length(max(needed + needed // 2, KEPT_LENGTH))
        capacity = max(slots, 2 * used) if slots > self._capacity else max(slots, used)
        for spec in self._specs:
            shape = (capacity, *(axis if isinstance(axis, int) else needed for axis in spec.axes[1:]))
            values, dtype = math.prod(shape), np.dtype(spec.dtype)
            grows = len(self._stores[spec.name]) < values * dtype.itemsize
            if grows:
                self._stores[spec.name] = _untouched(values * dtype.itemsize)
            before = self._buffers.get(spec.name)
            after = self._buffers[spec.name] = np.frombuffer(self._stores[spec.name], dtype, values).reshape(shape)
            if before is not None and (grows or before.strides != after.strides):
                place = (slice(used), *self._place(spec, min(needed, self._length)))
                _carry_over(before[place], after[place])
        self._capacity, self._length = capacity, needed
        self._views.clear()
        return True

    def _place(self, spec: TensorSpec, length: int) -> tuple[slice, ...]:
        """So many positions of one slot."""
        return tuple(slice(length) if axis == self._axis else slice(None) for axis in spec.axes[1:])

    def join(self, slots: Sequence[int], values: Mapping[str, OrtValue], rows: Sequence[int]) -> None:
        """Copies some rows of `values` [B, ...], one for each slot, into slots; see `write`."""
        chosen = slice(rows[0], rows[-1] + 1) if is_run(rows) else list(rows)
        self.write(slots, {name: value.numpy()[chosen] for name, value in values.items()})

    def write(self, slots: Sequence[int], values: Mapping[str, NDArray[np.generic]]) -> None:
        """Copies rows of `values` [B, ...] into slots [B]; what lies behind their length is masked anyway."""
        for spec in self._specs:
            rows, buffer = values[spec.name], self._buffers[spec.name]
            place = tuple(slice(min(size, room)) for size, room in zip(rows.shape[1:], buffer.shape[1:], strict=True))
            buffer[_at(slots, place)] = rows[(slice(None), *place)]

    def move(self, slots: Sequence[int], to: Sequence[int], length: int) -> None:
        """Copies so many positions of slots over others, none of which is among them."""
        for spec in self._specs:
            place, buffer = self._place(spec, length), self._buffers[spec.name]
            buffer[_at(to, place)] = buffer[_at(slots, place)]

    def view(self, slots: int) -> dict[str, OrtValue]:
        """The first `slots` slots as the decoder's inputs, [slots, ...], without a copy."""
        if slots not in self._views:
            self._views[slots] = {
                name: OrtValue.ortvalue_from_numpy(buffer[:slots]) for name, buffer in self._buffers.items()
            }
        return self._views[slots]


def is_run(numbers: Sequence[int]) -> bool:
    """Whether each number is the one before and one more."""
    return list(numbers) == list(range(numbers[0], numbers[0] + len(numbers)))


def _at(slots: Sequence[int], place: tuple[slice, ...]) -> tuple[Any, ...]:
    """The same place of several slots."""
    return (list(slots), *place)


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
