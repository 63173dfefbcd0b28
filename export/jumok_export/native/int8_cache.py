"""Keys and values in int8: quantized values, then their scale."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from jumok_serve.manifest.manifest import TensorSpec

LARGEST = 127
"""The largest quantized value; the smallest is its negative."""
SCALE_BYTES = 4
"""Bytes of an entry's scale, a float32."""


def entries_spec(spec: TensorSpec) -> TensorSpec:
    """The int8 form [..., W + 4] of a float tensor [..., W]."""
    return _changed(spec, "int8", SCALE_BYTES)


def floats_spec(spec: TensorSpec) -> TensorSpec:
    """The float form [..., W] of an int8 tensor [..., W + 4]."""
    return _changed(spec, "float32", -SCALE_BYTES)


def to_entries(floats: NDArray[Any]) -> NDArray[np.int8]:
    """Quantize floats [..., W] to entries [..., W + 4].

    An entry's largest magnitude becomes ±127.
    """
    floats = floats.astype(np.float32)
    most = np.abs(floats).max(axis=-1, keepdims=True, initial=0)
    share = np.divide(np.float32(LARGEST), most, out=np.zeros_like(most), where=most != 0)
    values = np.rint(floats * share).astype(np.int8)
    return np.concatenate((values, (most / np.float32(LARGEST)).view(np.int8)), axis=-1)


def to_floats(entries: NDArray[np.int8]) -> NDArray[np.float32]:
    """Dequantize entries [..., W + 4] to floats [..., W]."""
    scale = np.ascontiguousarray(entries[..., -SCALE_BYTES:]).view(np.float32)
    floats: NDArray[np.float32] = entries[..., :-SCALE_BYTES] * scale
    return floats


def _changed(spec: TensorSpec, dtype: str, more: int) -> TensorSpec:
    *others, width = spec.axes
    assert isinstance(width, int)
    return spec.model_copy(update={"dtype": dtype, "axes": (*others, width + more)})
