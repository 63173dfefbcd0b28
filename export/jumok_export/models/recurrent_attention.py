"""Attention of recurrent decoders over the encoder's states: dot, general and additive."""

from abc import ABC, abstractmethod
from typing import Literal

from torch import Tensor, nn

from jumok_export.models.attention import (
    additive_scores,
    dot_scores,
    masked_softmax,
    scaled_dot_scores,
)

AttentionKind = Literal["none", "dot", "scaled_dot", "general", "concat", "bahdanau"]


class RecurrentAttention(nn.Module, ABC):
    """Attention with a score function and its parameters; one query a hypothesis.

    Args:
        query_width: width of the decoder's states.
        key_width: width of the encoder's states.
    """

    def __init__(self, query_width: int, key_width: int) -> None:
        super().__init__()
        self.query_width = query_width
        self.key_width = key_width

    def keys(self, encoded: Tensor) -> Tensor | None:
        """Compute the keys of the encoder's states [B, S, key_width], once per sentence.

        Returns:
            [B, S, D]; None if the states themselves are the keys.
        """
        return None

    @abstractmethod
    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """Compute scores [B, K, S] of queries and keys.

        Queries are [B, K, query_width], keys [B, S, D].
        """

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Attend to the encoder's states.

        Args:
            query: [B, K, query_width].
            key: output of `keys`, [B, S, D].
            value: the encoder's states, [B, S, key_width].
            mask: true within a source's length, [B, 1, S].

        Returns:
            Contexts [B, K, key_width] and attention weights [B, K, S].
        """
        weights = masked_softmax(self.scores(query, key), mask)
        return weights @ value, weights  # equation 5 of Bahdanau et al. (2015)


class DotAttention(RecurrentAttention):
    """Product of states of one width: "dot" in equation 8 of Luong et al. (2015)."""

    def __init__(self, query_width: int, key_width: int) -> None:
        if query_width != key_width:
            raise ValueError(
                "products of states need encoder and decoder of one width, got a decoder of width "
                f"{query_width} and an encoder of width {key_width}: take attention 'general' for these"
            )
        super().__init__(query_width, key_width)

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """See `RecurrentAttention`."""
        return dot_scores(query, key)


class ScaledDotAttention(DotAttention):
    """Product over the root of the width: equation 1 of Vaswani et al. (2017)."""

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """See `RecurrentAttention`."""
        return scaled_dot_scores(query, key)


class GeneralAttention(RecurrentAttention):
    """Product with a matrix W [query_width, key_width]: "general" in equation 8 of Luong et al. (2015).

    W k is computed once per sentence.
    """

    def __init__(self, query_width: int, key_width: int) -> None:
        super().__init__(query_width, key_width)
        self.key_projection = nn.Linear(key_width, query_width, bias=False)
        nn.init.xavier_uniform_(self.key_projection.weight)

    def keys(self, encoded: Tensor) -> Tensor:
        """See `RecurrentAttention`."""
        projected: Tensor = self.key_projection(encoded)
        return projected

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """See `RecurrentAttention`."""
        return dot_scores(query, key)


class AdditiveAttention(RecurrentAttention):
    """A tanh layer over both states: equation 8 of Bahdanau et al. (2015), "concat" of Luong et al. (2015).

    Luong's W [q; k] is the sum of a projection of the query and one of the key. The latter is computed once per
    sentence. The papers differ in the state that is the query, and in the use of the context: see `RecurrentSizes`.
    """

    def __init__(self, query_width: int, key_width: int) -> None:
        super().__init__(query_width, key_width)
        self.query_projection = nn.Linear(query_width, query_width, bias=False)
        self.key_projection = nn.Linear(key_width, query_width, bias=False)
        self.weight = nn.Parameter(nn.init.normal_(self.query_projection.weight.new_empty(query_width), std=0.1))
        for projection in (self.query_projection, self.key_projection):
            nn.init.xavier_uniform_(projection.weight)

    def keys(self, encoded: Tensor) -> Tensor:
        """See `RecurrentAttention`."""
        projected: Tensor = self.key_projection(encoded)
        return projected

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """See `RecurrentAttention`."""
        return additive_scores(self.query_projection(query), key, self.weight)


ATTENTION: dict[AttentionKind, type[RecurrentAttention]] = {
    "dot": DotAttention,
    "scaled_dot": ScaledDotAttention,
    "general": GeneralAttention,
    "concat": AdditiveAttention,
    "bahdanau": AdditiveAttention,
}
