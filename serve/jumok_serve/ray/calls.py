"""Calls that reach a replica through a gRPC proxy of Ray."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any, NoReturn, TypeAlias, cast

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from grpc.aio import EOF  # type: ignore[attr-defined]  # its types lack it

from jumok_proto.errors import InvalidArgumentError
from jumok_serve.service.rpc.interceptor import Handler, Interceptor
from jumok_serve.service.rpc.statuses import written
from jumok_serve.service.services import (
    FILE_SERVICE,
    GLOSSARY_SERVICE,
    HEALTH_SERVICE,
    MODEL_SERVICE,
    TRANSLATION_SERVICE,
    Services,
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


Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]
Write: TypeAlias = Callable[[Message], Awaitable[None]]
RayContext: TypeAlias = Any
"""Ray's ``RayServegRPCContext``. The proxy gets it back with each response, and not with an exception."""


class CallContext:
    """Context of a call: the part of ``grpc.aio.ServicerContext`` that handlers use.

    Ray passes no deadline to a replica: its proxy cancels a call at the deadline.

    Args:
        requests: serialized requests, of at most ``max_bytes`` each.
        write: writes a response of a stream.
    """

    def __init__(
        self, context: RayContext, requests: AsyncIterator[bytes], max_bytes: int, write: Write | None = None
    ) -> None:
        self._context = context
        self._requests = requests
        self._max_bytes = max_bytes
        self.write = write
        self.peer = context.peer
        self.invocation_metadata = context.invocation_metadata
        self.code = context.code

    async def read(self) -> Any:
        """Return the next request, or ``grpc.aio.EOF``; raise InvalidArgumentError if it is too large."""
        request = await anext(self._requests, EOF)
        if request is not EOF and len(request) > self._max_bytes:
            raise InvalidArgumentError(
                f"a request takes at most {self._max_bytes} bytes here, got {len(request)}: send several",
                field="request",
            )
        return request

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """Set the metadata that ends the call."""
        self._context.set_trailing_metadata(list(metadata))

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> NoReturn:
        """End the call with a status."""
        self._context.set_code(code)
        self._context.set_details(details)
        self.set_trailing_metadata(trailing_metadata)
        raise grpc.aio.AbortError

    def time_remaining(self) -> None:
        """Return None: the deadline is not known."""

    def done(self) -> bool:
        """Return False: a caller that leaves cancels the call."""
        return False


class Calls:
    """Gives calls to the handlers of services, through their gate."""

    def __init__(self, services: Services) -> None:
        self._max_bytes = services.limits.max_message_bytes
        self._interceptor = Interceptor(services.gate)
        self._services = services.handlers(services.services)

    async def respond(self, method: str, request: bytes, context: RayContext) -> Message:
        """Answer a call that has one response; an empty one carries the status of a failure."""
        handler = await self._handler(method)
        response = await handler.stream_unary(None, CallContext(context, _only(request), self._max_bytes))
        return cast("Message", response) if response is not None else Empty()

    async def stream(
        self, method: str, requests: bytes | AsyncIterator[bytes], context: RayContext
    ) -> AsyncIterator[Message]:
        """Answer a call that has several responses; the last, empty one carries the status of a failure."""
        handler = await self._handler(method)
        each = _only(requests) if isinstance(requests, bytes) else requests

        def call(write: Write) -> Awaitable[None]:
            done: Awaitable[None] = handler.stream_stream(None, CallContext(context, each, self._max_bytes, write))
            return done

        async with aclosing(written(call)) as responses:
            async for response in responses:
                yield response
        if context.code():
            yield Empty()

    async def _handler(self, method: str) -> Any:
        details = cast("grpc.HandlerCallDetails", SimpleNamespace(method=method))
        return await self._interceptor.intercept_service(self._find, details)

    async def _find(self, details: grpc.HandlerCallDetails) -> Handler:
        return next(filter(None, (service.service(details) for service in self._services)))


async def _only(request: bytes) -> AsyncIterator[bytes]:
    yield request
