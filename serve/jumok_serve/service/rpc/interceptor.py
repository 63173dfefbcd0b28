"""Interceptor of every call: request id, access control, status and observers."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, cast

import grpc
from google.protobuf.message import Message

from jumok_proto.errors import JumokError, OverloadedError
from jumok_serve.engine.admission import RETRY_AFTER_S
from jumok_serve.service.rpc.access import AccessControl
from jumok_serve.service.rpc.call import CALL, REQUEST_ID, Call, request_id_from
from jumok_serve.service.rpc.error_boundary import HANDLER_TYPES, Context, abort
from jumok_serve.service.rpc.error_table import drop_frames, to_ending

Handler: TypeAlias = "grpc.RpcMethodHandler[Message, Message]"
Continuation: TypeAlias = "Callable[[grpc.HandlerCallDetails], Awaitable[Handler]]"

MIN_SLACK_S, RELATIVE_SLACK = 0.05, 0.01
"""A cancellation this close to the deadline counts as a missed deadline: seconds, or a share of the call's time."""

_CODE_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}


class CallObserver(Protocol):
    """Observer of ended calls, called in the event loop."""

    def ended(self, call: Call) -> None:
        """Handle a call that has ended in any way."""


class Interceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic only for type checkers
    """Identifies, admits and observes calls of all four kinds.

    Args:
        full: by method, a function that is true while the method's queue is full for a caller. Its calls are then
            refused before the request is read: under overload most are, and reading them would take time from the
            others.
    """

    def __init__(
        self,
        access: AccessControl,
        observers: Sequence[CallObserver] = (),
        full: Mapping[str, Callable[[str], bool]] = MappingProxyType({}),
    ) -> None:
        self._access = access
        self._observers = observers
        self._full = full
        self._handlers: dict[str, Handler] = {}  # by method, made at its first call

    async def intercept_service(self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the wrapped handler of a call; None for an unknown method."""
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
        inner: Any = handler.stream_unary or handler.stream_stream  # it has one of them
        full = self._full.get(method, _never)

        async def respond(request: Any, context: Context) -> Message | None:
            call = _new_call(method, context)
            self._access.call_opened()
            try:
                await self._admit(call, context, full)
                response = await inner(request, context)
                if not handler.response_streaming:  # those write their messages themselves
                    call.response = response
            except grpc.aio.AbortError as error:
                call.code = _code(error, context, call)
                # gRPC keeps the error with the call, and raises it again after the handler.
                drop_frames(error)
                return None
            except BaseException as error:
                call.code = _code(error, context, call)
                raise
            else:
                call.code = _CODE_NAMES[_number(context)]
            finally:
                self._access.call_closed(call)
                self._end(call)
            return call.response if not handler.response_streaming else None

        return cast("Handler", make(respond, handler.request_deserializer, handler.response_serializer))

    async def _admit(self, call: Call, context: Context, full: Callable[[str], bool]) -> None:
        try:
            self._access.admit(call)
            if full(call.account):
                raise OverloadedError("the queue is full: no room for any text", retry_after_s=RETRY_AFTER_S)
        except JumokError as error:
            ending = to_ending(error, call.request_id)
            drop_frames(error)
        else:
            context.set_trailing_metadata(((REQUEST_ID, call.request_id),))
            return
        await abort(context, ending)

    def _end(self, call: Call) -> None:
        call.duration_s = time.monotonic() - call.started
        for observer in self._observers:
            observer.ended(call)


def _never(_caller: str) -> bool:
    return False


def _new_call(method: str, context: Context) -> Call:
    metadata = dict(cast("Sequence[tuple[str, str | bytes]]", context.invocation_metadata() or ()))
    call = Call(method=method, request_id=request_id_from(metadata), peer=context.peer(), metadata=metadata)
    CALL.set(call)  # visible to the current task only
    return call


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
