"""Errors as HTTP responses: statuses, headers, and fields under the names of an API."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from google.rpc.status_pb2 import Status
from grpc import StatusCode

from jumok_proto.error_conversion import status_to_proto
from jumok_proto.errors import (
    Details,
    InvalidArgumentError,
    JumokError,
    LanguageNotFoundError,
    ResourceExhaustedError,
)
from jumok_serve.service.rpc.error_boundary import to_status

HTTP_STATUSES: dict[StatusCode, int] = {
    StatusCode.INVALID_ARGUMENT: 400,
    StatusCode.FAILED_PRECONDITION: 400,
    StatusCode.UNAUTHENTICATED: 401,
    StatusCode.PERMISSION_DENIED: 403,
    StatusCode.NOT_FOUND: 404,
    StatusCode.RESOURCE_EXHAUSTED: 429,
    StatusCode.CANCELLED: 499,
    StatusCode.UNIMPLEMENTED: 501,
    StatusCode.UNAVAILABLE: 503,
    StatusCode.DEADLINE_EXCEEDED: 504,
}
"""Statuses by gRPC code, as in ``google.rpc.Code``; 500 for others."""
TOO_LARGE = 413


def http_status(error: JumokError) -> int:
    """Return the HTTP status of an error."""
    if type(error) is ResourceExhaustedError:  # a request that is too large; the others are of subclasses
        return TOO_LARGE
    return HTTP_STATUSES.get(error.code, 500)


def retry_headers(error: JumokError) -> dict[str, str]:
    """Return the header ``Retry-After`` in seconds, if a retry can help."""
    return {} if error.retry_after_s is None else {"retry-after": str(max(1, math.ceil(error.retry_after_s)))}


def describe(error: JumokError, request_id: str) -> Status:
    """Describe an error, as `to_status` does, and also a request that is too large, which gRPC describes itself."""
    if type(error) is ResourceExhaustedError:
        return status_to_proto(error.code, str(error), Details(request_id=request_id))
    return to_status(error, request_id)


@contextmanager
def renamed_fields(names: Mapping[str, str]) -> Iterator[None]:
    """Rename the fields of errors to those of an API; a field keeps its index."""
    try:
        yield
    except (InvalidArgumentError, LanguageNotFoundError) as error:
        name, bracket, index = error.field.partition("[")
        if error.field in names:
            field = names[error.field]
        elif name in names:
            field = names[name] + bracket + index
        else:
            raise
        raise type(error)(str(error).replace(error.field, field), field=field) from error
