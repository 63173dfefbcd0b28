"""Where a token stands: tables of position vectors, and the buckets of relative positions."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def sinusoidal_positions(positions: int, width: int) -> Tensor:
    """Sine on even, cosine on odd dimensions: section 3.5 of "Attention Is All You Need"; [positions, width].

    Raises:
        ValueError: `width` is odd.
    """
    if width % 2:
        raise ValueError(f"width must be even for sinusoidal positions, got {width}")
    angle = torch.arange(positions)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)


def halved_positions(positions: int, width: int) -> Tensor:
    """The same sines on the first half of the dimensions, the cosines on the second, as in Marian; [positions, width].

    An odd width has one sine more than cosines.
    """
    rates = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.arange(positions, dtype=torch.float64)[:, None] * rates
    return torch.cat((angle.sin(), angle.cos()[:, : width // 2]), dim=1).float()


def fairseq_positions(positions: int, width: int) -> Tensor:
    """Sines and cosines in halves too, whose slowest angle is 1/10000 of the fastest; [positions, width].

    An odd width has a zero at the end. It is computed in float32, for the angles are rounded so in published models.
    """
    half = width // 2
    rates = torch.exp(torch.arange(half).float() * -(math.log(10000.0) / (half - 1)))
    angle = torch.arange(positions).float()[:, None] * rates
    return torch.cat((angle.sin(), angle.cos(), torch.zeros(positions, width % 2)), dim=1)


class Positions(nn.Module):
    """Absolute positions: a vector for each place, from a table.

    Args:
        table: [N, width], the vectors of the places 0 .. N - 1.
    """

    table: Tensor

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table, persistent=False)

    def of_sequence(self, token_ids: Tensor) -> Tensor:
        """Vectors of whole sequences [B, T] from their first token on, broadcastable to [B, T, width]."""
        return self.table[torch.arange(token_ids.shape[1], device=token_ids.device)]

    def of_tokens(self, token_ids: Tensor, places: Tensor) -> Tensor:
        """Vectors of single tokens, each at its place; broadcastable to [*token_ids.shape, width]."""
        return self.table[places]


class PositionsWithoutPadding(Positions):
    """Absolute positions of all tokens but padding, which has the zero vector, and is not counted in a sequence.

    Args:
        table: [N, width], the vectors of the places 0 .. N - 1.
        pad: id of the padding token.
    """

    def __init__(self, table: Tensor, pad: int) -> None:
        super().__init__(table)
        self.pad = pad

    def of_sequence(self, token_ids: Tensor) -> Tensor:
        """Vectors [B, T, width] of whole sequences [B, T] from their first token on."""
        places = (token_ids != self.pad).long().cumsum(dim=1) - 1
        return self.of_tokens(token_ids, places.clamp(min=0))

    def of_tokens(self, token_ids: Tensor, places: Tensor) -> Tensor:
        """Vectors of single tokens, each at its place; [*token_ids.shape, width]."""
        vectors = self.table[places]
        return vectors * (token_ids != self.pad)[..., None].to(vectors.dtype)


def distance_buckets(buckets: int, max_distance: int) -> Tensor:
    """The bucket of each distance 0 .. `max_distance`, where all greater ones are too; [max_distance + 1].

    The first half of the buckets holds one distance each, the others' bounds grow by a constant factor: section 2.1 of
    "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer" (Raffel et al., 2020).

    Raises:
        ValueError: there are too few buckets or distances for that.
    """
    exact = buckets // 2
    if not 1 <= exact < max_distance:
        raise ValueError(f"{buckets} buckets for distances up to {max_distance}: at least 2, and distances beyond half")
    # On the CPU in float32 whatever the default device is, for bounds are rounded as in published models.
    distances = torch.arange(max_distance + 1, device="cpu")
    growth = torch.log(distances.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    beyond = exact + (growth * (buckets - exact)).long()
    return torch.where(distances < exact, distances, beyond.clamp(max=buckets - 1))


class RelativePositions(nn.Module):
    """A learned addition to attention scores that depends on the distance between query and key: Raffel et al., 2020.

    Args:
        heads: number of heads.
        buckets: number of buckets.
        max_distance: from here on distances are not told apart.
        bidirectional: whether keys after the query have buckets of their own, half of all; they share bucket 0
            otherwise.
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
        """The addition for queries at the places [..., Tq] and keys at [Tk] or [..., Tk]; [..., heads, Tq, Tk]."""
        distance = queries[..., None] - keys[..., None, :]  # [..., Tq, Tk]
        if self.after:
            bucket = self.buckets[distance.abs().clamp(max=self.max_distance)] + (distance < 0) * self.after
        else:
            bucket = self.buckets[distance.clamp(0, self.max_distance)]
        bias: Tensor = F.embedding(bucket, self.bias.weight)
        return bias.movedim(-1, -3)
