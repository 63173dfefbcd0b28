"""Gathered decoder state: every step makes a new one."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from onnxruntime import OrtValue

from jumok_serve.manifest.manifest import TensorSpec
from jumok_serve.runtime.binding import Tensors

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
