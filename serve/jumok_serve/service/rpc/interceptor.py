"""Interceptor of every call: request id, access control, status and observers."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, cast

import grpc
from google.protobuf.message import Message

from jumok_proto.errors import JumokError
from jumok_serve.service.rpc.call import REQUEST_ID, Call, request_id_from
from jumok_serve.service.rpc.call_gate import CallGate
from jumok_serve.service.rpc.error_boundary import HANDLER_TYPES, Context, abort
from jumok_serve.service.rpc.error_table import drop_frames, to_ending
from jumok_serve.service.rpc.floods import Floods, too_large

Handler: TypeAlias = "grpc.RpcMethodHandler[Message, Message]"
Continuation: TypeAlias = "Callable[[grpc.HandlerCallDetails], Awaitable[Handler]]"

MIN_SLACK_S, RELATIVE_SLACK = 0.05, 0.01
"""A cancellation this close to the deadline counts as a missed deadline: seconds, or a share of the call's time."""

_CODE_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}


class Interceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic only for type checkers
    """Passes calls of all four kinds through the gate, and finds their final status.

    Args:
        floods: ends connections of calls with too much metadata; None: a proxy has the connections.
    """

    def __init__(self, gate: CallGate, floods: Floods | None = None) -> None:
        self._gate = gate
        self._floods = floods
        self._handlers: dict[str, Handler] = {}  # by method, made at its first call

    async def intercept_service(self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the wrapped handler of a call; None for an unknown method."""
        if self._floods is not None and too_large(handler_call_details.invocation_metadata or ()):
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
        inner: Any = handler.stream_unary or handler.stream_stream  # it has one of them

        async def respond(request: Any, context: Context) -> Message | None:
            call = _new_call(method, context)
            with self._gate.opened(call):
                try:
                    await self._admit(call, context)
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
                call.code = _CODE_NAMES[_number(context)]
            return call.response if not handler.response_streaming else None

        return cast("Handler", make(respond, handler.request_deserializer, handler.response_serializer))

    async def _admit(self, call: Call, context: Context) -> None:
        try:
            self._gate.admit(call)
        except JumokError as error:
            ending = to_ending(error, call.request_id)
            drop_frames(error)
        else:
            context.set_trailing_metadata(((REQUEST_ID, call.request_id),))
            return
        await abort(context, ending)


def _new_call(method: str, context: Context) -> Call:
    metadata = dict(cast("Sequence[tuple[str, str | bytes]]", context.invocation_metadata() or ()))
    return Call(method=method, request_id=request_id_from(metadata), peer=context.peer(), metadata=metadata)


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
