"""Writing of streamed responses, to callers that may have left."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
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


async def written(call: Callable[[Callable[[Message], Awaitable[None]]], Awaitable[None]]) -> AsyncGenerator[Message]:
    """Yield the messages that a call writes, and raise its exception after them.

    Closing this generator cancels the call.

    Args:
        call: writes messages with the function that it gets, which returns once the message before was taken.
    """
    messages: asyncio.Queue[Message] = asyncio.Queue(1)  # a reader that is slow gets fewer messages
    calling = asyncio.ensure_future(call(messages.put))
    try:
        while not calling.done() or not messages.empty():
            getting = asyncio.ensure_future(messages.get())
            try:
                await asyncio.wait({getting, calling}, return_when=asyncio.FIRST_COMPLETED)
                if getting.done() or not messages.empty():
                    yield await getting
            finally:
                getting.cancel()
        await calling
    finally:
        calling.cancel()
