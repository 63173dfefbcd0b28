"""KV cache of one decoder step: where rows write and attend."""

import torch
from torch import Tensor

from jumok_export.models.operators import write


class KVCacheStep:
    """Writes and masks of one step over sentence-wide KV caches.

    A row's past is not moved when the row continues another one: both rows see the entries of their common past.

    Args:
        places: index of each row's new token, [B, K, 3]: sentence, 0 and entry.
        visible: entries that each row attends to, the new token's included, [B, K, E].
        source_lengths: [B].
        cache: keys or values of any layer, [B, heads, E, D].

    Attributes:
        source_lengths: [B] int32.
        bias: 0 if a row may attend, otherwise the lowest number, [B, 1, K, E].
    """

    def __init__(self, places: Tensor, visible: Tensor, source_lengths: Tensor, cache: Tensor) -> None:
        self._heads = cache.shape[1]
        self.bias = torch.where(visible[:, None], 0.0, torch.finfo(cache.dtype).min)
        self.source_lengths = source_lengths.to(torch.int32)
        by_head = torch.tensor([[0, head, 0] for head in range(self._heads)], device=places.device)
        self._indices = places[:, :, None] + by_head  # [B, K, heads, 3]: sentence, head and entry

    def write(self, cache: Tensor, new: Tensor) -> Tensor:
        """Write each row's new key or value into `cache` [B, heads, E, D].

        New keys or values are [B, K, heads * D].
        """
        written: Tensor = write(cache, self._indices, new, self._heads)
        return written
