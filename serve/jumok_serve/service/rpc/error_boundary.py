"""Error boundary of every method: statuses of exceptions, and what is written."""

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import lru_cache, partial
from typing import Any, NamedTuple, cast

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import status_pb2

from jumok_proto.error_conversion import ERRORS, status_to_proto
from jumok_proto.errors import (
    Details,
    FieldViolation,
    InternalError,
    JumokError,
    Resource,
    ResourceExhaustedError,
    UnavailableError,
)
from jumok_serve.service.rpc.call import CALL, Call, current_request_id
from jumok_serve.service.rpc.request_reader import Intake, RequestFormat, RequestReader
from jumok_serve.service.rpc.shares import UnreadResponse

# Statuses travel in HTTP/2 headers, which peers bound at 8 KiB; a name that a caller sent comes back in its error.
# It stands there several times, and each byte beyond ASCII takes up to three.
MAX_MESSAGE_BYTES = 500
MAX_CACHED_STATUSES = 256

EXPECTED = frozenset(kind for (_, reason), kind in ERRORS.items() if reason and kind is not InternalError)
"""Errors that the caller sees as they are; any other is a fault of the server and becomes an InternalError."""


class Ending(NamedTuple):
    """The end of a call that fails.

    Attributes:
        reason: cause, in capitals.
        status: serialized ``google.rpc.Status``; empty: the call has none.
    """

    code: grpc.StatusCode
    message: str
    reason: str = ""
    status: bytes = b""


def is_expected(error: Exception) -> bool:
    """True if the caller sees the error; others are server faults."""
    return type(error) in EXPECTED


def to_ending(error: Exception, request_id: str) -> Ending:
    """Describe an error to the caller, as `to_status` does.

    An overloaded server refuses many calls with one error, so those statuses are cached without the request id.
    """
    if isinstance(error, ResourceExhaustedError | UnavailableError) and is_expected(error):
        id_bytes = request_id.encode()
        kind = type(error)
        message, parts = _split_at_id(kind, str(error), error.retry_after_s, len(id_bytes))  # type: ignore[arg-type]
        return Ending(error.code, message, error.reason, id_bytes.join(parts))
    status = to_status(error, request_id)
    known = error if isinstance(error, JumokError) and is_expected(error) else InternalError
    return Ending(known.code, status.message, known.reason, status.SerializeToString())


@lru_cache(MAX_CACHED_STATUSES)
def _split_at_id(
    kind: type[ResourceExhaustedError | UnavailableError], message: str, retry_after_s: float | None, id_length: int
) -> tuple[str, list[bytes]]:
    """Return a status message, and the serialized status without its request ids."""
    placeholder = "\0" * id_length  # no other byte of a status is 0
    status = to_status(kind(message, retry_after_s=retry_after_s), placeholder)
    return status.message, status.SerializeToString().split(placeholder.encode())


def drop_frames(error: BaseException) -> None:
    """Drop the tracebacks of an error and of its causes, which nothing reads any more.

    A frame of a traceback often holds the error, through a task, a future or the call. Such a cycle keeps requests in
    memory until the garbage collector runs.
    """
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is not None and current.__traceback__ is not None:
            current.__traceback__ = None
            pending += (current.__cause__, current.__context__)


def to_status(error: Exception, request_id: str) -> status_pb2.Status:
    """Describe an error; server faults show only the request id."""
    if not isinstance(error, JumokError) or not is_expected(error):
        message = f"internal error; the server's log has it under request id {request_id}"
        return status_to_proto(InternalError.code, message, Details(reason=InternalError.reason, request_id=request_id))
    message = str(error)
    if error.field.rpartition(".")[2] not in message:  # some callers see only the message
        message = f"{error.field}: {message}"
    message = _shorten(message)
    resource = error.details.resource
    details = Details(
        reason=error.reason,
        request_id=request_id,
        field_violations=(FieldViolation(field=_shorten(error.field), description=message),) if error.field else (),
        resource=None
        if resource is None
        else Resource(type=resource.type, name=_shorten(resource.name), description=_shorten(resource.description)),
        retry_after_s=error.retry_after_s,
    )
    return status_to_proto(error.code, message, details)


def _shorten(text: str) -> str:
    """Cut a text to `MAX_MESSAGE_BYTES` in UTF-8."""
    written = text.encode(errors="replace")
    if len(written) <= MAX_MESSAGE_BYTES:
        return text
    return f"{written[: MAX_MESSAGE_BYTES - len('…'.encode())].decode(errors='ignore')}…"


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
