"""int8 arithmetic in PyTorch: what quantization alone does to a model, to hold exported int8 graphs against."""

from collections.abc import Callable, Iterable
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from jumok_export.quantize import (
    EMBEDDING_ROWS,
    LEVELS,
    SMALLEST_SCALE,
    ZERO_POINT,
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
    """

    def __init__(self, scales: Scales = MappingProxyType({})) -> None:
        super().__init__()
        self._scales = scales
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
            scale = self._scales.get(self._keys[id(weight)])
            activation = _round_rows(activation) if scale is None else _round_by(activation, scale)
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
            rounded = (values.astype(np.float32) - ZERO_POINT) * scales[:, None]
            self._originals[id(weight)] = weight
            self._rounded[id(weight)] = torch.from_numpy(rounded)
            self._keys[id(weight)] = weight_key(original.T)
        return self._rounded[id(weight)]


def _is_weight(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) and tensor.ndim == 2


def _round_rows(activation: Tensor) -> Tensor:
    largest = activation.abs().amax(dim=-1, keepdim=True).clamp(min=SMALLEST_SCALE * LEVELS)
    scale = largest * float(np.float32(1 / LEVELS))
    rounded: Tensor = (activation / scale).round() * scale
    return rounded


def _round_by(activation: Tensor, scale: float) -> Tensor:
    levels = (activation / scale).round().clamp(-ZERO_POINT, LEVELS)
    return levels * scale
