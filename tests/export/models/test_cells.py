"""Recurrent cells and layers against PyTorch's own, on the same weights."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from jumok_export.models.cells import CELLS, CellKind, GRUCell, run_cell, run_layer
from jumok_export.models.foreign_cells import load_keras, load_onnx, load_pytorch
from jumok_export.models.operators import recurrent_layer
from jumok_export.models.recurrent_encoder import RecurrentEncoder
from jumok_serve.manifest.manifest import TensorSpec
from tests.support.models.small_graphs import node, outputs_of, small_graph

THEIRS: dict[CellKind, Callable[..., nn.Module]] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
KINDS = list(CELLS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [True, False])
def test_cells_with_pytorchs_weights_compute_what_pytorchs_do(kind: CellKind, bias: bool) -> None:
    torch.manual_seed(0)
    theirs = THEIRS[kind](5, 7, num_layers=2, bias=bias)
    cells = nn.ModuleList(CELLS[kind](width, 7) for width in (5, 7))
    load_pytorch(cells, theirs.state_dict())
    x, states = torch.randn(3, 5), [[torch.randn(3, 7) for _ in CELLS[kind].state_names] for _ in cells]
    given = [torch.stack(parts) for parts in zip(*states, strict=True)]  # [layers, R, width] of each part
    _, expected = theirs(x[None], tuple(given) if kind == "lstm" else given[0])
    for layer, (cell, state) in enumerate(zip(cells, states, strict=True)):
        found = cell(x, state)
        x = found[0]
        for ours, other in zip(found, expected if kind == "lstm" else (expected,), strict=True):
            torch.testing.assert_close(ours, other[layer])


def sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-x))


def keras_lstm(
    x: NDArray[np.float64], h: NDArray[np.float64], c: NDArray[np.float64], weights: list[NDArray[np.float64]]
) -> list[NDArray[np.float64]]:
    """A step of Keras' LSTM by its source: gates i, f, c, o."""
    kernel, recurrent, bias = weights
    i, f, g, o = np.split(x @ kernel + h @ recurrent + bias, 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return [sigmoid(o) * np.tanh(c), c]


def keras_gru(
    x: NDArray[np.float64], h: NDArray[np.float64], weights: list[NDArray[np.float64]]
) -> list[NDArray[np.float64]]:
    """A step of Keras' GRU with `reset_after` by its source: gates z, r, h."""
    kernel, recurrent, (of_input, of_hidden) = weights
    sums = x @ kernel + of_input, h @ recurrent + of_hidden
    (xz, xr, xh), (hz, hr, hh) = (np.split(part, 3, axis=-1) for part in sums)
    z, r = sigmoid(xz + hz), sigmoid(xr + hr)
    return [z * h + (1 - z) * np.tanh(xh + r * hh)]


@pytest.mark.parametrize(("kind", "step", "bias"), [("lstm", keras_lstm, (28,)), ("gru", keras_gru, (2, 21))])
def test_cells_with_keras_weights_compute_what_keras_does(
    kind: CellKind, step: Callable[..., list[NDArray[np.float64]]], bias: tuple[int, ...]
) -> None:
    random, gates = np.random.default_rng(3), bias[-1]
    weights = [random.normal(size=size) for size in ((5, gates), (7, gates), bias)]
    x, *state = (random.normal(size=size) for size in ((3, 5), *[(3, 7)] * len(CELLS[kind].state_names)))
    cell = CELLS[kind](5, 7).double()
    load_keras(cell, *map(torch.from_numpy, weights))
    found = cell(torch.from_numpy(x), [torch.from_numpy(part) for part in state])
    for ours, other in zip(found, step(x, *state, weights), strict=True):
        torch.testing.assert_close(ours, torch.from_numpy(other))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [True, False])
