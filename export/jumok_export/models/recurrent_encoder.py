"""Encoder of recurrent models: layers in one or two directions, exact on padded sources."""

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from jumok_export.models.cells import CELLS, Cell, CellKind, run_cell
from jumok_export.models.operators import recurrent_layer


class RecurrentEncoder(nn.Module):
    """Recurrent layers over whole sources.

    With two directions this is the bidirectional RNN of Schuster and Paliwal (1997), used as in section 3.2 of Bahdanau
    et al. (2015): a token's state is the states of both directions, side by side.

    Args:
        inputs: width of the embeddings.
        width: width of the states; two directions have half of it each.
        dropout: dropout between layers, while training.

    Raises:
        ValueError: the width is odd and there are two directions.
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
        """Encode sources.

        Args:
            x: [B, S, inputs], padded.
            lengths: [B].

        Returns:
            States [B, S, width], and every layer's last state, both directions side by side, [B, width] each.
        """
        last = []
        for number, directions in enumerate(cast(Iterable[Iterable[Cell]], self.layers)):
            inputs = self.dropout(x) if number else x
            runs = [
                self._run(cell, inputs, lengths, backwards=backwards)
                for cell, backwards in zip(directions, (False, True), strict=False)
            ]
            x = torch.cat([states for states, _ in runs], dim=-1)
            last.append(tuple(torch.cat(ends, dim=-1) for ends in zip(*(ends for _, ends in runs), strict=True)))
        return x, last

    def _run(self, cell: Cell, x: Tensor, lengths: Tensor, *, backwards: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
        if not torch.compiler.is_exporting():
            return run_cell(cell, x, lengths, backwards=backwards)
        of_input, of_hidden = cell.input_projection, cell.hidden_projection
        states, last = recurrent_layer(
            x, lengths, of_input.weight, of_input.bias, of_hidden.weight, of_hidden.bias, self.kind, backwards
        )
        return states, last.split(cell.width, dim=-1)
