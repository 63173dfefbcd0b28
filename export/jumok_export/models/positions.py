"""Absolute positions as tables of vectors, and relative positions as buckets."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def sinusoidal_positions(positions: int, width: int) -> Tensor:
    """Sine on even, cosine on odd dimensions, [positions, width]: Vaswani et al. (2017), section 3.5.

    Raises:
        ValueError: `width` is odd.
    """
    if width % 2:
        raise ValueError(f"width must be even for sinusoidal positions, got {width}")
    angle = torch.arange(positions)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)


def halved_positions(positions: int, width: int) -> Tensor:
    """Sinusoidal positions as in Marian, [positions, width]: sines first, then cosines.

    An odd width has one more sine than cosines.
    """
    rates = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.arange(positions, dtype=torch.float64)[:, None] * rates
    return torch.cat((angle.sin(), angle.cos()[:, : width // 2]), dim=1).float()


def fairseq_positions(positions: int, width: int) -> Tensor:
    """Sinusoidal positions as in fairseq, [positions, width]: sines first, then cosines.

    The slowest angle is 1/10000 of the fastest. An odd width has a zero at the end. Computed in float32, because
    published models round the angles in this way.
    """
    half = width // 2
    rates = torch.exp(torch.arange(half).float() * -(math.log(10000.0) / (half - 1)))
    angle = torch.arange(positions).float()[:, None] * rates
    return torch.cat((angle.sin(), angle.cos(), torch.zeros(positions, width % 2)), dim=1)


class Positions(nn.Module):
    """Absolute positions: one vector a position, from a table.

    Args:
        table: vectors of the positions 0 .. N - 1, [N, width].
    """

    table: Tensor

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table, persistent=False)

    def of_sequence(self, token_ids: Tensor) -> Tensor:
        """Look up the vectors of whole sequences [B, T]; broadcastable to [B, T, width]."""
        return self.table[torch.arange(token_ids.shape[1], device=token_ids.device)]

    def of_tokens(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """Look up the vectors of tokens at their positions; broadcastable to [*token_ids.shape, width]."""
        return self.table[positions]


class PositionsWithoutPadding(Positions):
    """Absolute positions that skip padding, whose vector is zero."""

    def __init__(self, table: Tensor, pad: int) -> None:
        super().__init__(table)
        self.pad = pad

    def of_sequence(self, token_ids: Tensor) -> Tensor:
        """See `Positions`."""
        positions = (token_ids != self.pad).long().cumsum(dim=1) - 1
        return self.of_tokens(token_ids, positions.clamp(min=0))

    def of_tokens(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """See `Positions`."""
        vectors = self.table[positions]
        return vectors * (token_ids != self.pad)[..., None].to(vectors.dtype)


def distance_buckets(buckets: int, max_distance: int) -> Tensor:
    """Buckets of the distances 0 .. `max_distance`, [max_distance + 1].

    Buckets of the first half hold one distance each. The bounds of the others grow by a constant factor: section 2.1 of
    "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer" (Raffel et al., 2020).

    Raises:
        ValueError: too few buckets or distances.
    """
    exact = buckets // 2
    if not 1 <= exact < max_distance:
        raise ValueError(f"{buckets} buckets for distances up to {max_distance}: at least 2, and distances beyond half")
    # On the CPU in float32 on any default device, because published models round the bounds in this way.
    distances = torch.arange(max_distance + 1, device="cpu")
    growth = torch.log(distances.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    beyond = exact + (growth * (buckets - exact)).long()
    return torch.where(distances < exact, distances, beyond.clamp(max=buckets - 1))


class RelativePositions(nn.Module):
    """Learned bias of attention scores by distance between query and key (Raffel et al., 2020).

    Args:
        max_distance: distance from which all distances share a bucket.
        bidirectional: True to give keys after the query half of the buckets; else these keys share bucket 0.
    """

    buckets: Tensor

    def __init__(self, heads: int, *, buckets: int, max_distance: int, bidirectional: bool) -> None:
        super().__init__()
        self.max_distance = max_distance
        self.after = buckets // 2 if bidirectional else 0
        self.bias = nn.Embedding(buckets, heads)
        each = distance_buckets(buckets // 2 if bidirectional else buckets, max_distance)
        self.register_buffer("buckets", each, persistent=False)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Compute the bias.

        Args:
            queries: positions of the queries, [..., Tq].
            keys: positions of the keys, [Tk] or [..., Tk].

        Returns:
            [..., heads, Tq, Tk].
        """
        distance = queries[..., None] - keys[..., None, :]  # [..., Tq, Tk]
        if self.after:
            bucket = self.buckets[distance.abs().clamp(max=self.max_distance)] + (distance < 0) * self.after
        else:
            bucket = self.buckets[distance.clamp(0, self.max_distance)]
        bias: Tensor = F.embedding(bucket, self.bias.weight)
        return bias.movedim(-1, -3)
