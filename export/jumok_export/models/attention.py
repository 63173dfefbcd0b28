"""Attention: score functions, masked softmax, and multi-head attention."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jumok_export.models.operators import fused_attention


def dot_scores(query: Tensor, key: Tensor) -> Tensor:
    """q . k: "dot" in equation 8 of "Effective Approaches to Attention-based NMT" (Luong et al., 2015).

    Args:
        query: [..., Tq, D].
        key: [..., Tk, D].

    Returns:
        Scores [..., Tq, Tk].
    """
    return query @ key.transpose(-2, -1)


def scaled_dot_scores(query: Tensor, key: Tensor) -> Tensor:
    """q . k / sqrt(D): equation 1 of "Attention Is All You Need" (Vaswani et al., 2017).

    Products of vectors with D independent components of variance 1 have variance D. The division brings the variance
    back to 1, where the softmax is not saturated. Shapes are those of `dot_scores`.
    """
    return dot_scores(query, key) / math.sqrt(query.shape[-1])


def additive_scores(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    """v . tanh(q + k) of projected queries and keys.

    Equation 8 of "Neural Machine Translation by Jointly Learning to Align and Translate" (Bahdanau et al., 2015, in
    appendix A.1.2), and "concat" in equation 8 of Luong et al. (2015): W [q; k] is a sum of two projections.

    Args:
        query: projected, [..., Tq, D].
        key: projected, [..., Tk, D].
        weight: v, [D].

    Returns:
        Scores [..., Tq, Tk].
    """
    return torch.tanh(query[..., :, None, :] + key[..., None, :, :]) @ weight


def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over the last axis, restricted to the elements where `mask` is true.

    Args:
        scores: [..., Tq, Tk].
        mask: boolean, broadcastable to `scores`, true where the query may attend; None: everywhere.

    Returns:
        Weights of the shape of `scores`. A row sums to 1 and is exactly 0 where masked. A row that is masked everywhere
        is all zeros rather than NaN, so that a padded query adds nothing.
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
    """softmax(Q K^T / sqrt(d_k)) V: equation 1 of Vaswani et al. (2017).

    Args:
        query: [..., Tq, Dk].
        key: [..., Tk, Dk].
        value: [..., Tk, Dv].
        mask: boolean, broadcastable to [..., Tq, Tk], true where a query may attend; or None.
        dropout: probability of dropping a weight before the values are summed.
        scale: factor of the products of queries and keys; default: 1 / sqrt(Dk).
        position_bias: added to the scaled products, broadcastable to [..., Tq, Tk]; or None.

    Returns:
        The output [..., Tq, Dv] and the attention weights before dropout, [..., Tq, Tk].
    """
    if scale is None:
        scores = scaled_dot_scores(query, key)
    else:
        scores = dot_scores(query, key) if scale == 1.0 else dot_scores(query, key) * scale
    if position_bias is not None:
        scores = scores + position_bias
    weights = masked_softmax(scores, mask)
    kept = F.dropout(weights, dropout) if dropout else weights
    return kept @ value, weights


class MultiHeadAttention(nn.Module):
    """Multi-head attention: section 3.2.2 of "Attention Is All You Need".

    Args:
        heads: number of heads; divides `key_width` and `value_width`.
        memory_width: width of the attended sequence (default: `width`).
        key_width: width of the queries and keys of all heads together (default: `width`).
        value_width: width of the values of all heads together (default: `width`).
        scale: factor of the products of queries and keys; default: 1 / sqrt(width of a head's keys).

    Raises:
        ValueError: the heads do not divide the widths.
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
        """Factor of the products of queries and keys."""
        return (self.query_projection.out_features // self.heads) ** -0.5 if self.scale is None else self.scale

    def split(self, projected: Tensor) -> Tensor:
        """Split [B, T, heads * D] into heads, [B, heads, T, D]."""
        return torch.unflatten(projected, -1, (self.heads, -1)).transpose(-3, -2)

    @staticmethod
    def merge(per_head: Tensor) -> Tensor:
        """Merge the heads of [B, heads, T, D] into [B, T, heads * D]."""
        return per_head.transpose(-3, -2).flatten(-2)

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Project `memory` [B, T, memory_width] to keys and values, [B, heads, T, D]."""
        return self.split(self.key_projection(memory)), self.split(self.value_projection(memory))

    def empty_keys_values(self) -> tuple[Tensor, Tensor]:
        """Keys and values of a sequence without tokens, [1, heads, 0, D] each."""
        return self.keys_values(self.key_projection.weight.new_zeros(1, 0, self.key_projection.in_features))

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, position_bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attend to projected keys and values; returns the attention weights too.

        Args:
            query: [B, Tq, width].
            key: [B, heads, Tk, D].
            value: [B, heads, Tk, D].
            mask: boolean, broadcastable to [B, heads, Tq, Tk], true where a query may attend; or None.
            position_bias: added before the softmax, broadcastable to [B, heads, Tq, Tk]; or None.

        Returns:
            The output [B, Tq, width] and the weights [B, heads, Tq, Tk].
        """
        attended, weights = scaled_dot_product_attention(
            self.split(self.query_projection(query)),
            key,
            value,
            mask,
            dropout=self.dropout if self.training else 0.0,
            scale=self.scale,
            position_bias=position_bias,
        )
        output: Tensor = self.output_projection(self.merge(attended))
        return output, weights

    def attend_fused(
        self, query: Tensor, key: Tensor, value: Tensor, *, lengths: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """Attend as `attend` does, in one exported operator and without the weights; for inference.

        Args:
            query: [B, Tq, width].
            key: projected keys, [B, Tk, heads * D] or [B, heads, Tk, D].
            value: projected values, in one of these shapes.
            lengths: number of keys to attend to, [B] int32; None: all keys.
            bias: added before the softmax, [1 or B, 1 or heads, Tq, Tk]; or None.

        Returns:
            The output [B, Tq, width].
        """
        projected = self.query_projection(query)
        attended = fused_attention(projected, key, value, lengths, bias, self.heads, self.key_scale)
        output: Tensor = self.output_projection(attended)
        return output

    def forward(
        self, query: Tensor, memory: Tensor, mask: Tensor | None = None, position_bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attend to `memory`, [B, Tk, memory_width]; see `attend`."""
        return self.attend(query, *self.keys_values(memory), mask, position_bias)


@contextmanager
def scaled_queries(model: nn.Module) -> Iterator[None]:
    """Fold attention scales into query projections during an export.

    ONNX Runtime multiplies one query with its keys in half the time then. Only powers of two are folded, because the
    model's results must not change by a bit.
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
    """Undo `scaled_queries` in a model whose weights were read from exported graphs."""
    for module in _with_exact_scales(model):
        _multiply(module.query_projection, 1 / module.key_scale)


def _with_exact_scales(model: nn.Module) -> list[MultiHeadAttention]:
    """Attention modules whose scale is a power of two other than 1."""
    attention = (module for module in model.modules() if isinstance(module, MultiHeadAttention))
    return [module for module in attention if module.key_scale != 1.0 and math.frexp(module.key_scale)[0] == 0.5]


def _multiply(layer: nn.Linear, factor: float) -> None:
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(factor)
