"""Around every method: bytes that are no request, and exceptions, become statuses."""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias, cast

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import status_pb2

from jumok_serve.errors import InvalidRequest
from jumok_serve.service.status import is_expected, new_request_id, to_status

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Message, Message]
Handler: TypeAlias = "grpc.RpcMethodHandler[Message, Message]"  # generic to the type checker alone
Method = Callable[[Message, Context], Awaitable[Message]]

_CODES = {code.value[0]: code for code in grpc.StatusCode}


class Guard(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic to the type checker alone
    """Wrap the methods of this package's services; those of others, such as health, pass as they are."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Give gRPC the guarded method."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith("/jumok."):
            return handler
        method = cast("Method", handler.unary_unary)
        return grpc.unary_unary_rpc_method_handler(
            _guarded(method, handler_call_details.method),
            request_deserializer=_tolerant(cast("Callable[[bytes], Message]", handler.request_deserializer)),
            response_serializer=handler.response_serializer,
        )


def _guarded(method: Method, name: str) -> Callable[[Message | None, Context], Awaitable[Message]]:
    async def answer(request: Message | None, context: Context) -> Message:
        try:
            if request is None:
                raise InvalidRequest("the request is no valid protobuf message; texts must be UTF-8", field="request")
            return await method(request, context)
        except Exception as error:
            request_id = new_request_id()
            if not is_expected(error):
                logger.exception("request %s: %s failed", request_id, name)
            status = to_status(error, request_id)
        return await _abort(context, status)

    return answer


async def _abort(context: Context, status: status_pb2.Status) -> Message:
    details = (("grpc-status-details-bin", status.SerializeToString()),)
    await context.abort(_CODES[status.code], status.message, details)


def _tolerant(deserialize: Callable[[bytes], Message]) -> Callable[[bytes], Message | None]:
    """Read a request, or None: gRPC would answer an exception here with UNKNOWN and Python's words."""

    def read(data: bytes) -> Message | None:
        try:
            return deserialize(data)
        except DecodeError:
            return None

    return read
