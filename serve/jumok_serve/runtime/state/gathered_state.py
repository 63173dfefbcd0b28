"""State whose rows are gathered at every step."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from onnxruntime import OrtValue

from jumok_serve.manifest.manifest import TensorSpec
from jumok_serve.runtime.sessions import Tensors
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


TIME_SLACK = 32
"""Positions beyond the longest row's that a gathered cache may have before it is cut."""


class RowState(Protocol):
    """State of the P rows of the last step.

    Each row of the next step picks one.
    """

    @property
    def turn(self) -> int:
        """Number of the tensors that hold the state, if these take turns; else 0."""

    def join(self, slots: Sequence[int], first_state: Tensors, rows: Sequence[int]) -> None:
        """Give sentences their rows of first states.

        Args:
            slots: slot ids, [n].
            first_state: the encoder's `state.*`, [B, ...]; for one that is missing, zeros or any row serve.
            rows: each sentence's row of `first_state`, [n].
        """

    def move(self, slots: Sequence[int], to: Sequence[int]) -> None:
        """Take the rows of slots along to other slots."""

    def first_rows(self, sentences: int) -> NDArray[np.int64]:
        """The first row in P of the sentences in slots, [n, 1]."""

    def tensors(self, sentences: int, positions: NDArray[np.int64]) -> tuple[Tensors, Tensors]:
        """The state [P, ...], and tensors for the next, [R, ...].

        Without tensors for the next, the step allocates them.

        Args:
            sentences: number of sentences in the next step, n.
            positions: tokens that their rows have decoded, [n].
        """

    def replace(self, made: Callable[[], Tensors], sentences: int) -> None:
        """Go on to a step's new state, which `made` returns, [R, ...]."""


class GatheredState:
    """State that every step allocates anew, as growing caches; see `RowState`.

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
        """See `RowState`."""
        first = 0
        if first_state:
            first = next(iter(self._tensors.values())).shape()[0]
            self._tensors = {
                name: _appended(value, first_state.get(name), rows) for name, value in self._tensors.items()
            }
        for number, slot in enumerate(slots):
            self._first_rows[slot] = first + number if first_state else 0

    def move(self, slots: Sequence[int], to: Sequence[int]) -> None:
        """See `RowState`."""
        for slot, other in zip(slots, to, strict=True):
            self._first_rows[other] = self._first_rows[slot]

    def first_rows(self, sentences: int) -> NDArray[np.int64]:
        """See `RowState`."""
        return np.array([self._first_rows[slot] for slot in range(sentences)])[:, None]

    def tensors(self, sentences: int, positions: NDArray[np.int64]) -> tuple[Tensors, Tensors]:
        """See `RowState`; cuts a much too long time axis."""
        longest = int(positions.max())
        cached = max((_time(spec, self._tensors[spec.name]) for spec in self._specs), default=0)
        if cached <= longest + TIME_SLACK:
            return self._tensors, {}
        return {spec.name: _cut(spec, self._tensors[spec.name], longest) for spec in self._specs}, {}

    def replace(self, made: Callable[[], Tensors], sentences: int) -> None:
        """See `RowState`."""
        self._tensors = made()
        self._first_rows = {slot: slot * self._beam_size for slot in range(sentences)}


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
