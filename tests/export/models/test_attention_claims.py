"""Popular explanations of attention that are wrong, each with what is so."""

from pathlib import Path

import pytest
import torch

from jumok_export.models.attention import MultiHeadAttention, masked_softmax, scaled_dot_product_attention
from jumok_export.models.positions import sinusoidal_positions
from jumok_serve import Translator

MODELS = Path(__file__).parents[3] / "models"
TEXT, TARGET = "Two young women with red hats.", "Zwei junge Frauen mit roten Hüten."


@pytest.mark.parametrize("model", ["multi30k-en-de-lstm", "multi30k-en-de-transformer"])
def test_attention_is_no_alignment(model: str) -> None:
    with Translator(MODELS / model) as translator:
        found = translator.align(TEXT, TARGET).words()
    end = len(found.source_tokens) - 1
    assert found.source_tokens[end].special
    assert found.cross is not None
    words = found.cross.mean[:-1]
    # The end token translates nothing, so an alignment links no word to it.
    assert max(row[end] for row in words) > 0.1
    assert all(sum(row) == pytest.approx(1.0, abs=1e-3) for row in words)


def test_weights_sum_to_one_for_each_query() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(3, 8), torch.randn(5, 8)
    _, weights = scaled_dot_product_attention(query, key, key)
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(3))
    assert (weights.sum(dim=0) - 1).abs().min() > 0.05


def test_self_attention_projects_the_same_vectors() -> None:
    torch.manual_seed(1)
    attention, x = MultiHeadAttention(6, 1), torch.randn(1, 4, 6)
    projections = attention.query_projection, attention.key_projection, attention.value_projection
    query, key, value = (projection(x) for projection in projections)
    expected, _ = scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(attention(x, x)[0], attention.output_projection(expected))
    # They differ because the matrices do, not because the inputs do.
    assert not torch.allclose(query, key, atol=1e-2)


def test_without_positions_order_does_not_matter() -> None:
    torch.manual_seed(2)
    attention, x, order = MultiHeadAttention(8, 2), torch.randn(1, 5, 8), torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(attention(x[:, order], x[:, order])[0], attention(x, x)[0][:, order])
    placed, moved = x + sinusoidal_positions(5, 8), x[:, order] + sinusoidal_positions(5, 8)
    assert not torch.allclose(attention(moved, moved)[0], attention(placed, placed)[0][:, order], atol=1e-2)


def test_softmax_depends_on_differences() -> None:
    scores = torch.tensor([[15.0, 60.0, 15.0, 35.0]], dtype=torch.float64)
    torch.testing.assert_close(masked_softmax(scores - 60, None), masked_softmax(scores, None))
    tenth = masked_softmax(scores / 10, None)
    torch.testing.assert_close(
        tenth, torch.tensor([[0.0101, 0.9056, 0.0101, 0.0743]], dtype=torch.float64), atol=1e-4, rtol=0
    )
    assert masked_softmax(scores, None)[0, 3] < 1e-10
