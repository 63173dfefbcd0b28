"""Score functions and softmax: a worked example, and frequent mistakes, which give other numbers."""

import math

import torch
from torch import Tensor

from jumok_export.models.attention import (
    MultiHeadAttention,
    dot_scores,
    masked_softmax,
    scaled_dot_product_attention,
)

DECODER_STATE = torch.tensor([[10.0, 5.0, 10.0]], dtype=torch.float64)  # [1, 3]
ENCODER_STATES = torch.tensor([[0, 1, 1], [5, 0, 1], [1, 1, 0], [0, 5, 1]], dtype=torch.float64)  # [4, 3]
WEIGHTS = [2.86251858e-20, 1.0, 2.86251858e-20, 1.38879439e-11]


def close(found: Tensor, expected: list[float]) -> None:
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-8, atol=0)


def test_a_decoder_state_over_four_encoder_states() -> None:
    scores = dot_scores(DECODER_STATE, ENCODER_STATES)
    assert scores.tolist() == [[15.0, 60.0, 15.0, 35.0]]
    weights = masked_softmax(scores, None)
    close(weights[0], WEIGHTS)
    weighted = weights[0][:, None] * ENCODER_STATES
    assert weighted.shape == (4, 3)
    close(weighted[1], [5.0, 0.0, 1.0])
    assert weighted[[0, 2, 3]].abs().max() < 1e-10
    found = (weights @ ENCODER_STATES)[0]
    assert found.shape == (3,)
    close(found, [5.0, 6.94397194e-11, 1.0])
    torch.testing.assert_close(found, weighted.sum(dim=0))


def test_scores_are_not_exponentiated_before_the_softmax() -> None:
    scores = torch.tensor([[0.0, math.log(3.0)]])
    torch.testing.assert_close(masked_softmax(scores, None), torch.tensor([[0.25, 0.75]]))
    assert masked_softmax(scores.exp(), None)[0, 1] > 0.85  # softmax of (1, 3)


def test_the_softmax_of_large_scores_is_finite() -> None:
    scores = torch.tensor([[1000.0, 1000.0 + math.log(3.0), -1000.0]])
    assert torch.isinf(scores.exp()).any()  # which a softmax that does not subtract the largest score divides by
    torch.testing.assert_close(masked_softmax(scores, None), torch.tensor([[0.25, 0.75, 0.0]]), rtol=1e-4, atol=0)
    masked = masked_softmax(scores, torch.tensor([[True, True, False], [False, False, False]]))
    torch.testing.assert_close(masked, torch.tensor([[0.25, 0.75, 0.0], [0.0, 0.0, 0.0]]), rtol=1e-4, atol=0)


def test_on_shifted_inputs_a_token_sees_itself() -> None:
    # Row i may not see j > i; a mask of j >= i would leave nothing to the first row.
    torch.manual_seed(0)
    query, value = torch.randn(4, 3), torch.randn(4, 2)
    places = torch.arange(4)
    output, weights = scaled_dot_product_attention(query, query, value, places[:, None] >= places)
    assert weights[0].tolist() == [1.0, 0.0, 0.0, 0.0]
    torch.testing.assert_close(output[0], value[0])
    assert (weights.triu(1) == 0).all()
    assert (weights.diagonal() > 0).all()
    strict, _ = scaled_dot_product_attention(query, query, value, places[:, None] > places)
    assert (strict[0] == 0).all()


def test_heads_are_mixed_by_an_output_projection() -> None:
    torch.manual_seed(2)
    attention = MultiHeadAttention(6, 3, bias=False)
    x = torch.randn(1, 4, 6)
    output, weights = attention(x, x)
    heads = attention.merge(weights @ attention.keys_values(x)[1])
    torch.testing.assert_close(output, heads @ attention.output_projection.weight.T)
    assert not torch.allclose(output, heads, atol=1e-2)
