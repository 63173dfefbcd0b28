"""Interceptor of every call: request id, access control, status and observers."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, cast

import grpc
from google.protobuf.message import Message

from jumok_proto.errors import JumokError, OverloadedError
from jumok_serve.service.rpc.call import HEALTH_METHODS, REQUEST_ID, Call, request_id_from
from jumok_serve.service.rpc.call_gate import CallGate
from jumok_serve.service.rpc.error_boundary import HANDLER_TYPES, Context
from jumok_serve.service.rpc.error_table import Ending, drop_frames, to_ending
from jumok_serve.service.rpc.floods import Floods, too_large
from jumok_serve.service.rpc.unread_responses import UnreadResponse, UnreadResponses

Handler: TypeAlias = "grpc.RpcMethodHandler[Message, Message]"
Continuation: TypeAlias = "Callable[[grpc.HandlerCallDetails], Awaitable[Handler]]"

MIN_SLACK_S, RELATIVE_SLACK = 0.05, 0.01
"""A cancellation this close to the deadline counts as a missed deadline: seconds, or a share of the call's time."""

_CODE_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}


class Interceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic only for type checkers
    """Passes calls of all four kinds through the gate, and finds their final status.

    Args:
        floods: ends connections of calls with too much metadata; None: a proxy has the connections.
        unread: bounds responses that are not read; None: a proxy reads them.
        unread_checks: the same for health checks.
    """

    def __init__(
        self,
        gate: CallGate,
        floods: Floods | None = None,
        unread: UnreadResponses | None = None,
        unread_checks: UnreadResponses | None = None,
    ) -> None:
        self._gate = gate
        self._floods = floods
        self._unread, self._unread_checks = unread, unread_checks
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
            call = self._new_call(method, context)
            with self._gate.opened(call):
                try:
                    ended: Message | Ending | None = self._admit(call, context)
                    if ended is None and handler.response_streaming:
                        ended = await inner(request, context)
                    elif ended is None:
                        ended = await self._respond(call, inner(request, context))
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
                    if not handler.response_streaming:  # those write their messages themselves
                        call.response = ended
            if not isinstance(ended, Ending):
                return cast("Message | None", ended)
            await _abort(context, ended, call.request_id)
            return None

        return cast("Handler", make(respond, handler.request_deserializer, handler.response_serializer))

    def _new_call(self, method: str, context: Context) -> Call:
        metadata = dict(cast("Sequence[tuple[str, str | bytes]]", context.invocation_metadata() or ()))
        return Call(
            method=method,
            request_id=request_id_from(metadata),
            peer=context.peer(),
            metadata=metadata,
            unread=self._unread_checks if method.startswith(HEALTH_METHODS) else self._unread,
        )

    def _admit(self, call: Call, context: Context) -> Ending | None:
        try:
            self._gate.admit(call)
        except JumokError as error:
            drop_frames(error)
            return to_ending(error, call.request_id)
        context.set_trailing_metadata(((REQUEST_ID, call.request_id),))
        return None

    @staticmethod
    async def _respond(call: Call, answering: Coroutine[Any, Any, Message | Ending]) -> Message | Ending:
        """Answer a call, and count the response until it is read; without room before, the call has no effect."""
        if call.unread is None:
            return await answering
        unread = UnreadResponse(call.unread, call.account, call.peer)
        try:
            unread.hold()
            # gRPC sends the response in this task. A callback of the context would keep it, in a cycle.
            cast("asyncio.Task[Any]", asyncio.current_task()).add_done_callback(lambda _: unread.close())
            ended = await answering
            if not isinstance(ended, Ending):
                unread.hold(ended.ByteSize())
                unread.close_if_late()
        except OverloadedError as error:
            drop_frames(error)
            return to_ending(error, call.request_id)
        finally:
            answering.close()
        return ended


async def _abort(context: Context, ending: Ending, request_id: str) -> None:
    """End a call with a status and its details."""
    details: tuple[tuple[str, str | bytes], ...] = ((REQUEST_ID, request_id),)
    if ending.status:
        details = (*details, ("grpc-status-details-bin", ending.status))
    # The call may have ended: the caller left, or gRPC refused its message.
    with suppress(grpc.aio.InternalError):
        try:
            await context.abort(ending.code, ending.message, details)
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
