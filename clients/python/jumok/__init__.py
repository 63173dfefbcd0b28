"""The client SDK: translate, score translations, see attention, and change models, through a jumok server.

Results are frozen dataclasses, the same that an in-process translator gives; errors form one tree under ``CallError``.
"""

from jumok._admin_client import AdminClient, AsyncAdminClient
from jumok._async_client import AsyncClient
from jumok._client import Client
from jumok._errors import (
    CallCancelledError,
    CallError,
    DeadlineExceededError,
    Details,
    FailedPreconditionError,
    FieldViolation,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    Resource,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)
from jumok._results import TextResult, TranslationUpdate
from jumok._transport.channel import Tls
from jumok_proto import __version__
from jumok_proto.alignments import AlignedToken, Alignment, AttentionKind, AttentionWeights
from jumok_proto.errors import JumokError
from jumok_proto.options import EarlyStopping, Options
from jumok_proto.results import (
    BundleState,
    BundleSummary,
    DecodingDefaults,
    FinishReason,
    Hypothesis,
    LanguagePair,
    LoadResult,
    Model,
    ModelState,
    Score,
    Timings,
    Translation,
)

__all__ = [
    "AdminClient",
    "AlignedToken",
    "Alignment",
    "AsyncAdminClient",
    "AsyncClient",
    "AttentionKind",
    "AttentionWeights",
    "BundleState",
    "BundleSummary",
    "CallCancelledError",
    "CallError",
    "Client",
    "DeadlineExceededError",
    "DecodingDefaults",
    "Details",
    "EarlyStopping",
    "FailedPreconditionError",
    "FieldViolation",
    "FinishReason",
    "Hypothesis",
    "InternalError",
    "InvalidArgumentError",
    "JumokError",
    "LanguagePair",
    "LoadResult",
    "Model",
    "ModelState",
    "NotFoundError",
    "Options",
    "PermissionDeniedError",
    "Resource",
    "ResourceExhaustedError",
    "Score",
    "TextResult",
    "Timings",
    "Tls",
    "Translation",
    "TranslationUpdate",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "__version__",
]
