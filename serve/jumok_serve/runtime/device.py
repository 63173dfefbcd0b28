"""Devices that run a model: ONNX Runtime's CPU and CUDA execution providers."""

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from typing import Literal, get_args

import onnxruntime

from jumok_serve.errors import DeviceError
from jumok_serve.runtime.cuda import find_cuda_problem

logger = logging.getLogger(__name__)

DeviceName = Literal["cpu", "cuda", "auto"]
Arena = Literal["power_of_two", "exact"]

CPU_PROVIDER = "CPUExecutionProvider"
CUDA_PROVIDER = "CUDAExecutionProvider"

INSTALL = "uninstall onnxruntime and install 'jumok[serve-gpu]' instead of 'jumok[serve]', or use --device cpu"
RUNTIMES = ("onnxruntime", "onnxruntime-gpu")
REINSTALL = (
    "run `pip uninstall onnxruntime onnxruntime-gpu`, then `pip install onnxruntime-gpu` for CUDA or "
    "`pip install onnxruntime` for the CPU"
)
"""To uninstall one of two breaks the other, since it removes their common files."""
_ARENAS: dict[Arena, str] = {"power_of_two": "kNextPowerOfTwo", "exact": "kSameAsRequested"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaSettings:
    """Settings of a GPU.

    Attributes:
        memory_limit_mib: largest arena of each graph's session, in MiB; None: the whole memory.
        arena: growth of an arena: to the next power of two, or by the requested size.
        allow_copies: True to warn of graphs with operators on the CPU, instead of refusing them.
    """

    memory_limit_mib: int | None = None
    arena: Arena = "power_of_two"
    allow_copies: bool = False

    def provider_options(self) -> dict[str, str]:
        """Options of the CUDA provider; no TF32, which rounds fp32 products."""
        options = {"device_id": "0", "use_tf32": "0", "arena_extend_strategy": _ARENAS[self.arena]}
        if self.memory_limit_mib is not None:
            options["gpu_mem_limit"] = str(self.memory_limit_mib * 2**20)
        return options


@dataclass(frozen=True, slots=True)
class Device:
    """A device that runs sessions.

    Attributes:
        name: "cpu" or "cuda".
        providers: ONNX Runtime's execution providers, the preferred one first.
        own_memory: True if memory, state and logits stay in the device's own memory, for the graphs for devices.
        options: options of the preferred provider.
        allow_copies: True to warn of operators that run elsewhere, instead of refusing the graph.
    """

    name: Literal["cpu", "cuda"]
    providers: tuple[str, ...]
    own_memory: bool = False
    options: dict[str, str] = field(default_factory=dict, hash=False)
    allow_copies: bool = False

    def session_providers(self) -> list[tuple[str, dict[str, str]]]:
        """The providers and their options, as arguments of a session."""
        first, *others = self.providers
        return [(first, self.options), *((other, {}) for other in others)]


CPU = Device("cpu", (CPU_PROVIDER,))
CPU_AS_DEVICE = Device("cpu", (CPU_PROVIDER,), own_memory=True)
"""The CPU treated as a device with its own memory: runs the graphs for GPUs without a GPU."""


def cuda_device(settings: CudaSettings | None = None) -> Device:
    """The first GPU."""
    settings = settings or CudaSettings()
    return Device(
        "cuda",
        (CUDA_PROVIDER, CPU_PROVIDER),
        own_memory=True,
        options=settings.provider_options(),
        allow_copies=settings.allow_copies,
    )


def candidate_devices(requested: str, settings: CudaSettings | None = None) -> tuple[Device, ...]:
    """The devices to try, in order; "auto" is CUDA, then the CPU.

    If "auto" leaves CUDA out, the log gives the reason.

    Raises:
        DeviceError: an unknown device name, or "cuda" although CUDA cannot be used.
    """
    if requested not in get_args(DeviceName):
        raise DeviceError(f"device must be one of {', '.join(get_args(DeviceName))}, got {requested!r}")
    _warn_of_two_runtimes()
    if requested == "cpu":
        return (CPU,)
    missing = _cuda_problem()
    if missing is None:
        cuda = cuda_device(settings)
        return (cuda, CPU) if requested == "auto" else (cuda,)
    if requested == "auto":
        logger.info("device auto takes the CPU: %s", missing)
        return (CPU,)
    raise DeviceError(f"device 'cuda' was requested, but {missing}")


@cache
def _warn_of_two_runtimes() -> None:
    if two_runtimes():
        logger.warning("onnxruntime and onnxruntime-gpu are both installed, and either may be used; %s", REINSTALL)


def two_runtimes() -> bool:
    """True if both packages of ONNX Runtime are installed, which have the same files."""
    with suppress(metadata.PackageNotFoundError):
        return bool([metadata.version(name) for name in RUNTIMES])
    return False


def _cuda_problem() -> str | None:
    """The known reason why CUDA cannot be used, with remedy, or None."""
    available = onnxruntime.get_available_providers()
    if CUDA_PROVIDER not in available:
        return (
            f"the installed ONNX Runtime {onnxruntime.__version__} has no {CUDA_PROVIDER} "
            f"(it has {', '.join(available)}); {REINSTALL if two_runtimes() else INSTALL}"
        )
    return find_cuda_problem()


def check_active(device: Device, active: list[str]) -> None:
    """Refuse a session that fell back to another provider.

    Args:
        active: the session's `get_providers()`.

    Raises:
        DeviceError: a device whose provider is not active: the driver, a GPU or CUDA's libraries are missing.
    """
    if device.providers[0] not in active:
        raise DeviceError(
            f"device {device.name!r} was requested, but ONNX Runtime could not start {device.providers[0]} and "
            f"fell back to {', '.join(active)}: its log above names what is missing, such as cuDNN 9, which "
            "'onnxruntime-gpu[cuda,cudnn]' installs; or use --device cpu"
        )
