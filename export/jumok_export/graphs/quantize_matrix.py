"""Quantization of one weight matrix to int8."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

MAX_WEIGHT = 72
"""The largest quantized value of a weight; `int8_graphs` in `quantization` says why it is less than 127."""
MAX_GIVEN_WEIGHT = 127
"""The largest quantized value of a weight that a model brings in 8 bits."""
_OFF_GRID = 1e-3
"""Largest distance from whole numbers that rounding of float32 explains."""
_ROWS = 64
"""Rows that are looked at together."""
SMALLEST_SCALE = 1e-30
"""The scale of a channel of zeros."""
AT_ONCE = 2**20
"""Weights that are converted at once: 4 MiB in fp32, which a core's cache holds."""


def quantize_weight(weight: NDArray[np.float32], channels: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Quantize a weight matrix, symmetrically, with one scale per index of the axis `channels`.

    A matrix that was made of values within ±`MAX_GIVEN_WEIGHT` and a scale, or one scale for each index, keeps them.

    Returns:
        Quantized values within ±`MAX_WEIGHT`, of the matrix's shape, and scales [channels]: weight ≈ value * scale.
    """
    largest = np.empty(weight.shape[channels], weight.dtype)
    for part in parts(weight.shape, channels):
        largest[part[channels]] = np.abs(weight[part]).max(axis=1 - channels)
    for given in (np.full_like(largest, largest.max(initial=0)), largest):
        scales = np.maximum(given / MAX_GIVEN_WEIGHT, SMALLEST_SCALE).astype(np.float32)
        if _on_grid(weight, np.expand_dims(scales, 1 - channels)):
            return _rounded(weight, scales, channels), scales
    scales = np.maximum(largest / MAX_WEIGHT, SMALLEST_SCALE).astype(np.float32)
    return _rounded(weight, scales, channels), scales


def parts(shape: tuple[int, ...], axis: int) -> Iterator[tuple[slice, ...]]:
    """Yield indices of an array's parts along an axis, `AT_ONCE` elements each."""
    if not shape:
        yield ()
        return
    step = max(1, AT_ONCE * shape[axis] // max(1, int(np.prod(shape))))
    before = (slice(None),) * axis
    for first in range(0, shape[axis], step):
        yield (*before, slice(first, first + step))


def _rounded(weight: NDArray[np.float32], scales: NDArray[np.float32], channels: int) -> NDArray[np.int8]:
    values = np.empty(weight.shape, np.int8)
    for part in parts(weight.shape, channels):
        values[part] = np.rint(weight[part] / np.expand_dims(scales[part[channels]], 1 - channels))
    return values


def _on_grid(weight: NDArray[np.float32], scales: NDArray[np.float32]) -> bool:
    """True if all weights are multiples of their scales, as far as float32 tells."""
    for row in range(0, len(weight), _ROWS):
        values = weight[row : row + _ROWS] / (scales[row : row + _ROWS] if len(scales) > 1 else scales)
        if np.abs(values - np.rint(values)).max(initial=0) > _OFF_GRID:
            return False
    return True
