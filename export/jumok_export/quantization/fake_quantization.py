"""int8 arithmetic in PyTorch: what quantization alone does to a model, to hold exported int8 graphs against."""

from collections.abc import Callable, Iterable, Set
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from jumok_export.quantization.int8 import (
    EMBEDDING_ROWS,
    RECTIFIED,
    SIGNED,
    Levels,
    Scales,
    quantize_weight,
    weight_key,
)


class Int8Arithmetic(TorchFunctionMode):
    """While it is entered, linear layers and embeddings compute as their int8 graphs should.

    Weights are rounded as `quantize_weight` rounds them, one scale an output channel or token, and what is multiplied
    with them to 8 bits: by the scale that was calibrated for them, or else with one scale a row. All is computed in
    fp32, in PyTorch's own operators.

    Args:
        scales: what was calibrated.
        rectified: keys of the weights that what a ReLU gives is multiplied with.
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
        """Computes linear layers and embeddings in int8, and everything else as it is."""
        if function is F.linear and _is_weight(args[1]):
            activation, weight, *bias = args
            rounded = self._weight(weight)
            key = self._keys[id(weight)]
            levels, scale = RECTIFIED if key in self._rectified else SIGNED, self._scales.get(key)
            activation = _round_rows(activation, levels) if scale is None else _round_by(activation, scale, levels)
            return function(activation, rounded, *bias, **(kwargs or {}))
        if function is F.embedding and _is_weight(args[1]) and len(args[1]) >= EMBEDDING_ROWS:
            ids, weight, *others = args
            return function(ids, self._weight(weight), *others, **(kwargs or {}))
        return function(*args, **(kwargs or {}))

    def covers(self, weights: Iterable[NDArray[np.float32]]) -> bool:
        """Whether all of these matrices, or their transpositions, were computed with in int8."""
        seen = set(self._keys.values())
        return all(weight_key(weight) in seen or weight_key(weight.T) in seen for weight in weights)

    def _weight(self, weight: Tensor) -> Tensor:
        """What stands for a weight [N, K] in 8 bits."""
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


def _round_rows(activation: Tensor, levels: Levels) -> Tensor:
    largest = activation.abs().amax(dim=-1, keepdim=True)
    shares = torch.where(largest > 0, activation / largest, 0)
    rounded: Tensor = _round_by(shares, float(levels.unit), levels) * largest
    return rounded


def _round_by(activation: Tensor, scale: float, levels: Levels) -> Tensor:
    return (activation / scale).round().clamp(-levels.zero_point, 255 - levels.zero_point) * scale
