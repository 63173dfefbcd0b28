"""Keys and values in 8 bits, as native operators keep them: the levels of each entry, and behind them its scale."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from jumok_serve.manifest.manifest import TensorSpec

LEVELS = 127
"""The largest level; the smallest is the same below 0."""
SCALE_BYTES = 4
"""How many bytes of an entry are its scale, a float."""


def entries_spec(spec: TensorSpec) -> TensorSpec:
    """What a tensor of floats [..., W] is in 8 bits: [..., W + 4]."""
    return _changed(spec, "int8", SCALE_BYTES)


def floats_spec(spec: TensorSpec) -> TensorSpec:
    """What a tensor of entries in 8 bits is in floats."""
    return _changed(spec, "float32", -SCALE_BYTES)


def to_entries(floats: NDArray[Any]) -> NDArray[np.int8]:
    """Entries [..., W + 4] of floats [..., W]: the largest number of each has the level 127 or -127."""
    floats = floats.astype(np.float32)
    most = np.abs(floats).max(axis=-1, keepdims=True, initial=0)
    share = np.divide(np.float32(LEVELS), most, out=np.zeros_like(most), where=most != 0)
    levels = np.rint(floats * share).astype(np.int8)
    return np.concatenate((levels, (most / np.float32(LEVELS)).view(np.int8)), axis=-1)


def to_floats(entries: NDArray[np.int8]) -> NDArray[np.float32]:
    """The floats [..., W] that entries [..., W + 4] stand for."""
    scale = np.ascontiguousarray(entries[..., -SCALE_BYTES:]).view(np.float32)
    floats: NDArray[np.float32] = entries[..., :-SCALE_BYTES] * scale
    return floats


def _changed(spec: TensorSpec, dtype: str, more: int) -> TensorSpec:
    *others, width = spec.axes
    assert isinstance(width, int)
    return spec.model_copy(update={"dtype": dtype, "axes": (*others, width + more)})
