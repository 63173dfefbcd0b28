"""The Transformer of "Attention Is All You Need", and the views of it that are trained and exported."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jumok_export.attention import MultiHeadAttention

Tensors = dict[str, Tensor]
"""Named tensors with the batch (or row) on axis 0: encoder memory or decoder state."""


CACHE_STEP = 8
"""The cache has room for a multiple of so many tokens.

Room that follows the longest row keeps a cache from growing while rows come and go. And sums over a number of tokens
that is no multiple of the vector width are grouped differently when another row makes the cache longer: in the last bit
that would make a row depend on its company, and in int8 a last bit can move a rounding.
"""


@dataclass(frozen=True, kw_only=True)
class TransformerSizes:
    """What a Transformer is made of.

    Attributes:
        source_vocabulary: number of source tokens.
        target_vocabulary: number of target tokens.
        width: d_model.
        heads: attention heads; divides `width`.
        feed_forward: width of the hidden layer between attention layers.
        encoder_layers: layers of the encoder.
        decoder_layers: layers of the decoder.
        max_positions: longest source or target, in tokens.
        norm: "pre" normalises what enters a sub-layer (and once more at the end of each stack), "post" normalises
            the sum that leaves it, as in the paper.
        activation: of the feed-forward layer.
        share_embeddings: one embedding for source and target (needs one vocabulary).
        tie_output: the output projection is the target embedding.
        dropout: on embeddings and on every sub-layer's output, while training.
        attention_dropout: on attention weights, while training.
        activation_dropout: inside the feed-forward layer, while training.
        pad: id of the padding token.
        start: id of the token that the decoder starts from.
    """

    source_vocabulary: int
    target_vocabulary: int
    width: int = 512
    heads: int = 8
    feed_forward: int = 2048
    encoder_layers: int = 6
    decoder_layers: int = 6
    max_positions: int = 256
    norm: Literal["pre", "post"] = "pre"
    activation: Literal["relu", "gelu", "silu"] = "relu"
    share_embeddings: bool = True
    tie_output: bool = True
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    pad: int = 0
    start: int = 2

    def __post_init__(self) -> None:
        if self.width % 2:
            raise ValueError(f"width must be even for sinusoidal positions, got {self.width}")
        if self.share_embeddings and self.source_vocabulary != self.target_vocabulary:
            raise ValueError(
                "share_embeddings needs one vocabulary for both languages, got "
                f"{self.source_vocabulary} source and {self.target_vocabulary} target tokens"
            )


def sinusoidal_positions(positions: int, width: int) -> Tensor:
    """The position encoding of section 3.5 of the paper: sine on even, cosine on odd dimensions; [positions, width]."""
    angle = torch.arange(positions)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)


def length_mask(lengths: Tensor, longest: int) -> Tensor:
    """[B, longest], true where a token is within its sentence's length."""
    return torch.arange(longest, device=lengths.device) < lengths[:, None]


class FeedForward(nn.Sequential):
    """Two linear layers with a non-linearity between them: equation 2 of the paper."""

    def __init__(self, sizes: TransformerSizes) -> None:
        activation = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}[sizes.activation]
        enter, leave = nn.Linear(sizes.width, sizes.feed_forward), nn.Linear(sizes.feed_forward, sizes.width)
        super().__init__(enter, activation(), nn.Dropout(sizes.activation_dropout), leave)
        for layer in (enter, leave):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)


