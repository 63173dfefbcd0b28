"""Choice of the device: the requested one, or an error with the reason."""

import logging
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from jumok_serve.errors import DeviceError
from jumok_serve.runtime import device
from jumok_serve.runtime.device import (
    CPU,
    DRIVER,
    LIBRARIES,
    CudaSettings,
    candidate_devices,
    check_active,
    cuda_device,
    find_cuda_problem,
)


@dataclass
class Machine:
    """Shared libraries of a machine, in place of `ctypes.CDLL`."""

    missing: tuple[str, ...] = ()
    init: int = 0
    driver_for: int = 12080
    loaded: list[str] = field(default_factory=list)

    def load(self, name: str) -> "Machine":
        if name in self.missing:
            raise OSError(f"{name}: cannot open shared object file: No such file or directory")
        self.loaded.append(name)
        return self

    def cuInit(self, flags: int) -> int:
        assert flags == 0
        return self.init

    def cuDriverGetVersion(self, version: Any) -> int:
        version._obj.value = self.driver_for
        return 0


@pytest.fixture
def providers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set the providers of the installed ONNX Runtime."""

    def install(*names: str) -> None:
        monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [*names, "CPUExecutionProvider"])

    return install


def test_two_runtimes_are_warned_of_with_a_remedy_that_works(
    providers: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The packages have the same files: both must go before one comes back."""
    remedy = "run `pip uninstall onnxruntime onnxruntime-gpu`, then `pip install onnxruntime-gpu`"
    for name in ("onnxruntime", "onnxruntime_gpu"):
        folder = tmp_path / f"{name}-1.23.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.23.0\n")
        with monkeypatch.context() as patch:
            patch.setattr(sys, "path", [str(tmp_path)])
            device._warn_of_two_runtimes.cache_clear()
            candidate_devices("cpu")
            candidate_devices("cpu")
            assert device.two_runtimes() == (name == "onnxruntime_gpu")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert remedy in record.getMessage()
    providers()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(DeviceError, match=re.escape(remedy)):
        candidate_devices("cuda")


def test_a_machine_with_everything() -> None:
    machine = Machine()
    assert find_cuda_problem(machine.load, built_for="12.8") is None
    assert machine.loaded == [DRIVER, *LIBRARIES[12]]
    newer = Machine(driver_for=13000)
    assert find_cuda_problem(newer.load, built_for="13.0") is None
    assert newer.loaded == [DRIVER, *LIBRARIES[13]]
    assert find_cuda_problem(newer.load, built_for="12.8") is None  # drivers serve older programs too
    assert find_cuda_problem(machine.load, built_for="") is None


@pytest.mark.parametrize(
    ("machine", "message"),
    [
        (Machine(missing=(DRIVER,)), f"no NVIDIA driver: {DRIVER}: cannot open.*NVIDIA container toolkit"),
        (Machine(init=100), "driver finds no GPU; make one visible"),
        (Machine(init=803), "cuInit failed with 803; see nvidia-smi"),
        (Machine(driver_for=11040), "driver is for CUDA 11.4 and older.*needs CUDA 12; update.*for CUDA 11"),
        (Machine(missing=("libcublas.so.12",)), r"^libcublas.so.12 of CUDA 12.*'onnxruntime-gpu\[cuda,cudnn\]'"),
        (Machine(missing=LIBRARIES[12]), "^libcudart.so.12, libcublas.so.12, libcublasLt.so.12 of CUDA 12"),
    ],
)
def test_missing_parts_are_named_with_a_remedy(machine: Machine, message: str) -> None:
    problem = find_cuda_problem(machine.load, built_for="12.8")
    assert problem is not None
    with pytest.raises(DeviceError, match=message):
        raise DeviceError(problem)
    assert problem.endswith("or use --device cpu")


def test_without_the_provider(providers: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    providers()
    assert candidate_devices("cpu") == (CPU,)
    with caplog.at_level(logging.INFO):
        assert candidate_devices("auto") == (CPU,)
    (record,) = caplog.records
    assert "device auto takes the CPU: the installed ONNX Runtime" in record.getMessage()
    with pytest.raises(DeviceError, match=r"has no CUDAExecutionProvider.*jumok\[serve-gpu\].*--device cpu"):
        candidate_devices("cuda")


def test_with_the_provider_the_machine_decides(providers: Callable[..., None]) -> None:
    providers("TensorrtExecutionProvider", "CUDAExecutionProvider")
    assert candidate_devices("cpu") == (CPU,)
    missing = find_cuda_problem()
    if missing is None:
        assert candidate_devices("cuda") == (cuda_device(),)
        assert candidate_devices("auto") == (cuda_device(), CPU)
    else:
        assert candidate_devices("auto") == (CPU,)
        with pytest.raises(DeviceError) as error:
            candidate_devices("cuda")
        assert str(error.value) == f"device 'cuda' was requested, but {missing}"


def test_settings_become_options_of_the_provider() -> None:
    assert cuda_device().session_providers() == [
        (
            "CUDAExecutionProvider",
            {"device_id": "0", "use_tf32": "0", "arena_extend_strategy": "kNextPowerOfTwo"},
        ),
        ("CPUExecutionProvider", {}),
    ]
    small = CudaSettings(memory_limit_mib=512, arena="exact").provider_options()
    assert small["gpu_mem_limit"] == str(512 * 1024 * 1024)
    assert small["arena_extend_strategy"] == "kSameAsRequested"
    assert cuda_device(CudaSettings(allow_copies=True)).allow_copies


def test_an_unknown_device_is_named() -> None:
    with pytest.raises(DeviceError, match="one of cpu, cuda, auto, got 'tpu'"):
        candidate_devices("tpu")


def test_a_session_that_fell_back_is_refused() -> None:
    check_active(CPU, ["CPUExecutionProvider"])
    check_active(cuda_device(), ["CUDAExecutionProvider", "CPUExecutionProvider"])
    with pytest.raises(DeviceError, match=r"could not start CUDAExecutionProvider.*fell back to CPUExecutionProvider"):
        check_active(cuda_device(), ["CPUExecutionProvider"])
