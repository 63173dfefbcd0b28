"""Recurrent cells by their equations: tanh RNN, LSTM and GRU.

They are made of linear layers, which can be quantized to int8. Their gates lie in the order of ONNX's recurrent
operators, by which exported graphs replace whole layers.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from jumok_export.models.seq2seq import length_mask

CellKind = Literal["rnn", "lstm", "gru"]


class Cell(nn.Module, ABC):
    """One step of a recurrent layer.

    Args:
        inputs: width of the input.
        width: width of the hidden state, which is the cell's output.

    Attributes:
        state_names: names of the state's vectors; the first one is the hidden state.
        gates: number of vectors of the state's width in each of the two projections.
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
        """Compute the next state from a projected input.

        Args:
            projected: projection of the input, [R, gates * width].
            state: previous state, [R, width] each.

        Returns:
            The next state, [R, width] each.
        """

    def forward(self, x: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Compute the next state from an input `x` [R, inputs]; see `advance`."""
        return self.advance(self.input_projection(x), state)

    @property
    def width(self) -> int:
        """Width of the hidden state."""
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
    """The gated recurrent unit of Cho et al. (2014), equations 5 to 8, with the reset gate after the product with U.

    z, r = sigmoid(W x + U h + b), one each; n = tanh(W x + b + r * (U h + b)); h' = (1 - z) * n + z * h. The paper has
    U (r * h) instead of r * (U h + b), which is the form of PyTorch and ONNX.
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


def run_cell(cell: Cell, x: Tensor, lengths: Tensor, *, backwards: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run a cell over whole sequences, token by token, from a state of zeros.

    Args:
        x: [B, S, inputs], padded.
        lengths: [B]; padding changes no state.
        backwards: True to read sequences from their ends.

    Returns:
        Hidden states [B, S, width], 0 after a sequence's end, and the state after the last token, [B, width] each.
    """
    mask = length_mask(lengths, x.shape[1])[..., None]  # [B, S, 1]
    projected = cell.input_projection(x)  # of all tokens at once, because it needs no state
    state = tuple(x.new_zeros(x.shape[0], cell.width) for _ in cell.state_names)
    hidden = []
    for time in range(x.shape[1])[:: -1 if backwards else 1]:
        within = mask[:, time]
        new = cell.advance(projected[:, time], state)
        state = tuple(torch.where(within, *pair) for pair in zip(new, state, strict=True))
        hidden.append(torch.where(within, state[0], 0.0))
    return torch.stack(hidden[:: -1 if backwards else 1], dim=1), state
