"""Writing of streamed responses, to callers that may have left."""

import asyncio
from typing import Any

import grpc
from google.protobuf.message import Message

from jumok_serve.service.rpc.call import CALL


async def write_response(context: "grpc.aio.ServicerContext[Any, Any]", message: Message) -> None:
    """Write a response of a stream.

    Raises:
        CancelledError: of `asyncio`: the caller has left. gRPC cancels a call then, but a response that is being
            written fails first.
    """
    try:
        await context.write(message)
    except (grpc.aio.InternalError, grpc.aio.UsageError) as error:
        # `UsageError` of a call that has ended; a misuse of ours would come before its end.
        if isinstance(error, grpc.aio.UsageError) and not context.done():
            raise
        raise asyncio.CancelledError("the caller has left") from error
    call = CALL.get(None)
    if call is not None:
        call.response = message
