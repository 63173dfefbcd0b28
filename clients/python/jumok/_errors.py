"""Errors of calls: gRPC's, as one of the tree in `jumok_proto.errors`."""

from collections.abc import Iterable
from typing import cast

import grpc
from google.rpc import status_pb2

from jumok_proto.error_conversion import error_from_proto, make_error, read_details
from jumok_proto.errors import Details, JumokError
from jumok_proto.parameters import name_parameter


def call_error(error: grpc.RpcError, server: str) -> JumokError:
    """Make the error of a failed call through any channel."""
    code = error.code()
    trailing = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    packed = dict(trailing).get("grpc-status-details-bin", b"")
    details = read_details(packed) if isinstance(packed, bytes) else Details()
    message = error.details() or f"the call failed with {code.name}"
    if code is grpc.StatusCode.UNAVAILABLE and not details.reason:  # gRPC itself speaks, not a server
        message = f"cannot reach a server at {server}: {message}"
    made = make_error(code, message, details)
    name_parameter(made)
    return made


def item_error(status: status_pb2.Status) -> JumokError:
    """Make the error of one item of a stream."""
    error = error_from_proto(status)
    name_parameter(error)
    return error
