"""Layers of Transformer encoders and decoders, for training and for export."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from jumok_export.models.attention import MultiHeadAttention
from jumok_export.models.kv_cache import KVCacheStep

Activation = Literal["relu", "gelu", "gelu_tanh", "quick_gelu", "silu"]
"""Activations of a feed-forward layer."""


class QuickGELU(nn.Module):
    """x * sigmoid(1.702 x): the fast approximation in "Gaussian Error Linear Units" (Hendrycks and Gimpel, 2016)."""

    def forward(self, x: Tensor) -> Tensor:
        """Activate `x` element by element."""
        return x * torch.sigmoid(1.702 * x)


_ACTIVATIONS: dict[Activation, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "gelu_tanh": partial(nn.GELU, approximate="tanh"),
    "quick_gelu": QuickGELU,
    "silu": nn.SiLU,
}


@dataclass(frozen=True, kw_only=True)
class LayerSizes:
    """Sizes and options of an encoder's or a decoder's layers.

    Fields without an entry here are those of `TransformerSizes` and `T5Sizes`.

    Attributes:
        width: d_model.
        heads: attention heads; divides `width` if `head_width` is None.
        head_width: width of a head's keys and values; default: `width` / `heads`.
        scale: factor of the products of queries and keys; default: 1 / sqrt(head_width).
        norm: "pre" normalises a sub-layer's input, "post" normalises the residual sum, as in the paper.
        make_norm: constructor of a normalisation, given the width.
    """

    width: int
    heads: int
    feed_forward: int
    head_width: int | None = None
    scale: float | None = None
    norm: Literal["pre", "post"] = "pre"
    make_norm: Callable[[int], nn.Module] = nn.LayerNorm
    activation: Activation = "relu"
    gated: bool = False
    bias: bool = True
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0


class FeedForward(nn.Sequential):
    """Two linear layers with an activation between: equation 2 of "Attention Is All You Need"."""

    def __init__(self, sizes: LayerSizes) -> None:
        up = nn.Linear(sizes.width, sizes.feed_forward, bias=sizes.bias)
        down = nn.Linear(sizes.feed_forward, sizes.width, bias=sizes.bias)
        super().__init__(up, _ACTIVATIONS[sizes.activation](), nn.Dropout(sizes.activation_dropout), down)
        _initialize(up, down)


class GatedFeedForward(nn.Module):
    """Gated feed-forward layer: equation 6 of "GLU Variants Improve Transformer" (Shazeer, 2020)."""

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__()
        self.gate = nn.Linear(sizes.width, sizes.feed_forward, bias=sizes.bias)
        self.up = nn.Linear(sizes.width, sizes.feed_forward, bias=sizes.bias)
        self.down = nn.Linear(sizes.feed_forward, sizes.width, bias=sizes.bias)
        _initialize(self.gate, self.up, self.down)
        self.activation = _ACTIVATIONS[sizes.activation]()
        self.dropout = nn.Dropout(sizes.activation_dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to `x` [..., width]."""
        fed: Tensor = self.down(self.dropout(self.activation(self.gate(x)) * self.up(x)))
        return fed


def _initialize(*layers: nn.Linear) -> None:
    for layer in layers:
        nn.init.xavier_uniform_(layer.weight)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def make_feed_forward(sizes: LayerSizes) -> nn.Module:
    """Make the feed-forward layer of some sizes."""
    return GatedFeedForward(sizes) if sizes.gated else FeedForward(sizes)


def make_attention(sizes: LayerSizes) -> MultiHeadAttention:
    """Make an attention layer of some sizes."""
    inner = sizes.width if sizes.head_width is None else sizes.heads * sizes.head_width
    return MultiHeadAttention(
        sizes.width,
        sizes.heads,
        key_width=inner,
        value_width=inner,
        bias=sizes.bias,
        dropout=sizes.attention_dropout,
        scale=sizes.scale,
    )


_ByProducts = TypeVar("_ByProducts")


class Residual(nn.Module):
    """Residual connection and normalisation around a sub-layer, in either order."""

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__()
        self.pre = sizes.norm == "pre"
        self.norm = sizes.make_norm(sizes.width)
        self.dropout = nn.Dropout(sizes.dropout)

    def around(self, x: Tensor, sublayer: Callable[[Tensor], tuple[Tensor, _ByProducts]]) -> tuple[Tensor, _ByProducts]:
        """Add a sub-layer's output to its input `x`.

        Args:
            x: [..., width].
            sublayer: function of the sub-layer's input; returns its output and by-products.

        Returns:
            The sum, normalised if the norm comes last, and the by-products.
        """
        output, by_products = sublayer(self.norm(x) if self.pre else x)
        total = x + self.dropout(output)
        return total if self.pre else self.norm(total), by_products


