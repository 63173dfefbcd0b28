"""Encoded sources of the last searches, which an aligner then need not encode again."""

import threading
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from jumok_serve.runtime.graph_checks.contract import EncodedSource

Integers: TypeAlias = NDArray[np.int64]
Encoded: TypeAlias = NDArray[Any]
"""Encoded source, [S, W], or those of several sentences with padding, [B, S, W]."""

MAX_BYTES = 2**25
"""Most bytes of encoded sources that are kept."""


class EncodedSources:
    """Keeps the last encoded sources by their tokens, in limited memory; thread-safe.

    A source's encoding does not depend on others, so one that is kept equals one that is computed again.

    Attributes:
        tensor: the tensor that is kept, in the encoder and in the aligner.
        wanted: True once an aligner has asked: before that, nothing is kept.
    """

    def __init__(self, tensor: EncodedSource, most_bytes: int = MAX_BYTES) -> None:
        self.tensor = tensor
        self.wanted = False
        self._kept: LRUCache[bytes, Encoded] = LRUCache(most_bytes, getsizeof=lambda encoded: encoded.nbytes)
        self._lock = threading.Lock()

    def keep(self, source_ids: Integers, lengths: Integers, encoded: Encoded) -> None:
        """Keep the encoded sources of an encoder run.

        Args:
            source_ids: padded token ids, [B, S].
            lengths: [B].
            encoded: [B, S, W].
        """
        rows = list(zip(source_ids, lengths.tolist(), encoded, strict=True))
        with self._lock:
            for ids, length, row in rows:
                key, own = ids[:length].tobytes(), row[:length]
                if key not in self._kept and own.nbytes <= self._kept.maxsize:
                    self._kept[key] = own.copy()

    def padded(
        self, source_ids: Integers, lengths: Integers, encode: Callable[[Integers, Integers], Encoded]
    ) -> Encoded:
        """Return encoded sources, [B, S, W], with zeros as padding; those that are not kept are computed.

        Args:
            encode: function of padded token ids and lengths, as those of `keep`.
        """
        self.wanted = True
        with self._lock:
            rows = [
                self._kept.get(ids[:length].tobytes()) for ids, length in zip(source_ids, lengths.tolist(), strict=True)
            ]
        missing = [index for index, row in enumerate(rows) if row is None]
        if missing:
            longest = int(lengths[missing].max())
            found = encode(np.ascontiguousarray(source_ids[missing, :longest]), lengths[missing])
            for index, row in zip(missing, found, strict=True):
                rows[index] = row[: lengths[index]]
        present = [row for row in rows if row is not None]
        whole = np.zeros((*source_ids.shape, present[0].shape[-1]), present[0].dtype)
        for padded, row in zip(whole, present, strict=True):
            padded[: len(row)] = row
        return whole

    def clear(self) -> None:
        """Drop everything, until an aligner asks again."""
        with self._lock:
            self.wanted = False
            self._kept.clear()
