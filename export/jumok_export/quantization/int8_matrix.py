"""int8 quantization of one weight matrix."""

import numpy as np
from numpy.typing import NDArray

MAX_WEIGHT = 72
"""The largest quantized value of a weight; `int8_graphs` says why it is less than 127."""
SMALLEST_SCALE = 1e-30
"""The scale of a channel of zeros."""


def quantize_weight(weight: NDArray[np.float32], channels: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Quantize a weight matrix, symmetrically, with one scale per index of the axis `channels`.

    Returns:
        Quantized values within ±`MAX_WEIGHT`, of the matrix's shape, and scales [channels]: weight ≈ value * scale.
    """
    largest = np.abs(weight).max(axis=1 - channels)
    scales = np.maximum(largest / MAX_WEIGHT, SMALLEST_SCALE).astype(np.float32)
    return np.rint(weight / np.expand_dims(scales, 1 - channels)).astype(np.int8), scales
