"""Fake quantization: int8 arithmetic in PyTorch, the reference of exported int8 graphs."""

import threading
from collections.abc import Callable, Iterable, Set
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from jumok_export.graphs.quantize_matrix import quantize_weight
from jumok_export.graphs.weights import checksum, equal
from jumok_export.parallel import concurrently
from jumok_export.quantization.find_matrices import (
    EMBEDDING_ROWS,
    RECTIFIED,
    SIGNED,
    QuantizedRange,
    weight_key,
)
from jumok_export.quantization.int8_graphs import Scales

MOST_KEPT = 2**28
"""Bytes of rounded weights that are kept in fp32; others are kept in int8, and made fp32 for each product."""
AT_ONCE = 2**21
"""Elements that are made fp32 at once."""


class Int8Arithmetic(TorchFunctionMode):
    """Within this context, linear layers and embeddings compute as their int8 graphs do.

    Weights are rounded as `quantize_weight` rounds them, activations by their calibrated scale or else by row. Products
    are computed in fp32, by PyTorch's own operators. Several threads may compute within it.

    Args:
        rectified: keys of the weights that are multiplied with ReLU outputs.
    """

    def __init__(self, scales: Scales = MappingProxyType({}), rectified: Set[str] = frozenset()) -> None:
        super().__init__()
        self._scales = scales
        self._rectified = rectified
        self._rounded: dict[int, _Rounded] = {}
        self._kept = 0
        self._rounding = threading.Lock()

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Compute linear layers and embeddings in int8, everything else unchanged."""
        if function is F.linear and _is_weight(args[1]):
            activation, weight, *bias = args
            rounded = self._round(weight)
            activation_range, scale = (
                RECTIFIED if rounded.key in self._rectified else SIGNED,
                self._scales.get(rounded.key),
            )
            activation = (
                _round_rows(activation, activation_range)
                if scale is None
                else _round_by(activation, scale, activation_range)
            )
            return rounded.linear(activation, *bias, **(kwargs or {}))
        if function is F.embedding and _is_weight(args[1]) and len(args[1]) >= EMBEDDING_ROWS:
            return self._round(args[1]).rows(args[0])
        return function(*args, **(kwargs or {}))

    def covers(self, weights: Iterable[NDArray[np.float32]]) -> bool:
        """True if each of these matrices, or its transposition, was used in int8."""
        seen: dict[tuple[object, ...], list[NDArray[np.float32]]] = {}
        originals = [rounded.original.detach().numpy() for rounded in self._rounded.values()]
        for original, likeness in zip(originals, concurrently(_likeness, originals), strict=True):
            seen.setdefault(likeness, []).append(original)

        def is_covered(weight: NDArray[np.float32]) -> bool:
            return any(equal(used, weight) or equal(used.T, weight) for used in seen.get(_likeness(weight), ()))

        return all(concurrently(is_covered, weights))

    def forget(self) -> None:
        """Free the rounded weights; those that are used again are rounded again."""
        with self._rounding:
            self._rounded.clear()
            self._kept = 0

    def _round(self, weight: Tensor) -> "_Rounded":
        with self._rounding:
            if id(weight) not in self._rounded:
                original = weight.detach().numpy()
                values, scales = map(torch.from_numpy, quantize_weight(original, channels=0))
                self._kept += weight.nbytes
                if self._kept <= MOST_KEPT:
                    values = values * scales[:, None]
                key = weight_key(original.T) if self._scales or self._rectified else ""
                self._rounded[id(weight)] = _Rounded(weight, values, scales, key)
            return self._rounded[id(weight)]


class _Rounded(NamedTuple):
    """A weight [N, K] after rounding to int8.

    Attributes:
        original: the weight, kept alive, so that no other tensor gets its id.
        values: the rounded weight in fp32, or quantized values to save memory.
        key: `weight_key` of the weight; empty if there is nothing to find by it.
    """

    original: Tensor
    values: Tensor
    scales: Tensor
    key: str

    def linear(self, activation: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiply an activation [..., K] with the weight; returns [..., N]."""
        if self.values.is_floating_point():
            return F.linear(activation, self.values, bias)
        rows = max(1, AT_ONCE // self.values.shape[1])
        scaled = zip(torch.split(self.values, rows), torch.split(self.scales, rows), strict=True)
        product = torch.cat([F.linear(activation, values * scales[:, None]) for values, scales in scaled], dim=-1)
        return product if bias is None else product + bias

    def rows(self, ids: Tensor) -> Tensor:
        """Rows of the weight, [..., K]."""
        if self.values.is_floating_point():
            return self.values[ids]
        return self.values[ids] * self.scales[ids][..., None]


def _likeness(weight: NDArray[np.float32]) -> tuple[object, ...]:
    """Properties that a matrix shares with those equal to it and to its transposition, and with few others."""
    return *sorted(weight.shape), checksum(weight)


def _is_weight(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) and tensor.ndim == 2


def _round_rows(activation: Tensor, activation_range: QuantizedRange) -> Tensor:
    largest = activation.abs().amax(dim=-1, keepdim=True)
    shares = torch.where(largest > 0, activation / largest, 0)
    rounded: Tensor = _round_by(shares, float(activation_range.unit), activation_range) * largest
    return rounded


def _round_by(activation: Tensor, scale: float, activation_range: QuantizedRange) -> Tensor:
    return (activation / scale).round().clamp(-activation_range.zero_point, 255 - activation_range.zero_point) * scale
