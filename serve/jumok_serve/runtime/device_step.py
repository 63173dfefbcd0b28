"""Decoding in a device's own memory: buffers that are bound by their addresses, and steps over them.

What the host knows of a batch goes to the device before every step; of what a step makes only candidates come back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnxruntime import OrtValue

from jumok_serve.manifest.manifest import TensorSpec
from jumok_serve.runtime.decoder_step import Choice, as_value, constraint_arrays
from jumok_serve.search import Constraints, Entries

POSITIONS_STEP = 32
"""Buffers on a device have a multiple of so many positions, and a power of two of slots: there are few shapes then."""


@dataclass(frozen=True, slots=True)
class View:
    """The beginning of a buffer on a device, as a tensor.

    Attributes:
        buffer: holds it.
        dtype: of its elements.
        shape: of it; no more than the buffer has.
    """

    buffer: OrtValue
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @classmethod
    def whole(cls, value: OrtValue, dtype: str) -> "View":
        """All of a tensor."""
        return cls(value, np.dtype(dtype), tuple(value.shape()))


Place = tuple[str, int]
"""A device as bindings name it, and its number."""


class Binder:
    """A binding of a session, to which tensors on one device are bound by their addresses.

    Args:
        session: on the device.
        place: the device.
    """

    def __init__(self, session: Any, place: Place) -> None:
        self._session = session
        self._place = place
        self._binding = session.io_binding()
        self._held: dict[str, object] = {}  # addresses keep nothing alive

    def input(self, name: str, value: View | OrtValue) -> None:
        """Binds an input; an `OrtValue` may lie on the host."""
        self._held[name] = value
        if isinstance(value, View):
            self._binding.bind_input(name, *self._place, value.dtype, value.shape, value.buffer.data_ptr())
        else:
            self._binding.bind_ortvalue_input(name, value)

    def output(self, name: str, value: View | OrtValue | None = None) -> None:
        """Binds an output to a tensor, or has the device allocate one."""
        if value is None:
            self._binding.bind_output(name, *self._place)
            return
        self._held[f"output {name}"] = value
        if isinstance(value, View):
            self._binding.bind_output(name, *self._place, value.dtype, value.shape, value.buffer.data_ptr())
        else:
            self._binding.bind_ortvalue_output(name, value)

    def run(self) -> None:
        """Runs the session once; what was bound stays so."""
        self._session.run_with_iobinding(self._binding)

    def outputs(self) -> list[OrtValue]:
        """All outputs of the last run, in the order in which they were bound first."""
        values: list[OrtValue] = self._binding.get_outputs()
        return values


class DeviceSlots:
    """Tensors by slot, as `jumok_serve.runtime.slot_buffers.SlotBuffers`, in the memory of a device.

    The graphs `grow` and `write` copy there: new sentences, those that are moved, and all of them when a buffer grows.

    Args:
        specs: inputs of the decoder; axis 0 is the slot.
        axis: the symbol of the axis that is as long as the longest sentence needs: "S" or "E".
        place: the device.
        grow: session of the graph that copies buffers into longer ones; None where there are no specs.
        write: session of the graph that copies rows into slots; likewise.
    """

    def __init__(self, specs: Sequence[TensorSpec], axis: str, *, place: Place, grow: Any, write: Any) -> None:
        self._specs = specs
        self._axis = axis
        self._place = place
        self._grow = grow
        self._write = write
        self._capacity = 0
        self._length = 0
        self._buffers: dict[str, View] = {}
        self._views: dict[int, dict[str, View]] = {}

    @property
    def length(self) -> int:
        """Positions of every slot, padding included."""
        return self._length

    @property
    def capacity(self) -> int:
        """Slots that there is room for."""
        return self._capacity

    def reserve(self, slots: int, length: int, used: int) -> bool:
        """See `SlotBuffers`: makes room; the first `used` slots keep their content. Whether the buffers are new."""
        needed = -(-max(1, length) // POSITIONS_STEP) * POSITIONS_STEP
        if slots <= self._capacity and needed <= self._length <= 2 * needed:
            return False
        capacity = 1 << (max(slots, used) - 1).bit_length()
        if capacity <= self._capacity <= 4 * capacity:
            capacity = self._capacity
        if self._specs:
            self._grow_to(capacity, needed, used)
        self._capacity, self._length = capacity, needed
        self._views.clear()
        return True

    def _grow_to(self, capacity: int, length: int, used: int) -> None:
        """Copies the first `used` slots into new buffers, and puts zeros where nothing was."""
        before = (
            {name: self._beginning(view, used) for name, view in self._buffers.items()} if used else self._nothing()
        )
        binder = Binder(self._grow, self._place)
        for size in self._grow.get_inputs():
            if size.name in {"slots", "length"}:
                binder.input(size.name, as_value(np.array([capacity if size.name == "slots" else length])))
        for spec in self._specs:
            shape = (capacity, *(axis if isinstance(axis, int) else length for axis in spec.axes[1:]))
            binder.input(f"from.{spec.name}", before[spec.name])
            self._buffers[spec.name] = self._allocated(shape, np.dtype(spec.dtype))
            binder.output(f"grown.{spec.name}", self._buffers[spec.name])
        binder.run()

    def _nothing(self) -> dict[str, View]:
        """One slot of one position of zeros."""
        return {
            spec.name: View.whole(
                self._on_device(
                    np.zeros([1, *(axis if isinstance(axis, int) else 1 for axis in spec.axes[1:])], spec.dtype)
                ),
                spec.dtype,
            )
            for spec in self._specs
        }

    def _allocated(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> View:
        return View(OrtValue.ortvalue_from_shape_and_type(shape, dtype, *self._place), dtype, shape)

    def _on_device(self, array: NDArray[Any]) -> OrtValue:
        return on_device(array, self._place)

    def join(self, slots: Sequence[int], values: Mapping[str, OrtValue], rows: Sequence[int]) -> None:
        """Copies some rows of `values` [B, ...], one for each slot, into slots; behind their length zeros follow."""
        self._copy({spec.name: View.whole(values[spec.name], spec.dtype) for spec in self._specs}, rows, slots)

    def move(self, slots: Sequence[int], to: Sequence[int], length: int) -> None:
        """See `SlotBuffers`; whole slots are copied."""
        self._copy(self._buffers, slots, to)

    def _copy(self, source: Mapping[str, View], rows: Sequence[int], slots: Sequence[int]) -> None:
        if not self._specs:
            return
        binder = Binder(self._write, self._place)
        binder.input("rows", self._on_device(np.array(rows, np.int64)))
        binder.input("slots", self._on_device(np.array(slots, np.int64)[:, None]))
        for name, view in self._buffers.items():
            binder.input(f"into.{name}", view)
            binder.input(f"from.{name}", source[name])
            binder.output(f"written.{name}", view)
        binder.run()

    def view(self, slots: int) -> dict[str, View]:
        """The first `slots` slots as the decoder's inputs, [slots, ...], without a copy."""
        if slots not in self._views:
            self._views[slots] = {name: self._beginning(view, slots) for name, view in self._buffers.items()}
        return self._views[slots]

    @staticmethod
    def _beginning(view: View, slots: int) -> View:
        return View(view.buffer, view.dtype, (slots, *view.shape[1:]))


