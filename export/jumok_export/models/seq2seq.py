"""Interface of encoder-decoder models: training, scoring and decoding."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Tensors = dict[str, Tensor]
"""Encoder memory or decoder state: tensors by name, with the batch or row on axis 0."""


def length_mask(lengths: Tensor, longest: int) -> Tensor:
    """Mask of tokens that are no padding, [B, longest], from lengths [B]."""
    return torch.arange(longest, device=lengths.device) < lengths[:, None]


def reverse(sequence: Tensor, lengths: Tensor) -> Tensor:
    """Reverse each sentence within its length; padding stays in place.

    Args:
        sequence: [B, S, ...].
        lengths: [B].
    """
    positions = torch.arange(sequence.shape[1], device=sequence.device)  # [S]
    mirrored = lengths[:, None] - 1 - positions  # [B, S]
    index = torch.where(mirrored >= 0, mirrored, positions)
    return sequence[torch.arange(index.shape[0], device=sequence.device)[:, None], index]


class Seq2Seq(nn.Module, ABC):
    """An encoder and a decoder of any kind.

    `forward` is for training; `encode`, `step` and `score` are exported.
    """

    @abstractmethod
    def forward(self, source_ids: Tensor, source_lengths: Tensor, start_ids: Tensor, target_ids: Tensor) -> Tensor:
        """Compute logits of all target tokens by teacher forcing.

        Args:
            source_ids: [B, S], padded.
            source_lengths: [B].
            start_ids: the decoder's first input, [B].
            target_ids: [B, T], with the end token, padded.

        Returns:
            Logits of every target token given the source and the target's tokens before it, [B, T, V].
        """

    @abstractmethod
    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> tuple[Tensors, Tensors]:
        """Compute everything that depends only on the source.

        Args:
            source_ids: [B, S], padded.
            source_lengths: [B].

        Returns:
            The memory, which every decoder step reads, and the decoder's first state, [B, ...] each. The state is empty
            if the decoder starts from `empty_state`.
        """

    @abstractmethod
    def empty_state(self) -> Tensors:
        """One row of decoder state without tokens, [1, ...]."""

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
        """Decode one token of every row; rows may be at different positions.

        Args:
            token_ids: token that each row decoded last, at first the start token, [R]; R = B * K.
            positions: number of tokens that each row has decoded, [R].
            parents: row of the previous state that each row continues, [R].
            source_lengths: [B].
            memory: memory of `encode`, [B, ...].
            state: state of the previous rows, [P, ...].

        Returns:
            Logits [R, V] of the next token and the new state [R, ...].
        """

    def score(
        self, source_ids: Tensor, source_lengths: Tensor, start_ids: Tensor, target_ids: Tensor, target_lengths: Tensor
    ) -> Tensor:
        """Compute the log-probability of every token of given targets, in one pass.

        Args:
            target_lengths: [B].

        Returns:
            Log-probabilities [B, T], 0 after a target's end.
        """
        logits = self(source_ids, source_lengths, start_ids, target_ids)
        return self.scores_of(logits, target_ids, target_lengths)

    @staticmethod
    def scores_of(logits: Tensor, target_ids: Tensor, target_lengths: Tensor) -> Tensor:
        """Log-probabilities [B, T] of target tokens by logits [B, T, V], 0 after a target's end."""
        of_targets = F.log_softmax(logits, dim=-1).gather(-1, target_ids[..., None])[..., 0]
        return of_targets.masked_fill(~length_mask(target_lengths, target_ids.shape[1]), 0.0)

    @staticmethod
    def shift(start_ids: Tensor, target_ids: Tensor) -> Tensor:
        """The decoder's input [B, T]: start tokens, then targets without the last."""
        return torch.cat((start_ids[:, None], target_ids), dim=1)[:, :-1]
