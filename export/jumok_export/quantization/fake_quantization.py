"""Fake quantization: int8 arithmetic in PyTorch, the reference of exported int8 graphs."""

from collections.abc import Callable, Iterable, Set
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from jumok_export.quantization.int8_graphs import Scales
from jumok_export.quantization.int8_matrix import quantize_weight
from jumok_export.quantization.matrices import (
    EMBEDDING_ROWS,
    RECTIFIED,
    SIGNED,
    QuantizedRange,
    weight_key,
)


class Int8Arithmetic(TorchFunctionMode):
    """Within this context, linear layers and embeddings compute as their int8 graphs do.

    Weights are rounded as `quantize_weight` rounds them, activations by their calibrated scale or else by row. Products
    are computed in fp32, by PyTorch's own operators.

    Args:
        rectified: keys of the weights that are multiplied with ReLU outputs.
    """

    def __init__(self, scales: Scales = MappingProxyType({}), rectified: Set[str] = frozenset()) -> None:
        super().__init__()
        self._scales = scales
        self._rectified = rectified
        self._originals: dict[int, Tensor] = {}  # kept alive, so that no other tensor gets their ids
        self._rounded: dict[int, Tensor] = {}
        self._keys: dict[int, str] = {}

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Compute linear layers and embeddings in int8, everything else unchanged."""
        if function is F.linear and _is_weight(args[1]):
            activation, weight, *bias = args
            rounded = self._weight(weight)
            key = self._keys[id(weight)]
            activation_range, scale = RECTIFIED if key in self._rectified else SIGNED, self._scales.get(key)
            activation = (
                _round_rows(activation, activation_range)
                if scale is None
                else _round_by(activation, scale, activation_range)
            )
            return function(activation, rounded, *bias, **(kwargs or {}))
        if function is F.embedding and _is_weight(args[1]) and len(args[1]) >= EMBEDDING_ROWS:
            ids, weight, *others = args
            return function(ids, self._weight(weight), *others, **(kwargs or {}))
        return function(*args, **(kwargs or {}))

    def covers(self, weights: Iterable[NDArray[np.float32]]) -> bool:
        """True if each of these matrices, or its transposition, was used in int8."""
        seen = set(self._keys.values())
        return all(weight_key(weight) in seen or weight_key(weight.T) in seen for weight in weights)

    def _weight(self, weight: Tensor) -> Tensor:
        """The weight [N, K] after rounding to int8."""
        if id(weight) not in self._rounded:
            original = weight.detach().numpy()
            values, scales = quantize_weight(original, channels=0)
            rounded = values.astype(np.float32) * scales[:, None]
            self._originals[id(weight)] = weight
            self._rounded[id(weight)] = torch.from_numpy(rounded)
            self._keys[id(weight)] = weight_key(original.T)
        return self._rounded[id(weight)]


def _is_weight(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) and tensor.ndim == 2


def _round_rows(activation: Tensor, activation_range: QuantizedRange) -> Tensor:
    largest = activation.abs().amax(dim=-1, keepdim=True)
    shares = torch.where(largest > 0, activation / largest, 0)
    rounded: Tensor = _round_by(shares, float(activation_range.unit), activation_range) * largest
    return rounded


def _round_by(activation: Tensor, scale: float, activation_range: QuantizedRange) -> Tensor:
    return (activation / scale).round().clamp(-activation_range.zero_point, 255 - activation_range.zero_point) * scale
