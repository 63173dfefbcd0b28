"""The server side: bundles, ONNX Runtime sessions, search, scheduling and the gRPC service."""

try:
    from jumok_proto.alignments import Alignment
    from jumok_proto.attention import AlignedToken, AttentionKind, AttentionWeights
    from jumok_proto.errors import (
        AttentionUnavailableError,
        DeadlineExceededError,
        InvalidArgumentError,
        JumokError,
        LanguageNotFoundError,
        OverloadedError,
        SamplingUnavailableError,
        ScoringUnavailableError,
        UnavailableError,
    )
    from jumok_proto.glossaries import GlossaryEntries
    from jumok_proto.options import Options
    from jumok_proto.results import FinishReason, Hypothesis, Score, Translation
    from jumok_serve.engine.request_queue import EngineLimits
    from jumok_serve.errors import BundleError, DeviceError
    from jumok_serve.search.options import DecodingOptions
    from jumok_serve.tasks.model import ScoringParameters, TextParameters, TranslationParameters
    from jumok_serve.text.detection import rank_languages
    from jumok_serve.text.terms.store import GlossaryStore
    from jumok_serve.text.translation import Pending
    from jumok_serve.translator import Translator
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] in {"jumok_proto", "jumok_serve"}:
        raise
    raise ModuleNotFoundError(
        f"jumok_serve needs {error.name}, which is not installed; install it with: pip install 'jumok[serve]'",
        name=error.name,
    ) from error

__all__ = [
    "AlignedToken",
    "Alignment",
    "AttentionKind",
    "AttentionUnavailableError",
    "AttentionWeights",
    "BundleError",
    "DeadlineExceededError",
    "DecodingOptions",
    "DeviceError",
    "EngineLimits",
    "FinishReason",
    "GlossaryEntries",
    "GlossaryStore",
    "Hypothesis",
    "InvalidArgumentError",
    "JumokError",
    "LanguageNotFoundError",
    "Options",
    "OverloadedError",
    "Pending",
    "SamplingUnavailableError",
    "Score",
    "ScoringParameters",
    "ScoringUnavailableError",
    "TextParameters",
    "Translation",
    "TranslationParameters",
    "Translator",
    "UnavailableError",
    "rank_languages",
]
