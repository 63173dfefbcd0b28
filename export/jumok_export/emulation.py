"""int8 arithmetic in PyTorch: what quantization alone does to a model, to hold exported int8 graphs against."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from jumok_export.quantize import EMBEDDING_ROWS, LEVELS, SMALLEST_SCALE, ZERO_POINT, quantize_weight


class Int8Arithmetic(TorchFunctionMode):
    """While it is entered, linear layers and embeddings compute as their int8 graphs should.

    Weights are rounded as `quantize_weight` rounds them, one scale an output channel or token, and what is multiplied
    with them to 8 bits with one scale a row. All is computed in fp32, in PyTorch's own operators.
    """

    def __init__(self) -> None:
        super().__init__()
        self._rounded: dict[int, tuple[Tensor, Tensor]] = {}  # weights, which are kept alive, and what stands for them

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Computes linear layers and embeddings in int8, and everything else as it is."""
        if function is F.linear and _is_weight(args[1]):
            activation, weight, *bias = args
            return function(_round_rows(activation), self._weight(weight), *bias, **(kwargs or {}))
        if function is F.embedding and _is_weight(args[1]) and len(args[1]) >= EMBEDDING_ROWS:
            ids, weight, *others = args
            return function(ids, self._weight(weight), *others, **(kwargs or {}))
        return function(*args, **(kwargs or {}))

    def covers(self, weights: Iterable[NDArray[np.float32]]) -> bool:
        """Whether all of these matrices, or their transpositions, were computed with in int8."""
        seen = {_content(original.detach().numpy()) for original, _ in self._rounded.values()}
        return all(_content(weight) in seen or _content(weight.T) in seen for weight in weights)

    def _weight(self, weight: Tensor) -> Tensor:
        if id(weight) not in self._rounded:
            values, scales = quantize_weight(weight.detach().numpy(), channels=0)
            rounded = (values.astype(np.float32) - ZERO_POINT) * scales[:, None]
            self._rounded[id(weight)] = weight, torch.from_numpy(rounded)
        return self._rounded[id(weight)][1]


def _is_weight(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) and tensor.ndim == 2


def _round_rows(activation: Tensor) -> Tensor:
    largest = activation.abs().amax(dim=-1, keepdim=True).clamp(min=SMALLEST_SCALE * LEVELS)
    scale = largest * float(np.float32(1 / LEVELS))
    rounded: Tensor = (activation / scale).round() * scale
    return rounded


def _content(matrix: NDArray[np.float32]) -> tuple[tuple[int, ...], bytes]:
    return matrix.shape, matrix.tobytes()
