"""Errors of calls: what gRPC raises, as one of the tree in `jumok_proto.errors`."""

from collections.abc import Iterable
from typing import cast

import grpc

from jumok_proto.error_conversion import make_error, read_details
from jumok_proto.errors import Details, FieldViolation, InvalidArgumentError, JumokError


def invalid_field(field: str, problem: str) -> InvalidArgumentError:
    """Make the refusal of a request before it is sent; it looks like the server's own."""
    violation = FieldViolation(field=field, description=problem)
    details = Details(reason=InvalidArgumentError.reason, field_violations=(violation,))
    return InvalidArgumentError(f"{field}: {problem}", details=details)


def call_error(error: grpc.RpcError, server: str) -> JumokError:
    """Make the error for a failed call to a server, through either kind of channel."""
    code = error.code()
    trailing = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    packed = dict(trailing).get("grpc-status-details-bin", b"")
    details = read_details(packed) if isinstance(packed, bytes) else Details()
    message = error.details() or f"the call failed with {code.name}"
    if code is grpc.StatusCode.UNAVAILABLE and not details.reason:  # gRPC itself speaks, not a server
        message = f"cannot reach a server at {server}: {message}"
    return make_error(code, message, details)
