"""Error boundary of every method: reads its requests, and turns exceptions into statuses."""

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, cast

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from jumok_proto.errors import InternalError
from jumok_serve.service.rpc.call import CALL, Call, current_request_id
from jumok_serve.service.rpc.error_table import Ending, drop_frames, is_expected, to_ending
from jumok_serve.service.rpc.request_reader import Intake, RequestFormat, RequestReader
from jumok_serve.service.rpc.responses import CallerLeftError, write_response

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Message, Message]
Method = Callable[[Any, Call], Awaitable[Message | Ending | None]]
Generator = Callable[[Any, Call], AsyncIterator[Message]]

HANDLER_TYPES: dict[bool, Callable[..., Any]] = {
    False: grpc.stream_unary_rpc_method_handler,
    True: grpc.stream_stream_rpc_method_handler,
}
"""Makers of handlers by (responses are a stream).

gRPC reads the request of other handlers before it calls them. These run first, and read within bounds.
"""


def guarded_handlers(
    service: ServiceDescriptor, servicer: object, intake: Intake
) -> "grpc.GenericRpcHandler[Message, Message]":
    """Make gRPC handlers of a servicer, each within an error boundary.

    The boundaries are made once; an interceptor would make them at every call. A method that streams responses writes
    them itself or is an asynchronous generator. A method that streams requests gets a `RequestReader`. A handler
    returns the `Ending` of a call that fails, which `Interceptor` sends once nothing holds the request.
    """
    handlers = {
        method.name: HANDLER_TYPES[method.server_streaming](
            _with_error_boundary(_as_writer(getattr(servicer, method.name)), method, intake),
            request_deserializer=None,
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
        for method in service.methods
    }
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def _as_writer(method: Method | Generator) -> Method:
    """Make a method that writes its responses from one that may generate them."""
    if not inspect.isasyncgenfunction(method):
        return cast("Method", method)

    async def write(request: Any, call: Call) -> None:
        async with aclosing(method(request, call)) as responses:
            async for response in responses:
                await call.write(response)

    return write


def _with_error_boundary(
    method: Method, descriptor: MethodDescriptor, intake: Intake
) -> Callable[[Any, Context], Awaitable[Message | Ending | None]]:
    name = f"/{descriptor.containing_service.full_name}/{descriptor.name}"
    requests_stream = descriptor.client_streaming
    request_format = RequestFormat(descriptor.input_type)

    async def respond(_: object, context: Context) -> Message | Ending | None:
        call = CALL.get()
        remaining_s = context.time_remaining()
        call.deadline = None if remaining_s is None else time.monotonic() + remaining_s
        call.write = partial(write_response, call, context)
        reader = RequestReader(context, call.account, intake, request_format)
        try:
            if requests_stream:
                return await method(reader, call)
            call.request = await reader.only()
            return await method(call.request, call)
        except grpc.aio.AbortError:  # its status is set
            raise
        except asyncio.CancelledError as error:
            if _is_cancelled() or isinstance(error, CallerLeftError) or context.done():
                raise
            logger.exception("request %s: %s was cancelled from within", current_request_id(), name)
            failure: Exception = InternalError()
            drop_frames(error)
        except Exception as error:
            if not is_expected(error):
                logger.exception("request %s: %s failed", current_request_id(), name)
            failure = error
        finally:
            reader.close()
        drop_frames(failure)
        return to_ending(failure, call.request_id)

    return respond


def _is_cancelled() -> bool:
    """True if the current task was cancelled, and not a part of its work alone."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
