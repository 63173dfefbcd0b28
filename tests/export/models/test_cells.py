"""Recurrent cells and layers against PyTorch's own, on the same weights."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from jumok_export.models.cells import CELLS, Cell, CellKind, run_cell
from jumok_export.models.operators import recurrent_layer
from jumok_export.models.recurrent_encoder import RecurrentEncoder

ORDERS: dict[CellKind, list[int]] = {"rnn": [0], "lstm": [0, 2, 3, 1], "gru": [1, 0, 2]}
"""PyTorch's order of gates as indices of ours: its LSTM has i, f, g, o and its GRU r, z, n."""
THEIRS: dict[CellKind, tuple[Callable[..., nn.Module], Callable[..., nn.Module]]] = {
    "rnn": (nn.RNNCell, nn.RNN),
    "lstm": (nn.LSTMCell, nn.LSTM),
    "gru": (nn.GRUCell, nn.GRU),
}
KINDS = list(CELLS)


def reordered(parameter: Tensor, kind: CellKind, width: int) -> Tensor:
    return torch.cat([parameter.detach()[gate * width : (gate + 1) * width] for gate in ORDERS[kind]])


def give(cell: Cell, kind: CellKind, theirs: nn.Module, suffix: str = "") -> None:
    """Copy a cell's weights into PyTorch's module."""
    for name, layer in (("ih", cell.input_projection), ("hh", cell.hidden_projection)):
        getattr(theirs, f"weight_{name}{suffix}").data = reordered(layer.weight, kind, cell.width)
        getattr(theirs, f"bias_{name}{suffix}").data = reordered(layer.bias, kind, cell.width)


def cells(encoder: RecurrentEncoder) -> list[Cell]:
    """Cells by layer, the forward direction first."""
    return [module for module in encoder.modules() if isinstance(module, Cell)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_cell_computes_what_pytorchs_does(kind: CellKind) -> None:
    torch.manual_seed(0)
    cell, theirs = CELLS[kind](5, 7), THEIRS[kind][0](5, 7)
    give(cell, kind, theirs)
    x, state = torch.randn(3, 5), [torch.randn(3, 7) for _ in cell.state_names]
    found = cell(x, state)
    expected = theirs(x, tuple(state) if len(state) > 1 else state[0])
    for ours, other in zip(found, expected if len(state) > 1 else (expected,), strict=True):
        torch.testing.assert_close(ours, other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_an_encoder_computes_what_pytorchs_does_over_packed_sequences(kind: CellKind, bidirectional: bool) -> None:
    torch.manual_seed(1)
    width, layers, lengths = 8, 2, torch.tensor([6, 1, 4])
    encoder = RecurrentEncoder(kind, 5, width, layers=layers, bidirectional=bidirectional)
    directions = 2 if bidirectional else 1
    theirs = THEIRS[kind][1](5, width // directions, layers, batch_first=True, bidirectional=bidirectional)
    for layer in range(layers):
        for direction in range(directions):
            cell = cells(encoder)[layer * directions + direction]
            give(cell, kind, theirs, f"_l{layer}" + ("_reverse" if direction else ""))
    x = torch.randn(3, 6, 5)
    states, last = encoder(x, lengths)
    packed, ends = theirs(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
    expected, _ = pad_packed_sequence(packed, batch_first=True)
    torch.testing.assert_close(states, expected)
    of_kind = ends if kind == "lstm" else (ends,)
    for name, values in enumerate(of_kind):  # [layers * directions, B, width]
        for layer in range(layers):
            both = torch.cat([values[layer * directions + direction] for direction in range(directions)], dim=-1)
            torch.testing.assert_close(last[layer][name], both)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backwards", [False, True])
def test_the_exported_operator_computes_the_layer(kind: CellKind, backwards: bool) -> None:
    torch.manual_seed(2)
    cell = CELLS[kind](3, 4)
    x, lengths = torch.randn(2, 5, 3), torch.tensor([5, 2])
    weights = [
        value for layer in (cell.input_projection, cell.hidden_projection) for value in (layer.weight, layer.bias)
    ]
    states, last = recurrent_layer(x, lengths, *weights, kind, backwards)
    expected, ends = run_cell(cell, x, lengths, backwards=backwards)
    torch.testing.assert_close(states, expected)
    torch.testing.assert_close(last, torch.cat(ends, dim=-1))
    assert (states[1, 2:] == 0).all()


def test_two_directions_need_an_even_width() -> None:
    with pytest.raises(ValueError, match="must be even, got 7"):
        RecurrentEncoder("gru", 3, 7, layers=1, bidirectional=True)
