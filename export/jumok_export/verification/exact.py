"""fp64 arithmetic: the reference by which rounding in fp32 is measured."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

WIDENED_AT_ONCE = 2**24
"""Elements of a matrix that are converted to fp64 at once: 128 MiB."""
_DTYPE = Tensor.dtype.__get__  # type: ignore[attr-defined]


class _Turns:
    """Turns of threads: many compute in fp32, or one in fp64.

    PyTorch has one type of new tensors for all threads, and fp64 changes it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._in_fp32, self._in_fp64 = 0, False

    @contextmanager
    def in_fp32(self) -> Iterator[None]:
        """Compute beside others in fp32."""
        with self._changed:
            self._changed.wait_for(lambda: not self._in_fp64)
            self._in_fp32 += 1
        try:
            yield
        finally:
            with self._changed:
                self._in_fp32 -= 1
                self._changed.notify_all()

    def begin_fp64(self) -> None:
        """Wait until no other thread computes."""
        with self._changed:
            self._changed.wait_for(lambda: not self._in_fp64 and not self._in_fp32)
            self._in_fp64 = True

    def end_fp64(self) -> None:
        """Let others compute."""
        with self._changed:
            self._in_fp64 = False
            self._changed.notify_all()


TURNS = _Turns()


class ExactArithmetic(TorchFunctionMode):
    """Within this context, PyTorch computes in fp64 what it would compute in fp32.

    Weights are converted operator by operator, large ones in parts, so a model needs no second copy in memory. Other
    threads of `TURNS` wait.
    """

    def __enter__(self) -> Self:
        """Make fp64 the type of new tensors too."""
        TURNS.begin_fp64()
        self._before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        """Restore the type of new tensors."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        torch.set_default_dtype(self._before)
        TURNS.end_fp64()

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
