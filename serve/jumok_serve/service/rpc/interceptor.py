"""gRPC calls: gate, error boundary of each method, floods, and unread responses.

One task of gRPC accepts all calls, and decodes the names of their methods. Where it cannot, it ends, and the server
with it: one frame of a stranger without a token is enough. gRPC has no option for this, so the error handler of codecs
is replaced, for this task alone.
"""

import asyncio
import codecs
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, TypeAlias, cast
from urllib.parse import unquote

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message

from jumok_proto.errors import InternalError, JumokError, OverloadedError
from jumok_serve.service.connections import FILES, INTERVAL_S, MAX_METADATA, OpenFiles, close_connections
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.rpc.call import (
    CALL,
    HEALTH_METHODS,
    REQUEST_ID,
    Call,
    CallGate,
    current_request_id,
    full_name,
    is_cancelled,
    request_id_from,
)
from jumok_serve.service.rpc.request_reader import ByteBudget, Intake, RequestFormat, RequestReader
from jumok_serve.service.rpc.statuses import DETAILS, Ending, drop_frames, is_expected, to_ending
from jumok_serve.share import RETRY_AFTER_S, RateLimiter

COPIES = 3
"""Copies of a response in memory: the message, its bytes, and those that the transport has taken."""
CALL_BYTES = 8 * 1024
"""Bytes that a call counts at least: by default a caller may leave as many responses unread as it may have calls."""


