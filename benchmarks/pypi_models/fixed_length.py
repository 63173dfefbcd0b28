"""Models that were trained on sources padded to one length, and read the padding."""

import torch
from torch import Tensor

from jumok_export.models.recurrent import Recurrent, RecurrentSizes
from jumok_export.models.seq2seq import Tensors, length_mask


class ReadsPadding(Recurrent):
    """A recurrent model whose encoder and attention also read the padding after a source.

    Args:
        length: tokens of every source, padding included.
        pad: the padding token.
    """

    def __init__(self, sizes: RecurrentSizes, *, length: int, pad: int) -> None:
        super().__init__(sizes)
        self.length = length
        self.pad = pad

    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> tuple[Tensors, Tensors]:
        """See `Recurrent`; the memory is [B, length, encoder_width]."""
        own = torch.where(length_mask(source_lengths, source_ids.shape[1]), source_ids, self.pad)
        padding = source_ids.new_full((source_ids.shape[0], self.length), self.pad)
        padded = torch.cat((own, padding), dim=1).narrow(1, 0, self.length)
        return super().encode(padded, torch.full_like(source_lengths, self.length))

    def advance(
        self, token_ids: Tensor, source_mask: Tensor, memory: Tensors, state: Tensors
    ) -> tuple[Tensor, Tensor | None, Tensors]:
        """See `Recurrent`; attends to the padding too."""
        mask = source_mask.new_ones(1, 1, self.length)
        return super().advance(token_ids, mask, memory, state)
