"""RPCs that Ray's gRPC proxies pass on to replicas."""

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

WATCH = HEALTH_SERVICE.methods_by_name["Watch"]
"""RPC without an end, which would hold a replica and see its health alone. Clients take its lack for health."""
METHODS: tuple[MethodDescriptor, ...] = tuple(
    method
    for service in (TRANSLATION_SERVICE, FILE_SERVICE, GLOSSARY_SERVICE, MODEL_SERVICE, HEALTH_SERVICE)
    for method in service.methods
    if method.full_name != WATCH.full_name
)
"""All RPCs but the watch; no two have the same name, as a deployment has them all as methods."""


def add_services(servicer: Any, server: Any) -> None:
    """Add all services to a gRPC proxy of Ray, which passes each request on as the bytes that it received.

    For ``grpc_servicer_functions`` of Ray Serve.

    Args:
        servicer: object with all methods; Ray replaces them by its own.
    """
    services: dict[str, dict[str, Any]] = {}
    for method in METHODS:
        kind = "_".join("stream" if each else "unary" for each in (method.client_streaming, method.server_streaming))
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        services.setdefault(method.containing_service.full_name, {})[method.name] = make(getattr(servicer, method.name))
    for name, handlers in services.items():
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))


def full_name(method: MethodDescriptor) -> str:
    """Return the name of an RPC on the wire."""
    return f"/{method.containing_service.full_name}/{method.name}"
