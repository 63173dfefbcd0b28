"""fp64 arithmetic: the reference by which rounding in fp32 is measured."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

WIDENED_AT_ONCE = 2**24
"""Elements of a matrix that are converted to fp64 at once: 128 MiB."""
_DTYPE = Tensor.dtype.__get__  # type: ignore[attr-defined]


class ExactArithmetic(TorchFunctionMode):
    """Within this context, PyTorch computes in fp64 what it would compute in fp32.

    Weights are converted operator by operator, large ones in parts, so a model needs no second copy in memory.
    """

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a function on tensors in fp64."""
        kwargs = kwargs or {}
        if function == _DTYPE:
            return _widen(args[0].dtype)
        if function is F.embedding:  # a look-up rounds nothing
            return _widen(function(*args, **kwargs))
        if function is F.linear and args[1].numel() > WIDENED_AT_ONCE:
            return _linear_in_parts(*args, **kwargs)
        if function is Tensor.float:
            function = Tensor.double
        return tree_map(_widen, function(*tree_map(_widen, args), **tree_map(_widen, kwargs)))


def _widen(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.double() if value.dtype == torch.float32 else value
    return torch.float64 if value is torch.float32 else value


def _linear_in_parts(activation: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    rows = max(1, WIDENED_AT_ONCE // weight.shape[1])
    product = torch.cat([F.linear(_widen(activation), part.double()) for part in torch.split(weight, rows)], dim=-1)
    return product if bias is None else product + _widen(bias)
