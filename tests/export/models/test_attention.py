"""Attention against a table worked by hand, and against PyTorch's multi-head attention."""

import math

import pytest
import torch
from torch import Tensor, nn

from jumok_export.models.attention import (
    MultiHeadAttention,
    masked_softmax,
    scaled_dot_product_attention,
    scaled_queries,
)

LN3 = math.log(3.0)


def test_a_table_worked_by_hand() -> None:
    # Width 4, so scores are halved: [0, ln 3] and [ln 3, 0]; the softmax of (0, ln 3) is (1/4, 3/4).
    query = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    key = torch.tensor([[0.0, 2 * LN3, 5.0, 0.0], [2 * LN3, 0.0, 0.0, -1.0]])
    value = torch.tensor([[4.0, 0.0, 1.0], [8.0, 4.0, 1.0]])
    output, weights = scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(weights, torch.tensor([[0.25, 0.75], [0.75, 0.25]]))
    torch.testing.assert_close(output, torch.tensor([[7.0, 3.0, 1.0], [5.0, 1.0, 1.0]]))


def test_a_mask_leaves_the_rest_to_share_the_weight() -> None:
    scores = torch.tensor([[0.0, LN3, 7.0], [5.0, 1.0, 1.0]])
    mask = torch.tensor([[True, True, False], [False, True, True]])
    expected = torch.tensor([[0.25, 0.75, 0.0], [0.0, 0.5, 0.5]])
    torch.testing.assert_close(masked_softmax(scores, mask), expected)


def test_a_row_that_may_attend_nowhere_is_zero_and_has_a_gradient() -> None:
    query, key, value = (torch.randn(2, 3, requires_grad=True) for _ in range(3))
    mask = torch.tensor([[False, False], [True, True]])
    output, weights = scaled_dot_product_attention(query, key, value, mask)
    assert (weights[0] == 0).all()
    assert (output[0] == 0).all()
    torch.autograd.backward(output.sum())
    assert query.grad is not None
    assert query.grad.isfinite().all()


def test_dropout_drops_weights_from_the_sum_and_not_from_what_is_returned() -> None:
    torch.manual_seed(1)
    query, key, value = torch.randn(50, 4), torch.randn(9, 4), torch.ones(9, 1)
    output, weights = scaled_dot_product_attention(query, key, value, dropout=0.5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(50))
    assert output.std() > 0.1  # the kept weights no longer add up to 1
    assert output.mean() == pytest.approx(1.0, abs=0.2)  # but they do on average


def copy_attention(own: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    """Copy the weights into PyTorch's module."""
    projections = (own.query_projection, own.key_projection, own.value_projection)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([projection.weight for projection in projections]))
        theirs.in_proj_bias.copy_(torch.cat([projection.bias for projection in projections]))
    theirs.out_proj.load_state_dict(own.output_projection.state_dict())


def randomize(module: nn.Module) -> None:
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)


@pytest.mark.parametrize("mask", [None, "padding", "causal", "both"])
def test_multi_head_attention_is_pytorchs(mask: str | None) -> None:
    torch.manual_seed(2)
    width, batch, length = 12, 3, 5
    own = MultiHeadAttention(width, heads=4)
    randomize(own)
    theirs = nn.MultiheadAttention(width, own.heads, batch_first=True)
    copy_attention(own, theirs)
    query, memory = torch.randn(2, batch, length, width)
    padding = torch.arange(length) < torch.tensor([5, 3, 1])[:, None]  # [B, Tk]
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    of_padding = padding[:, None, None, :]
    masks: dict[str | None, Tensor | None] = {"padding": of_padding, "causal": causal, "both": of_padding & causal}
    output, weights = own(query, memory, masks.get(mask))
    given = {
        "key_padding_mask": ~padding if mask in ("padding", "both") else None,
        "attn_mask": ~causal if mask in ("causal", "both") else None,
    }
    expected, expected_weights = theirs(query, memory, memory, average_attn_weights=False, **given)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(weights, expected_weights)


def test_values_may_be_wider_or_narrower_than_keys() -> None:
    torch.manual_seed(3)
    attention = MultiHeadAttention(12, heads=2, memory_width=7, key_width=4, value_width=10)
    randomize(attention)
    query, memory = torch.randn(2, 3, 12), torch.randn(2, 5, 7)
    output, weights = attention(query, memory)
    assert output.shape == (2, 3, 12)
    assert weights.shape == (2, 2, 3, 5)
    # One head after the other, by the definition.
    heads = []
    for head in range(2):
        keys, values = slice(2 * head, 2 * head + 2), slice(5 * head, 5 * head + 5)
        q = attention.query_projection(query)[..., keys]
        k = attention.key_projection(memory)[..., keys]
        v = attention.value_projection(memory)[..., values]
        heads.append((q @ k.transpose(1, 2) / math.sqrt(2)).softmax(-1) @ v)
    torch.testing.assert_close(output, attention.output_projection(torch.cat(heads, dim=-1)))


def test_heads_must_divide_the_widths() -> None:
    with pytest.raises(ValueError, match=r"keys \(12\) and values \(10\), got 4"):
        MultiHeadAttention(12, heads=4, value_width=10)


@pytest.mark.parametrize(("key_width", "folded"), [(32, True), (24, False)])
def test_queries_take_over_the_scale_if_that_changes_no_bit(key_width: int, folded: bool) -> None:
    torch.manual_seed(0)
    attention = MultiHeadAttention(16, 2, key_width=key_width)
    query, memory = torch.randn(2, 3, 16), torch.randn(2, 5, 16)
    weights = attention.query_projection.weight.clone()
    before, _ = attention(query, memory)
    with torch.no_grad(), scaled_queries(attention):
        assert attention.key_scale == (1.0 if folded else 12**-0.5)
        torch.testing.assert_close(attention(query, memory)[0], before, rtol=0, atol=0)
    assert attention.scale is None
    torch.testing.assert_close(attention.query_projection.weight, weights, rtol=0, atol=0)


@pytest.mark.parametrize("split", [False, True])
def test_fused_attention_computes_what_attention_does(split: bool) -> None:
    torch.manual_seed(1)
    attention = MultiHeadAttention(16, 4, scale=0.3)
    query, memory = torch.randn(3, 2, 16), torch.randn(3, 6, 16)
    lengths, bias = torch.tensor([6, 1, 4]), torch.randn(1, 4, 2, 6)
    mask = (torch.arange(6) < lengths[:, None])[:, None, None, :]
    key, value = attention.keys_values(memory)
    expected, _ = attention.attend(query, key, value, mask, bias)
    if not split:
        key, value = attention.key_projection(memory), attention.value_projection(memory)
    found = attention.attend_fused(query, key, value, lengths=lengths.to(torch.int32), bias=bias)
    torch.testing.assert_close(found, expected)
