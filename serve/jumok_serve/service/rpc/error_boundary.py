"""Error boundary of every method: invalid bytes and exceptions become statuses."""

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar, cast

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from grpc.aio import EOF  # type: ignore[attr-defined]  # its types lack it

from jumok_proto.errors import InvalidArgumentError
from jumok_serve.service.rpc.call import CALL, REQUEST_ID, current_request_id
from jumok_serve.service.rpc.error_table import Ending, drop_frames, is_expected, to_ending
from jumok_serve.service.rpc.responses import write_response

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Message, Message]
Method = Callable[[Any, Context], Awaitable[Message | None]]
Generator = Callable[[Any, Context], AsyncIterator[Message]]
Request = TypeVar("Request")
Response = TypeVar("Response")

HANDLER_TYPES: dict[tuple[bool, bool], Callable[..., Any]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
"""Makers of handlers by (requests are a stream, responses are a stream)."""


def guarded_handlers(service: ServiceDescriptor, servicer: object) -> "grpc.GenericRpcHandler[Message, Message]":
    """Make gRPC handlers of a servicer, each within an error boundary.

    The boundaries are made once; an interceptor would make them at every call. A method that streams responses writes
    them itself or is an asynchronous generator.
    """
    handlers = {
        method.name: HANDLER_TYPES[method.client_streaming, method.server_streaming](
            _with_error_boundary(
                _as_writer(getattr(servicer, method.name), requests_stream=method.client_streaming),
                f"/{service.full_name}/{method.name}",
            ),
            request_deserializer=_none_if_invalid(GetMessageClass(method.input_type).FromString),
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
        for method in service.methods
    }
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def require_valid(request: Request | None) -> Request:
    """Return a request.

    Raises:
        InvalidArgumentError: the bytes were invalid, so the request is None.
    """
    if request is None:
        raise InvalidArgumentError("the request is no valid protobuf message; texts must be UTF-8", field="request")
    return request


async def next_request(context: "grpc.aio.ServicerContext[Request, Response]") -> Request | None:
    """Read the next request of a stream, or None at its end.

    Raises:
        InvalidArgumentError: invalid bytes.
    """
    request: Request | None = await context.read()
    return None if request is EOF else require_valid(request)


def _as_writer(method: Method | Generator, *, requests_stream: bool) -> Method:
    """Make a method that writes its responses from one that may generate them."""
    if not inspect.isasyncgenfunction(method):
        return cast("Method", method)

    async def write(request: Any, context: Context) -> None:
        async with aclosing(method(_requests(context) if requests_stream else request, context)) as responses:
            async for response in responses:
                await write_response(context, response)

    return write


async def _requests(context: Context) -> AsyncIterator[Message]:
    while (request := await next_request(context)) is not None:
        yield request


def _with_error_boundary(method: Method, name: str) -> Callable[[Any, Context], Awaitable[Message | None]]:
    async def respond(request: Any, context: Context) -> Message | None:
        try:
            return await method(require_valid(request), context)
        except grpc.aio.AbortError:  # its status is set
            raise
        except Exception as error:
            if not is_expected(error):
                logger.exception("request %s: %s failed", current_request_id(), name)
            ending = to_ending(error, current_request_id())
            drop_frames(error)
        await abort(context, ending)
        return None

    return respond


async def abort(context: Context, ending: Ending) -> None:
    """End a call with a status and its details."""
    if (call := CALL.get(None)) is not None:
        call.reason = ending.reason
    details = ((REQUEST_ID, current_request_id()), ("grpc-status-details-bin", ending.status))
    await context.abort(ending.code, ending.message, details)


def _none_if_invalid(deserialize: Callable[[bytes], Message]) -> Callable[[bytes], Message | None]:
    """Deserialize, to None on failure, which gRPC would report as UNKNOWN."""

    def read(data: bytes) -> Message | None:
        try:
            return deserialize(data)
        except DecodeError:
            return None

    return read
