"""Devices: choice, CUDA's settings, and precisions."""

import contextlib
import ctypes
import io
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from typing import Any, Literal, get_args

import onnxruntime

from jumok_serve.errors import DeviceError
from jumok_serve.manifest.manifest import Agreement, Manifest

DRIVER = "libcuda.so.1"
LIBRARIES = {
    12: ("libcudart.so.12", "libcublas.so.12", "libcublasLt.so.12"),
    13: ("libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13"),
}
"""Libraries that ONNX Runtime's provider always needs, by the major version of CUDA that it was built for.

Some versions also need cuDNN and cuFFT; a provider that lacks them does not start, and logs it.
"""
_DEFAULT_MAJOR = 12
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE

Loader = Callable[[str], Any]
"""Opens a shared library by name, as `ctypes.CDLL` does; raises OSError if it is missing."""


def find_cuda_problem(load: Loader = ctypes.CDLL, *, built_for: str | None = None) -> str | None:
    """Find what CUDA lacks, with a remedy; None if nothing is missing.

    Args:
        load: opens shared libraries.
        built_for: version of CUDA that ONNX Runtime was built for, such as "12.8"; default: asks ONNX Runtime.
    """
    major = _major(getattr(onnxruntime, "cuda_version", "") if built_for is None else built_for)
    return _driver_problem(load, major) or _library_problem(load, major)


def _driver_problem(load: Loader, major: int) -> str | None:
    try:
        driver = load(DRIVER)
    except OSError as error:
        return (
            f"there is no NVIDIA driver: {error}; install one (in a container, start it with the NVIDIA container "
            "toolkit: --gpus all), or use --device cpu"
        )
    status = driver.cuInit(0)
    if status == _NO_DEVICE:
        return (
            "the NVIDIA driver finds no GPU; make one visible (CUDA_VISIBLE_DEVICES, --gpus all), or use --device cpu"
        )
    if status:
        return f"the NVIDIA driver does not start: cuInit failed with {status}; see nvidia-smi, or use --device cpu"
    version = ctypes.c_int()
    status = driver.cuDriverGetVersion(ctypes.byref(version))
    if status == 0 and version.value // 1000 < major:
        had = f"{version.value // 1000}.{version.value % 1000 // 10}"
        return (
            f"the NVIDIA driver is for CUDA {had} and older, and this ONNX Runtime needs CUDA {major}; update the "
            f"driver, install an onnxruntime-gpu for CUDA {had.partition('.')[0]}, or use --device cpu"
        )
    return None


def _library_problem(load: Loader, major: int) -> str | None:
    _preload()
    missing = []
    for library in LIBRARIES[major]:
        try:
            load(library)
        except OSError:
            missing.append(library)
    if not missing:
        return None
    return (
        f"{', '.join(missing)} of CUDA {major} cannot be loaded; install 'onnxruntime-gpu[cuda,cudnn]', "
        "or CUDA and cuDNN where the dynamic linker looks, or use --device cpu"
    )


def _preload() -> None:
    """Load CUDA's libraries from Python packages, unknown to the dynamic linker."""
    preload = getattr(onnxruntime, "preload_dlls", None)  # from 1.21 on
    if preload is not None:
        with contextlib.redirect_stdout(io.StringIO()):  # the caller reports what is missing
            preload()


def _major(version: str | None) -> int:
    """The major version of CUDA; 12 if the version is unknown."""
    match = re.match(r"\d+", version or "")
    return int(match[0]) if match and int(match[0]) in LIBRARIES else _DEFAULT_MAJOR


logger = logging.getLogger(__name__)

PREFERRED_PRECISIONS = {"cpu": ("int8", "fp32"), "cuda": ("fp16", "fp32")}
"""Precisions for "auto" on each device, the best first."""
LEAST_AGREEMENT = {"calibration texts": 0.98, "random tokens": 0.95}
"""Least share of tokens that a precision must choose as fp32 does, for "auto" to take it instead of fp32.

After random tokens a model is less sure of its choice, so that roundings change more of them.
"""
SHORT_TRANSLATION = 12
"""Tokens at the mean, up to which translations are short: names and words, which one changed token makes wrong."""
LEAST_UNCHANGED = 0.95
"""Least share of short translations in which no token may differ, for "auto" to take a precision."""


def automatic_precision(manifest: Manifest, device: str) -> str:
    """The precision of "auto" on a device.

    It is the first of `PREFERRED_PRECISIONS` that the bundle has and that agrees with fp32 well enough, as far as is
    known; without such a one, the first that the bundle has. The precision in which the weights came agrees by
    definition: fp32 has the same weights, and only rounds less.
    """
    present = [name for name in PREFERRED_PRECISIONS[device] if name in manifest.precisions] or [*manifest.precisions]
    if manifest.stored_precision in present:
        return manifest.stored_precision
    for name in present:
        agreement = manifest.agreement.get(name)
        if agreement is None or agrees(agreement):
            return name
        if len(present) > 1:
            reason = f"{name} agrees with fp32 only in {agreement}"
            logger.info("%s: %s, so it is not chosen by itself", manifest.name, reason)
    return present[0]


def agrees(agreement: Agreement) -> bool:
    """True if a precision agrees with fp32 well enough for "auto" to take it.

    In short translations the whole results count too. Lengths after random tokens say nothing about those of texts.
    """
    if agreement.share < LEAST_AGREEMENT[agreement.texts]:
        return False
    if agreement.texts == "random tokens" or agreement.translations is None or agreement.unchanged is None:
        return True
    return agreement.tokens > SHORT_TRANSLATION * agreement.translations or agreement.unchanged >= LEAST_UNCHANGED


def describe_agreement(manifest: Manifest, precision: str) -> str:
    """Describe how far a precision agrees with fp32; empty for fp32."""
    if precision == "fp32":
        return ""
    agreement = manifest.agreement.get(precision)
    if precision == manifest.stored_precision:
        return "the precision of the imported weights"
    if agreement is None:
        return "agreement with fp32 not measured"
    return f"agrees with fp32 in {agreement}"


def warn_of_failed_checks(manifest: Manifest, precision: str) -> None:
    """Warn if a precision failed its verification, as bundles exported with --unverified may."""
    report = manifest.verification.get(precision)
    failed = [] if report is None else [check.name for check in report.checks if not check.passed]
    if failed:
        logger.warning(
            "%s: its %s graphs failed their verification, and were exported all the same (%s): see `inspect --all`",
            manifest.name,
            precision,
            ", ".join(failed),
        )


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