class _Layer(nn.Module):
    """Self-attention and feed-forward, each within a residual connection."""

    self_attention: MultiHeadAttention
    self_attention_residual: Residual
    feed_forward: nn.Module
    feed_forward_residual: Residual

    def attend_to_itself(self, x: Tensor, mask: Tensor, position_bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """Apply self-attention to `x` [B, T, width].

        Returns the sum and the weights [B, heads, T, T].
        """
        return self.self_attention_residual.around(x, lambda y: self.self_attention(y, y, mask, position_bias))

    def feed(self, x: Tensor) -> Tensor:
        return self.feed_forward_residual.around(x, lambda y: (self.feed_forward(y), None))[0]


class EncoderLayer(_Layer):
    """Self-attention over the source, and feed-forward."""

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__()
        self.self_attention = make_attention(sizes)
        self.self_attention_residual = Residual(sizes)
        self.feed_forward = make_feed_forward(sizes)
        self.feed_forward_residual = Residual(sizes)

    def forward(self, x: Tensor, mask: Tensor, position_bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Apply the layer to `x` [B, S, width].

        Returns the output and attention weights [B, heads, S, S].
        """
        x, weights = self.attend_to_itself(x, mask, position_bias)
        return self.feed(x), weights

    def encode(self, x: Tensor, lengths: Tensor, position_bias: Tensor | None) -> Tensor:
        """Apply the layer without giving out attention weights; for inference.

        Args:
            x: [B, S, width].
            lengths: number of tokens, [B] int32.
            position_bias: added to attention scores, [1, heads, S, S]; or None.
        """
        attention = self.self_attention

        def attend(y: Tensor) -> tuple[Tensor, None]:
            key, value = attention.key_projection(y), attention.value_projection(y)
            return attention.attend_fused(y, key, value, lengths=lengths, bias=position_bias), None

        return self.feed(self.self_attention_residual.around(x, attend)[0])


class DecoderLayer(_Layer):
    """Self-attention over decoded tokens, cross-attention over the source, and feed-forward."""

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__()
        self.self_attention = make_attention(sizes)
        self.self_attention_residual = Residual(sizes)
        self.cross_attention = make_attention(sizes)
        self.cross_attention_residual = Residual(sizes)
        self.feed_forward = make_feed_forward(sizes)
        self.feed_forward_residual = Residual(sizes)

    def forward(
        self,
        x: Tensor,
        causal_mask: Tensor,
        memory: Tensor,
        source_mask: Tensor,
        position_bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Apply the layer to a whole target `x` [B, T, width].

        Returns:
            The output, and the weights of self-attention [B, heads, T, T] and of cross-attention [B, heads, T, S].
        """
        x, self_weights = self.attend_to_itself(x, causal_mask, position_bias)
        x, cross_weights = self.cross_attention_residual.around(
            x, lambda y: self.cross_attention(y, memory, source_mask)
        )
        return self.feed(x), self_weights, cross_weights

    def step(
        self,
        x: Tensor,
        cache: tuple[Tensor, Tensor],
        cache_step: KVCacheStep,
        cross: tuple[Tensor, Tensor],
        position_bias: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Apply the layer to one token of every row; for inference.

        Args:
            x: [B, K, width].
            cache: keys and values of self-attention, [B, heads, E, D] each.
            cache_step: this step's writes and masks.
            cross: keys and values of the sources, [B, heads, S, D] each.
            position_bias: added to the scores of self-attention, [B, heads, K, E]; or None.

        Returns:
            `x` [B, K, width] and the cache with the new tokens written.
        """
        attention = self.self_attention

        def attend_to_cache(y: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            key = cache_step.write(cache[0], attention.key_projection(y))
            value = cache_step.write(cache[1], attention.value_projection(y))
            bias = cache_step.bias if position_bias is None else cache_step.bias + position_bias
            return attention.attend_fused(y, key, value, bias=bias), (key, value)

        def attend_to_source(y: Tensor) -> tuple[Tensor, None]:
            return self.cross_attention.attend_fused(y, *cross, lengths=cache_step.source_lengths), None

        x, written = self.self_attention_residual.around(x, attend_to_cache)
        x, _ = self.cross_attention_residual.around(x, attend_to_source)
        return self.feed(x), written
