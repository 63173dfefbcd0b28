"""The server side: bundles, ONNX Runtime sessions, search, scheduling and the gRPC service."""

from jumok_proto.alignments import AlignedToken, Alignment, AttentionKind, AttentionWeights
from jumok_proto.options import Options
from jumok_proto.results import FinishReason, Hypothesis, Score, Translation
from jumok_serve.engine.limits import EngineLimits
from jumok_serve.errors import (
    AttentionUnavailable,
    BundleError,
    DeadlineExceeded,
    DeviceError,
    InvalidRequest,
    JumokError,
    LanguageNotFound,
    Overloaded,
    SamplingUnavailable,
    ScoringUnavailable,
    Unavailable,
)
from jumok_serve.search.options import DecodingOptions
from jumok_serve.tasks.translation import Pending
from jumok_serve.translator import Translator

__all__ = [
    "AlignedToken",
    "Alignment",
    "AttentionKind",
    "AttentionUnavailable",
    "AttentionWeights",
    "BundleError",
    "DeadlineExceeded",
    "DecodingOptions",
    "DeviceError",
    "EngineLimits",
    "FinishReason",
    "Hypothesis",
    "InvalidRequest",
    "JumokError",
    "LanguageNotFound",
    "Options",
    "Overloaded",
    "Pending",
    "SamplingUnavailable",
    "Score",
    "ScoringUnavailable",
    "Translation",
    "Translator",
    "Unavailable",
]
