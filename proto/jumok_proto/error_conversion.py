"""Errors as ``google.rpc.Status`` messages, and back."""

from contextlib import suppress
from typing import TypeVar

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

from jumok_proto import errors
from jumok_proto.conversion import Conversion, Form
from jumok_proto.errors import Details, FieldViolation, JumokError, Resource, printable

DOMAIN = "jumok"
LONGEST_RETRY_S = 86_400.0
"""Longest wait that a client takes from a server; some waits of Python cannot take more than centuries."""

Found = TypeVar("Found", bound=Message)

_CLASSES = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, JumokError)]

ERRORS: dict[tuple[grpc.StatusCode, str], type[JumokError]] = {(each.code, each.reason): each for each in _CLASSES}
"""Error classes by status code and reason. A class with subclasses has an empty reason."""

# The first class of each code is the most general: for statuses of gRPC itself, and for reasons of newer servers.
_GENERAL: dict[grpc.StatusCode, type[JumokError]] = {each.code: each for each in reversed(_CLASSES)}

_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


def _as_utf8(text: str) -> str:
    """Escape lone surrogates, as names of files may hold them and messages must not."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


_TEXT = Form(_as_utf8, printable)
_VIOLATION = Conversion(FieldViolation, error_details_pb2.BadRequest.FieldViolation, form=_TEXT)
_RESOURCE = Conversion(Resource, error_details_pb2.ResourceInfo, form=_TEXT)


def status_to_proto(code: grpc.StatusCode, message: str, details: Details) -> status_pb2.Status:
    """Make the message for a status and its details."""
    metadata = {**details.metadata}
    if details.request_id:
        metadata["request_id"] = details.request_id
    messages: list[Message] = [
        error_details_pb2.ErrorInfo(reason=details.reason, domain=DOMAIN, metadata=metadata),
    ]
    if details.request_id:
        messages.append(error_details_pb2.RequestInfo(request_id=details.request_id))
    if details.field_violations:
        violations = map(_VIOLATION.to_proto, details.field_violations)
        messages.append(error_details_pb2.BadRequest(field_violations=violations))
    if details.resource is not None:
        messages.append(_RESOURCE.to_proto(details.resource))
    if details.retry_after_s is not None:
        delay = Duration()
        delay.FromNanoseconds(round(details.retry_after_s * 1e9))
        messages.append(error_details_pb2.RetryInfo(retry_delay=delay))
    status = status_pb2.Status(code=code.value[0], message=_as_utf8(message))
    for each in messages:
        status.details.add().Pack(each)
    return status


def error_from_proto(status: status_pb2.Status) -> JumokError:
    """Make the error for a status message."""
    return make_error(_CODES.get(status.code, grpc.StatusCode.UNKNOWN), status.message, _details(status))


def make_error(code: grpc.StatusCode, message: str, details: Details) -> JumokError:
    """Make the error of a status, in the class for its reason; its message is printable."""
    kind = ERRORS.get((code, details.reason)) or _GENERAL.get(code, JumokError)
    return kind(printable(message), details=details, code=code)


def read_details(packed: bytes) -> Details:
    """Read the details of a serialized status message; none if it is damaged."""
    try:
        return _details(status_pb2.Status.FromString(packed))
    except DecodeError:
        return Details()


def _details(status: status_pb2.Status) -> Details:
    info = _detail(status, error_details_pb2.ErrorInfo) or error_details_pb2.ErrorInfo()
    bad_request = _detail(status, error_details_pb2.BadRequest) or error_details_pb2.BadRequest()
    request = _detail(status, error_details_pb2.RequestInfo) or error_details_pb2.RequestInfo()
    resource = _detail(status, error_details_pb2.ResourceInfo)
    retry = _detail(status, error_details_pb2.RetryInfo)
    return Details(
        reason=printable(info.reason),
        request_id=printable(request.request_id),
        metadata=dict(info.metadata),
        field_violations=tuple(map(_VIOLATION.from_proto, bad_request.field_violations)),
        resource=None if resource is None else _RESOURCE.from_proto(resource),
        retry_after_s=None
        if retry is None
        else min(max(retry.retry_delay.ToNanoseconds() / 1e9, 0.0), LONGEST_RETRY_S),
    )


def _detail(status: status_pb2.Status, kind: type[Found]) -> Found | None:
    """Return the detail of a type; None if there is none, or a damaged one."""
    for detail in status.details:
        if detail.Is(kind.DESCRIPTOR):
            with suppress(DecodeError):
                return kind.FromString(detail.value)
    return None
