"""Which device runs a model: the choice between ONNX Runtime's CPU and CUDA execution providers."""

import logging
from dataclasses import dataclass, field
from typing import Literal, get_args

import onnxruntime

from jumok_serve.errors import DeviceError
from jumok_serve.runtime.cuda import why_not_cuda

logger = logging.getLogger(__name__)

DeviceName = Literal["cpu", "cuda", "auto"]
Arena = Literal["power_of_two", "exact"]

CPU_PROVIDER = "CPUExecutionProvider"
CUDA_PROVIDER = "CUDAExecutionProvider"

INSTALL = "uninstall onnxruntime and install 'jumok[serve-gpu]' instead of 'jumok[serve]', or use --device cpu"
_ARENAS: dict[Arena, str] = {"power_of_two": "kNextPowerOfTwo", "exact": "kSameAsRequested"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaSettings:
    """How a GPU is used.

    Attributes:
        memory_limit_mib: MiB that the arena of each graph's session may grow to; None: all that there is.
        arena: by how much an arena grows: to the next power of two, or by what is asked for.
        allow_copies: warn of graphs with operators that run on the CPU, instead of refusing them.
    """

    memory_limit_mib: int | None = None
    arena: Arena = "power_of_two"
    allow_copies: bool = False

    def provider_options(self) -> dict[str, str]:
        """These as options of ONNX Runtime's provider. Products in fp32 are exact: TF32 would cut their factors."""
        options = {"device_id": "0", "use_tf32": "0", "arena_extend_strategy": _ARENAS[self.arena]}
        if self.memory_limit_mib is not None:
            options["gpu_mem_limit"] = str(self.memory_limit_mib * 2**20)
        return options


@dataclass(frozen=True, slots=True)
class Device:
    """A device that sessions are made for.

    Attributes:
        name: "cpu" or "cuda".
        providers: ONNX Runtime's execution providers, the preferred one first.
        resident: whether memory, state and logits are bound in the device's own memory, where the graphs for devices
            work on them, instead of in NumPy's.
        options: of the preferred provider.
        allow_copies: whether operators that run elsewhere are only warned of.
    """

    name: Literal["cpu", "cuda"]
    providers: tuple[str, ...]
    resident: bool = False
    options: dict[str, str] = field(default_factory=dict, hash=False)
    allow_copies: bool = False

    def session_providers(self) -> list[tuple[str, dict[str, str]]]:
        """The providers with their options, as sessions take them."""
        first, *others = self.providers
        return [(first, self.options), *((other, {}) for other in others)]


CPU = Device("cpu", (CPU_PROVIDER,))
RESIDENT_CPU = Device("cpu", (CPU_PROVIDER,), resident=True)
"""The CPU as if it were a device with memory of its own: what decodes on a GPU, where there is none."""


def cuda_device(settings: CudaSettings | None = None) -> Device:
    """The first GPU."""
    settings = settings or CudaSettings()
    return Device(
        "cuda",
        (CUDA_PROVIDER, CPU_PROVIDER),
        resident=True,
        options=settings.provider_options(),
        allow_copies=settings.allow_copies,
    )


def candidate_devices(requested: str, settings: CudaSettings | None = None) -> tuple[Device, ...]:
    """The devices to try for a request, in order: one for "cpu" and "cuda", CUDA before the CPU for "auto".

    Where "auto" leaves CUDA out, the log says why.

    Raises:
        DeviceError: no such device name, or CUDA is asked for and cannot be had: says what is missing.
    """
    if requested not in get_args(DeviceName):
        raise DeviceError(f"device must be one of {', '.join(get_args(DeviceName))}, got {requested!r}")
    if requested == "cpu":
        return (CPU,)
    missing = _why_not_cuda()
    if missing is None:
        cuda = cuda_device(settings)
        return (cuda, CPU) if requested == "auto" else (cuda,)
    if requested == "auto":
        logger.info("device auto takes the CPU: %s", missing)
        return (CPU,)
    raise DeviceError(f"device 'cuda' was asked for, but {missing}")


def _why_not_cuda() -> str | None:
    """What stands between this machine and CUDA, with the way out; None: nothing that is known before a session is."""
    available = onnxruntime.get_available_providers()
    if CUDA_PROVIDER not in available:
        return (
            f"the installed ONNX Runtime {onnxruntime.__version__} has no {CUDA_PROVIDER} "
            f"(it has {', '.join(available)}); {INSTALL}"
        )
    return why_not_cuda()


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
            f"fell back to {', '.join(active)}: its log above names what is missing, such as cuDNN 9, which "
            "'onnxruntime-gpu[cuda,cudnn]' installs; or use --device cpu"
        )
