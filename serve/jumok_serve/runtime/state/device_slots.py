"""Buffers by slot in a device's own memory, bound by their addresses."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnxruntime import OrtValue

from jumok_serve.manifest.manifest import TensorSpec
from jumok_serve.runtime.binding import Binding, DeviceId, View, as_value, on_device
from jumok_serve.runtime.state.slot_buffers import spec_shape

POSITIONS_STEP = 32
"""Buffers have a multiple of this many positions, and a power of two of slots: few shapes occur then."""


class DeviceSlots:
    """Tensors by slot in the memory of a device; see `jumok_serve.runtime.state.slot_buffers.SlotBuffers`.

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
