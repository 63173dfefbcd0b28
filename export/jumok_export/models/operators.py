"""Custom PyTorch operators that exported graphs compute by one ONNX operator each."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jumok_export.models.cells import CELLS, CellKind, run_cell


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
    """Compute multi-head attention without giving out its weights: ONNX Runtime's `MultiHeadAttention`.

    Args:
        query: [B, Tq, heads * Dk].
        key: [B, Tk, heads * Dk] or, split into heads, [B, heads, Tk, Dk].
        value: [B, Tk, heads * Dv] or [B, heads, Tk, Dv].
        lengths: number of keys to attend to, [B] int32; None: all keys.
        bias: added before the softmax, [1 or B, 1 or heads, Tq, Tk]; or None.
        scale: factor of the products of queries and keys.

    Returns:
        [B, Tq, heads * Dv].
    """
    queries, keys, values = (
        part if part.dim() == 4 else torch.unflatten(part, -1, (heads, -1)).transpose(-3, -2)
        for part in (query, key, value)
    )
    if lengths is not None:
        within = torch.arange(keys.shape[2], device=lengths.device) < lengths[:, None]
        masked = torch.where(within, 0.0, torch.finfo(query.dtype).min)[:, None, None, :]
        bias = masked if bias is None else bias + masked
    attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias, scale=scale)
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


@torch.library.custom_op("jumok::write", mutates_args=())
def write(buffer: Tensor, places: Tensor, values: Tensor, heads: int) -> Tensor:
    """Write one vector a head into a KV cache: ONNX's `ScatterND`.

    ONNX Runtime copies nothing if the input and the output are bound to one buffer.

    Args:
        buffer: [B, heads, E, D].
        places: indices into the first three axes of `buffer`, [B, K, heads, 3].
        values: [B, K, heads * D].

    Returns:
        The written buffer, [B, heads, E, D].
    """
    return buffer.index_put(places.unbind(-1), torch.unflatten(values, -1, (heads, -1)))


@write.register_fake
def _(buffer: Tensor, places: Tensor, values: Tensor, heads: int) -> Tensor:
    return torch.empty_like(buffer)


@torch.library.custom_op("jumok::recurrent_layer", mutates_args=())
def recurrent_layer(  # noqa: PLR0917 - the operator's arguments
    x: Tensor,
    lengths: Tensor,
    input_weight: Tensor,
    input_bias: Tensor,
    hidden_weight: Tensor,
    hidden_bias: Tensor,
    kind: str,
    backwards: bool,
) -> tuple[Tensor, Tensor]:
    """Run a recurrent layer over whole sequences, as `run_cell` does.

    In ONNX this is `LSTM`, `GRU` or `RNN`.

    Args:
        x: [B, S, inputs], padded.
        lengths: [B].
        input_weight: [gates * width, inputs].
        input_bias: [gates * width].
        hidden_weight: [gates * width, width].
        hidden_bias: [gates * width].
        backwards: True to read sequences from their ends.

    Returns:
        Hidden states [B, S, width], and the n last states side by side, [B, n * width].
    """
    cell = CELLS[cast(CellKind, kind)](x.shape[-1], hidden_weight.shape[1])
    for layer, weight, bias in (
        (cell.input_projection, input_weight, input_bias),
        (cell.hidden_projection, hidden_weight, hidden_bias),
    ):
        layer.weight, layer.bias = (nn.Parameter(value, requires_grad=False) for value in (weight, bias))
    states, last = run_cell(cell, x, lengths, backwards=backwards)
    return states, torch.cat(last, dim=-1)


@recurrent_layer.register_fake
def _(  # noqa: PLR0917 - the operator's arguments
    x: Tensor,
    lengths: Tensor,
    input_weight: Tensor,
    input_bias: Tensor,
    hidden_weight: Tensor,
    hidden_bias: Tensor,
    kind: str,
    backwards: bool,
) -> tuple[Tensor, Tensor]:
    width = hidden_weight.shape[1]
    states = len(CELLS[cast(CellKind, kind)].state_names)
    return x.new_empty(x.shape[0], x.shape[1], width), x.new_empty(x.shape[0], states * width)
