"""Recurrent cells by their equations: tanh RNN, LSTM and GRU.

They are made of linear layers, which can be quantized to int8. Their gates lie in the order of ONNX's recurrent
operators, by which exported graphs replace whole layers.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from jumok_export.models.seq2seq import length_mask, reverse

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


PYTORCH_GATES: dict[type[Cell], Sequence[int]] = {RNNCell: (0,), LSTMCell: (0, 3, 1, 2), GRUCell: (1, 0, 2)}
"""Index of each of our gates among PyTorch's: its LSTM has i, f, g, o and its GRU r, z, n."""
_LAYERS: dict[type[Cell], Callable[..., tuple[Tensor, ...]]] = {
    RNNCell: torch.rnn_tanh,
    LSTMCell: torch.lstm,
    GRUCell: torch.gru,
}


def run_cell(
    cell: Cell, x: Tensor, lengths: Tensor | None, *, backwards: bool = False, state: Sequence[Tensor] | None = None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run a cell over whole sequences: token by token, or on a GPU as one layer of PyTorch.

    Args:
        x: [B, S, inputs], padded.
        lengths: [B]; padding changes no state. None: all are S.
        backwards: True to read sequences from their ends, which needs lengths.
        state: the state before the first token, [B, width] each; default: zeros.

    Returns:
        Hidden states [B, S, width], 0 after a sequence's end, and the state after the last token, [B, width] each.
    """
    if state is None:
        state = [x.new_zeros(x.shape[0], cell.width) for _ in cell.state_names]
    run = run_layer if x.is_cuda else _run_steps
    if not backwards:
        return run(cell, x, lengths, state)
    assert lengths is not None
    hidden, last = run(cell, reverse(x, lengths), lengths, state)
    return reverse(hidden, lengths), last


def _run_steps(
    cell: Cell, x: Tensor, lengths: Tensor | None, state: Sequence[Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    mask = None if lengths is None else length_mask(lengths, x.shape[1])[..., None]  # [B, S, 1]
    projected = cell.input_projection(x)  # of all tokens at once, because it needs no state
    state, hidden = tuple(state), []
    for time in range(x.shape[1]):
        new = cell.advance(projected[:, time], state)
        if mask is None:
            state = new
            hidden.append(new[0])
        else:
            within = mask[:, time]
            state = tuple(torch.where(within, *pair) for pair in zip(new, state, strict=True))
            hidden.append(torch.where(within, state[0], 0.0))
    return torch.stack(hidden, dim=1), state


def run_layer(
    cell: Cell, x: Tensor, lengths: Tensor | None, state: Sequence[Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run a cell over whole sequences by PyTorch's layer, which is cuDNN's on a GPU; forwards, in the weights' type.

    Args:
        x: [B, S, inputs], padded.
        lengths: [B]; None: all are S.
        state: the state before the first token, [B, width] each.

    Returns:
        The same as `run_cell`.
    """
    kind, of_input, of_hidden = type(cell), cell.input_projection, cell.hidden_projection
    order = [PYTORCH_GATES[kind].index(gate) for gate in range(cell.gates)]  # of PyTorch's gates among ours
    weights = [
        torch.cat([parameter.chunk(cell.gates)[gate] for gate in order])
        for parameter in (of_input.weight, of_hidden.weight, of_input.bias, of_hidden.bias)
    ]
    # Mixed precision would take 16 bits for the state as well.
    with torch.autocast(x.device.type, enabled=False):
        first = [each.to(weights[0].dtype)[None] for each in state]  # [1, B, width]
        x = x.to(weights[0].dtype)
        options = True, 1, 0.0, torch.is_grad_enabled(), False  # biases, layers, dropout, training, bidirectional
        if lengths is None:
            hidden, *last = _LAYERS[kind](x, first if len(first) > 1 else first[0], weights, *options, True)
            return hidden, tuple(each[0] for each in last)
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        sorted_, back = packed.sorted_indices, packed.unsorted_indices
        first = [each[:, sorted_] for each in first]
        data, *last = _LAYERS[kind](
            packed.data, packed.batch_sizes, first if len(first) > 1 else first[0], weights, *options
        )
        hidden, _ = pad_packed_sequence(packed._replace(data=data), batch_first=True, total_length=x.shape[1])
        return hidden, tuple(each[0, back] for each in last)
