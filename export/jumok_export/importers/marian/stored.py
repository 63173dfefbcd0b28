"""Parameters as Marian stores them, and as PyTorch's layers have them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CONFIGURATION = "special:model.yml"
"""Name of the item that holds the model's configuration."""
_MATRIX = re.compile(r"_W[a-su-z0-9]?$")
"""Names of matrices that multiply rows from the right; `_Wt` is stored for the left."""
_MULTIPLIER = "_QuantMultA"
"""Ending of the names of activation multipliers, the "alphas"."""
OUTPUT_ALPHAS = ("none", "Wemb")
"""Names under which the alpha of a tied output projection may be stored, in order of preference."""


@dataclass(frozen=True)
class Quantized:
    """A matrix in 8 bits: weight = value / multiplier.

    Attributes:
        values: int8, in Marian's orientation.
    """

    values: NDArray[np.int8]
    multiplier: float


Stored = NDArray[np.float32] | Quantized


@dataclass(frozen=True, kw_only=True)
class MarianFile:
    """Content of a model file.

    Attributes:
        items: parameters by name, in Marian's orientation; the alphas among them.
        configuration: text of the configuration in the file, "" if there is none.
    """

    items: Mapping[str, Stored] = field(default_factory=dict)
    configuration: str = ""

    def tensors(self) -> dict[str, Tensor]:
        """Parameters by name in PyTorch's layout: matrices [N, K], vectors [N].

        Values of 8 bits are multiplied by their scale, and nothing is lost.
        """
        return {name: _tensor(name, item) for name, item in self.items.items() if not name.endswith(_MULTIPLIER)}

    @property
    def quantized(self) -> bool:
        """True if a matrix is stored in 8 bits."""
        return any(isinstance(item, Quantized) for item in self.items.values())

    def alpha(self, name: str) -> float | None:
        """The multiplier of activations before the matrix `name`; None if the file has none."""
        item = self.items.get(f"{name}{_MULTIPLIER}")
        if item is None:
            return None
        # Marian's converter stores the embedding's alpha in 8 bits, because of its name.
        values = item.values / item.multiplier if isinstance(item, Quantized) else item
        if values.size != 1:
            return None
        multiplier = float(values.reshape(-1)[0])
        return multiplier if np.isfinite(multiplier) and multiplier > 0 else None


def _tensor(name: str, item: Stored) -> Tensor:
    if isinstance(item, Quantized):
        # The scale first, as Marian multiplies: every value times one number of float32.
        values = item.values.astype(np.float32) * np.float32(1 / np.float32(item.multiplier))
    else:
        values = item
    if values.ndim == 2 and values.shape[0] == 1 and not _MATRIX.search(name):
        values = values[0]
    elif values.ndim == 2 and _MATRIX.search(name):
        values = values.T
    return torch.from_numpy(np.array(values, np.float32, order="C"))  # a copy: files are mapped read-only
