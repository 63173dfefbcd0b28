"""The error table: which status, and which details, an exception of this room becomes on the wire."""

from functools import lru_cache
from typing import NamedTuple

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from jumok_serve.errors import (
    AttentionUnavailableError,
    BundleNotFoundError,
    BundleNotLoadedError,
    DeadlineExceededError,
    EngineFailedError,
    InvalidArgumentError,
    JumokError,
    LanguageNotFoundError,
    ModelNotFoundError,
    OverloadedError,
    PermissionDeniedError,
    RateLimitedError,
    SamplingUnavailableError,
    ScoringUnavailableError,
    UnauthenticatedError,
    UnavailableError,
)

DOMAIN = "jumok"
# Statuses travel in HTTP/2 headers, which peers bound at 8 KiB; a name that a caller sent comes back in its error.
MAX_MESSAGE_LENGTH = 500
MAX_REMEMBERED = 256

_TABLE: dict[type[JumokError], tuple[grpc.StatusCode, str]] = {
    InvalidArgumentError: (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
    ModelNotFoundError: (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND"),
    BundleNotFoundError: (grpc.StatusCode.NOT_FOUND, "BUNDLE_NOT_FOUND"),
    LanguageNotFoundError: (grpc.StatusCode.NOT_FOUND, "LANGUAGE_NOT_FOUND"),
    BundleNotLoadedError: (grpc.StatusCode.FAILED_PRECONDITION, "BUNDLE_UNUSABLE"),
    AttentionUnavailableError: (grpc.StatusCode.FAILED_PRECONDITION, "ATTENTION_UNAVAILABLE"),
    ScoringUnavailableError: (grpc.StatusCode.FAILED_PRECONDITION, "SCORING_UNAVAILABLE"),
    SamplingUnavailableError: (grpc.StatusCode.FAILED_PRECONDITION, "SAMPLING_UNAVAILABLE"),
    OverloadedError: (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED"),
    RateLimitedError: (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED"),
    DeadlineExceededError: (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED"),
    UnavailableError: (grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE"),
    EngineFailedError: (grpc.StatusCode.UNAVAILABLE, "ENGINE_FAILED"),
    UnauthenticatedError: (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED"),
    PermissionDeniedError: (grpc.StatusCode.PERMISSION_DENIED, "NOT_ALLOWED"),
}

FAULT = (grpc.StatusCode.INTERNAL, "INTERNAL")
"""What becomes of any other."""


class Ending(NamedTuple):
    """How a call ends that fails.

    Attributes:
        code: of its status.
        message: of its status.
        reason: why, in capitals.
        status: the whole, a ``google.rpc.Status`` in bytes.
    """

    code: grpc.StatusCode
    message: str
    reason: str
    status: bytes


def is_expected(error: Exception) -> bool:
    """Whether the table has the error; any other is a fault of the server."""
    return type(error) in _TABLE


def to_ending(error: Exception, request_id: str) -> Ending:
    """Describe an error to the caller, as `to_status` does.

    A server that has more to do than it can says the same to many callers, and to each but once: only the request's id
    is put in anew.
    """
    code, reason = _TABLE.get(type(error), FAULT)  # type: ignore[arg-type]  # any type may be asked for
    if (code, reason) != FAULT and isinstance(error, OverloadedError | UnavailableError):
        written = request_id.encode()
        kind = type(error)
        message, parts = _around_id(kind, str(error), error.retry_after_s, len(written))  # type: ignore[arg-type]
        return Ending(code, message, reason, written.join(parts))
    status = to_status(error, request_id)
    return Ending(code, status.message, reason, status.SerializeToString())


@lru_cache(MAX_REMEMBERED)
def _around_id(
    kind: type[OverloadedError | UnavailableError], message: str, retry_after_s: float, length: int
) -> tuple[str, list[bytes]]:
    """A status' message, and its bytes before, between and behind the request's id, which has so many bytes."""
    stand_in = "\0" * length  # no other byte of a status is 0
    status = to_status(kind(message, retry_after_s=retry_after_s), stand_in)
    return status.message, status.SerializeToString().split(stand_in.encode())


def to_status(error: Exception, request_id: str) -> status_pb2.Status:
    """Describe an error to the caller; one that the table lacks says nothing but the request's id."""
    if not isinstance(error, JumokError) or not is_expected(error):
        message = f"internal error; the server's log has it under request id {request_id}"
        return _status(FAULT[0], message, _about(FAULT[1], request_id))
    code, reason = _TABLE[type(error)]
    message = str(error)
    if error.field.rpartition(".")[2] not in message:  # say which text it is, to those who see the message alone
        message = f"{error.field}: {message}"
    message = _shorten(message)
    details = _about(reason, request_id)
    if error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(field=_shorten(error.field), description=message)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if isinstance(error, ModelNotFoundError | BundleNotFoundError):
        details.append(
            error_details_pb2.ResourceInfo(
                resource_type="jumok.v1.Model" if isinstance(error, ModelNotFoundError) else "jumok.v1.BundleSummary",
                resource_name=_shorten(error.name),
                description=_shorten(f"available: {', '.join(error.available) or 'none'}"),
            )
        )
    if error.retry_after_s is not None:
        delay = Duration()
        delay.FromNanoseconds(round(error.retry_after_s * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    return _status(code, message, details)


def _about(reason: str, request_id: str) -> list[Message]:
    """What every status has."""
    return [
        error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata={"request_id": request_id}),
        error_details_pb2.RequestInfo(request_id=request_id),
    ]


def _status(code: grpc.StatusCode, message: str, details: list[Message]) -> status_pb2.Status:
    packed = []
    for detail in details:
        any_detail = Any()
        any_detail.Pack(detail)
        packed.append(any_detail)
    return status_pb2.Status(code=code.value[0], message=message, details=packed)


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE_LENGTH else f"{text[: MAX_MESSAGE_LENGTH - 1]}…"
