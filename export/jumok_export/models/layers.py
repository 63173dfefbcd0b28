"""What Transformers are made of: the layers of encoder and decoder, their sizes, and the decoder's single step."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jumok_export.models.attention import MultiHeadAttention
from jumok_export.models.seq2seq import length_mask

CACHE_STEP = 8
"""The cache has room for a multiple of so many tokens.

Room that follows the longest row keeps a cache from growing while rows come and go. And sums over a number of tokens
that is no multiple of the vector width are grouped differently when another row makes the cache longer: in the last bit
that would make a row depend on its company, and in int8 a last bit can move a rounding.
"""


Activation = Literal["relu", "gelu", "gelu_tanh", "quick_gelu", "silu"]
"""Names of what a feed-forward layer may have between its linear layers."""


class QuickGELU(nn.Module):
    """x * sigmoid(1.702 x): the fast approximation in "Gaussian Error Linear Units" (Hendrycks and Gimpel, 2016)."""

    def forward(self, x: Tensor) -> Tensor:
        """The activation of `x`, of its shape."""
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
    """What the layers of an encoder or a decoder are made of.

    Attributes:
        width: d_model.
        heads: attention heads; divides `width` where `head_width` is not given.
        feed_forward: width of the hidden layer between attention layers.
        head_width: width of a head's keys and values; default: `width` / `heads`.
        scale: of the products of queries and keys; default: 1 / sqrt(head_width).
        norm: "pre" normalises what enters a sub-layer, "post" normalises the sum that leaves it, as in the paper.
        make_norm: the normalisation for a width.
        activation: of the feed-forward layer.
        gated: whether the activation gates a second linear layer's output instead of being fed on.
        bias: whether linear layers have one.
        dropout: on every sub-layer's output, while training.
        attention_dropout: on attention weights, while training.
        activation_dropout: inside the feed-forward layer, while training.
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
    """Two linear layers with a non-linearity between them: equation 2 of the paper."""

    def __init__(self, sizes: LayerSizes) -> None:
        enter = nn.Linear(sizes.width, sizes.feed_forward, bias=sizes.bias)
        leave = nn.Linear(sizes.feed_forward, sizes.width, bias=sizes.bias)
        super().__init__(enter, _ACTIVATIONS[sizes.activation](), nn.Dropout(sizes.activation_dropout), leave)
        _initialize(enter, leave)


class GatedFeedForward(nn.Module):
    """A linear layer times another one's activation, and a linear layer after it: Shazeer, 2020, equation 6."""

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__()
        self.gate = nn.Linear(sizes.width, sizes.feed_forward, bias=sizes.bias)
        self.enter = nn.Linear(sizes.width, sizes.feed_forward, bias=sizes.bias)
        self.leave = nn.Linear(sizes.feed_forward, sizes.width, bias=sizes.bias)
        _initialize(self.gate, self.enter, self.leave)
        self.activation = _ACTIVATIONS[sizes.activation]()
        self.dropout = nn.Dropout(sizes.activation_dropout)

    def forward(self, x: Tensor) -> Tensor:
        """The layer over `x` [..., width]."""
        fed: Tensor = self.leave(self.dropout(self.activation(self.gate(x)) * self.enter(x)))
        return fed


def _initialize(*layers: nn.Linear) -> None:
    for layer in layers:
        nn.init.xavier_uniform_(layer.weight)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def _feed_forward(sizes: LayerSizes) -> nn.Module:
    return GatedFeedForward(sizes) if sizes.gated else FeedForward(sizes)


def _attention(sizes: LayerSizes) -> MultiHeadAttention:
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


