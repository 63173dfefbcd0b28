"""Encoder-decoder Transformers: the computations that are trained and exported."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jumok_export.models.attention import MultiHeadAttention
from jumok_export.models.kv_cache import KVCacheStep
from jumok_export.models.layers import DecoderLayer, EncoderLayer
from jumok_export.models.seq2seq import Seq2Seq, Tensors, length_mask


class CrossAttending(Seq2Seq):
    """A Transformer's encoder, and a decoder whose layers attend to its output.

    A subclass adds the embeddings, the bias of relative positions and the output projection, and the decoder's steps.

    Attributes:
        encoder_norm: normalisation after the encoder's last layer.
        decoder_norm: normalisation after the decoder's last layer.
    """

    encoder: nn.ModuleList
    decoder: nn.ModuleList
    encoder_norm: nn.Module
    decoder_norm: nn.Module

    @abstractmethod
    def embed_source(self, source_ids: Tensor) -> Tensor:
        """Embed whole sources [B, S]; returns [B, S, width]."""

    @abstractmethod
    def embed_target(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """Embed target tokens at positions of a broadcastable shape; returns [*token_ids.shape, width]."""

    @abstractmethod
    def logits(self, decoded: Tensor) -> Tensor:
        """Compute logits [..., V] from the decoder's output [..., width]."""

    @abstractmethod
    def attending(
        self, source_ids: Tensor, source_lengths: Tensor, start_ids: Tensor, target_ids: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """Compute the logits of `forward`, and each layer's cross-attention weights [B, heads, T, S]."""

    def encoder_position_biases(self, positions: Tensor) -> Sequence[Tensor | None]:
        """Biases of each encoder layer's attention scores at positions [S]: [heads, S, S] or None."""
        return [None] * len(self.encoder)

    def run_encoder(self, source_ids: Tensor, source_mask: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Encode sources.

        Returns [B, S, width], and each layer's self-attention weights [B, heads, S, S].
        """
        x = self.embed_source(source_ids)
        biases = self.encoder_position_biases(torch.arange(source_ids.shape[1], device=source_ids.device))
        attention = []
        for layer, bias in zip(self.encoder, biases, strict=True):
            x, weights = layer(x, source_mask, bias)
            attention.append(weights)
        return self.encoder_norm(x), attention

    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> tuple[Tensors, Tensors]:
        """See `Seq2Seq`: `key.<layer>` and `value.<layer>` of cross-attention, [B, heads, S, D]."""
        x = self.embed_source(source_ids)
        biases = self.encoder_position_biases(torch.arange(source_ids.shape[1], device=source_ids.device))
        lengths = source_lengths.to(torch.int32)
        for layer, bias in zip(cast(Iterable[EncoderLayer], self.encoder), biases, strict=True):
            x = layer.encode(x, lengths, None if bias is None else bias[None])
        encoded = self.encoder_norm(x)
        memory = {}
        for index, decoder_layer in enumerate(self.decoder):
            attention = cast(MultiHeadAttention, decoder_layer.cross_attention)
            memory[f"key.{index}"], memory[f"value.{index}"] = attention.keys_values(encoded)
        return memory, {}


class EncoderDecoder(CrossAttending):
    """An encoder and a decoder of Transformer layers: every layer of the decoder attends to the tokens before."""

    def decoder_position_biases(self, queries: Tensor, keys: Tensor) -> Sequence[Tensor | None]:
        """Biases of each decoder layer's self-attention scores.

        Args:
            queries: positions of the queries, [..., Tq].
            keys: positions of the keys, [..., Tk].

        Returns:
            [..., heads, Tq, Tk] or None, for each layer.
        """
        return [None] * len(self.decoder)

    @property
    def _decoder_layers(self) -> Iterable[DecoderLayer]:
        return cast(Iterable[DecoderLayer], self.decoder)

    def run_decoder(
        self, memory: Tensor, source_mask: Tensor, input_ids: Tensor
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Decode all of `input_ids` [B, T] at once, by teacher forcing.

        Returns:
            The output [B, T, width], and each layer's self-attention and cross-attention weights.
        """
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        causal_mask = positions[:, None] >= positions  # a token attends to itself and to the tokens before it
        x = self.embed_target(input_ids, positions)
        biases = self.decoder_position_biases(positions, positions)
        self_attention, cross_attention = [], []
        for layer, bias in zip(self.decoder, biases, strict=True):
            x, self_weights, cross_weights = layer(x, causal_mask, memory, source_mask, bias)
            self_attention.append(self_weights)
            cross_attention.append(cross_weights)
        return self.decoder_norm(x), self_attention, cross_attention

    def forward(self, source_ids: Tensor, source_lengths: Tensor, start_ids: Tensor, target_ids: Tensor) -> Tensor:
        """See `Seq2Seq`."""
        return self.logits(self._follow(source_ids, source_lengths, start_ids, target_ids)[0])

    def attending(
        self, source_ids: Tensor, source_lengths: Tensor, start_ids: Tensor, target_ids: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """See `CrossAttending`."""
        x, cross = self._follow(source_ids, source_lengths, start_ids, target_ids)
        return self.logits(x), cross

    def _follow(
        self, source_ids: Tensor, source_lengths: Tensor, start_ids: Tensor, target_ids: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """The decoder's output [B, T, width] and cross-attention weights; other weights, often large, are freed."""
        source_mask = length_mask(source_lengths, source_ids.shape[1])[:, None, None, :]
        memory = self.run_encoder(source_ids, source_mask)[0]
        return self.run_decoder(memory, source_mask, self.shift(start_ids, target_ids))[::2]

    def empty_state(self) -> Tensors:
        """See `Seq2Seq`: `key.<layer>` and `value.<layer>` of self-attention, [1, heads, 0, D]."""
        state = {}
        for index, layer in enumerate(self._decoder_layers):
            state[f"key.{index}"], state[f"value.{index}"] = layer.self_attention.empty_keys_values()
        return state

    def step(  # noqa: PLR0917 - the graph contract's inputs, in its order
        self,
        token_ids: Tensor,
        positions: Tensor,
        parents: Tensor,
        source_lengths: Tensor,
        memory: Tensors,
        state: Tensors,
    ) -> tuple[Tensor, Tensors]:
        """See `Seq2Seq`; exported graphs have `step_in_place` instead.

        A row's state [heads, T, D] is valid up to its position. The new token's key and value are repeated after that.
        """
        rows, length = len(token_ids), int(positions.max()) + 1
        entries = torch.arange(length, device=positions.device)  # [T]
        row = torch.arange(rows, device=positions.device)
        beam_size = rows // len(source_lengths)
        # Every row is treated as a separate sentence with one beam; cache entries are tokens in order.
        logits, written = self.step_in_place(
            token_ids[:, None],
            positions[:, None],
            torch.stack((row, torch.zeros_like(row), positions), dim=-1)[:, None],
            (entries <= positions[:, None])[:, None],
            entries.expand(rows, length),
            source_lengths.repeat_interleave(beam_size),
            {name: value.repeat_interleave(beam_size, dim=0) for name, value in memory.items()},
            {name: F.pad(value[parents], (0, 0, 0, length - value.shape[2])) for name, value in state.items()},
        )
        last = torch.minimum(entries, positions[:, None])[:, None, :, None]
        return logits, {name: value.take_along_dim(last, dim=2) for name, value in written.items()}

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
        """Decode one token of every row, writing into fixed KV caches.

        The rows of a sentence share E cache entries. An entry holds one token of one row or of several.

        Args:
            token_ids: token that each row decoded last, at first the start token, [B, K].
            positions: number of tokens that each row has decoded, [B, K].
            places: index of each row's new token, [B, K, 3]: sentence, 0 (head 0) and entry.
            visible: entries with a row's tokens, the new one's included, [B, K, E].
            entry_positions: positions of the tokens in the entries, [B, E].
            source_lengths: [B].
            memory: memory of `encode`, [B, heads, S, D].
            state: keys and values of the sentences' rows, [B, heads, E, D].

        Returns:
            Logits [B * K, V] of the next token and the state with this token written.
        """
        cache_step = KVCacheStep(places, visible, source_lengths, state["key.0"])
        x = self.embed_target(token_ids, positions)
        biases = self.decoder_position_biases(positions, entry_positions)  # [B, heads, K, E]
        written = {}
        for index, (layer, bias) in enumerate(zip(self._decoder_layers, biases, strict=True)):
            key, value = f"key.{index}", f"value.{index}"
            x, cache = layer.step(x, (state[key], state[value]), cache_step, (memory[key], memory[value]), bias)
            written[key], written[value] = cache
        return self.logits(self.decoder_norm(x).flatten(0, 1)), written

    def align(
        self, source_ids: Tensor, source_lengths: Tensor, start_ids: Tensor, target_ids: Tensor, target_lengths: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the attention weights of given targets, in one pass.

        Arguments are those of `score`.

        Returns:
            Cross-attention [B, layers, heads, T, S], and the self-attention of the encoder [B, layers, heads, S, S] and
            of the decoder [B, layers, heads, T, T]. Row t belongs to target token t; rows after the end are 0.
        """
        return self._in_one_pass(source_ids, source_lengths, start_ids, target_ids, target_lengths)[1]

    def score_and_align(
        self, source_ids: Tensor, source_lengths: Tensor, start_ids: Tensor, target_ids: Tensor, target_lengths: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Compute the outputs of `score` and `align` together."""
        decoded, attention = self._in_one_pass(source_ids, source_lengths, start_ids, target_ids, target_lengths)
        return self.scores_of(self.logits(decoded), target_ids, target_lengths), *attention

    def _in_one_pass(
        self, source_ids: Tensor, source_lengths: Tensor, start_ids: Tensor, target_ids: Tensor, target_lengths: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        source_mask = length_mask(source_lengths, source_ids.shape[1])
        target_mask = length_mask(target_lengths, target_ids.shape[1])[:, None, None, :, None]
        memory, encoder = self.run_encoder(source_ids, source_mask[:, None, None, :])
        input_ids = self.shift(start_ids, target_ids)
        decoded, decoder, cross = self.run_decoder(memory, source_mask[:, None, None, :], input_ids)
        return decoded, (
            torch.stack(cross, dim=1) * target_mask,
            torch.stack(encoder, dim=1) * source_mask[:, None, None, :, None],
            torch.stack(decoder, dim=1) * target_mask,
        )
