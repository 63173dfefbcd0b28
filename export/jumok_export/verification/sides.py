"""The interface of both sides of a verification; PyTorch's side, and that of an ensemble's parts."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from jumok_export.graphs.ensemble import part_name
from jumok_export.graphs.tracing import TranslationModel
from jumok_export.parallel import raise_if_cancelled
from jumok_export.verification.comparison import log_sum
from jumok_export.verification.exact import TURNS, ExactArithmetic
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


class TargetSide(Side, Protocol):
    """A side that also reads given targets."""

    def score(self, pair: Pairs) -> Floats:
        """Log-probability [B, T] of every target token."""

    def align(self, pair: Pairs) -> tuple[Floats, ...]:
        """Attention weights."""


class TorchSide:
    """The PyTorch model; it keeps scores, as several precisions are compared on the same targets.

    Args:
        model: a `TranslationModel` in evaluation mode, whose weights stay as they are.
        arithmetic: replacement of PyTorch's functions, or None.
    """

    def __init__(self, model: nn.Module, arithmetic: TorchFunctionMode | None = None) -> None:
        assert isinstance(model, TranslationModel)
        self.model = model
        self._model: TranslationModel = model
        self._scores: dict[tuple[bytes, ...], Floats] = {}
        self._align = getattr(model, "align", None)
        self.aligns = self._align is not None
        self._arithmetic = nullcontext() if arithmetic is None else arithmetic

    @contextmanager
    def _computing(self) -> Iterator[None]:
        raise_if_cancelled()
        turn = nullcontext() if isinstance(self._arithmetic, ExactArithmetic) else TURNS.in_fp32()
        with torch.no_grad(), turn, self._arithmetic:
            yield

    def encode(self, source_ids: Integers, source_lengths: Integers) -> tuple[Arrays, Arrays]:
        """See `Side`."""
        with self._computing():
            memory, first_state = self._model.encode(torch.from_numpy(source_ids), torch.from_numpy(source_lengths))
        return _with_prefix("memory", memory), _with_prefix("state", first_state)

    def empty_state(self) -> Arrays:
        """See `Side`."""
        with self._computing():
            state = self._model.empty_state()
        return _with_prefix("state", state)

    def step(self, inputs: StepInputs) -> tuple[Floats, Arrays]:
        """See `Side`."""
        token_ids, positions, parents, lengths = map(torch.from_numpy, inputs[:4])
        with self._computing():
            memory, state = _without_prefix(inputs.memory), _without_prefix(inputs.state)
            logits, grown = self._model.step(token_ids, positions, parents, lengths, memory, state)
        return logits.numpy(), _with_prefix("state", grown)

    def score(self, pair: Pairs) -> Floats:
        """Log-probability [B, T] of every target token."""
        key = tuple(array.tobytes() for array in pair)
        if key not in self._scores:
            with self._computing():
                self._scores[key] = self._model.score(*map(torch.from_numpy, pair)).numpy()
        return self._scores[key]

    def align(self, pair: Pairs) -> tuple[Floats, ...]:
        """Attention weights."""
        assert self._align is not None
        with self._computing():
            return tuple(weights.numpy() for weights in self._align(*map(torch.from_numpy, pair)))


class PartsSide:
    """Models of an ensemble, each run by its own graphs, and averaged in NumPy.

    Args:
        parts: a side of each model.
        aligns: True if all have aligners.
    """

    def __init__(self, parts: Sequence[TargetSide], *, aligns: bool) -> None:
        self._parts = parts
        self.aligns = aligns

    def encode(self, source_ids: Integers, source_lengths: Integers) -> tuple[Arrays, Arrays]:
        """See `Side`."""
        encoded = [part.encode(source_ids, source_lengths) for part in self._parts]
        return _joined([memory for memory, _ in encoded]), _joined([state for _, state in encoded])

    def empty_state(self) -> Arrays:
        """See `Side`."""
        return _joined([part.empty_state() for part in self._parts])

    def step(self, inputs: StepInputs) -> tuple[Floats, Arrays]:
        """See `Side`."""
        found = [
            part.step(inputs._replace(memory=_own(inputs.memory, number), state=_own(inputs.state, number)))
            for number, part in enumerate(self._parts)
        ]
        return _mean([logits for logits, _ in found]), _joined([state for _, state in found])

    def score(self, pair: Pairs) -> Floats:
        """Log-probability [B, T] of every target token, by one step for each."""
        rows = np.arange(len(pair.target_ids))
        memory, first_state = self.encode(pair.source_ids, pair.source_lengths)
        state = {name: np.repeat(value, len(rows), axis=0) for name, value in self.empty_state().items()} | first_state
        tokens = np.concatenate((pair.start_ids[:, None], pair.target_ids), axis=1)
        scores: Floats = np.zeros_like(pair.target_ids, np.float32)
        for position in range(scores.shape[1]):
            places = np.full(len(rows), position)
            inputs = StepInputs(tokens[:, position], places, rows, pair.source_lengths, memory, state)
            logits, state = self.step(inputs)
            exact = logits.astype(np.float64)
            scores[:, position] = exact[rows, tokens[:, position + 1]] - log_sum(exact)
        scores[np.arange(scores.shape[1]) >= pair.target_lengths[:, None]] = 0.0
        return scores

    def align(self, pair: Pairs) -> tuple[Floats, ...]:
        """Attention weights: means of those kinds that all models have."""
        found = [part.align(pair) for part in self._parts]
        kinds = (list(kind) for kind in zip(*found, strict=False))  # a recurrent model has only the first
        return tuple(_mean_attention(weights) for weights in kinds if all(each.size for each in weights))


def _with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> Arrays:
    return {f"{prefix}.{name}": tensor.numpy() for name, tensor in tensors.items()}


def _without_prefix(arrays: Arrays) -> dict[str, Tensor]:
    return {name.partition(".")[2]: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}


def _joined(parts: Sequence[Arrays]) -> Arrays:
    return {part_name(name, number): value for number, part in enumerate(parts) for name, value in part.items()}


def _own(joined: Arrays, number: int) -> Arrays:
    """A part's memory or state, by its own names."""
    split = {name: name.split(".", 2) for name in joined}
    return {f"{kind}.{own}": joined[name] for name, (kind, part, own) in split.items() if part == str(number)}


def _mean(values: Sequence[Floats]) -> Floats:
    mean: Floats = np.mean(np.stack(values), axis=0, dtype=np.float32)
    return mean


def _mean_attention(weights: Sequence[Floats]) -> Floats:
    if len({each.shape for each in weights}) > 1:
        weights = [each.mean(axis=(1, 2), keepdims=True, dtype=np.float32) for each in weights]
    return _mean(weights)
