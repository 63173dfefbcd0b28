"""The encoder of recurrent models: layers in one direction or two, exact on padded sources."""

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from jumok_export.models.cells import CELLS, Cell, CellKind
from jumok_export.models.seq2seq import length_mask


def run_cell(cell: Cell, x: Tensor, lengths: Tensor, *, backwards: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
    """A layer over whole sequences, token by token, from a state of zeros.

    Args:
        cell: of the layer.
        x: [B, S, inputs], padded.
        lengths: [B]. Padding behind them neither changes a state nor has one.
        backwards: whether sequences are read from their ends.

    Returns:
        Hidden states [B, S, width], 0 behind a sequence's end, and the state after the last token, [B, width] each.
    """
    mask = length_mask(lengths, x.shape[1])[..., None]  # [B, S, 1]
    projected = cell.input_projection(x)  # of all tokens at once: this part does not wait for the one before
    state = tuple(x.new_zeros(x.shape[0], cell.width) for _ in cell.state_names)
    hidden = []
    for time in range(x.shape[1])[:: -1 if backwards else 1]:
        within = mask[:, time]
        new = cell.advance(projected[:, time], state)
        state = tuple(torch.where(within, *pair) for pair in zip(new, state, strict=True))
        hidden.append(torch.where(within, state[0], 0.0))
    return torch.stack(hidden[:: -1 if backwards else 1], dim=1), state


@torch.library.custom_op("jumok::recurrent_layer", mutates_args=())
def recurrent_layer(  # noqa: PLR0917 - the operator's arguments
    x: Tensor,
    lengths: Tensor,
    input_weight: Tensor,
    input_bias: Tensor,
    hidden_weight: Tensor,
    hidden_bias: Tensor,
    kind: str,
    backwards: bool,
) -> tuple[Tensor, Tensor]:
    """`run_cell` for inference: one operator in an exported graph.

    Args:
        x: [B, S, inputs], padded.
        lengths: [B].
        input_weight: [gates * width, inputs].
        input_bias: [gates * width].
        hidden_weight: [gates * width, width].
        hidden_bias: [gates * width].
        kind: of the cell.
        backwards: whether sequences are read from their ends.

    Returns:
        Hidden states [B, S, width], and the last states side by side, [B, n * width].
    """
    cell = CELLS[cast(CellKind, kind)](x.shape[-1], hidden_weight.shape[1])
    for layer, weight, bias in (
        (cell.input_projection, input_weight, input_bias),
        (cell.hidden_projection, hidden_weight, hidden_bias),
    ):
        layer.weight, layer.bias = (nn.Parameter(value, requires_grad=False) for value in (weight, bias))
    states, last = run_cell(cell, x, lengths, backwards=backwards)
    return states, torch.cat(last, dim=-1)


@recurrent_layer.register_fake
def _(  # noqa: PLR0917 - the operator's arguments
    x: Tensor,
    lengths: Tensor,
    input_weight: Tensor,
    input_bias: Tensor,
    hidden_weight: Tensor,
    hidden_bias: Tensor,
    kind: str,
    backwards: bool,
) -> tuple[Tensor, Tensor]:
    width = hidden_weight.shape[1]
    states = len(CELLS[cast(CellKind, kind)].state_names)
    return x.new_empty(x.shape[0], x.shape[1], width), x.new_empty(x.shape[0], states * width)


class RecurrentEncoder(nn.Module):
    """Recurrent layers over whole sources.

    With two directions this is the bidirectional RNN of Schuster and Paliwal (1997), used as in section 3.2 of Bahdanau
    et al. (2015): a state is what both directions know of its token, side by side.

    Args:
        kind: of the cells.
        inputs: width of the embeddings.
        width: of the states; of two directions, each has half of it.
        layers: how many.
        bidirectional: whether there are two directions.
        dropout: between layers, while training.

    Raises:
        ValueError: two directions cannot share the width.
    """

    def __init__(
        self, kind: CellKind, inputs: int, width: int, *, layers: int, bidirectional: bool, dropout: float = 0.0
    ) -> None:
        super().__init__()
        directions = 2 if bidirectional else 1
        if width % directions:
            raise ValueError(f"two directions share the encoder's width, which must be even, got {width}")
        self.kind = kind
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            nn.ModuleList(CELLS[kind](width if layer else inputs, width // directions) for _ in range(directions))
            for layer in range(layers)
        )

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
        """The encoder's states, and those that its layers end in.

        Args:
            x: [B, S, inputs], padded.
            lengths: [B].

        Returns:
            States [B, S, width], and of every layer the last state of both directions side by side, [B, width] each.
        """
        last = []
        for number, directions in enumerate(cast(Iterable[Iterable[Cell]], self.layers)):
            entering = self.dropout(x) if number else x
            read = [
                self._read(cell, entering, lengths, backwards=backwards)
                for cell, backwards in zip(directions, (False, True), strict=False)
            ]
            x = torch.cat([states for states, _ in read], dim=-1)
            last.append(tuple(torch.cat(ends, dim=-1) for ends in zip(*(ends for _, ends in read), strict=True)))
        return x, last

    def _read(self, cell: Cell, x: Tensor, lengths: Tensor, *, backwards: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
        if not torch.compiler.is_exporting():
            return run_cell(cell, x, lengths, backwards=backwards)
        enter, carry = cell.input_projection, cell.hidden_projection
        states, last = recurrent_layer(
            x, lengths, enter.weight, enter.bias, carry.weight, carry.bias, self.kind, backwards
        )
        return states, last.split(cell.width, dim=-1)
