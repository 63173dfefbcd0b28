"""The least that a server can do: it reads nothing and refuses every call at once. What that takes is gRPC's own."""

import asyncio

import grpc

from jumok_proto.errors import OverloadedError
from jumok_serve.service.rpc.statuses import to_ending

SERVICE, METHOD = "jumok.v1.TranslationService", "TranslateText"


async def refuse_all() -> None:
    """Serve on a free port, and say so, until the process is ended."""
    request_id = "0" * 32
    ending = to_ending(OverloadedError("the queue is full: no room for any text", retry_after_s=1.0), request_id)
    details = (("x-request-id", request_id), ("grpc-status-details-bin", ending.status))

    async def refuse(_: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        await context.abort(ending.code, ending.message, details)

    server = grpc.aio.server()
    handlers = {METHOD: grpc.unary_unary_rpc_method_handler(refuse)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"serving on 127.0.0.1:{port}: refusals", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(refuse_all())
