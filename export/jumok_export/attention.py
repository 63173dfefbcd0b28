"""Attention: masked softmax, scaled dot-product attention, and multi-head attention built from them."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over the last axis, restricted to the places where `mask` is true.

    Args:
        scores: [..., Tq, Tk].
        mask: boolean, broadcastable to `scores`; true where the query may attend. None: everywhere.

    Returns:
        Weights of the shape of `scores`: each row sums to 1, exactly 0 where masked. A row that is masked
        everywhere is all zeros rather than NaN, so that a padded query adds nothing.
    """
    if mask is None:
        return scores.softmax(dim=-1)
    weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1)
    return weights * mask.any(dim=-1, keepdim=True).to(weights.dtype)


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
    scores = query @ key.transpose(-2, -1)
    if scale is None:
        scores = scores / math.sqrt(query.shape[-1])
    elif scale != 1.0:
        scores = scores * scale
    if position_bias is not None:
        scores = scores + position_bias
    weights = masked_softmax(scores, mask)
    kept = F.dropout(weights, dropout) if dropout else weights
    return kept @ value, weights


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

    def split(self, projected: Tensor) -> Tensor:
        """[B, T, heads * D] to [B, heads, T, D]."""
        return torch.unflatten(projected, -1, (self.heads, -1)).transpose(-3, -2)

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
