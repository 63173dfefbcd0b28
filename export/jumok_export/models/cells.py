"""Recurrent cells, one step each, written out by their equations: tanh RNN, LSTM and GRU.

PyTorch's own cells compute the same (a test compares them). These are made of linear layers, which int8 can hold, and
their gates lie in the order of ONNX's recurrent operators, which `jumok_export.models.recurrent_encoder` replaces by
them.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

CellKind = Literal["rnn", "lstm", "gru"]


class Cell(nn.Module, ABC):
    """One step of a recurrent layer.

    Args:
        inputs: width of what goes in.
        width: of the hidden state, and so of what comes out.

    Attributes:
        state_names: what the state is made of; the first one, the hidden state, is what the cell gives out.
        gates: how many vectors of the state's width are computed from the input, and how many from the hidden state.
    """

    state_names: ClassVar[tuple[str, ...]] = ("hidden",)
    gates: ClassVar[int]

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.input_projection = nn.Linear(inputs, self.gates * width)
        self.hidden_projection = nn.Linear(width, self.gates * width)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(width**-0.5), width**-0.5)

    @abstractmethod
    def advance(self, projected: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The next state, [R, width] each, from the input's projection [R, gates * width] and the state so far."""

    def forward(self, x: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The next state, [R, width] each, from the input `x` [R, inputs] and the state so far."""
        return self.advance(self.input_projection(x), state)

    @property
    def width(self) -> int:
        """Width of the state."""
        return self.hidden_projection.in_features


class RNNCell(Cell):
    """h' = tanh(W x + U h + b): "Finding Structure in Time" (Elman, 1990)."""

    gates = 1

    def advance(self, projected: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """See `Cell`."""
        (hidden,) = state
        return (torch.tanh(projected + self.hidden_projection(hidden)),)


class LSTMCell(Cell):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997) with the forget gate of Gers et al. (2000).

    i, o, f = sigmoid(W x + U h + b), one each, and g = tanh(W x + U h + b); c' = f * c + i * g; h' = o * tanh(c').
    """

    state_names = ("hidden", "cell")
    gates = 4

    def advance(self, projected: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """See `Cell`."""
        hidden, cell = state
        write, read, forget, candidate = (projected + self.hidden_projection(hidden)).chunk(4, dim=-1)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(write) * torch.tanh(candidate)
        return torch.sigmoid(read) * torch.tanh(cell), cell


class GRUCell(Cell):
    """The gated recurrent unit of Cho et al. (2014), equations 5 to 8, with the reset gate behind the product with U.

    z, r = sigmoid(W x + U h + b), one each; n = tanh(W x + b + r * (U h + b)); h' = (1 - z) * n + z * h. The paper has
    U (r * h) instead; this form, from its first implementations on graphics processors, is PyTorch's and ONNX's too.
    """

    gates = 3

    def advance(self, projected: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """See `Cell`."""
        (hidden,) = state
        carried, gates = self.hidden_projection(hidden), 2 * self.width
        update, reset = torch.sigmoid(projected[..., :gates] + carried[..., :gates]).chunk(2, dim=-1)
        candidate = torch.tanh(projected[..., gates:] + reset * carried[..., gates:])
        return (candidate + update * (hidden - candidate),)


CELLS: dict[CellKind, type[Cell]] = {"rnn": RNNCell, "lstm": LSTMCell, "gru": GRUCell}
