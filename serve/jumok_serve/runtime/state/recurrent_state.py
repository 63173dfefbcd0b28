"""State of constant size: every step reads one buffer and writes another."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from jumok_serve.manifest.manifest import TensorSpec
from jumok_serve.runtime.binding import Tensors
from jumok_serve.runtime.state.slot_buffers import SlotBuffers

_NO_AXIS = ""


class RecurrentState:
    """State in two buffers that take turns; see `RowState`.

    Row k of the sentence in slot b is row b * K + k. Nothing is allocated or moved between two steps.

    Args:
        specs: the decoder's inputs `state.*`, [P, ...], without an axis that grows.
    """

    def __init__(self, specs: Sequence[TensorSpec], beam_size: int) -> None:
        self._specs = specs
        self._beam_size = beam_size
        self._buffers = SlotBuffers(specs, _NO_AXIS), SlotBuffers(specs, _NO_AXIS)
        self.turn = 0
        self._slots = 0  # that have been used
        self._first_rows: NDArray[np.int64] = np.zeros((0, 1), np.int64)

    def join(self, slots: Sequence[int], first_state: Tensors, rows: Sequence[int]) -> None:
        """See `RowState`."""
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
        """See `RowState`."""
        size = self._beam_size
        rows, places = ([slot * size + row for slot in some for row in range(size)] for some in (slots, to))
        self._buffers[self.turn].move(rows, places, 0)

    def first_rows(self, sentences: int) -> NDArray[np.int64]:
        """See `RowState`."""
        if sentences > len(self._first_rows):
            self._first_rows = np.arange(2 * sentences)[:, None] * self._beam_size
        return self._first_rows[:sentences]

    def tensors(self, sentences: int, positions: NDArray[np.int64]) -> tuple[Tensors, Tensors]:
        """See `RowState`."""
        rows = sentences * self._beam_size
        return self._buffers[self.turn].view(rows), self._buffers[1 - self.turn].view(rows)

    def replace(self, made: Callable[[], Tensors], sentences: int) -> None:
        """See `RowState`."""
        self.turn = 1 - self.turn
