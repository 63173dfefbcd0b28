"""Bindings: inputs and outputs of a session, bound once for many runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnxruntime import OrtValue

Tensors = dict[str, OrtValue]
"""Encoder memory or decoder state by name: `memory.<name>`, `state.<name>`."""

DeviceId: TypeAlias = tuple[str, int]
"""ONNX Runtime's name of a device, and the device's number."""


@dataclass(frozen=True, slots=True)
class View:
    """The beginning of a buffer on a device, as a tensor.

    Attributes:
        shape: shape of the tensor; no larger than the buffer.
    """

    buffer: OrtValue
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @classmethod
    def whole(cls, value: OrtValue, dtype: str) -> "View":
        """A view of a whole tensor."""
        return cls(value, np.dtype(dtype), tuple(value.shape()))

    def first(self, slots: int) -> "View":
        """A view of the first slots."""
        return View(self.buffer, self.dtype, (slots, *self.shape[1:]))


def as_value(array: NDArray[Any]) -> OrtValue:
    """Wrap an array as an ONNX Runtime tensor; contiguous: no copy."""
    return OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))


def on_device(array: NDArray[Any], device_id: DeviceId) -> OrtValue:
    """Copy an array to a device."""
    return OrtValue.ortvalue_from_numpy(np.array(array, order="C"), *device_id)


class Binding:
    """Inputs and outputs of a session, each bound until bound again.

    Args:
        session: ONNX Runtime's session of a graph.
        device_id: device with the memory of inputs and outputs; None: the host.
    """

    def __init__(self, session: Any, device_id: DeviceId | None = None) -> None:
        self._session = session
        self._device_id = device_id
        self._binding = session.io_binding()
        self._held: dict[str, object] = {}  # ONNX Runtime's binding keeps no memory alive
        self._shared: dict[str, tuple[OrtValue, NDArray[Any]]] = {}

    def bind_shared_array(self, name: str, array: NDArray[Any]) -> None:
        """Bind an input to an array that the caller changes between runs.

        A device gets a copy before each run.
        """
        if self._device_id is None:
            self.bind_input(name, as_value(array))
            return
        copy = on_device(array, self._device_id)
        self._shared[name] = copy, array
        self.bind_input(name, copy)

    def bind_array(self, name: str, array: NDArray[Any]) -> None:
        """Bind an input to the present content of an array."""
        self.bind_input(name, as_value(array) if self._device_id is None else on_device(array, self._device_id))

    def bind_input(self, name: str, value: View | OrtValue) -> None:
        """Bind an input; copies host tensors that the device reads."""
        self._held[name] = value
        if isinstance(value, View):
            self._binding.bind_input(name, *self._device, value.dtype, value.shape, value.buffer.data_ptr())
        else:
            self._binding.bind_ortvalue_input(name, value)

    def bind_output(self, name: str, value: View | OrtValue | None = None) -> None:
        """Bind an output to a tensor; default: ONNX Runtime allocates it."""
        self._held[f"output {name}"] = value
        if value is None:
            self._binding.bind_output(name, *self._device)
        elif isinstance(value, View):
            self._binding.bind_output(name, *self._device, value.dtype, value.shape, value.buffer.data_ptr())
        else:
            self._binding.bind_ortvalue_output(name, value)

    @property
    def _device(self) -> DeviceId:
        return self._device_id or ("cpu", 0)

    def run(self) -> None:
        """Run the session once."""
        for shared, array in self._shared.values():
            shared.update_inplace(np.ascontiguousarray(array))
        self._session.run_with_iobinding(self._binding)

    def outputs(self) -> list[OrtValue]:
        """All outputs of the last run, in the order of their binding."""
        values: list[OrtValue] = self._binding.get_outputs()
        return values


def run_once(
    session: Any, names: Sequence[str], feeds: Mapping[str, OrtValue], device_id: DeviceId | None = None
) -> list[OrtValue]:
    """Run a session with tensors; return the outputs with these names.

    `InferenceSession.run_with_ort_values` takes 30 us longer: a C++ exception tells it that it has read all results
    (2026-11-27).

    Args:
        device_id: device with the memory of the outputs; None: the host.
    """
    binding = Binding(session, device_id)
    for name, value in feeds.items():
        binding.bind_input(name, value)
    for name in names:
        binding.bind_output(name)
    binding.run()
    return binding.outputs()
