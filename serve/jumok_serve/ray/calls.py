"""Calls that reach a replica through a gRPC proxy of Ray."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, TypeAlias

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from grpc.aio import EOF  # type: ignore[attr-defined]  # its types lack it

from jumok_proto.errors import JumokError
from jumok_serve.service.rpc.call import REQUEST_ID, Call, Write, closed, full_name, request_id_from, written
from jumok_serve.service.rpc.interceptor import trailing_metadata
from jumok_serve.service.rpc.request_reader import RequestFormat, RequestReader
from jumok_serve.service.rpc.statuses import Ending, drop_frames, to_ending
from jumok_serve.service.server import (
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


RayContext: TypeAlias = Any
"""Ray's ``RayServegRPCContext``. The proxy gets it back with each response, and not with an exception."""


class Calls:
    """Gives calls to the methods of services, through their gate.

    Ray passes no deadline to a replica: its proxy cancels a call at the deadline, and if a caller leaves.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._formats = {method: RequestFormat(method.input_type) for method in METHODS}

    async def respond(self, method: MethodDescriptor, request: bytes, context: RayContext) -> Message:
        """Answer a call that has one response; an empty one carries the status of a failure."""
        return await self._answer(method, _only(request), context) or Empty()

    async def stream(
        self, method: MethodDescriptor, requests: bytes | AsyncIterator[bytes], context: RayContext
    ) -> AsyncIterator[Message]:
        """Answer a call that has several responses; the last, empty one carries the status of a failure."""
        each = _only(requests) if isinstance(requests, bytes) else requests
        async with aclosing(written(lambda write: self._answer(method, each, context, write))) as responses:
            async for response in responses:
                yield response
        if context.code():
            yield Empty()

    async def _answer(
        self, method: MethodDescriptor, requests: AsyncIterator[bytes], context: RayContext, write: Write = closed
    ) -> Message | None:
        """Pass a call through the gate; returns its only response, or None after a stream or a failure."""
        metadata = dict(context.invocation_metadata() or ())
        call = Call(
            method=full_name(method),
            request_id=request_id_from(metadata),
            peer=context.peer(),
            metadata=metadata,
            write=write,
        )
        context.set_trailing_metadata([(REQUEST_ID, call.request_id)])
        service = method.containing_service
        try:
            with self._services.gate.answering(call):
                intake = self._services.intake_of(service)
                reader = RequestReader(lambda: anext(requests, EOF), call.account, intake, self._formats[method])
                try:
                    handle = getattr(self._services.services[service], method.name)
                    request = reader if method.client_streaming else await reader.only()
                    response: Message | Ending | None = await handle(request, call)
                finally:
                    reader.close()
                if not isinstance(response, Ending):
                    return response
                call.code, ending = response.code.name, response
        except JumokError as error:
            drop_frames(error)  # those of here
            ending = to_ending(error, call.request_id)
        context.set_code(ending.code)
        context.set_details(ending.message)
        context.set_trailing_metadata(trailing_metadata(ending, call.request_id))
        return None


async def _only(request: bytes) -> AsyncIterator[bytes]:
    yield request
