"""Int8 arithmetic in PyTorch, in several threads."""

import threading
import weakref
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from jumok_export.graphs.quantize_matrix import quantize_weight
from jumok_export.parallel import WORKERS, concurrently
from jumok_export.quantization.fake_quantization import Int8Arithmetic


def test_threads_round_a_weight_once(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, both, rounded = threading.Barrier(WORKERS), threading.Barrier(WORKERS), []

    def quantize(*weight: Any, **options: Any) -> Any:
        rounded.append(threading.current_thread())
        with suppress(threading.BrokenBarrierError):
            both.wait(0.5)  # passes if another thread rounds the weight too
        return quantize_weight(*weight, **options)

    monkeypatch.setattr("jumok_export.quantization.fake_quantization.quantize_weight", quantize)
    torch.manual_seed(1)
    layer, inputs, arithmetic = nn.Linear(16, 8), torch.randn(3, 16), Int8Arithmetic()

    def compute(_: int) -> Tensor:
        begun.wait()
        with torch.no_grad(), arithmetic:
            outputs: Tensor = layer(inputs)
            return outputs

    first, second = concurrently(compute, range(WORKERS))
    assert len(rounded) == 1
    assert torch.equal(first, second)
    with torch.no_grad():
        assert not torch.equal(first, layer(inputs))


def test_forgotten_weights_are_freed_and_rounded_again() -> None:
    torch.manual_seed(1)
    layer, inputs, arithmetic = nn.Linear(16, 8), torch.randn(3, 16), Int8Arithmetic()
    with torch.no_grad(), arithmetic:
        before = layer(inputs)
        assert arithmetic.covers([layer.weight.detach().numpy()])
        freed = weakref.ref(layer.weight)
        arithmetic.forget()
        assert not arithmetic.covers([layer.weight.detach().numpy()])
        assert torch.equal(layer(inputs), before)
        arithmetic.forget()
        del layer
    assert freed() is None
