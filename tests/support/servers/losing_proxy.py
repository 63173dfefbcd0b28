"""Proxy of gRPC that loses the first answer of a method, as Ray's does when a replica dies."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NoReturn

import grpc


class _Forwarding(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic only for type checkers
    def __init__(self, channel: grpc.Channel, method: str) -> None:
        self._channel = channel
        self._method = method
        self.lost: list[bytes] = []

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        name = handler_call_details.method

        def forward(request: bytes, context: grpc.ServicerContext) -> bytes:
            try:
                method = self._channel.unary_unary(name, None, None)
                answer: bytes = method(request, metadata=context.invocation_metadata())
            except grpc.RpcError as error:
                _end_as(error, context)
            if name.endswith(f"/{self._method}") and not self.lost:
                self.lost.append(answer)
                context.abort(grpc.StatusCode.INTERNAL, "the answer was lost")
            return answer

        return grpc.unary_unary_rpc_method_handler(forward)


def _end_as(error: Any, context: grpc.ServicerContext) -> NoReturn:
    """End a call with the status of another one."""
    context.set_trailing_metadata(error.trailing_metadata())
    context.abort(error.code(), error.details())


@contextmanager
def losing_proxy(server: str, method: str) -> Iterator[tuple[str, list[bytes]]]:
    """Pass calls with one request and one answer on to a server.

    Yields:
        The proxy's address, and the answer once it was lost.
    """
    with grpc.insecure_channel(server) as channel:
        proxy = grpc.server(ThreadPoolExecutor(2))
        forwarding = _Forwarding(channel, method)
        proxy.add_generic_rpc_handlers([forwarding])
        port = proxy.add_insecure_port("127.0.0.1:0")
        proxy.start()
        try:
            yield f"127.0.0.1:{port}", forwarding.lost
        finally:
            proxy.stop(None).wait()
