"""The common server of all peers: one method of jumok's service on asyncio."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import grpc

from jumok_proto.v1 import translation_pb2

GRACE_S = 1.0

Context: TypeAlias = grpc.aio.ServicerContext[
    translation_pb2.TranslateTextRequest, translation_pb2.TranslateTextResponse
]
Answer: TypeAlias = Callable[
    [translation_pb2.TranslateTextRequest, Context], Awaitable[translation_pb2.TranslateTextResponse]
]


async def serve(answer: Answer, what: str) -> None:
    """Serve on a free port until SIGTERM or Ctrl-C; prints the address."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    handler = grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=translation_pb2.TranslateTextRequest.FromString,
        response_serializer=translation_pb2.TranslateTextResponse.SerializeToString,
    )
    name = translation_pb2.DESCRIPTOR.services_by_name["TranslationService"].full_name
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"TranslateText": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"serving on 127.0.0.1:{port}: {what}", flush=True)
    await stop.wait()
    await server.stop(GRACE_S)
