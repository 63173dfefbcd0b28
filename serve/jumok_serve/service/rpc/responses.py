"""Writing of streamed responses, to callers that may have left."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import Message

from jumok_serve.service.rpc.call import Call
from jumok_serve.service.rpc.unread_responses import UnreadResponse


class CallerLeftError(asyncio.CancelledError):
    """The caller has left while a response was written."""


async def write_response(
    call: Call, context: "grpc.aio.ServicerContext[Any, Any]", message: Message, /, *, counted: bool = False
) -> None:
    """Write a response of a stream over gRPC.

    Args:
        counted: True to count it until it is read; False for a stream that its client reads at its own pace.

    Raises:
        CallerLeftError: gRPC cancels a call then, but a response that is being written fails first.
        OverloadedError: other counted responses that the caller has not read leave no room.
    """
    unread = None if call.unread is None else UnreadResponse(call.unread, call.account, call.peer)
    try:
        if unread is not None and counted:
            unread.hold(message.ByteSize())
            unread.close_if_late()
        elif unread is not None:
            unread.be_patient()
        await context.write(message)
    except (grpc.aio.InternalError, grpc.aio.UsageError) as error:
        # `UsageError` of a call that has ended; a misuse of ours would come before its end.
        if isinstance(error, grpc.aio.UsageError) and not context.done():
            raise
        raise CallerLeftError from error
    finally:
        if unread is not None:
            unread.close()
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
