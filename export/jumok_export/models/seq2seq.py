"""What every encoder-decoder model of this package has in common: how it is trained, scored and decoded."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Tensors = dict[str, Tensor]
"""Named tensors with the batch (or row) on axis 0: encoder memory or decoder state."""


def length_mask(lengths: Tensor, longest: int) -> Tensor:
    """[B, longest], true where a token is within its sentence's length."""
    return torch.arange(longest, device=lengths.device) < lengths[:, None]


class Seq2Seq(nn.Module, ABC):
    """An encoder and a decoder of any kind.

    `forward` is for training; `encode`, `step` and `score` are the views that are exported.
    """

    @abstractmethod
    def forward(self, source_ids: Tensor, source_lengths: Tensor, start_ids: Tensor, target_ids: Tensor) -> Tensor:
        """Teacher forcing: logits [B, T, V] of every target token, given the source and the target's tokens before it.

        Args:
            source_ids: [B, S], padded.
            source_lengths: [B].
            start_ids: [B], the token that the decoder starts from.
            target_ids: [B, T], ending with the end token, padded.
        """

    @abstractmethod
    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> tuple[Tensors, Tensors]:
        """Everything that is computed once a sentence.

        Args:
            source_ids: [B, S], padded.
            source_lengths: [B].

        Returns:
            The memory, which every step of the decoder reads, and the decoder's first state, [B, ...] each. The state
            is empty where a decoder starts from nothing.
        """

    @abstractmethod
    def empty_state(self) -> Tensors:
        """A row of decoder state that holds no token, [1, ...]."""

    @abstractmethod
    def step(  # noqa: PLR0917 - the graph contract's inputs, in its order
        self,
        token_ids: Tensor,
        positions: Tensor,
        parents: Tensor,
        source_lengths: Tensor,
        memory: Tensors,
        state: Tensors,
    ) -> tuple[Tensor, Tensors]:
        """One token for every row; rows may be at different positions.

        Args:
            token_ids: [R], the token each row decoded last (at first the start token); R = B * K.
            positions: [R], how many tokens the row has decoded.
            parents: [R], the row of the previous state that each row continues.
            source_lengths: [B].
            memory: of `encode`, [B, ...].
            state: of the previous rows, [P, ...].

        Returns:
            Logits [R, V] of the next token and the new state [R, ...].
        """

    def score(
        self, source_ids: Tensor, source_lengths: Tensor, start_ids: Tensor, target_ids: Tensor, target_lengths: Tensor
    ) -> Tensor:
        """Log-probability [B, T] of every token of given targets, in one pass; 0 behind a target's end.

        Args:
            source_ids: [B, S], padded.
            source_lengths: [B].
            start_ids: [B], the token that the decoder starts from.
            target_ids: [B, T], with the end token, padded.
            target_lengths: [B].
        """
        log_probabilities = F.log_softmax(self(source_ids, source_lengths, start_ids, target_ids), dim=-1)
        chosen = log_probabilities.gather(-1, target_ids[..., None])[..., 0]
        return chosen.masked_fill(~length_mask(target_lengths, target_ids.shape[1]), 0.0)

    @staticmethod
    def shift(start_ids: Tensor, target_ids: Tensor) -> Tensor:
        """The decoder's input [B, T] for targets [B, T]: the start tokens [B], then all of a target but its last."""
        return torch.cat((start_ids[:, None], target_ids), dim=1)[:, :-1]
