"""The client SDK: translate, score, see attention and change models.

Results are frozen dataclasses, the same that an in-process translator gives; errors form one tree, drawn
in `jumok_proto.errors`, which the translator raises too.
"""

import jumok._grpc_log  # noqa: F401 - before gRPC
from jumok._admin_client import AdminClient
from jumok._async_admin_client import AsyncAdminClient
from jumok._async_client import AsyncClient
from jumok._client import Client
from jumok._files import FileLanguage, FileOptions, FileProblem, FileResult
from jumok._responses import TextResult, TranslationUpdate
from jumok._transport.servers import Tls
from jumok_proto import __version__
from jumok_proto.alignments import Alignment
from jumok_proto.attention import AlignedToken, AttentionKind, AttentionWeights
from jumok_proto.errors import (
    AttentionUnavailableError,
    BundleNotFoundError,
    BundleNotLoadedError,
    CallCancelledError,
    DeadlineExceededError,
    Details,
    EngineFailedError,
    FailedPreconditionError,
    FieldViolation,
    GlossariesUnavailableError,
    GlossaryNotFoundError,
    InternalError,
    InvalidArgumentError,
    JumokError,
    LanguageNotFoundError,
    ModelNotFoundError,
    NotFoundError,
    OverloadedError,
    PermissionDeniedError,
    RateLimitedError,
    Resource,
    ResourceExhaustedError,
    SamplingUnavailableError,
    ScoringUnavailableError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)
from jumok_proto.glossaries import GlossaryDictionary, StoredGlossary
from jumok_proto.markup import MarkupRules
from jumok_proto.options import EarlyStopping, Options
from jumok_proto.results import (
    AppliedTerm,
    BundleState,
    BundleSummary,
    DecodingDefaults,
    DetectedLanguage,
    FinishReason,
    Hypothesis,
    LanguagePair,
    LoadResult,
    Model,
    ModelState,
    PivotTranslation,
    Route,
    Score,
    TextSpan,
    Timings,
    Translation,
)
from jumok_proto.text_options import TranslateOptions

__all__ = [
    "AdminClient",
    "AlignedToken",
    "Alignment",
    "AppliedTerm",
    "AsyncAdminClient",
    "AsyncClient",
    "AttentionKind",
    "AttentionUnavailableError",
    "AttentionWeights",
    "BundleNotFoundError",
    "BundleNotLoadedError",
    "BundleState",
    "BundleSummary",
    "CallCancelledError",
    "Client",
    "DeadlineExceededError",
    "DecodingDefaults",
    "Details",
    "DetectedLanguage",
    "EarlyStopping",
    "EngineFailedError",
    "FailedPreconditionError",
    "FieldViolation",
    "FileLanguage",
    "FileOptions",
    "FileProblem",
    "FileResult",
    "FinishReason",
    "GlossariesUnavailableError",
    "GlossaryDictionary",
    "GlossaryNotFoundError",
    "Hypothesis",
    "InternalError",
    "InvalidArgumentError",
    "JumokError",
    "LanguageNotFoundError",
    "LanguagePair",
    "LoadResult",
    "MarkupRules",
    "Model",
    "ModelNotFoundError",
    "ModelState",
    "NotFoundError",
    "Options",
    "OverloadedError",
    "PermissionDeniedError",
    "PivotTranslation",
    "RateLimitedError",
    "Resource",
    "ResourceExhaustedError",
    "Route",
    "SamplingUnavailableError",
    "Score",
    "ScoringUnavailableError",
    "StoredGlossary",
    "TextResult",
    "TextSpan",
    "Timings",
    "Tls",
    "TranslateOptions",
    "Translation",
    "TranslationUpdate",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "__version__",
]
