"""A Transformer whose decoder has a recurrent unit in place of self-attention: the usual student model.

The simpler simple recurrent unit (SSRU) is that of "From Research to Production and Back: Ludicrously Fast Neural
Machine Translation" (Kim et al., 2019). Its state has one size, so a step takes as long late in a sentence as early.
"""

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from jumok_export.models.layers import LayerSizes, Residual, make_attention, make_feed_forward
from jumok_export.models.positions import Positions
from jumok_export.models.seq2seq import Tensors, length_mask
from jumok_export.models.transformer import TransformerParts, TransformerSizes


class SSRU(nn.Module):
    """f = sigmoid(W_f x + b_f); c' = f * c + (1 - f) * W x; the output is relu(c')."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.input_projection = nn.Linear(width, width, bias=False)
        self.forget_projection = nn.Linear(width, width)
        nn.init.xavier_uniform_(self.input_projection.weight)
        nn.init.xavier_uniform_(self.forget_projection.weight)
        nn.init.zeros_(self.forget_projection.bias)

    def forward(self, x: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """Compute output and next state of one token from `x` and the state `cell`, [..., width] each."""
        return self.advance(self.input_projection(x), torch.sigmoid(self.forget_projection(x)), cell)

    @staticmethod
    def advance(candidate: Tensor, forget: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """Compute output and next state from the projections of a token, [..., width] each."""
        cell = forget * cell + (1 - forget) * candidate
        return torch.relu(cell), cell

    def follow(self, x: Tensor) -> Tensor:
        """Compute the outputs of whole sequences [B, T, width], from a state of zeros."""
        candidates, forget = self.input_projection(x), torch.sigmoid(self.forget_projection(x))
        cell = torch.zeros_like(x[:, 0])
        outputs = []
        for time in range(x.shape[1]):
            output, cell = self.advance(candidates[:, time], forget[:, time], cell)
            outputs.append(output)
        return torch.stack(outputs, dim=1)


class SSRULayer(nn.Module):
    """A recurrent unit, cross-attention and feed-forward, each within a residual connection."""

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__()
        self.ssru = SSRU(sizes.width)
        self.ssru_residual = Residual(sizes)
        self.cross_attention = make_attention(sizes)
        self.cross_attention_residual = Residual(sizes)
        self.feed_forward = make_feed_forward(sizes)
        self.feed_forward_residual = Residual(sizes)

    def forward(self, x: Tensor, memory: Tensor, source_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the layer to a whole target `x` [B, T, width].

        Returns the output and the weights of cross-attention [B, heads, T, S].
        """
        x, _ = self.ssru_residual.around(x, lambda y: (self.ssru.follow(y), None))
        x, weights = self.cross_attention_residual.around(x, lambda y: self.cross_attention(y, memory, source_mask))
        return self._feed(x), weights

    def step(
        self, x: Tensor, cell: Tensor, cross: tuple[Tensor, Tensor], lengths: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Apply the layer to one token of every row; for inference.

        Args:
            x: [B, K, width].
            cell: state of the rows, [B, K, width].
            cross: keys and values of the sources, [B, heads, S, D] each.
            lengths: lengths of the sources, [B] int32.
            mask: true within a source's length, [B, 1, 1, S], to return attention weights too; or None.

        Returns:
            The output and the next state, [B, K, width] each, and the attention weights [B, heads, K, S] or None.
        """
        attention = self.cross_attention

        def attend(y: Tensor) -> tuple[Tensor, Tensor | None]:
            weights = None if mask is None else attention.attend(y, *cross, mask)[1]
            return attention.attend_fused(y, *cross, lengths=lengths), weights

        x, cell = self.ssru_residual.around(x, lambda y: self.ssru(y, cell))
        x, weights = self.cross_attention_residual.around(x, attend)
        return self._feed(x), cell, weights

    def _feed(self, x: Tensor) -> Tensor:
        return self.feed_forward_residual.around(x, lambda y: (self.feed_forward(y), None))[0]


class SSRUTransformer(TransformerParts):
    """A Transformer with a decoder of `SSRULayer`.

    Args:
        source_positions: positions of the source; default: sinusoidal.
        target_positions: positions of the target; default: sinusoidal.

    Attributes:
        scores_by_steps: True: graphs over whole targets repeat the step's graph.

    Raises:
        ValueError: the width does not suit the heads or sinusoidal positions.
    """

    scores_by_steps = True

    def __init__(
        self,
        sizes: TransformerSizes,
        *,
        source_positions: Positions | None = None,
        target_positions: Positions | None = None,
    ) -> None:
        super().__init__(sizes, SSRULayer, source_positions=source_positions, target_positions=target_positions)

    @property
    def _layers(self) -> Iterable[SSRULayer]:
        return cast(Iterable[SSRULayer], self.decoder)

    def run_decoder(self, memory: Tensor, source_mask: Tensor, input_ids: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Decode all of `input_ids` [B, T] at once, by teacher forcing.

        Returns:
            The output [B, T, width], and each layer's cross-attention weights [B, heads, T, S].
        """
        x = self.embed_target(input_ids, torch.arange(input_ids.shape[1], device=input_ids.device))
        attention = []
        for layer in self._layers:
            x, weights = layer(x, memory, source_mask)
            attention.append(weights)
        return self.decoder_norm(x), attention

    def forward(self, source_ids: Tensor, source_lengths: Tensor, start_ids: Tensor, target_ids: Tensor) -> Tensor:
        """See `Seq2Seq`."""
        return self.logits(self._follow(source_ids, source_lengths, start_ids, target_ids)[0])

    def attending(
        self, source_ids: Tensor, source_lengths: Tensor, start_ids: Tensor, target_ids: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """See `CrossAttending`."""
        decoded, weights = self._follow(source_ids, source_lengths, start_ids, target_ids)
        return self.logits(decoded), weights

    def _follow(
        self, source_ids: Tensor, source_lengths: Tensor, start_ids: Tensor, target_ids: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        source_mask = length_mask(source_lengths, source_ids.shape[1])[:, None, None, :]
        memory = self.run_encoder(source_ids, source_mask)[0]
        return self.run_decoder(memory, source_mask, self.shift(start_ids, target_ids))

    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> tuple[Tensors, Tensors]:
        """See `Seq2Seq`.

        The memory is `key.<layer>` and `value.<layer>` of cross-attention, [B, heads, S, D]; the state is
        `cell.<layer>`, [B, width], and 0.
        """
        memory, _ = super().encode(source_ids, source_lengths)
        shape = (source_ids.shape[0], self.sizes.width)
        return memory, {name: self.output.weight.new_zeros(shape) for name in self.empty_state()}

    def empty_state(self) -> Tensors:
        """See `Seq2Seq`."""
        return {
            f"cell.{layer}": self.output.weight.new_zeros(1, self.sizes.width)
            for layer in range(self.sizes.decoder_layers)
        }

    def step(  # noqa: PLR0917 - the graph contract's inputs, in its order
        self,
        token_ids: Tensor,
        positions: Tensor,
        parents: Tensor,
        source_lengths: Tensor,
        memory: Tensors,
        state: Tensors,
    ) -> tuple[Tensor, Tensors]:
        """See `Seq2Seq`."""
        logits, new, _ = self._step(token_ids, positions, parents, source_lengths, memory, state, None)
        return logits, new

    def attending_step(  # noqa: PLR0917 - the graph contract's inputs, in its order
        self,
        token_ids: Tensor,
        positions: Tensor,
        parents: Tensor,
        source_lengths: Tensor,
        memory: Tensors,
        state: Tensors,
    ) -> tuple[Tensor, Tensors, Tensor]:
        """Do a `step`, and return its attention weights, [R, layers, heads, S]."""
        mask = length_mask(source_lengths, memory["key.0"].shape[2])[:, None, None, :]
        logits, new, weights = self._step(token_ids, positions, parents, source_lengths, memory, state, mask)
        by_layer = torch.stack(weights, dim=1)  # [B, layers, heads, K, S]
        return logits, new, by_layer.permute(0, 3, 1, 2, 4).flatten(0, 1)

    def _step(  # noqa: PLR0917 - the graph contract's inputs, in its order
        self,
        token_ids: Tensor,
        positions: Tensor,
        parents: Tensor,
        source_lengths: Tensor,
        memory: Tensors,
        state: Tensors,
        mask: Tensor | None,
    ) -> tuple[Tensor, Tensors, list[Tensor]]:
        # The beams of a sentence side by side, [B, K].
        token_ids, positions, parents = (
            rows.reshape(source_lengths.shape[0], -1) for rows in (token_ids, positions, parents)
        )
        x, lengths = self.embed_target(token_ids, positions), source_lengths.to(torch.int32)
        new, attention = {}, []
        for index, layer in enumerate(self._layers):
            name, cross = f"cell.{index}", (memory[f"key.{index}"], memory[f"value.{index}"])
            x, cell, weights = layer.step(x, state[name][parents], cross, lengths, mask)
            new[name] = cell.flatten(0, 1)
            attention += [] if weights is None else [weights]
        return self.logits(self.decoder_norm(x).flatten(0, 1)), new, attention

    def align(
        self, source_ids: Tensor, source_lengths: Tensor, start_ids: Tensor, target_ids: Tensor, target_lengths: Tensor
    ) -> tuple[Tensor]:
        """Compute the attention weights of given targets; the arguments are those of `score`.

        Returns:
            Cross-attention, [B, layers, heads, T, S]; 0 after a target's end.
        """
        _, weights = self._follow(source_ids, source_lengths, start_ids, target_ids)
        target_mask = length_mask(target_lengths, target_ids.shape[1])[:, None, None, :, None]
        return (torch.stack(weights, dim=1) * target_mask,)
