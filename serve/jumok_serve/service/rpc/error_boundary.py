"""Around every method: bytes that are no request, and exceptions, become statuses."""

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
from jumok_serve.service.rpc.error_table import is_expected, to_ending

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Message, Message]
Method = Callable[[Any, Context], Awaitable[Message | None]]
Generator = Callable[[Any, Context], AsyncIterator[Message]]
Request = TypeVar("Request")
Answer = TypeVar("Answer")

_KINDS: dict[tuple[bool, bool], Callable[..., Any]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
"""By whether requests are a stream, and answers."""


def guarded(service: ServiceDescriptor, servicer: object) -> "grpc.GenericRpcHandler[Message, Message]":
    """A servicer's methods for gRPC, each guarded once and for all: an interceptor would do so at every call.

    A method that streams answers writes them itself, or is an asynchronous generator of them.
    """
    handlers = {
        method.name: _KINDS[method.client_streaming, method.server_streaming](
            _guarded(
                _writing(getattr(servicer, method.name), requests_stream=method.client_streaming),
                f"/{service.full_name}/{method.name}",
            ),
            request_deserializer=_tolerant(GetMessageClass(method.input_type).FromString),
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
        for method in service.methods
    }
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def present(request: Request | None) -> Request:
    """Give back a request that was read; raise InvalidArgumentError where its bytes were none."""
    if request is None:
        raise InvalidArgumentError("the request is no valid protobuf message; texts must be UTF-8", field="request")
    return request


async def next_request(context: "grpc.aio.ServicerContext[Request, Answer]") -> Request | None:
    """Read from a stream of requests; None at its end, InvalidArgumentError for bytes that are none."""
    request: Request | None = await context.read()
    return None if request is EOF else present(request)


def _writing(method: Method | Generator, *, requests_stream: bool) -> Method:
    """A method that writes its answers itself, of one that may be a generator of them."""
    if not inspect.isasyncgenfunction(method):
        return cast("Method", method)

    async def write(request: Any, context: Context) -> None:
        async with aclosing(method(_each_request(context) if requests_stream else request, context)) as answers:
            async for answer in answers:
                await context.write(answer)

    return write


async def _each_request(context: Context) -> AsyncIterator[Message]:
    """The requests of a stream; InvalidArgumentError for bytes that are none."""
    while (request := await next_request(context)) is not None:
        yield request


def _guarded(method: Method, name: str) -> Callable[[Any, Context], Awaitable[Message | None]]:
    """Guard a method."""

    async def answer(request: Any, context: Context) -> Message | None:
        try:
            return await method(present(request), context)
        except grpc.aio.AbortError:  # which has said all
            raise
        except Exception as error:
            if not is_expected(error):
                logger.exception("request %s: %s failed", current_request_id(), name)
            failed = error
        await abort(context, failed)
        return None

    return answer


async def abort(context: Context, error: Exception) -> None:
    """End a call with the status of an error and all of its details."""
    request_id = current_request_id()
    ending = to_ending(error, request_id)
    if (call := CALL.get(None)) is not None:
        call.reason = ending.reason
    details = ((REQUEST_ID, request_id), ("grpc-status-details-bin", ending.status))
    await context.abort(ending.code, ending.message, details)


def _tolerant(deserialize: Callable[[bytes], Message]) -> Callable[[bytes], Message | None]:
    """Read a request, or None: gRPC would answer an exception here with UNKNOWN and Python's words."""

    def read(data: bytes) -> Message | None:
        try:
            return deserialize(data)
        except DecodeError:
            return None

    return read
