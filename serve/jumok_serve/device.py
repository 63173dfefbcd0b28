"""Which device runs a model: the choice between ONNX Runtime's CPU and CUDA execution providers."""

from dataclasses import dataclass
from typing import Literal, get_args

import onnxruntime

from jumok_serve.errors import DeviceError

DeviceName = Literal["cpu", "cuda", "auto"]

CPU_PROVIDER = "CPUExecutionProvider"
CUDA_PROVIDER = "CUDAExecutionProvider"


@dataclass(frozen=True, slots=True)
class Device:
    """A device that sessions are made for.

    Attributes:
        name: "cpu" or "cuda".
        providers: ONNX Runtime's execution providers, the preferred one first.
    """

    name: Literal["cpu", "cuda"]
    providers: tuple[str, ...]


CPU = Device("cpu", (CPU_PROVIDER,))
CUDA = Device("cuda", (CUDA_PROVIDER, CPU_PROVIDER))


def candidate_devices(requested: str) -> tuple[Device, ...]:
    """The devices to try for a request, in order: one for "cpu" and "cuda", CUDA before the CPU for "auto".

    Raises:
        DeviceError: no such device name, or CUDA is asked for and the installed ONNX Runtime has no CUDA provider.
    """
    if requested not in get_args(DeviceName):
        raise DeviceError(f"device must be one of {', '.join(get_args(DeviceName))}, got {requested!r}")
    available = onnxruntime.get_available_providers()
    if requested == "cpu":
        return (CPU,)
    if CUDA_PROVIDER in available:
        return (CUDA, CPU) if requested == "auto" else (CUDA,)
    if requested == "auto":
        return (CPU,)
    raise DeviceError(
        f"device 'cuda' was asked for, but the installed ONNX Runtime {onnxruntime.__version__} has no {CUDA_PROVIDER} "
        f"(it has {', '.join(available)}); uninstall onnxruntime and install 'jumok[serve-gpu]' instead of "
        "'jumok[serve]', or use --device cpu"
    )


def check_active(device: Device, active: list[str]) -> None:
    """Refuses a session that fell back to another provider than its device's.

    Args:
        device: what the session was made for.
        active: the session's `get_providers()`.

    Raises:
        DeviceError: the device's provider is not active, for lack of a driver, of a GPU or of CUDA's libraries.
    """
    if device.providers[0] not in active:
        raise DeviceError(
            f"device {device.name!r} was asked for, but ONNX Runtime could not start {device.providers[0]} and "
            f"fell back to {', '.join(active)}: its log above names the missing driver or library; or use --device cpu"
        )
