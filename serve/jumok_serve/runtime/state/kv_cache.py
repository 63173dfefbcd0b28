"""KV cache by slot: the entries that rows write and see."""

import ctypes
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from jumok_serve.native import address, function
from jumok_serve.runtime.state.device_slots import DeviceSlots
from jumok_serve.runtime.state.slot_buffers import SlotBuffers
from jumok_serve.runtime.step_inputs import DecoderInputs

Slots: TypeAlias = SlotBuffers | DeviceSlots
"""Tensors by slot, on the host or on a device."""

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
        self._addresses = 0, 0  # of `visible` and `entries`

    @property
    def entries_address(self) -> int:
        """The address of `entries`, for native code."""
        return self._addresses[1]

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
                *(self._addresses[0], *inputs.addresses[1:3]),
                *(slots, self._beam_size, size, self._addresses[1]),
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
        self._addresses = address(self.visible), address(self.entries)


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
