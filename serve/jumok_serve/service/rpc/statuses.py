"""What callers see of errors: statuses with details, and the end of a call that fails."""

from functools import lru_cache
from typing import NamedTuple

import grpc
from google.rpc import status_pb2

from jumok_proto.error_conversion import ERRORS, status_to_proto
from jumok_proto.errors import (
    Details,
    FieldViolation,
    InternalError,
    JumokError,
    Resource,
    ResourceExhaustedError,
    UnavailableError,
)
from jumok_serve.share import RETRY_AFTER_S

# Statuses travel in HTTP/2 headers, which peers bound at 8 KiB; a name that a caller sent comes back in its error.
# It stands there several times, and each byte beyond ASCII takes up to three.
MAX_MESSAGE_BYTES = 500
MAX_CACHED_STATUSES = 256
DETAILS = "grpc-status-details-bin"
"""Key of the status in trailing metadata."""

EXPECTED = frozenset(kind for (_, reason), kind in ERRORS.items() if reason and kind is not InternalError)
"""Errors that the caller sees as they are; any other is a fault of the server and becomes an InternalError."""


def stopping() -> UnavailableError:
    """Make the error of a request that a server does not finish because it stops."""
    return UnavailableError("the server is being stopped", retry_after_s=RETRY_AFTER_S)


class Ending(NamedTuple):
    """The end of a call that fails.

    Attributes:
        reason: cause, in capitals.
        status: serialized ``google.rpc.Status``; empty: the call has none.
    """

    code: grpc.StatusCode
    message: str
    reason: str = ""
    status: bytes = b""


def is_expected(error: Exception) -> bool:
    """True if the caller sees the error; others are server faults."""
    return type(error) in EXPECTED


def to_ending(error: Exception, request_id: str) -> Ending:
    """Describe an error to the caller, as `to_status` does.

    An overloaded server refuses many calls with one error, so those statuses are cached without the request id.
    """
    if isinstance(error, ResourceExhaustedError | UnavailableError) and is_expected(error):
        id_bytes = request_id.encode()
        kind = type(error)
        message, parts = _split_at_id(kind, str(error), error.retry_after_s, len(id_bytes))  # type: ignore[arg-type]
        return Ending(error.code, message, error.reason, id_bytes.join(parts))
    status = to_status(error, request_id)
    known = error if isinstance(error, JumokError) and is_expected(error) else InternalError
    return Ending(known.code, status.message, known.reason, status.SerializeToString())


@lru_cache(MAX_CACHED_STATUSES)
def _split_at_id(
    kind: type[ResourceExhaustedError | UnavailableError], message: str, retry_after_s: float | None, id_length: int
) -> tuple[str, list[bytes]]:
    """Return a status message, and the serialized status without its request ids."""
    placeholder = "\0" * id_length  # no other byte of a status is 0
    status = to_status(kind(message, retry_after_s=retry_after_s), placeholder)
    return status.message, status.SerializeToString().split(placeholder.encode())


def drop_frames(error: BaseException) -> None:
    """Drop the tracebacks of an error and of its causes, which nothing reads any more.

    A frame of a traceback often holds the error, through a task, a future or the call. Such a cycle keeps requests in
    memory until the garbage collector runs.
    """
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is not None and current.__traceback__ is not None:
            current.__traceback__ = None
            pending += (current.__cause__, current.__context__)


def to_status(error: Exception, request_id: str) -> status_pb2.Status:
    """Describe an error; server faults show only the request id."""
    if not isinstance(error, JumokError) or not is_expected(error):
        message = f"internal error; the server's log has it under request id {request_id}"
        return status_to_proto(InternalError.code, message, Details(reason=InternalError.reason, request_id=request_id))
    message = str(error)
    if error.field.rpartition(".")[2] not in message:  # some callers see only the message
        message = f"{error.field}: {message}"
    message = _shorten(message)
    resource = error.details.resource
    details = Details(
        reason=error.reason,
        request_id=request_id,
        field_violations=(FieldViolation(field=_shorten(error.field), description=message),) if error.field else (),
        resource=None
        if resource is None
        else Resource(type=resource.type, name=_shorten(resource.name), description=_shorten(resource.description)),
        retry_after_s=error.retry_after_s,
    )
    return status_to_proto(error.code, message, details)


def _shorten(text: str) -> str:
    """Cut a text to `MAX_MESSAGE_BYTES` in UTF-8."""
    written = text.encode(errors="replace")
    if len(written) <= MAX_MESSAGE_BYTES:
        return text
    return f"{written[: MAX_MESSAGE_BYTES - len('…'.encode())].decode(errors='ignore')}…"
