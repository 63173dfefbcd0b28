"""Around every call of every service: its name, whether it may be made, how it ended, and who is told of that."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, cast

import grpc
from google.protobuf.message import Message

from jumok_proto.errors import JumokError, OverloadedError
from jumok_serve.engine.admission import RETRY_AFTER_S
from jumok_serve.service.rpc.access import Gate
from jumok_serve.service.rpc.call import CALL, REQUEST_ID, Call, request_id_of
from jumok_serve.service.rpc.error_boundary import Context, abort

Handler: TypeAlias = "grpc.RpcMethodHandler[Message, Message]"
Continuation: TypeAlias = "Callable[[grpc.HandlerCallDetails], Awaitable[Handler]]"

MIN_SLACK_S, SLACK = 0.05, 0.01
"""How close to its deadline, in seconds or as a share of its time, a call is given up because of it."""

FULL = OverloadedError("the queue is full: no room for any text", retry_after_s=RETRY_AFTER_S)

_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}


class CallObserver(Protocol):
    """What is told of calls, in the event loop."""

    def ended(self, call: Call) -> None:
        """Learn that a call has ended, however it did."""


class Interceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # has arguments for type checkers alone
    """Names, admits and observes calls of all four kinds.

    Args:
        gate: what may be called.
        observers: who is told of every call.
        full: methods that have no room for anybody at times, and what says that it is so now. Their calls are refused
            then before the request is read: in an overload most are, and what that takes is lost to those that are not.
    """

    def __init__(
        self,
        gate: Gate,
        observers: Sequence[CallObserver] = (),
        full: Mapping[str, Callable[[], bool]] = MappingProxyType({}),
    ) -> None:
        self._gate = gate
        self._observers = observers
        self._full = full
        self._handlers: dict[str, Handler] = {}  # of the methods that were called, which exist
        # The handler of a stream is called before a message is read.
        self._refusing = {
            method: self._wrap(method, grpc.stream_stream_rpc_method_handler(_refuse, None, None)) for method in full
        }

    async def intercept_service(self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Give the handler of a call, wrapped; None where there is no such method."""
        method = handler_call_details.method
        full = self._full.get(method)
        if full is not None and full():
            return self._refusing[method]
        wrapped = self._handlers.get(method)
        if wrapped is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            wrapped = self._handlers[method] = self._wrap(method, handler)
        return wrapped

    def _wrap(self, method: str, handler: Handler) -> Handler:
        kinds: dict[tuple[bool, bool], tuple[Any, Any]] = {
            (False, False): (grpc.unary_unary_rpc_method_handler, handler.unary_unary),
            (False, True): (grpc.unary_stream_rpc_method_handler, handler.unary_stream),
            (True, False): (grpc.stream_unary_rpc_method_handler, handler.stream_unary),
            (True, True): (grpc.stream_stream_rpc_method_handler, handler.stream_stream),
        }
        make, inner = kinds[handler.request_streaming, handler.response_streaming]
        alone = not handler.request_streaming

        async def answer(request: Any, context: Context) -> Message | None:
            call = _arrived(method, context)
            self._gate.opened()
            try:
                await self._admit(call, context)
                if alone:
                    call.request = request
                call.response = await inner(request, context)
            except BaseException as error:
                call.code = _code(error, context, call)
                raise
            else:
                call.code = _NAMES[_number(context)]
            finally:
                self._gate.closed()
                self._end(call)
            return call.response if not handler.response_streaming else None

        return cast("Handler", make(answer, handler.request_deserializer, handler.response_serializer))

    async def _admit(self, call: Call, context: Context) -> None:
        try:
            self._gate.admit(call)
        except JumokError as error:
            refusal = error
        else:
            context.set_trailing_metadata(((REQUEST_ID, call.request_id),))
            return
        await abort(context, refusal)

    def _end(self, call: Call) -> None:
        call.duration_s = time.monotonic() - call.started
        for observer in self._observers:
            observer.ended(call)


async def _refuse(request: object, context: Context) -> None:
    await abort(context, FULL)


def _arrived(method: str, context: Context) -> Call:
    metadata = dict(cast("Sequence[tuple[str, str | bytes]]", context.invocation_metadata() or ()))
    call = Call(method=method, request_id=request_id_of(metadata), peer=context.peer(), metadata=metadata)
    CALL.set(call)  # for this task alone, which answers nothing else
    return call


def _number(context: Context) -> int:
    code = cast("grpc.StatusCode | int | None", context.code())
    if isinstance(code, grpc.StatusCode):
        return int(code.value[0])
    return code or 0


def _code(error: BaseException, context: Context, call: Call) -> str:
    """What a call ended with that did not end well."""
    if isinstance(error, asyncio.CancelledError):
        remaining_s = context.time_remaining()
        # Deadlines are rounded up on the wire, so that who gives up at its own is a little early here.
        slack_s = max(MIN_SLACK_S, SLACK * (time.monotonic() - call.started))
        return "DEADLINE_EXCEEDED" if remaining_s is not None and remaining_s <= slack_s else "CANCELLED"
    return _NAMES[_number(context) or grpc.StatusCode.UNKNOWN.value[0]]
