"""Score functions and softmax: a worked example, and frequent mistakes, which give other numbers."""

import math

import pytest
import torch
from torch import Tensor

from jumok_export.models.attention import (
    MultiHeadAttention,
    additive_scores,
    dot_scores,
    masked_softmax,
    scaled_dot_product_attention,
    scaled_dot_scores,
)
from jumok_export.models.recurrent_attention import AdditiveAttention, DotAttention, GeneralAttention

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


def test_rows_are_tokens_so_projections_come_from_the_right_and_weights_from_the_left() -> None:
    # K = X W and Z = P V: with tokens in rows, W X and V P have no meaning unless all are square, and then another one.
    torch.manual_seed(1)
    tokens, memory = torch.randn(3, 4), torch.randn(3, 4)
    attention = MultiHeadAttention(4, 1, key_width=3, value_width=3, bias=False)
    output, weights = attention(tokens[None], memory[None])
    x, w = memory, attention.key_projection.weight.T  # [3, 4] and [4, 3]
    key, value = x @ w, memory @ attention.value_projection.weight.T
    p = (tokens @ attention.query_projection.weight.T @ key.T / math.sqrt(3)).softmax(dim=-1)
    torch.testing.assert_close(weights[0, 0], p)
    torch.testing.assert_close(output[0], p @ value @ attention.output_projection.weight.T)
    assert not torch.allclose(output[0], value @ p @ attention.output_projection.weight.T, atol=1e-2)
    assert (w @ x).shape != key.shape


def test_heads_are_mixed_by_an_output_projection() -> None:
    torch.manual_seed(2)
    attention = MultiHeadAttention(6, 3, bias=False)
    x = torch.randn(1, 4, 6)
    output, weights = attention(x, x)
    heads = attention.merge(weights @ attention.keys_values(x)[1])
    torch.testing.assert_close(output, heads @ attention.output_projection.weight.T)
    assert not torch.allclose(output, heads, atol=1e-2)


def test_general_is_a_full_matrix_between_states_of_different_width() -> None:
    torch.manual_seed(3)
    query, key, weight = torch.randn(2, 5), torch.randn(4, 3), torch.randn(5, 3)  # [decoder width, encoder width]
    expected = [[float(q @ weight @ k) for k in key] for q in query]
    torch.testing.assert_close(general_scores(query, key, weight), torch.tensor(expected))
    # A weight per dimension is its special case of equal widths and a diagonal matrix.
    diagonal = torch.randn(3)
    same = general_scores(query[:, :3], key, diagonal.diag())
    torch.testing.assert_close(same, dot_scores(query[:, :3] * diagonal, key))


def general_scores(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    """Scores by `GeneralAttention` with a given weight."""
    attention = GeneralAttention(*weight.shape)
    assert attention.key_projection.weight.shape == weight.shape
    attention.key_projection.weight = torch.nn.Parameter(weight)
    return attention.scores(query[None], attention.keys(key[None]))[0].detach()


def test_dot_needs_one_width_and_names_an_alternative() -> None:
    with pytest.raises(ValueError, match="a decoder of width 5 and an encoder of width 3: take attention 'general'"):
        DotAttention(5, 3)


def test_additive_is_concat_with_the_matrix_in_two_parts() -> None:
    torch.manual_seed(4)
    attention = AdditiveAttention(5, 3)
    query, key = torch.randn(1, 2, 5), torch.randn(1, 4, 3)
    whole = torch.cat((attention.query_projection.weight, attention.key_projection.weight), dim=1)  # W_a, [5, 5 + 3]
    expected = [[(attention.weight @ torch.tanh(whole @ torch.cat((q, k)))).item() for k in key[0]] for q in query[0]]
    torch.testing.assert_close(attention.scores(query, attention.keys(key))[0], torch.tensor(expected))
    by_hand = additive_scores(torch.tensor([[0.5, -1.0]]), torch.tensor([[0.5, 1.0]]), torch.tensor([2.0, 7.0]))
    assert by_hand.item() == pytest.approx(2 * math.tanh(1.0))


def test_scaling_divides_by_the_root_of_the_width() -> None:
    query, key = torch.ones(1, 16), torch.ones(2, 16)
    assert dot_scores(query, key).tolist() == [[16.0, 16.0]]
    assert scaled_dot_scores(query, key).tolist() == [[4.0, 4.0]]