def on_device(array: NDArray[Any], place: Place) -> OrtValue:
    """A copy of the array on a device."""
    return OrtValue.ortvalue_from_numpy(np.array(array, order="C"), *place)


class ResidentStep:
    """A decoder step on a device, selection included; it has the methods of `decoder_step.BoundStep`.

    Args:
        session: of the decoder for devices.
        place: the device.
        rows: inputs that the host writes; they are copied to the device before every step.
        memory: [B, ...], on the device.
        state: of a decoder in place, [B, ..., E, ...], on the device; of another, nothing.
        rows_at_once: R.
        width: of the logits, U.
    """

    def __init__(
        self,
        session: Any,
        place: Place,
        rows: Mapping[str, NDArray[Any]],
        memory: Mapping[str, View | OrtValue],
        state: Mapping[str, View | OrtValue],
        *,
        rows_at_once: int,
        width: int,
    ) -> None:
        self.rows = rows_at_once
        self.width = width
        self._place = place
        self._binder = Binder(session, place)
        self._given: tuple[str, ...] = ()
        self._scores = np.zeros(self.rows, np.float32)
        self._hosted = {**rows, "scores": self._scores}
        self._copies = {name: on_device(array, place) for name, array in self._hosted.items()}
        self._candidates = np.zeros(1, np.int64)
        self._logit_rows = np.zeros(1, np.int64)
        self._constraints: dict[str, Constraints | None] = {"logit": None, "log_prob": None}
        self._renormalize: tuple[NDArray[np.bool_] | None] | None = None
        self._tokens = np.zeros((self.rows, 0), np.int64)
        self._totals = np.zeros((self.rows, 0), np.float32)
        for name, copy in {**self._copies, **memory, **state}.items():
            self._binder.input(name, copy)
        self._bind_sizes()
        self._binder.output("logits")
        for name, view in state.items():
            self._binder.output(f"next_{name}", view)

    def give_state(self, state: Mapping[str, OrtValue]) -> None:
        """See `BoundStep`."""
        for name, value in state.items():
            self._binder.input(name, value)
            self._binder.output(f"next_{name}")
        self._given = tuple(state)

    @property
    def state(self) -> dict[str, OrtValue]:
        """See `BoundStep`."""
        _, *values = self._binder.outputs()[: 1 + len(self._given)]
        return dict(zip(self._given, values, strict=True))

    def run(self, choice: Choice) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """See `BoundStep`."""
        self._scores[:] = choice.scores
        for name, copy in self._copies.items():
            copy.update_inplace(np.ascontiguousarray(self._hosted[name]))
        self._ask_for_logits(choice.with_logits)
        if self._renormalize is None or choice.renormalize is not self._renormalize[0]:
            self._renormalize = (choice.renormalize,)
            self._bind_renormalized(choice.renormalize)
        for stage, constraints in (("logit", choice.on_logits), ("log_prob", choice.on_log_probs)):
            if constraints is not self._constraints[stage]:
                self._constraints[stage] = constraints
                for name, array in constraint_arrays(stage, neutral_at_least(constraints), self.width).items():
                    self._binder.input(name, on_device(array, self._place))
        if choice.candidates != self._candidates[0]:
            self._bind_candidates(choice.candidates)
        self._binder.run()
        return self._tokens, self._totals

    def _bind_sizes(self) -> None:
        """Sizes stay on the host, which must know them; where a graph wants them elsewhere, binding copies them."""
        self._binder.input("candidates", OrtValue.ortvalue_from_numpy(self._candidates))
        self._binder.input("logit_rows", OrtValue.ortvalue_from_numpy(self._logit_rows))

    def _bind_renormalized(self, chosen: NDArray[np.bool_] | None) -> None:
        rows = np.zeros(0, np.int64) if chosen is None else np.flatnonzero(chosen)
        asked = np.ones(len(rows), np.bool_)
        if not len(rows):  # there is one row at least, that does not ask
            rows, asked = np.zeros(1, np.int64), np.zeros(1, np.bool_)
        self._binder.input("renormalize", on_device(rows, self._place))
        self._binder.input("renormalize.asked", on_device(asked, self._place))

    def _bind_candidates(self, candidates: int) -> None:
        self._candidates[0] = candidates
        self._bind_sizes()
        shape = (self.rows, min(candidates, self.width))
        self._tokens, self._totals = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        self._binder.output("tokens", OrtValue.ortvalue_from_numpy(self._tokens))
        self._binder.output("totals", OrtValue.ortvalue_from_numpy(self._totals))

    def _ask_for_logits(self, wanted: bool) -> None:
        rows = self.rows if wanted else 0
        if self._logit_rows[0] != rows:
            self._logit_rows[0] = rows
            self._bind_sizes()
            self._binder.output("logits")  # a binding keeps the shape that an output had

    def logits(self) -> OrtValue:
        """See `BoundStep`; they are on the device."""
        if not self._logit_rows[0]:
            self._ask_for_logits(True)
            self._binder.run()
        return self._binder.outputs()[0]


_NEUTRAL_PLACE = np.zeros((1, 2), np.int64)
_NEUTRAL_FACTOR = Entries(_NEUTRAL_PLACE, np.ones(1, np.float32))
_NEUTRAL_BIAS = Entries(_NEUTRAL_PLACE, np.zeros(1, np.float32))


def neutral_at_least(constraints: Constraints) -> Constraints:
    """The constraints, with an entry that changes nothing where there is none."""
    factors, biases = constraints
    return Constraints(
        factors if len(factors.values) else _NEUTRAL_FACTOR, biases if len(biases.values) else _NEUTRAL_BIAS
    )
