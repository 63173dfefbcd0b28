"""Stand-in for a gRPC proxy of Ray, in this process: it passes bytes on, and copies contexts back with responses."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor

from jumok_serve.ray import add_services
from jumok_serve.ray.deployment import METHODS, Calls
from jumok_serve.service import Services


class RayContext:
    """A replica's part of a call, as ``ray.serve.grpc_util.RayServegRPCContext``."""

    def __init__(self, context: Any) -> None:
        self._peer, self._metadata = context.peer(), list(context.invocation_metadata())
        self._code: grpc.StatusCode | int = 0
        self._details = ""
        self._trailing: list[tuple[str, str | bytes]] = []

    def peer(self) -> str:
        return str(self._peer)

    def invocation_metadata(self) -> list[tuple[str, str | bytes]]:
        return self._metadata

    def code(self) -> grpc.StatusCode | int:
        return self._code

    def set_code(self, code: grpc.StatusCode) -> None:
        self._code = code

    def set_details(self, details: str) -> None:
        self._details = details

    def set_trailing_metadata(self, trailing_metadata: list[tuple[str, str | bytes]]) -> None:
        self._trailing = trailing_metadata

    def copy_to(self, context: Any) -> None:
        if self._code:
            context.set_code(self._code)
            context.set_details(self._details)
        context.set_trailing_metadata(self._trailing)


class _Proxy:
    """Methods of all services, as Ray's proxy has them."""

    def __init__(self, calls: Calls) -> None:
        for method in METHODS:
            setattr(self, method.name, _several(calls, method) if method.server_streaming else _one(calls, method))


def _one(calls: Calls, method: MethodDescriptor) -> Any:
    async def respond(request: bytes, context: Any) -> bytes:
        ray = RayContext(context)
        response = await calls.respond(method, request, ray)
        ray.copy_to(context)
        return response.SerializeToString()

    return respond


def _several(calls: Calls, method: MethodDescriptor) -> Any:
    async def stream(requests: Any, context: Any) -> AsyncIterator[bytes]:
        ray = RayContext(context)
        async for response in calls.stream(method, requests, ray):
            ray.copy_to(context)
            yield response.SerializeToString()

    return stream


@asynccontextmanager
async def behind_proxy(services: Services) -> AsyncIterator[str]:
    """Serve through a proxy; yields its address."""
    server = grpc.aio.server()
    add_services(_Proxy(Calls(services)), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        services.stop_serving()
        await server.stop(0)