class Residual(nn.Module):
    """The residual connection and layer norm around a sub-layer, in either order.

    A layer calls `enter` on what goes into the sub-layer and `leave` on what comes out of it.
    """

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__()
        self.pre = sizes.norm == "pre"
        self.norm = sizes.make_norm(sizes.width)
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

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__()
        self.self_attention = _attention(sizes)
        self.self_attention_residual = Residual(sizes)
        self.feed_forward = _feed_forward(sizes)
        self.feed_forward_residual = Residual(sizes)

    def forward(self, x: Tensor, mask: Tensor, position_bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """One layer over `x` [B, S, width]; returns it and the attention weights [B, heads, S, S]."""
        entered = self.self_attention_residual.enter(x)
        attended, weights = self.self_attention(entered, entered, mask, position_bias)
        x = self.self_attention_residual.leave(x, attended)
        fed = self.feed_forward(self.feed_forward_residual.enter(x))
        return self.feed_forward_residual.leave(x, fed), weights

    def encode(self, x: Tensor, lengths: Tensor, position_bias: Tensor | None) -> Tensor:
        """The layer over `x` [B, S, width] of so many tokens [B], without attention weights; for inference."""
        entered = self.self_attention_residual.enter(x)
        attention = self.self_attention
        key, value = attention.key_projection(entered), attention.value_projection(entered)
        attended = attention.answer(entered, key, value, lengths=lengths, bias=position_bias)
        x = self.self_attention_residual.leave(x, attended)
        fed = self.feed_forward(self.feed_forward_residual.enter(x))
        left: Tensor = self.feed_forward_residual.leave(x, fed)
        return left


class DecoderLayer(nn.Module):
    """Self-attention over what was decoded, cross-attention over the source, and feed-forward."""

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__()
        self.self_attention = _attention(sizes)
        self.self_attention_residual = Residual(sizes)
        self.cross_attention = _attention(sizes)
        self.cross_attention_residual = Residual(sizes)
        self.feed_forward = _feed_forward(sizes)
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
        self,
        x: Tensor,
        causal_mask: Tensor,
        memory: Tensor,
        source_mask: Tensor,
        position_bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One layer over a whole target `x` [B, T, width]; returns it, self-attention and cross-attention weights."""
        entered = self.self_attention_residual.enter(x)
        attended, self_weights = self.self_attention(entered, entered, causal_mask, position_bias)
        x = self.self_attention_residual.leave(x, attended)
        x, cross_weights = self.after_self_attention(x, *self.cross_attention.keys_values(memory), source_mask)
        return x, self_weights, cross_weights

    def step(
        self,
        x: Tensor,
        cache: tuple[Tensor, Tensor],
        frame: "StepFrame",
        cross: tuple[Tensor, Tensor],
        position_bias: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """One layer over one token a row, `x` [R, width], with the keys and values of the tokens before it.

        Args:
            x: [R, width].
            cache: keys and values [P, heads, T, D] of the previous step's rows.
            frame: where the rows are and what they may see.
            cross: keys and values [B, heads, S, D] of the sources.
            position_bias: [R, heads, 1, T_new], added to the scores of self-attention; or None.

        Returns:
            `x` [R, width] and the cache [R, heads, T_new, D].
        """
        entered = self.self_attention_residual.enter(x)[:, None]  # [R, 1, width]
        new = self.self_attention.keys_values(entered)
        cache = (frame.grow(cache[0], new[0]), frame.grow(cache[1], new[1]))
        attended, _ = self.self_attention.attend(entered, *cache, frame.cache_mask, position_bias)
        x = self.self_attention_residual.leave(x, attended[:, 0])
        # The beams of a sentence are queries over one memory: [R, width] as [B, K, width].
        sentences = x.reshape(frame.source_mask.shape[0], -1, x.shape[-1])
        return self.after_self_attention(sentences, *cross, frame.source_mask)[0].reshape(x.shape), cache

    def step_in_place(
        self,
        x: Tensor,
        cache: tuple[Tensor, Tensor],
        frame: "InPlaceFrame",
        cross: tuple[Tensor, Tensor],
        position_bias: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """`step` over buffers that all rows of a sentence write to and read.

        Args:
            x: [B, K, width].
            cache: keys and values [B, heads, E, D], entries of what the sentence's rows have decoded.
            frame: where the rows write and what they may see.
            cross: keys and values [B, heads, S, D] of the sources.
            position_bias: [B, heads, K, E], added to the scores of self-attention; or None.

        Returns:
            `x` [B, K, width] and the cache with the new tokens in their places.
        """
        entered = self.self_attention_residual.enter(x)
        attention = self.self_attention
        key = frame.write(cache[0], attention.key_projection(entered))
        value = frame.write(cache[1], attention.value_projection(entered))
        bias = frame.bias if position_bias is None else frame.bias + position_bias
        attended = attention.answer(entered, key, value, bias=bias)
        x = self.self_attention_residual.leave(x, attended)
        asking = self.cross_attention_residual.enter(x)
        asked = self.cross_attention.answer(asking, *cross, lengths=frame.source_lengths)
        x = self.cross_attention_residual.leave(x, asked)
        fed = self.feed_forward(self.feed_forward_residual.enter(x))
        return self.feed_forward_residual.leave(x, fed), (key, value)


@torch.library.custom_op("jumok::write", mutates_args=())
def write(buffer: Tensor, places: Tensor, values: Tensor, heads: int) -> Tensor:
    """`buffer` with the vectors of all heads written in their places: ONNX's ScatterND.

    ONNX Runtime copies nothing where the buffer that is given and the one that is returned are one.

    Args:
        buffer: [B, heads, E, D].
        places: [B, K, heads, 3], a place on each of the first three axes.
        values: [B, K, heads * D].
        heads: how many vectors lie side by side.
    """
    return buffer.index_put(places.unbind(-1), torch.unflatten(values, -1, (heads, -1)))


@write.register_fake
def _(buffer: Tensor, places: Tensor, values: Tensor, heads: int) -> Tensor:
    return torch.empty_like(buffer)


class InPlaceFrame:
    """Where the rows of one decoder step are in buffers that hold the tokens of all rows of a sentence.

    A row's past is not moved when it continues another row: rows see the entries of what they have in common.

    Args:
        places: [B, K, 3], where each row's new token lies: its sentence, 0 and its entry.
        visible: [B, K, E], the entries that each row attends to, its new one included.
        source_lengths: [B].
        cache: keys or values of any layer, [B, heads, E, D].

    Attributes:
        source_lengths: [B] int32.
        bias: [B, 1, K, E], 0 where a row may attend, and the least number elsewhere.
        places: [B, K, heads, 3], where each row's new token lies: sentence, head and entry.
    """

    def __init__(self, places: Tensor, visible: Tensor, source_lengths: Tensor, cache: Tensor) -> None:
        self._heads = cache.shape[1]
        self.bias = torch.where(visible[:, None], 0.0, torch.finfo(cache.dtype).min)
        self.source_lengths = source_lengths.to(torch.int32)
        self.places = places[:, :, None] + torch.tensor([[0, head, 0] for head in range(self._heads)])

    def write(self, cache: Tensor, new: Tensor) -> Tensor:
        """`cache` [B, heads, E, D] with `new` [B, K, heads * D] written in each row's place."""
        written: Tensor = write(cache, self.places, new, self._heads)
        return written


class StepFrame:
    """Where the rows of one decoder step are: which cache rows they continue, where they write and what they see.

    Args:
        positions: [R], the number of tokens before each row's new one.
        parents: [R], the row of the cache that each row continues.
        source_lengths: [B].
        cache: keys or values of any layer, [P, heads, T, D].
        source: number S of source positions.

    Attributes:
        places: of the cache that the step returns, [T_new].
        cache_mask: [R, 1, 1, T_new], true where a row may attend.
        source_mask: [B, 1, 1, S], true where there is a token.
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
        self.places = places
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