class Residual(nn.Module):
    """The residual connection and layer norm around a sub-layer, in either order.

    A layer calls `enter` on what goes into the sub-layer and `leave` on what comes out of it.
    """

    def __init__(self, sizes: TransformerSizes) -> None:
        super().__init__()
        self.pre = sizes.norm == "pre"
        self.norm = nn.LayerNorm(sizes.width)
        self.dropout = nn.Dropout(sizes.dropout)

    def enter(self, x: Tensor) -> Tensor:
        """What the sub-layer sees."""
        entering: Tensor = self.norm(x) if self.pre else x
        return entering

    def leave(self, x: Tensor, output: Tensor) -> Tensor:
        """The sum of the sub-layer's input and output, normalised now if the norm comes last."""
        total: Tensor = x + self.dropout(output)
        leaving: Tensor = total if self.pre else self.norm(total)
        return leaving


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each within a residual connection."""

    def __init__(self, sizes: TransformerSizes) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(sizes.width, sizes.heads, dropout=sizes.attention_dropout)
        self.self_attention_residual = Residual(sizes)
        self.feed_forward = FeedForward(sizes)
        self.feed_forward_residual = Residual(sizes)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """One layer over `x` [B, S, width]; returns it and the attention weights [B, heads, S, S]."""
        entered = self.self_attention_residual.enter(x)
        attended, weights = self.self_attention(entered, entered, mask)
        x = self.self_attention_residual.leave(x, attended)
        fed = self.feed_forward(self.feed_forward_residual.enter(x))
        return self.feed_forward_residual.leave(x, fed), weights


class DecoderLayer(nn.Module):
    """Self-attention over what was decoded, cross-attention over the source, and feed-forward."""

    def __init__(self, sizes: TransformerSizes) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(sizes.width, sizes.heads, dropout=sizes.attention_dropout)
        self.self_attention_residual = Residual(sizes)
        self.cross_attention = MultiHeadAttention(sizes.width, sizes.heads, dropout=sizes.attention_dropout)
        self.cross_attention_residual = Residual(sizes)
        self.feed_forward = FeedForward(sizes)
        self.feed_forward_residual = Residual(sizes)

    def after_self_attention(
        self, x: Tensor, cross_key: Tensor, cross_value: Tensor, source_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Cross-attention and feed-forward over `x` [B, Tq, width]; returns it and the weights [B, heads, Tq, S]."""
        asked, weights = self.cross_attention.attend(
            self.cross_attention_residual.enter(x), cross_key, cross_value, source_mask
        )
        x = self.cross_attention_residual.leave(x, asked)
        fed = self.feed_forward(self.feed_forward_residual.enter(x))
        return self.feed_forward_residual.leave(x, fed), weights

    def forward(
        self, x: Tensor, causal_mask: Tensor, memory: Tensor, source_mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One layer over a whole target `x` [B, T, width]; returns it, self-attention and cross-attention weights."""
        entered = self.self_attention_residual.enter(x)
        attended, self_weights = self.self_attention(entered, entered, causal_mask)
        x = self.self_attention_residual.leave(x, attended)
        x, cross_weights = self.after_self_attention(x, *self.cross_attention.keys_values(memory), source_mask)
        return x, self_weights, cross_weights

    def step(
        self, x: Tensor, cache: tuple[Tensor, Tensor], frame: "StepFrame", cross: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """One layer over one token a row, `x` [R, width], with the keys and values of the tokens before it.

        Args:
            x: [R, width].
            cache: keys and values [P, heads, T, D] of the previous step's rows.
            frame: where the rows are and what they may see.
            cross: keys and values [B, heads, S, D] of the sources.

        Returns:
            `x` [R, width] and the cache [R, heads, T_new, D].
        """
        entered = self.self_attention_residual.enter(x)[:, None]  # [R, 1, width]
        new = self.self_attention.keys_values(entered)
        cache = (frame.grow(cache[0], new[0]), frame.grow(cache[1], new[1]))
        attended, _ = self.self_attention.attend(entered, *cache, frame.cache_mask)
        x = self.self_attention_residual.leave(x, attended[:, 0])
        # The beams of a sentence are queries over one memory: [R, width] as [B, K, width].
        sentences = x.reshape(frame.source_mask.shape[0], -1, x.shape[-1])
        return self.after_self_attention(sentences, *cross, frame.source_mask)[0].reshape(x.shape), cache


class StepFrame:
    """Where the rows of one decoder step are: which cache rows they continue, where they write and what they see.

    Args:
        positions: [R], the number of tokens before each row's new one.
        parents: [R], the row of the cache that each row continues.
        source_lengths: [B].
        cache: keys or values of any layer, [P, heads, T, D].
        source: number S of source positions.
    """

    def __init__(self, positions: Tensor, parents: Tensor, source_lengths: Tensor, cache: Tensor, source: int) -> None:
        rows, heads, cached = cache.shape[:3]
        device = positions.device
        longest = positions.max().item()
        # Facts about a number that is only known when the graph runs, for the exporter to reason with.
        torch._check(longest >= 0)  # type: ignore[no-untyped-call]
        torch._check(longest <= cached)  # type: ignore[no-untyped-call]
        places = torch.arange((longest // CACHE_STEP + 1) * CACHE_STEP, device=device)  # [T_new]
        head = torch.arange(heads, device=device)[None, :, None]  # [1, heads, 1]
        self.cache_mask = (places <= positions[:, None])[:, None, None, :]  # [R, 1, 1, T_new]
        self.source_mask = length_mask(source_lengths, source)[:, None, None, :]  # [B, 1, 1, S]
        # The new cache is taken from a pool of vectors: all of the old cache's, then one for each row and head. A row's
        # valid entries stay left-aligned whatever the others' positions are; what lies behind them is masked.
        old = (parents[:, None, None] * heads + head) * cached + places
        new = rows * heads * cached + torch.arange(parents.shape[0], device=device)[:, None, None] * heads + head
        self.pick = torch.where(places < positions[:, None, None], old, new)  # [R, heads, T_new]

    def grow(self, cache: Tensor, new: Tensor) -> Tensor:
        """The parents' rows of `cache` [P, heads, T, D] with `new` [R, heads, 1, D] written at each row's position."""
        pool = torch.cat((cache.flatten(0, 2), new.flatten(0, 2)))
        return F.embedding(self.pick, pool)  # one gather: [R, heads, T_new, D]


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
