"""What every encoder-decoder Transformer computes: the views of it that are trained and exported."""

from abc import abstractmethod
from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from jumok_export.models.layers import DecoderLayer, EncoderLayer, InPlaceFrame, StepFrame
from jumok_export.models.seq2seq import Seq2Seq, Tensors, length_mask


class EncoderDecoder(Seq2Seq):
    """An encoder and a decoder of `EncoderLayer` and `DecoderLayer`, without what goes in and what comes out.

    What a kind of Transformer adds is how tokens are embedded, what their distance adds to attention, and the output.

    Attributes:
        encoder: its layers.
        decoder: its layers.
        encoder_norm: after the encoder's last layer.
        decoder_norm: after the decoder's last layer.
    """

    encoder: nn.ModuleList
    decoder: nn.ModuleList
    encoder_norm: nn.Module
    decoder_norm: nn.Module

    @abstractmethod
    def embed_source(self, source_ids: Tensor) -> Tensor:
        """What enters the encoder for whole sources [B, S]; [B, S, width]."""

    @abstractmethod
    def embed_target(self, token_ids: Tensor, places: Tensor) -> Tensor:
        """What enters the decoder for tokens at places, of one shape or broadcastable; [*token_ids.shape, width]."""

    @abstractmethod
    def logits(self, decoded: Tensor) -> Tensor:
        """Logits [..., V] from the decoder's output [..., width]."""

    def encoder_position_bias(self, places: Tensor) -> Tensor | None:
        """What distance adds to the encoder's attention scores at the places [S]; [heads, S, S] or None."""
        return None

    def decoder_position_bias(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """What distance adds to the decoder's self-attention scores, for queries at [..., Tq] and keys at [..., Tk].

        Returns:
            [..., heads, Tq, Tk], or None.
        """
        return None

    @property
    def _decoder_layers(self) -> Iterable[DecoderLayer]:
        return cast(Iterable[DecoderLayer], self.decoder)

    def run_encoder(self, source_ids: Tensor, source_mask: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The source's representation [B, S, width] and each layer's self-attention weights [B, heads, S, S]."""
        x = self.embed_source(source_ids)
        bias = self.encoder_position_bias(torch.arange(source_ids.shape[1], device=source_ids.device))
        attention = []
        for layer in self.encoder:
            x, weights = layer(x, source_mask, bias)
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
        x = self.embed_target(input_ids, places)
        bias = self.decoder_position_bias(places, places)
        self_attention, cross_attention = [], []
        for layer in self.decoder:
            x, self_weights, cross_weights = layer(x, causal_mask, memory, source_mask, bias)
            self_attention.append(self_weights)
            cross_attention.append(cross_weights)
        return self.decoder_norm(x), self_attention, cross_attention

    def forward(self, source_ids: Tensor, source_lengths: Tensor, start_ids: Tensor, target_ids: Tensor) -> Tensor:
        """See `Seq2Seq`: all positions at once."""
        source_mask = length_mask(source_lengths, source_ids.shape[1])[:, None, None, :]
        memory, _ = self.run_encoder(source_ids, source_mask)
        x, _, _ = self.run_decoder(memory, source_mask, self.shift(start_ids, target_ids))
        return self.logits(x)

    def empty_state(self) -> Tensors:
        """The state that decoding starts from: keys and values of one row without tokens, [1, heads, 0, D]."""
        state = {}
        for index, layer in enumerate(self._decoder_layers):
            empty = layer.self_attention.no_keys_values()
            state[f"key.{index}"], state[f"value.{index}"] = empty
        return state

    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> tuple[Tensors, Tensors]:
        """See `Seq2Seq`: the keys and values of cross-attention, `key.<layer>` and `value.<layer>` [B, heads, S, D]."""
        x = self.embed_source(source_ids)
        bias = self.encoder_position_bias(torch.arange(source_ids.shape[1], device=source_ids.device))
        lengths = source_lengths.to(torch.int32)
        for layer in cast(Iterable[EncoderLayer], self.encoder):
            x = layer.encode(x, lengths, None if bias is None else bias[None])
        encoded = self.encoder_norm(x)
        memory = {}
        for index, decoder_layer in enumerate(self._decoder_layers):
            memory[f"key.{index}"], memory[f"value.{index}"] = decoder_layer.cross_attention.keys_values(encoded)
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
        """See `Seq2Seq`: the state is a cache of keys and values.

        Of a row's [P, heads, T, D], as many entries are valid as it has decoded tokens; the new state is
        [R, heads, T_new, D], T_new > positions.
        """
        frame = StepFrame(positions, parents, source_lengths, state["key.0"], memory["key.0"].shape[2])
        x = self.embed_target(token_ids, positions)
        bias = self.decoder_position_bias(positions[:, None], frame.places)
        grown = {}
        for index, layer in enumerate(self._decoder_layers):
            key, value = f"key.{index}", f"value.{index}"
            x, cache = layer.step(x, (state[key], state[value]), frame, (memory[key], memory[value]), bias)
            grown[key], grown[value] = cache
        return self.logits(self.decoder_norm(x)), grown

    def step_in_place(  # noqa: PLR0917 - the graph contract's inputs, in its order
        self,
        token_ids: Tensor,
        positions: Tensor,
        places: Tensor,
        visible: Tensor,
        entry_positions: Tensor,
        source_lengths: Tensor,
        memory: Tensors,
        state: Tensors,
    ) -> tuple[Tensor, Tensors]:
        """`step` over buffers that stay where they are: this is what is exported.

        The rows of a sentence share E entries of state, each of which holds one token of one row or of several.

        Args:
            token_ids: [B, K], the token each row decoded last (at first the start token).
            positions: [B, K], how many tokens the row has decoded.
            places: [B, K, 3], where each row's new token goes: its sentence, 0 (head 0), and the entry.
            visible: [B, K, E], the entries that hold a row's tokens, the new one's included.
            entry_positions: [B, E], the positions of the tokens that entries hold.
            source_lengths: [B].
            memory: of `encode`, [B, heads, S, D].
            state: keys and values of the sentences' rows, [B, heads, E, D].

        Returns:
            Logits [B * K, V] of the next token and the state with this token written.
        """
        frame = InPlaceFrame(places, visible, source_lengths, state["key.0"])
        x = self.embed_target(token_ids, positions)
        bias = self.decoder_position_bias(positions, entry_positions)  # [B, heads, K, E]
        written = {}
        for index, layer in enumerate(self._decoder_layers):
            key, value = f"key.{index}", f"value.{index}"
            x, cache = layer.step_in_place(x, (state[key], state[value]), frame, (memory[key], memory[value]), bias)
            written[key], written[value] = cache
        return self.logits(self.decoder_norm(x).flatten(0, 1)), written

    def align(
        self, source_ids: Tensor, source_lengths: Tensor, start_ids: Tensor, target_ids: Tensor, target_lengths: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What attended to what when `target_ids` were decoded, in one pass; 0 for target positions behind the end.

        Args:
            source_ids: [B, S], padded.
            source_lengths: [B].
            start_ids: [B], the token that the decoder starts from.
            target_ids: [B, T], with the end token, padded.
            target_lengths: [B].

        Returns:
            Cross-attention [B, layers, heads, T, S], the encoder's self-attention [B, layers, heads, S, S] and the
            decoder's [B, layers, heads, T, T]. Row t is the attention of the step that produced target token t.
        """
        source_mask = length_mask(source_lengths, source_ids.shape[1])
        target_mask = length_mask(target_lengths, target_ids.shape[1])[:, None, None, :, None]
        memory, encoder = self.run_encoder(source_ids, source_mask[:, None, None, :])
        input_ids = self.shift(start_ids, target_ids)
        _, decoder, cross = self.run_decoder(memory, source_mask[:, None, None, :], input_ids)
        return (
            torch.stack(cross, dim=1) * target_mask,
            torch.stack(encoder, dim=1) * source_mask[:, None, None, :, None],
            torch.stack(decoder, dim=1) * target_mask,
        )
