"""The server side: bundles, ONNX Runtime sessions, search, scheduling and the gRPC service."""

from jumok_proto.results import FinishReason, Hypothesis, Translation
from jumok_serve.engine import EngineLimits
from jumok_serve.errors import (
    BundleError,
    DeadlineExceeded,
    DeviceError,
    InvalidRequest,
    JumokError,
    Overloaded,
    Unavailable,
)
from jumok_serve.options import DecodingOptions
from jumok_serve.translator import Pending, Translator

__all__ = [
    "BundleError",
    "DeadlineExceeded",
    "DecodingOptions",
    "DeviceError",
    "EngineLimits",
    "FinishReason",
    "Hypothesis",
    "InvalidRequest",
    "JumokError",
    "Overloaded",
    "Pending",
    "Translation",
    "Translator",
    "Unavailable",
]
