"""Choice of the device: never another one than was asked for, and a reason where that cannot be had."""

import onnxruntime
import pytest

from jumok_serve.device import CPU, CUDA, candidate_devices, check_active
from jumok_serve.errors import DeviceError


@pytest.fixture
def with_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    providers = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: providers)


@pytest.fixture
def without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])


@pytest.mark.usefixtures("with_cuda")
def test_with_cuda() -> None:
    assert candidate_devices("cpu") == (CPU,)
    assert candidate_devices("cuda") == (CUDA,)
    assert candidate_devices("auto") == (CUDA, CPU)


@pytest.mark.usefixtures("without_cuda")
def test_without_cuda() -> None:
    assert candidate_devices("cpu") == (CPU,)
    assert candidate_devices("auto") == (CPU,)
    with pytest.raises(DeviceError, match=r"has no CUDAExecutionProvider.*jumok\[serve-gpu\].*--device cpu"):
        candidate_devices("cuda")


def test_unknown_device_is_named() -> None:
    with pytest.raises(DeviceError, match="one of cpu, cuda, auto, got 'tpu'"):
        candidate_devices("tpu")


def test_a_session_that_fell_back_is_refused() -> None:
    check_active(CPU, ["CPUExecutionProvider"])
    check_active(CUDA, ["CUDAExecutionProvider", "CPUExecutionProvider"])
    with pytest.raises(DeviceError, match=r"could not start CUDAExecutionProvider.*fell back to CPUExecutionProvider"):
        check_active(CUDA, ["CPUExecutionProvider"])
