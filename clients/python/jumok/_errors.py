"""What a call can fail with, as one tree of exceptions, and how a gRPC error becomes one of them.

JumokError                            also what an in-process translator raises
└── CallError                         everything that a call to a server raises
    ├── InvalidArgumentError (ValueError)  the texts or options are wrong
    ├── NotFoundError (LookupError)        no such model, language or bundle
    ├── FailedPreconditionError            the model cannot do what was asked, or a bundle cannot be loaded
    ├── ResourceExhaustedError             the server is full or called too often, or a message is too large
    ├── UnavailableError (ConnectionError) no server, one that is stopping, or an engine that failed
    ├── DeadlineExceededError (TimeoutError)
    ├── CallCancelledError
    ├── UnauthenticatedError
    ├── PermissionDeniedError
    ├── UnimplementedError                 the server is older than this client
    └── InternalError                 the fault is the server's
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, cast

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from jumok_proto.errors import JumokError


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldViolation:
    """One wrong field of a request: its path, such as ``contents[3]``, and what is wrong with it."""

    field: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """What was not found: its type, its name, and what there is instead."""

    type: str
    name: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """What the server said about an error beyond its status and message."""

    reason: str = ""
    request_id: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    field_violations: tuple[FieldViolation, ...] = ()
    resource: Resource | None = None
    retry_after_s: float | None = None


class CallError(JumokError):
    """A call failed; the gRPC error, where there was one, is its ``__cause__``."""

    code: grpc.StatusCode = grpc.StatusCode.UNKNOWN
    retryable: ClassVar[bool] = False
    """Whether the same request can succeed later."""

    def __init__(self, message: str, *, code: grpc.StatusCode | None = None, details: Details | None = None) -> None:
        super().__init__(message)
        self.details = details or Details()
        if code is not None:
            self.code = code
        self.reason = self.details.reason
        """What happened, in capitals, stable between versions: ``MODEL_NOT_FOUND``."""
        self.request_id = self.details.request_id
        """What the server's log calls the request, where it said so."""
        self.metadata = self.details.metadata
        self.retry_after_s = self.details.retry_after_s
        if self.details.field_violations:
            self.field = self.details.field_violations[0].field


class InvalidArgumentError(CallError, ValueError):
    """The texts or options are wrong; ``field`` says which, ``details.field_violations`` lists all."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class NotFoundError(CallError, LookupError):
    """No such model or bundle, of which ``details.resource`` says what there is, or no such language of the model."""

    code = grpc.StatusCode.NOT_FOUND


class FailedPreconditionError(CallError):
    """The model cannot do what was asked, or a bundle cannot be loaded."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class ResourceExhaustedError(CallError):
    """The server is full, or called too often, or a message is too large; but in this case ``retry_after_s`` is set."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    retryable = True


class UnavailableError(CallError, ConnectionError):
    """There is no server, or it is stopping, or the model's engine has failed and is being started anew."""

    code = grpc.StatusCode.UNAVAILABLE
    retryable = True


class DeadlineExceededError(CallError, TimeoutError):
    """The call's time was over before its answer came."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class CallCancelledError(CallError):
    """The call was cancelled, for example because its client was closed."""

    code = grpc.StatusCode.CANCELLED


class UnauthenticatedError(CallError):
    """The server wants credentials, or does not accept these."""

    code = grpc.StatusCode.UNAUTHENTICATED


class PermissionDeniedError(CallError):
    """The credentials do not allow this."""

    code = grpc.StatusCode.PERMISSION_DENIED


class UnimplementedError(CallError):
    """The server does not have this method: it is older than this client, or not jumok."""

    code = grpc.StatusCode.UNIMPLEMENTED


class InternalError(CallError):
    """The fault is the server's; its log tells more under ``request_id``."""

    code = grpc.StatusCode.INTERNAL


_CLASSES: dict[grpc.StatusCode, type[CallError]] = {
    error.code: error
    for error in (
        InvalidArgumentError,
        NotFoundError,
        FailedPreconditionError,
        ResourceExhaustedError,
        UnavailableError,
        DeadlineExceededError,
        CallCancelledError,
        UnauthenticatedError,
        PermissionDeniedError,
        UnimplementedError,
        InternalError,
    )
}


_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


def invalid_field(field: str, problem: str) -> InvalidArgumentError:
    """Refuse a request before it is sent; looks like the server's own refusal."""
    violation = FieldViolation(field=field, description=problem)
    return InvalidArgumentError(
        f"{field}: {problem}", details=Details(reason="INVALID_REQUEST", field_violations=(violation,))
    )


def call_error(error: grpc.RpcError, server: str) -> CallError:
    """Turn the error of a failed call to a server, of either kind of channel, into one of the tree."""
    code = error.code()
    trailing = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    packed = dict(trailing).get("grpc-status-details-bin", b"")
    details = _read_details(packed if isinstance(packed, bytes) else b"")
    message = error.details() or f"the call failed with {code.name}"
    if code is grpc.StatusCode.UNAVAILABLE and not details.reason:  # gRPC's own words: no server has spoken
        message = f"cannot reach a server at {server}: {message}"
    return _CLASSES.get(code, CallError)(message, code=code, details=details)


def status_error(status: status_pb2.Status) -> CallError:
    """Turn the error of one item of a stream into one of the tree."""
    code = _CODES.get(status.code, grpc.StatusCode.UNKNOWN)
    return _CLASSES.get(code, CallError)(status.message, code=code, details=_details(status))


def _read_details(packed: bytes) -> Details:
    try:
        return _details(status_pb2.Status.FromString(packed))
    except DecodeError:  # from something between us and the server; the status itself is still worth raising
        return Details()


def _details(status: status_pb2.Status) -> Details:
    info = error_details_pb2.ErrorInfo()
    bad_request = error_details_pb2.BadRequest()
    resource = error_details_pb2.ResourceInfo()
    retry = error_details_pb2.RetryInfo()
    request = error_details_pb2.RequestInfo()
    has_resource = has_retry = False
    for detail in status.details:
        detail.Unpack(info)
        detail.Unpack(bad_request)
        detail.Unpack(request)
        has_resource |= detail.Unpack(resource)
        has_retry |= detail.Unpack(retry)
    return Details(
        reason=info.reason,
        request_id=request.request_id,
        metadata=dict(info.metadata),
        field_violations=tuple(
            FieldViolation(field=violation.field, description=violation.description)
            for violation in bad_request.field_violations
        ),
        resource=Resource(type=resource.resource_type, name=resource.resource_name, description=resource.description)
        if has_resource
        else None,
        retry_after_s=retry.retry_delay.ToNanoseconds() / 1e9 if has_retry else None,
    )
