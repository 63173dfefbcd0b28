"""RPCs that Ray's gRPC proxies pass on to replicas."""

from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor

from jumok_serve.service.services import (
    FILE_SERVICE,
    GLOSSARY_SERVICE,
    HEALTH_SERVICE,
    MODEL_SERVICE,
    TRANSLATION_SERVICE,
)

SERVICES = (TRANSLATION_SERVICE, FILE_SERVICE, GLOSSARY_SERVICE, MODEL_SERVICE, HEALTH_SERVICE)
METHODS: tuple[MethodDescriptor, ...] = tuple(method for service in SERVICES for method in service.methods)
"""All RPCs; no two have the same name, as a deployment has them all as methods."""

_HANDLERS: dict[tuple[bool, bool], Callable[..., Any]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
"""Makers of handlers by (requests are a stream, responses are a stream)."""


def add_services(servicer: Any, server: Any) -> None:
    """Add all services to a gRPC proxy of Ray, which passes each request on as the bytes that it received.

    For ``grpc_servicer_functions`` of Ray Serve.

    Args:
        servicer: object with all methods; Ray replaces them by its own.
    """
    for service in SERVICES:
        handlers = {
            method.name: _HANDLERS[method.client_streaming, method.server_streaming](getattr(servicer, method.name))
            for method in service.methods
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))


def full_name(method: MethodDescriptor) -> str:
    """Return the name of an RPC on the wire."""
    return f"/{method.containing_service.full_name}/{method.name}"
