"""The Transformer of "Attention Is All You Need", and the views of it that are trained and exported."""

import math
from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jumok_export.layers import DecoderLayer, EncoderLayer, StepFrame, TransformerSizes, length_mask

__all__ = ["Transformer", "TransformerSizes", "sinusoidal_positions"]

Tensors = dict[str, Tensor]
"""Named tensors with the batch (or row) on axis 0: encoder memory or decoder state."""


def sinusoidal_positions(positions: int, width: int) -> Tensor:
    """The position encoding of section 3.5 of the paper: sine on even, cosine on odd dimensions; [positions, width]."""
    angle = torch.arange(positions)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)


class Transformer(nn.Module):
    """An encoder-decoder Transformer for translation, with sinusoidal positions.

    `forward` is for training; `encode`, `step`, `score` and `align` are the views that are exported.
    """

    def __init__(self, sizes: TransformerSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.target_embedding = nn.Embedding(sizes.target_vocabulary, sizes.width)
        nn.init.normal_(self.target_embedding.weight, std=sizes.width**-0.5)
        if sizes.share_embeddings:
            self.source_embedding = self.target_embedding
        else:
            self.source_embedding = nn.Embedding(sizes.source_vocabulary, sizes.width)
            nn.init.normal_(self.source_embedding.weight, std=sizes.width**-0.5)
        self.register_buffer("positions", sinusoidal_positions(sizes.max_positions, sizes.width), persistent=False)
        self.encoder = nn.ModuleList(EncoderLayer(sizes) for _ in range(sizes.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(sizes) for _ in range(sizes.decoder_layers))
        last_norm = nn.LayerNorm if sizes.norm == "pre" else nn.Identity
        self.encoder_norm = last_norm(sizes.width)
        self.decoder_norm = last_norm(sizes.width)
        self.dropout = nn.Dropout(sizes.dropout)
        self.output = nn.Linear(sizes.width, sizes.target_vocabulary, bias=False)
        if sizes.tie_output:
            self.output.weight = self.target_embedding.weight
        else:
            nn.init.xavier_uniform_(self.output.weight)

    @property
    def _decoder_layers(self) -> Iterable[DecoderLayer]:
        return cast(Iterable[DecoderLayer], self.decoder)

    def embed(self, embedding: nn.Module, token_ids: Tensor, positions: Tensor) -> Tensor:
        """Embeddings scaled by sqrt(width) (section 3.4 of the paper) plus positions; [*token_ids.shape, width]."""
        table = self.get_buffer("positions")
        embedded: Tensor = self.dropout(embedding(token_ids) * math.sqrt(self.sizes.width) + table[positions])
        return embedded

    def run_encoder(self, source_ids: Tensor, source_mask: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The source's representation [B, S, width] and each layer's self-attention weights [B, heads, S, S]."""
        x = self.embed(self.source_embedding, source_ids, torch.arange(source_ids.shape[1], device=source_ids.device))
        attention = []
        for layer in self.encoder:
            x, weights = layer(x, source_mask)
            attention.append(weights)
        return self.encoder_norm(x), attention

    def run_decoder(
        self, memory: Tensor, source_mask: Tensor, input_ids: Tensor
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Teacher forcing: the decoder over all of `input_ids` [B, T] at once.

        Returns:
            Its output [B, T, width], and each layer's self-attention and cross-attention weights.
        """
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        causal_mask = places[:, None] >= places  # a token sees itself and what is before it
        x = self.embed(self.target_embedding, input_ids, places)
        self_attention, cross_attention = [], []
        for layer in self.decoder:
            x, self_weights, cross_weights = layer(x, causal_mask, memory, source_mask)
            self_attention.append(self_weights)
            cross_attention.append(cross_weights)
        return self.decoder_norm(x), self_attention, cross_attention

    def shift(self, target_ids: Tensor) -> Tensor:
        """The decoder's input for a target [B, T]: the start token, then the target without its last token."""
        start = torch.full_like(target_ids[:, :1], self.sizes.start)
        return torch.cat((start, target_ids), dim=1)[:, :-1]

    def forward(self, source_ids: Tensor, source_lengths: Tensor, target_ids: Tensor) -> Tensor:
        """Logits [B, T, V] of every target token, given the source and the target's tokens before it.

        Args:
            source_ids: [B, S], padded.
            source_lengths: [B].
            target_ids: [B, T], ending with the end token, padded.
        """
        source_mask = length_mask(source_lengths, source_ids.shape[1])[:, None, None, :]
        memory, _ = self.run_encoder(source_ids, source_mask)
        x, _, _ = self.run_decoder(memory, source_mask, self.shift(target_ids))
        logits: Tensor = self.output(x)
        return logits

    def empty_state(self) -> Tensors:
        """The state that decoding starts from: keys and values of one row without tokens, [1, heads, 0, D]."""
        head = self.sizes.width // self.sizes.heads
        weight = self.output.weight
        empty = weight.new_zeros(1, self.sizes.heads, 0, head)
        return {f"{kind}.{layer}": empty for layer in range(len(self.decoder)) for kind in ("key", "value")}

    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> tuple[Tensors, Tensors]:
        """Everything that is computed once a sentence: the keys and values of cross-attention.

        Args:
            source_ids: [B, S], padded.
            source_lengths: [B].

        Returns:
            The memory, `key.<layer>` and `value.<layer>` [B, heads, S, D]; and the decoder's first state, which is
            empty here because a Transformer's decoder starts from nothing.
        """
        source_mask = length_mask(source_lengths, source_ids.shape[1])[:, None, None, :]
        encoded, _ = self.run_encoder(source_ids, source_mask)
        memory = {}
        for index, layer in enumerate(self._decoder_layers):
            memory[f"key.{index}"], memory[f"value.{index}"] = layer.cross_attention.keys_values(encoded)
        return memory, {}

    def step(  # noqa: PLR0917 - the graph contract's inputs, in its order
        self,
        token_ids: Tensor,
        positions: Tensor,
        parents: Tensor,
        source_lengths: Tensor,
        memory: Tensors,
        state: Tensors,
    ) -> tuple[Tensor, Tensors]:
        """One token for every row; rows may be at different positions.

        Args:
            token_ids: [R], the token each row decoded last (at first the start token); R = B * K.
            positions: [R], how many tokens the row has decoded: also its number of valid cache entries.
            parents: [R], the row of the previous state that each row continues.
            source_lengths: [B].
            memory: of `encode`, [B, heads, S, D].
            state: keys and values of the previous rows, [P, heads, T, D].

        Returns:
            Logits [R, V] of the next token and the new state [R, heads, T_new, D], T_new > positions.
        """
        frame = StepFrame(positions, parents, source_lengths, state["key.0"], memory["key.0"].shape[2])
        x = self.embed(self.target_embedding, token_ids, positions)
        grown = {}
        for index, layer in enumerate(self._decoder_layers):
            key, value = f"key.{index}", f"value.{index}"
            x, cache = layer.step(x, (state[key], state[value]), frame, (memory[key], memory[value]))
            grown[key], grown[value] = cache
        return self.output(self.decoder_norm(x)), grown

    def score(self, source_ids: Tensor, source_lengths: Tensor, target_ids: Tensor, target_lengths: Tensor) -> Tensor:
        """Log-probability [B, T] of every token of given targets, in one pass; 0 behind a target's end.

        Args:
            source_ids: [B, S], padded.
            source_lengths: [B].
            target_ids: [B, T], with the end token, padded.
            target_lengths: [B].
        """
        log_probabilities = F.log_softmax(self(source_ids, source_lengths, target_ids), dim=-1)
        chosen = log_probabilities.gather(-1, target_ids[..., None])[..., 0]
        return chosen.masked_fill(~length_mask(target_lengths, target_ids.shape[1]), 0.0)

    def align(
        self, source_ids: Tensor, source_lengths: Tensor, target_ids: Tensor, target_lengths: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What attended to what when `target_ids` were decoded, in one pass; 0 for target positions behind the end.

        Returns:
            Cross-attention [B, layers, heads, T, S], the encoder's self-attention [B, layers, heads, S, S] and the
            decoder's [B, layers, heads, T, T]. Row t is the attention of the step that produced target token t.
        """
        source_mask = length_mask(source_lengths, source_ids.shape[1])
        target_mask = length_mask(target_lengths, target_ids.shape[1])[:, None, None, :, None]
        memory, encoder = self.run_encoder(source_ids, source_mask[:, None, None, :])
        _, decoder, cross = self.run_decoder(memory, source_mask[:, None, None, :], self.shift(target_ids))
        return (
            torch.stack(cross, dim=1) * target_mask,
            torch.stack(encoder, dim=1) * source_mask[:, None, None, :, None],
            torch.stack(decoder, dim=1) * target_mask,
        )
