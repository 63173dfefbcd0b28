"""Scaled dot-product attention, and multi-head attention built from it."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jumok_export.models.attention_functions import context, dot_scores, masked_softmax, scaled_dot_scores


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    dropout: float = 0.0,
    scale: float | None = None,
    position_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """softmax(Q K^T / sqrt(d_k)) V: "Attention Is All You Need" (Vaswani et al., 2017), equation 1.

    Args:
        query: [..., Tq, Dk].
        key: [..., Tk, Dk].
        value: [..., Tk, Dv]; its width is free of the keys' width.
        mask: boolean, broadcastable to [..., Tq, Tk], true where a query may attend; or None.
        dropout: probability with which a weight is dropped before the values are summed.
        scale: what the products of queries and keys are multiplied by; default: 1 / sqrt(Dk).
        position_bias: broadcastable to [..., Tq, Tk], added to the scaled products.

    Returns:
        The output [..., Tq, Dv] and the attention weights [..., Tq, Tk], before dropout.
    """
    if scale is None:
        scores = scaled_dot_scores(query, key)
    else:
        scores = dot_scores(query, key) if scale == 1.0 else dot_scores(query, key) * scale
    if position_bias is not None:
        scores = scores + position_bias
    weights = masked_softmax(scores, mask)
    kept = F.dropout(weights, dropout) if dropout else weights
    return context(kept, value), weights


@torch.library.custom_op("jumok::fused_attention", mutates_args=())
def fused_attention(  # noqa: PLR0917 - the operator's arguments
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor | None,
    bias: Tensor | None,
    heads: int,
    scale: float,
) -> Tensor:
    """Multi-head attention without its weights: one operator of ONNX Runtime's in an exported graph.

    Args:
        query: [B, Tq, heads * Dk].
        key: [B, Tk, heads * Dk], or split into heads already, [B, heads, Tk, Dk].
        value: [B, Tk, heads * Dv], or [B, heads, Tk, Dv].
        lengths: [B] int32, how many keys of each sentence may be attended to; or None: all.
        bias: [1 or B, 1 or heads, Tq, Tk], added before the softmax; or None.
        heads: number of heads.
        scale: what the products of queries and keys are multiplied by.

    Returns:
        [B, Tq, heads * Dv].
    """
    asked, keys, values = (part if part.dim() == 4 else _split(part, heads) for part in (query, key, value))
    if lengths is not None:
        seen = torch.arange(keys.shape[2], device=lengths.device) < lengths[:, None]
        masked = torch.where(seen, 0.0, torch.finfo(query.dtype).min)[:, None, None, :]
        bias = masked if bias is None else bias + masked
    attended = F.scaled_dot_product_attention(asked, keys, values, attn_mask=bias, scale=scale)
    return attended.transpose(-3, -2).flatten(-2).contiguous()


@fused_attention.register_fake
def _(  # noqa: PLR0917 - the operator's arguments
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor | None,
    bias: Tensor | None,
    heads: int,
    scale: float,
) -> Tensor:
    width = value.shape[-1] if value.dim() == 3 else heads * value.shape[-1]
    return query.new_empty(query.shape[0], query.shape[1], width)


def _split(projected: Tensor, heads: int) -> Tensor:
    """[..., T, heads * D] to [..., heads, T, D]."""
    return torch.unflatten(projected, -1, (heads, -1)).transpose(-3, -2)


class MultiHeadAttention(nn.Module):
    """Multi-head attention: section 3.2.2 of "Attention Is All You Need".

    Queries, keys and values are projected, split into heads, attended head by head, merged, and projected
    once more: the output projection mixes the heads and is part of the definition.

    Args:
        width: width of the queries that come in and of the output.
        heads: number of heads; divides `key_width` and `value_width`.
        memory_width: width of what is attended to (default: `width`).
        key_width: width of all heads' queries and keys together (default: `width`).
        value_width: width of all heads' values together (default: `width`).
        bias: whether the four projections have a bias.
        dropout: dropout on the attention weights while training.
        scale: of the products of queries and keys; default: 1 / sqrt(width of a head's keys).
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        memory_width: int | None = None,
        key_width: int | None = None,
        value_width: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        memory_width = memory_width or width
        key_width = key_width or width
        value_width = value_width or width
        if key_width % heads or value_width % heads:
            raise ValueError(
                f"heads must divide the widths of keys ({key_width}) and values ({value_width}), got {heads}"
            )
        self.heads = heads
        self.query_projection = nn.Linear(width, key_width, bias=bias)
        self.key_projection = nn.Linear(memory_width, key_width, bias=bias)
        self.value_projection = nn.Linear(memory_width, value_width, bias=bias)
        self.output_projection = nn.Linear(value_width, width, bias=bias)
        self.dropout = dropout
        self.scale = scale
        for projection in (self.query_projection, self.key_projection, self.value_projection, self.output_projection):
            nn.init.xavier_uniform_(projection.weight)
            if bias:
                nn.init.zeros_(projection.bias)

    @property
    def key_scale(self) -> float:
        """What products of queries and keys are multiplied by."""
        return (self.query_projection.out_features // self.heads) ** -0.5 if self.scale is None else self.scale

    def split(self, projected: Tensor) -> Tensor:
        """[B, T, heads * D] to [B, heads, T, D]."""
        return _split(projected, self.heads)

    @staticmethod
    def merge(per_head: Tensor) -> Tensor:
        """[B, heads, T, D] to [B, T, heads * D]."""
        return per_head.transpose(-3, -2).flatten(-2)

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """What a KV cache holds of `memory` [B, T, memory_width]: keys and values, [B, heads, T, D] each."""
        return self.split(self.key_projection(memory)), self.split(self.value_projection(memory))

    def no_keys_values(self) -> tuple[Tensor, Tensor]:
        """Keys and values of one memory without tokens, [1, heads, 0, D] each."""
        return self.keys_values(self.key_projection.weight.new_zeros(1, 0, self.key_projection.in_features))

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, position_bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attention of `query` [B, Tq, width] over keys and values that are projected and split already.

        Args:
            query: what asks.
            key: [B, heads, Tk, D].
            value: [B, heads, Tk, D].
            mask: boolean, broadcastable to [B, heads, Tq, Tk], true where a query may attend; or None.
            position_bias: broadcastable to [B, heads, Tq, Tk], added before the softmax; or None.

        Returns:
            The output [B, Tq, width] and the weights [B, heads, Tq, Tk].
        """
        per_head = self.split(self.query_projection(query))
        attended, weights = scaled_dot_product_attention(
            per_head,
            key,
            value,
            mask,
            dropout=self.dropout if self.training else 0.0,
            scale=self.scale,
            position_bias=position_bias,
        )
        output: Tensor = self.output_projection(self.merge(attended))
        return output, weights

    def answer(
        self, query: Tensor, key: Tensor, value: Tensor, *, lengths: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """What `attend` computes, without the weights and in one operator where it is exported; for inference.

        Args:
            query: [B, Tq, width], what asks.
            key: projected keys, [B, Tk, heads * D] or [B, heads, Tk, D].
            value: projected values, likewise.
            lengths: [B] int32, how many keys may be attended to; or None: all.
            bias: [1 or B, 1 or heads, Tq, Tk], added before the softmax; or None.

        Returns:
            The output [B, Tq, width].
        """
        asked = self.query_projection(query)
        attended = fused_attention(asked, key, value, lengths, bias, self.heads, self.key_scale)
        output: Tensor = self.output_projection(attended)
        return output

    def forward(
        self, query: Tensor, memory: Tensor, mask: Tensor | None = None, position_bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attention of `query` [B, Tq, width] over `memory` [B, Tk, memory_width]; the same tensor for self-attention.

        Args:
            query: what asks.
            memory: what is attended to.
            mask: boolean, broadcastable to [B, heads, Tq, Tk], true where a query may attend.
            position_bias: broadcastable to [B, heads, Tq, Tk], added before the softmax.

        Returns:
            The output [B, Tq, width] and the weights [B, heads, Tq, Tk].
        """
        return self.attend(query, *self.keys_values(memory), mask, position_bias)


@contextmanager
def scaled_queries(model: nn.Module) -> Iterator[None]:
    """Has the projections of queries scale them, so that attention has nothing left to multiply.

    ONNX Runtime's products of one query with its keys take half the time then. Scales that are no powers of two stay,
    because what the model computes must not change by a bit.
    """
    scaled = [(module, module.scale, module.key_scale) for module in _with_exact_scales(model)]
    for module, _, scale in scaled:
        _multiply(module.query_projection, scale)
        module.scale = 1.0
    try:
        yield
    finally:
        for module, before, scale in scaled:
            _multiply(module.query_projection, 1 / scale)
            module.scale = before


def unscale_queries(model: nn.Module) -> None:
    """Undoes `scaled_queries` in a model whose weights were read from graphs that were exported within it."""
    for module in _with_exact_scales(model):
        _multiply(module.query_projection, 1 / module.key_scale)


def _with_exact_scales(model: nn.Module) -> list[MultiHeadAttention]:
    """Those that scale by a power of two."""
    attention = (module for module in model.modules() if isinstance(module, MultiHeadAttention))
    return [module for module in attention if module.key_scale != 1.0 and math.frexp(module.key_scale)[0] == 0.5]


def _multiply(layer: nn.Linear, factor: float) -> None:
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(factor)
