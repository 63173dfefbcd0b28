"""gRPC server that goes on after calls of methods whose names are no UTF-8.

One task of gRPC accepts all calls. It decodes the name of a call's method, and if it cannot, it ends, and the server
with it: one frame of a stranger is enough. It decodes no name of a registered method. So all methods are registered,
and calls of others are answered here, whatever their names.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Never, TypeAlias, cast

import grpc
from google.protobuf.message import Message
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # gRPC has no public way to accept calls, nor types of it

Handlers: TypeAlias = "Mapping[str, grpc.RpcMethodHandler[Message, Message]]"
"""Handlers of a service's methods, by name."""


def make_grpc_server(
    services: Mapping[str, Handlers], interceptors: Sequence[Any], options: Sequence[tuple[str, int]]
) -> grpc.aio.Server:
    """Make a server; ``services``: the handlers of each service, by its full name."""
    server: Any = grpc.aio.server()
    server._server = _Acceptor(server._loop, None, (), interceptors, tuple(options), None)
    for name, handlers in services.items():
        server.add_registered_method_handlers(name, handlers)
    return cast("grpc.aio.Server", server)


class _Acceptor(cygrpc.AioServer):  # type: ignore[misc]  # it has no type
    """gRPC's own server, without its answer to methods that are not registered."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._unknown = cygrpc._MethodResolver([], {})
        self._refusals: set[asyncio.Task[None]] = set()

    async def _request_call(self) -> Never:
        """Answer calls of such methods, and return none of them: gRPC would decode the name."""
        while True:
            refusal = asyncio.create_task(self._refuse(await super()._request_call()))
            self._refusals.add(refusal)
            refusal.add_done_callback(self._refusals.discard)

    async def _refuse(self, call: Any) -> None:
        """Answer with UNIMPLEMENTED."""
        loop = asyncio.get_running_loop()
        answer = cygrpc._handle_rpc("", self._unknown, (), call, loop, False)
        await cygrpc._schedule_rpc_coro(answer, call, loop, "")
