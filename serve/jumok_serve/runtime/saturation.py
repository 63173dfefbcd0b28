"""Whether this processor cuts off int8 products: without VNNI, sums of two of them have to fit into 16 bits."""

from base64 import b64decode
from functools import cache

import numpy as np
import onnxruntime

# y = MatMulIntegerToFloat(a, b, s, s) of uint8 a, int8 b and float s, as an ONNX model; a test makes it with `onnx`.
_PRODUCT = (
    "CAo6fQo0CgFhCgFiCgFzCgFzEgF5IhRNYXRNdWxJbnRlZ2VyVG9GbG9hdDoNY29tLm1pY3Jvc29mdBIFcHJvYmVaDwoBYRIKCggIAhIECgAKAFoP"
    "CgFiEgoKCAgDEgQKAAoAWgsKAXMSBgoECAESAGIPCgF5EgoKCAgBEgQKAAoAQgQKABAUQhEKDWNvbS5taWNyb3NvZnQQAQ=="
)


@cache
def products_saturate() -> bool:
    """Multiplies the largest unsigned with the largest signed bytes, and looks whether the sum is there.

    Where products saturate, sessions have to turn signed weights into unsigned ones. These take twice the time where
    there is VNNI, so they are not stored.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(b64decode(_PRODUCT), options, providers=["CPUExecutionProvider"])
    a, b = np.full((2, 4), 255, np.uint8), np.full((4, 16), 127, np.int8)
    (product,) = session.run(None, {"a": a, "b": b, "s": np.array(1, np.float32)})
    return bool((product != 4 * 255 * 127).any())
