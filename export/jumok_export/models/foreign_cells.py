"""Weights of PyTorch's, Keras' and ONNX' recurrent layers, in the order of this package's cells."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from jumok_export.models.cells import PYTORCH_GATES, Cell, GRUCell, LSTMCell, RNNCell

KERAS: Mapping[type[Cell], Sequence[int]] = {RNNCell: (0,), LSTMCell: (0, 3, 1, 2), GRUCell: (0, 1, 2)}
"""Index of each of our gates among Keras'."""
_DIRECTIONS = ("", "_reverse")


def load_pytorch(layers: Iterable[nn.Module], weights: Mapping[str, Tensor]) -> None:
    """Load the weights of PyTorch's `nn.RNN`, `nn.LSTM` or `nn.GRU`.

    Args:
        layers: `RecurrentEncoder.layers`, or the cells of a decoder.
        weights: state dict of PyTorch's module, with names such as `weight_ih_l0` and `bias_hh_l1_reverse`.

    Raises:
        ValueError: the layers, directions or shapes differ.
    """
    left = dict(weights)
    for number, layer in enumerate(layers):
        cells = [layer] if isinstance(layer, Cell) else [cell for cell in layer.modules() if isinstance(cell, Cell)]
        for cell, direction in zip(cells, _DIRECTIONS, strict=False):
            for name, linear in (("ih", cell.input_projection), ("hh", cell.hidden_projection)):
                weight, bias = (left.pop(f"{part}_{name}_l{number}{direction}", None) for part in ("weight", "bias"))
                if weight is None:
                    raise ValueError(f"weight_{name}_l{number}{direction} is missing: give the model fewer layers")
                _fill(linear, weight, bias, PYTORCH_GATES[type(cell)])
    if left:
        raise ValueError(f"{', '.join(left)} were not used: give the model as many layers and directions")


def load_keras(cell: Cell, kernel: Tensor, recurrent_kernel: Tensor, bias: Tensor | None = None) -> None:
    """Load the weights of a layer of Keras: `SimpleRNN`, `LSTM`, or `GRU` with `reset_after`.

    Args:
        kernel: [inputs, gates * width].
        recurrent_kernel: [width, gates * width].
        bias: [gates * width]; [2, gates * width] of a GRU.

    Raises:
        ValueError: the shapes differ, or the GRU has no `reset_after`.
    """
    if isinstance(cell, GRUCell) and bias is not None and bias.ndim == 1:
        raise ValueError("a GRU of Keras without reset_after computes U (r * h); train it with reset_after=True")
    of_input, of_hidden = (bias, None) if bias is None or bias.ndim == 1 else bias
    _fill(cell.input_projection, kernel.T, of_input, KERAS[type(cell)])
    _fill(cell.hidden_projection, recurrent_kernel.T, of_hidden, KERAS[type(cell)])


def load_onnx(cells: Iterable[nn.Module], weight: Tensor, recurrent_weight: Tensor, bias: Tensor | None = None) -> None:
    """Load the weights of a node of ONNX: `RNN`, `LSTM`, or `GRU` with `linear_before_reset`.

    Args:
        cells: one per direction.
        weight: [directions, gates * width, inputs], the node's W.
        recurrent_weight: [directions, gates * width, width], its R.
        bias: [directions, 2 * gates * width], its B.

    Raises:
        ValueError: the directions or shapes differ.
    """
    directions = [cell for cell in cells if isinstance(cell, Cell)]
    biases = [(None, None)] * len(directions) if bias is None else [of_one.chunk(2) for of_one in bias]
    for cell, of_input, of_hidden, (first, second) in zip(directions, weight, recurrent_weight, biases, strict=True):
        _fill(cell.input_projection, of_input, first, range(cell.gates))
        _fill(cell.hidden_projection, of_hidden, second, range(cell.gates))


def _fill(linear: nn.Linear, weight: Tensor, bias: Tensor | None, order: Sequence[int]) -> None:
    """Set a projection, its gates reordered; without a bias it is 0."""
    bias = torch.zeros_like(linear.bias) if bias is None else bias
    for parameter, given in ((linear.weight, weight), (linear.bias, bias)):
        if parameter.shape != given.shape:
            raise ValueError(f"a cell's weight is {[*given.shape]} where the model has {[*parameter.shape]}")
        gates = given.chunk(len(order))
        parameter.data.copy_(torch.cat([gates[gate] for gate in order]))