def test_cells_with_onnx_weights_compute_what_onnx_runtime_does(kind: CellKind, bias: bool) -> None:
    random, gates = np.random.default_rng(4), CELLS[kind].gates
    shapes = {"W": (2, gates * 4, 3), "R": (2, gates * 4, 4)} | ({"B": (2, 2 * gates * 4)} if bias else {})
    weights = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    options: dict[str, Any] = {"linear_before_reset": 1} if kind == "gru" else {}
    inputs = " ".join(["X", *weights])
    layer_node = node(kind.upper(), inputs, "Y", hidden_size=4, direction="bidirectional", **options)
    given = TensorSpec(name="X", dtype="float32", axes=(5, 2, 3))
    made = TensorSpec(name="Y", dtype="float32", axes=(5, 2, 2, 4))
    x = random.normal(size=(5, 2, 3)).astype(np.float32)
    (expected,) = outputs_of(
        small_graph([layer_node], weights, (given,), (made,)), {"X": x}
    )  # [S, directions, B, width]
    encoder = RecurrentEncoder(kind, 3, 8, layers=1, bidirectional=True)
    (layer,) = encoder.layers
    assert isinstance(layer, nn.ModuleList)
    load_onnx(layer, *map(torch.from_numpy, weights.values()))
    states, _ = encoder(torch.from_numpy(x).transpose(0, 1), torch.tensor([5, 5]))
    found = states.unflatten(-1, (2, 4)).permute(1, 2, 0, 3)  # [B, S, directions * width] before
    torch.testing.assert_close(found, torch.from_numpy(expected))
    with pytest.raises(ValueError, match=r"zip\(\) argument"):
        load_onnx(layer, *(torch.from_numpy(value[:1]) for value in weights.values()))


def test_weights_that_do_not_fit_are_refused() -> None:
    weights = nn.GRU(5, 7, num_layers=2, bidirectional=True).state_dict()
    encoder = RecurrentEncoder("gru", 5, 14, layers=2, bidirectional=True)
    load_pytorch(encoder.layers, weights)
    for layers, bidirectional, message in (
        (1, True, "weight_ih_l1, weight_hh_l1, .* were not used: give the model as many layers and directions"),
        (2, False, r"a cell's weight is \[21, 5\] where the model has \[42, 5\]"),
        (3, True, "weight_ih_l2 is missing: give the model fewer layers"),
    ):
        other = RecurrentEncoder("gru", 5, 14, layers=layers, bidirectional=bidirectional)
        with pytest.raises(ValueError, match=message):
            load_pytorch(other.layers, weights)
    one_way = RecurrentEncoder("gru", 5, 7, layers=2, bidirectional=False)
    both = nn.GRU(5, 7, num_layers=2).state_dict() | {"weight_ih_l0_reverse": torch.zeros(21, 5)}
    with pytest.raises(ValueError, match="weight_ih_l0_reverse were not used"):
        load_pytorch(one_way.layers, both)
    with pytest.raises(ValueError, match=re.escape("computes U (r * h); train it with reset_after=True")):
        load_keras(GRUCell(5, 7), torch.zeros(5, 21), torch.zeros(7, 21), torch.zeros(21))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_an_encoder_computes_what_pytorchs_does_over_packed_sequences(kind: CellKind, bidirectional: bool) -> None:
    torch.manual_seed(1)
    width, layers, lengths = 8, 2, torch.tensor([6, 1, 4])
    encoder = RecurrentEncoder(kind, 5, width, layers=layers, bidirectional=bidirectional)
    directions = 2 if bidirectional else 1
    theirs = THEIRS[kind](5, width // directions, layers, batch_first=True, bidirectional=bidirectional)
    load_pytorch(encoder.layers, theirs.state_dict())
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
    layers = (cell.input_projection, cell.hidden_projection)
    weights = [value for layer in layers for value in (layer.weight, layer.bias)]
    states, last = recurrent_layer(x, lengths, *weights, kind, backwards)
    expected, ends = run_cell(cell, x, lengths, backwards=backwards)
    torch.testing.assert_close(states, expected)
    torch.testing.assert_close(last, torch.cat(ends, dim=-1))
    assert (states[1, 2:] == 0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lengths", [None, torch.tensor([2, 5, 1])], ids=["whole", "padded"])
def test_pytorchs_layer_computes_what_the_steps_do(kind: CellKind, lengths: torch.Tensor | None) -> None:
    torch.manual_seed(3)
    cell = CELLS[kind](3, 4)
    x = torch.randn(3, 5, 3, requires_grad=True)
    state = [torch.randn(3, 4) for _ in cell.state_names]
    given = [x, *cell.parameters()]

    def flat(found: tuple[torch.Tensor, tuple[torch.Tensor, ...]]) -> list[torch.Tensor]:
        return [found[0], *found[1]]

    expected = flat(run_cell(cell, x, lengths, state=state))
    with torch.autocast("cpu", torch.bfloat16):  # changes nothing in it
        found = flat(run_layer(cell, x, lengths, state))
    torch.testing.assert_close(found, expected)
    factors = [torch.randn_like(each) for each in expected]
    gradients = (torch.autograd.grad(outputs, given, factors) for outputs in (found, expected))
    torch.testing.assert_close(*gradients)


def test_two_directions_need_an_even_width() -> None:
    with pytest.raises(ValueError, match="must be even, got 7"):
        RecurrentEncoder("gru", 3, 7, layers=1, bidirectional=True)
