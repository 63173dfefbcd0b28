"""Position tables and buckets of relative positions against transformers' own."""

from typing import Any

import pytest
import torch
from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.t5.modeling_t5 import T5Attention

from jumok_export.models.positions import (
    PositionsWithoutPadding,
    RelativePositions,
    distance_buckets,
    fairseq_positions,
    halved_positions,
)

# They are not typed.
MARIAN: Any = MarianSinusoidalPositionalEmbedding
T5: Any = T5Attention


@pytest.mark.parametrize("width", [6, 7, 512])
def test_halved_positions_are_marians(width: int) -> None:
    expected = MARIAN(600, width).create_weight()
    torch.testing.assert_close(halved_positions(600, width), expected, atol=1e-7, rtol=0)


@pytest.mark.parametrize("width", [6, 7, 1024])
def test_fairseq_positions_are_m2m100s(width: int) -> None:
    expected = M2M100SinusoidalPositionalEmbedding.get_embedding(1026, width)
    torch.testing.assert_close(fairseq_positions(1026, width), expected, atol=1e-7, rtol=0)


def test_padding_is_not_counted_in_sequences_and_has_no_vector() -> None:
    table = torch.arange(1.0, 7).repeat(2, 1).T  # the vector of place p is (p + 1, p + 1)
    positions = PositionsWithoutPadding(table, pad=9)
    sequence = torch.tensor([[5, 9, 3, 9, 9, 0], [9, 9, 9, 9, 9, 9]])
    found = positions.of_sequence(sequence)[..., 0]
    assert found.tolist() == [[1, 0, 2, 0, 0, 3], [0, 0, 0, 0, 0, 0]]
    assert positions.of_tokens(torch.tensor([5, 9]), torch.tensor([4, 4])).tolist() == [[5, 5], [0, 0]]


@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 6), (9, 20), (4, 3), (64, 512), (33, 100)])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_relative_positions_are_t5s(buckets: int, max_distance: int, *, bidirectional: bool) -> None:
    queries, keys = torch.tensor([0, 7, 250, 999]), torch.arange(1000)
    expected = T5._relative_position_bucket(
        keys - queries[:, None], bidirectional=bidirectional, num_buckets=buckets, max_distance=max_distance
    )
    relative = RelativePositions(2, buckets=buckets, max_distance=max_distance, bidirectional=bidirectional)
    found = relative(queries, keys)  # [2, 4, 1000]
    torch.testing.assert_close(found, relative.bias.weight[expected].permute(2, 0, 1), atol=0, rtol=0)
    # The same where every row is a sequence of its own with one query: [4, 2, 1, 1000].
    torch.testing.assert_close(relative(queries[:, None], keys)[:, :, 0], found.transpose(0, 1), atol=0, rtol=0)


@pytest.mark.parametrize(("buckets", "max_distance"), [(1, 128), (32, 16)])
def test_buckets_that_cannot_grow_are_refused(buckets: int, max_distance: int) -> None:
    with pytest.raises(ValueError, match=rf"{buckets} buckets for distances up to {max_distance}: "):
        distance_buckets(buckets, max_distance)
