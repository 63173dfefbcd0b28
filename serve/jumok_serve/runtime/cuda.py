"""Checks of CUDA before ONNX Runtime uses it: GPU, driver, libraries."""

import contextlib
import ctypes
import io
import re
from collections.abc import Callable
from typing import Any

import onnxruntime

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
    major = _major(_built_for() if built_for is None else built_for)
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


def _built_for() -> str:
    return str(getattr(onnxruntime, "cuda_version", "") or "")


def _major(version: str) -> int:
    """The major version of CUDA; 12 if the version is unknown."""
    match = re.match(r"\d+", version)
    return int(match[0]) if match and int(match[0]) in LIBRARIES else _DEFAULT_MAJOR
