"""Encoder memory of the sentences that are decoded together: one slot each in buffers that stay where they are."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from onnxruntime import OrtValue

from jumok_serve.manifest import TensorSpec

SOURCE_STEP = 8
"""Buffers are this many source positions longer or shorter at a time, so that they are seldom made anew."""


def padded_source(length: int) -> int:
    """Source positions that a buffer has for a source of so many tokens."""
    return -(-length // SOURCE_STEP) * SOURCE_STEP


class SlotMemory:
    """Memory tensors by slot. Slots 0 .. n-1 are in use; writing or moving one copies one sentence, not all of them.

    Args:
        specs: the decoder's `memory.*` inputs; axis 0 is the slot, an axis "S" the source position.
    """

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        self._specs = specs
        self._capacity = 0
        self._source = 0
        self._buffers: dict[str, NDArray[np.generic]] = {}
        self._views: dict[int, dict[str, OrtValue]] = {}

    @property
    def source(self) -> int:
        """Source positions of every slot, padding included."""
        return self._source

    def reserve(self, slots: int, source: int, used: int) -> None:
        """Makes room for so many slots and source positions; the first `used` slots keep their content.

        A source axis that is much longer than needed is cut, so that one long sentence does not slow down those
        that come after it.
        """
        needed = padded_source(source)
        fits = needed <= self._source <= 2 * needed
        if slots <= self._capacity and fits:
            return
        capacity = max(slots, 2 * used)
        old, kept = self._buffers, min(needed, self._source)
        self._buffers = {}
        for spec in self._specs:
            shape = [capacity, *(needed if axis == "S" else int(axis) for axis in spec.axes[1:])]
            buffer = np.zeros(shape, np.dtype(spec.dtype))
            if used:
                place = tuple(slice(kept) if axis == "S" else slice(None) for axis in spec.axes[1:])
                buffer[(slice(used), *place)] = old[spec.name][(slice(used), *place)]
            self._buffers[spec.name] = buffer
        self._capacity, self._source = capacity, needed
        self._views.clear()

    def write(self, slot: int, memory: Mapping[str, NDArray[np.generic]], row: int) -> None:
        """Copies row `row` of encoded `memory` [B, ...] into a slot; what lies behind its source is masked anyway."""
        for spec in self._specs:
            sentence = memory[spec.name][row]
            buffer = self._buffers[spec.name][slot]
            place = tuple(slice(min(size, room)) for size, room in zip(sentence.shape, buffer.shape, strict=True))
            buffer[place] = sentence[place]

    def move(self, slot: int, to: int) -> None:
        """Copies one slot over another."""
        for buffer in self._buffers.values():
            buffer[to] = buffer[slot]

    def view(self, slots: int) -> dict[str, OrtValue]:
        """The first `slots` slots as the decoder's inputs, [slots, ...], without a copy."""
        if slots not in self._views:
            self._views[slots] = {
                name: OrtValue.ortvalue_from_numpy(buffer[:slots]) for name, buffer in self._buffers.items()
            }
        return self._views[slots]
