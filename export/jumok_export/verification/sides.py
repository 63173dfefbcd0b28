"""The interface of both sides of a verification, and PyTorch's."""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from jumok_export.graphs.tracing import TranslationModel
from jumok_serve.runtime.graphs import Floats, Integers, Pairs

Arrays = dict[str, NDArray[Any]]
"""Memory or state by name: `memory.<name>`, `state.<name>`."""


class StepInputs(NamedTuple):
    """Inputs of one decoder step: the first three [R], source lengths [B], memory [B, ...] and state [P, ...]."""

    token_ids: Integers
    positions: Integers
    parents: Integers
    source_lengths: Integers
    memory: Arrays
    state: Arrays


class Side(Protocol):
    """A model that computes what its graphs compute.

    Shapes are those of the graph contract.
    """

    def encode(self, source_ids: Integers, source_lengths: Integers) -> tuple[Arrays, Arrays]:
        """Memory and the decoder's first state, [B, ...]."""

    def empty_state(self) -> Arrays:
        """One row of state before any token, [1, ...]."""

    def step(self, inputs: StepInputs) -> tuple[Floats, Arrays]:
        """Logits [R, V] and the next state [R, ...]."""


class TorchSide:
    """The PyTorch model.

    Args:
        model: a `TranslationModel` in evaluation mode.
        arithmetic: replacement of PyTorch's functions, or None.
    """

    def __init__(self, model: nn.Module, arithmetic: TorchFunctionMode | None = None) -> None:
        assert isinstance(model, TranslationModel)
        self._model = model
        self._align = getattr(model, "align", None)
        self.aligns = self._align is not None
        self._arithmetic = nullcontext() if arithmetic is None else arithmetic

    def encode(self, source_ids: Integers, source_lengths: Integers) -> tuple[Arrays, Arrays]:
        """See `Side`."""
        with torch.no_grad(), self._arithmetic:
            memory, first_state = self._model.encode(torch.from_numpy(source_ids), torch.from_numpy(source_lengths))
        return _with_prefix("memory", memory), _with_prefix("state", first_state)

    def empty_state(self) -> Arrays:
        """See `Side`."""
        with torch.no_grad(), self._arithmetic:
            state = self._model.empty_state()
        return _with_prefix("state", state)

    def step(self, inputs: StepInputs) -> tuple[Floats, Arrays]:
        """See `Side`."""
        token_ids, positions, parents, lengths = map(torch.from_numpy, inputs[:4])
        with torch.no_grad(), self._arithmetic:
            memory, state = _without_prefix(inputs.memory), _without_prefix(inputs.state)
            logits, grown = self._model.step(token_ids, positions, parents, lengths, memory, state)
        return logits.numpy(), _with_prefix("state", grown)

    def score(self, pair: Pairs) -> Floats:
        """Log-probability [B, T] of every target token."""
        with torch.no_grad(), self._arithmetic:
            scores: Floats = self._model.score(*map(torch.from_numpy, pair)).numpy()
        return scores

    def align(self, pair: Pairs) -> tuple[Floats, ...]:
        """Attention weights."""
        assert self._align is not None
        with torch.no_grad(), self._arithmetic:
            return tuple(weights.numpy() for weights in self._align(*map(torch.from_numpy, pair)))


def _with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> Arrays:
    return {f"{prefix}.{name}": tensor.numpy() for name, tensor in tensors.items()}


def _without_prefix(arrays: Arrays) -> dict[str, Tensor]:
    return {name.partition(".")[2]: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