class UnreadResponses:
    """Bounds on the bytes of responses that callers have not read; used in the event loop only.

    A client of gRPC need not read what it asked for: HTTP/2 lets it refuse the bytes of each call for ever.

    Args:
        close_connection: closes the connection of a peer, ``ipv4:127.0.0.1:50051``, which does not read.
        checks: True for those of health checks: once there is no room, the connection of the oldest is closed at once.

    Attributes:
        read_s: time in which a caller reads a response, in seconds. It may read all that it asked for in turn, as fast
            as requests have to arrive.
        held: responses that are not read, oldest first.
    """

    def __init__(
        self,
        limits: ServiceLimits,
        close_connection: Callable[[str], None] = lambda _: None,
        *,
        checks: bool = False,
    ) -> None:
        in_time = COPIES * limits.max_message_bytes
        most = CALL_BYTES * (limits.max_watches if checks else limits.max_calls)
        if not checks:
            most = max(most, limits.max_open_bytes, 2 * in_time)
        self.budget = ByteBudget(most, most // 2)
        self.read_s = limits.upload_s * (1 + self.budget.share // in_time)
        self.silence_s = limits.silence_s
        self.held: dict[UnreadResponse, None] = {}
        self.close_connection = close_connection
        self.checks = checks

    def evict(self) -> None:
        """Close the connection of the oldest response to the caller that holds most."""
        greediest = self.budget.greediest
        self.close_connection(next(response.peer for response in self.held if response.caller == greediest))


class UnreadResponse:
    """A response from the call for it until its caller has read it.

    Args:
        caller: key of the caller's share.
        peer: connection, which is closed if the response is not read in time; empty: it is not.
    """

    def __init__(self, bounds: UnreadResponses, caller: str, peer: str = "") -> None:
        self._bounds = bounds
        self.caller = caller
        self.peer = peer
        self._counted = 0
        self._late: asyncio.TimerHandle | None = None

    def hold(self, size: int = 0) -> None:
        """Count at least the bytes of a message, before it is made as many as a small one has.

        Raises:
            OverloadedError: other responses that the caller has not read leave no room.
        """
        bounds = self._bounds
        more = min(max(CALL_BYTES, COPIES * size), bounds.budget.share) - self._counted
        if more <= 0:
            return
        if not bounds.budget.take_or_exceed(self.caller, more, self._counted):
            if bounds.checks:
                bounds.evict()
            raise OverloadedError(
                "too many bytes of responses to this caller are not read yet: read them, or make fewer calls at once",
                retry_after_s=RETRY_AFTER_S,
            )
        self._counted += more
        bounds.held[self] = None

    def close_after(self, time_s: float) -> None:
        """Close the connection unless the response is read in some seconds from now on."""
        if self.peer:
            loop = asyncio.get_running_loop()
            self._late = loop.call_later(time_s, self._bounds.close_connection, self.peer)

    def close(self) -> None:
        """Count the response no longer: it was read, or its caller has left."""
        if self._late is not None:
            self._late.cancel()
            self._late = None
        if self._counted:
            del self._bounds.held[self]
            self._bounds.budget.give_back(self.caller, self._counted)
            self._counted = 0


class CallerLeftError(asyncio.CancelledError):
    """The caller has left while a response was written."""


async def write_response(
    call: Call,
    bounds: UnreadResponses,
    context: "grpc.aio.ServicerContext[Any, Any]",
    message: Message,
    /,
    *,
    counted: bool = False,
) -> None:
    """Write a response of a stream over gRPC.

    Args:
        counted: True to count it until it is read; False for a stream that its client reads at its own pace.

    Raises:
        CallerLeftError: gRPC cancels a call then, but a response that is being written fails first.
        OverloadedError: other counted responses that the caller has not read leave no room.
    """
    written = message.SerializeToString()
    unread = UnreadResponse(bounds, call.account, call.peer)
    try:
        if counted:
            unread.hold(len(written))
            unread.close_after(bounds.read_s)
        else:  # at its own pace, as long as it takes some
            unread.close_after(bounds.silence_s)
        await context.write(written)
    except (grpc.aio.InternalError, grpc.aio.UsageError) as error:
        # `UsageError` of a call that has ended; a misuse of ours would come before its end.
        if isinstance(error, grpc.aio.UsageError) and not context.done():
            raise
        raise CallerLeftError from error
    finally:
        unread.close()


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
            response_serializer=None,
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
    name = full_name(descriptor)
    requests_stream = descriptor.client_streaming
    request_format = RequestFormat(descriptor.input_type)

    async def respond(_: object, context: Context) -> Message | Ending | None:
        call = CALL.get()
        remaining_s = context.time_remaining()
        call.deadline = None if remaining_s is None else time.monotonic() + remaining_s
        reader = RequestReader(context.read, call.account, intake, request_format)
        try:
            if requests_stream:
                return await method(reader, call)
            return await method(await reader.only(), call)
        except grpc.aio.AbortError:  # its status is set
            raise
        except asyncio.CancelledError as error:
            if is_cancelled() or isinstance(error, CallerLeftError) or context.done():
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


ACCEPTING_TASK = "AioServer._server_main_loop"
"""Name of the coroutine of gRPC that accepts calls."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def accept_any_name() -> None:
    """Let gRPC's servers in this process replace bytes of methods' names that are no UTF-8; no method has such a name.

    Other code gets a `UnicodeDecodeError`, as before. grpcio 1.85 still stops accepting calls at such a name; a test
    fails once a release does not.
    """
    codecs.register_error("strict", _replace_in_names)


def _replace_in_names(error: UnicodeError) -> tuple[str | bytes, int]:
    if isinstance(error, UnicodeDecodeError) and _is_accepting():
        return REPLACEMENT, error.end
    return codecs.strict_errors(error)


def _is_accepting() -> bool:
    """Return True if gRPC's accepting task runs in this thread now."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        return False
    return task is not None and getattr(task.get_coro(), "__qualname__", None) == ACCEPTING_TASK


RESET_S = 1.0
"""Age at which a call has been of use, so that its cancellation is no part of a flood."""
RESETS, RESETS_PER_SECOND = 512, 33.0
"""Younger cancelled calls of a caller, at once and later on, beyond as many others; nghttp2 has such a bound too."""
FIELD_OVERHEAD = 32
"""Bytes that a field of metadata counts besides its own (RFC 9113, section 6.5.2)."""


class Floods:
    """Ends connections whose calls are cancelled at once, again and again, have too much metadata, or are not read.

    gRPC does none of it. Sees connections in Linux' /proc; on other systems it ends none.

    Attributes:
        refusing: handler of a call that has too much metadata.
    """

    def __init__(self) -> None:
        self._resets = RateLimiter(RESETS_PER_SECOND, RESETS)
        self.refusing = HANDLER_TYPES[False](self._refuse)
        self._peers: set[str] = set()
        self._found = asyncio.Event()

    async def _refuse(self, _: object, context: Context) -> None:
        self.close(context.peer())
        try:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"metadata has more than {MAX_METADATA} bytes; send less"
            )
        except grpc.aio.AbortError as error:
            drop_frames(error)

    def ended(self, call: Call) -> None:
        """Count a call; an observer's method."""
        if call.code != "CANCELLED" or call.duration_s >= RESET_S:
            self._resets.give_back(call.account, 1)
        elif self._resets.take(call.account, time.monotonic()) > 0:
            self.close(call.peer)

    def close(self, peer: str) -> None:
        """End the connection of a peer in gRPC's notation, soon."""
        if FILES.is_dir():
            self._peers.add(unquote(peer))  # gRPC quotes the brackets of IPv6
            self._found.set()

    async def end(self) -> None:
        """End connections that flood, until cancelled."""
        files = OpenFiles()
        while True:
            await self._found.wait()
            self._found.clear()
            peers, self._peers = self._peers, set()
            try:
                closed = await asyncio.to_thread(close_connections, files, peers)
            except OSError:  # the whole system has too many open files
                await asyncio.sleep(INTERVAL_S)
                self._peers |= peers
                self._found.set()
                continue
            for account, number in closed.items():
                logger.warning(
                    "closed %d connections of %s: calls cancelled at once, too much metadata, or unread responses",
                    number,
                    account,
                )


def too_large(metadata: Iterable[tuple[str, str | bytes]]) -> bool:
    """True if a call has too much metadata."""
    return sum(len(key) + len(value) + FIELD_OVERHEAD for key, value in metadata) > MAX_METADATA


Handler: TypeAlias = "grpc.RpcMethodHandler[Message, Message]"
Continuation: TypeAlias = "Callable[[grpc.HandlerCallDetails], Awaitable[Handler]]"

MIN_SLACK_S, RELATIVE_SLACK = 0.05, 0.01
"""A cancellation this close to the deadline counts as a missed deadline: seconds, or a share of the call's time."""

_CODE_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}


class Interceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic only for type checkers
    """Passes calls of all four kinds through the gate, and finds their final status.

    Args:
        floods: ends connections of calls with too much metadata.
        unread: bounds responses that are not read.
        unread_checks: the same for health checks.
    """

    def __init__(self, gate: CallGate, floods: Floods, unread: UnreadResponses, unread_checks: UnreadResponses) -> None:
        self._gate = gate
        self._floods = floods
        self._unread, self._unread_checks = unread, unread_checks
        self._handlers: dict[str, Handler] = {}  # by method, made at its first call

    async def intercept_service(self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the wrapped handler of a call; None for an unknown method."""
        if too_large(handler_call_details.invocation_metadata or ()):
            return self._floods.refusing
        method = handler_call_details.method
        wrapped = self._handlers.get(method)
        if wrapped is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            wrapped = self._handlers[method] = self._wrap(method, handler)
        return wrapped

    def _wrap(self, method: str, handler: Handler) -> Handler:
        make = HANDLER_TYPES[handler.response_streaming]
        bounds = self._unread_checks if method.startswith(HEALTH_METHODS) else self._unread
        inner: Any = handler.stream_unary or handler.stream_stream  # it has one of them

        async def respond(request: Any, context: Context) -> bytes | None:
            call = _new_call(method, context)
            call.write = partial(write_response, call, bounds, context)
            with self._gate.opened(call):
                try:
                    ended: bytes | Ending | None = self._admit(call, context)
                    if ended is None and handler.response_streaming:
                        ended = await inner(request, context)
                    elif ended is None:
                        ended = await self._respond(call, bounds, inner(request, context))
                except grpc.aio.AbortError as error:
                    call.code = _code(error, context, call)
                    # gRPC keeps the error with the call, and raises it again after the handler.
                    drop_frames(error)
                    return None
                except BaseException as error:
                    call.code = _code(error, context, call)
                    raise
                if isinstance(ended, Ending):
                    call.code, call.reason = ended.code.name, ended.reason
                else:
                    call.code = _CODE_NAMES[_number(context)]
            if not isinstance(ended, Ending):
                return ended
            await _abort(context, ended, call.request_id)
            return None

        return cast("Handler", make(respond))

    def _admit(self, call: Call, context: Context) -> Ending | None:
        try:
            self._gate.admit(call)
        except JumokError as error:
            drop_frames(error)
            return to_ending(error, call.request_id)
        context.set_trailing_metadata(((REQUEST_ID, call.request_id),))
        return None

    @staticmethod
    async def _respond(
        call: Call, bounds: UnreadResponses, answering: Coroutine[Any, Any, Message | Ending]
    ) -> bytes | Ending:
        """Answer a call, and count the response until it is read; without room before, the call has no effect."""
        unread = UnreadResponse(bounds, call.account, call.peer)
        try:
            unread.hold()
            # gRPC sends the response in this task. A callback of the context would keep it, in a cycle.
            cast("asyncio.Task[Any]", asyncio.current_task()).add_done_callback(lambda _: unread.close())
            ended = await answering
            if isinstance(ended, Ending):
                return ended
            written = ended.SerializeToString()  # once; the size of a message costs as much
            unread.hold(len(written))
            unread.close_after(bounds.read_s)
            return written
        except OverloadedError as error:
            drop_frames(error)
            return to_ending(error, call.request_id)
        finally:
            answering.close()


def _new_call(method: str, context: Context) -> Call:
    metadata = dict(cast("Sequence[tuple[str, str | bytes]]", context.invocation_metadata() or ()))
    return Call(method=method, request_id=request_id_from(metadata), peer=context.peer(), metadata=metadata)


def trailing_metadata(ending: Ending, request_id: str) -> list[tuple[str, str | bytes]]:
    """Return the metadata that end a call."""
    details = [(DETAILS, ending.status)] if ending.status else []
    return [(REQUEST_ID, request_id), *details]


async def _abort(context: Context, ending: Ending, request_id: str) -> None:
    """End a call with a status and its details."""
    # The call may have ended: the caller left, or gRPC refused its message.
    with suppress(grpc.aio.InternalError):
        try:
            await context.abort(ending.code, ending.message, tuple(trailing_metadata(ending, request_id)))
        except grpc.aio.AbortError as error:
            drop_frames(error)  # gRPC keeps it with the call, and raises it again after the handler


def _number(context: Context) -> int:
    code = cast("grpc.StatusCode | int | None", context.code())
    if isinstance(code, grpc.StatusCode):
        return int(code.value[0])
    return code or 0


def _code(error: BaseException, context: Context, call: Call) -> str:
    """Name of the status of a call that raised."""
    if isinstance(error, asyncio.CancelledError):
        remaining_s = context.time_remaining()
        # Deadlines are rounded up on the wire, so a cancellation at the deadline arrives slightly before it.
        slack_s = max(MIN_SLACK_S, RELATIVE_SLACK * (time.monotonic() - call.started))
        return "DEADLINE_EXCEEDED" if remaining_s is not None and remaining_s <= slack_s else "CANCELLED"
    return _CODE_NAMES[_number(context) or grpc.StatusCode.UNKNOWN.value[0]]
