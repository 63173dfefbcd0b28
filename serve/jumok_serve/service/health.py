"""The standard health service: serving until the server stops."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthServicer

Context = grpc.aio.ServicerContext[HealthCheckRequest, HealthCheckResponse]


class Health(HealthServicer):  # type: ignore[misc]  # its package has no types
    """Answers for the named services, and for the server as a whole under the empty name.

    Unlike the one of grpcio-health-checking, it ends the streams of its watchers when the server stops: a graceful stop
    waits for every running call, and would wait for them until its grace is over.
    """

    def __init__(self, services: Sequence[str]) -> None:
        self._services = {"", *services}
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Say from now on that nothing is served."""
        self._stopping.set()

    @property
    def stopped(self) -> bool:
        """Whether nothing is served any more."""
        return self._stopping.is_set()

    async def Check(self, request: HealthCheckRequest, context: Context) -> HealthCheckResponse:  # noqa: N802
        """Give the state of a service."""
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return self._state()

    async def Watch(self, request: HealthCheckRequest, context: Context) -> AsyncIterator[HealthCheckResponse]:  # noqa: N802
        """Give the state of a service now and when it changes."""
        if request.service in self._services:
            yield self._state()
        else:
            yield HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN)
        if not self._stopping.is_set():
            await self._stopping.wait()
            if request.service in self._services:
                yield self._state()

    def _state(self) -> HealthCheckResponse:
        serving = HealthCheckResponse.NOT_SERVING if self.stopped else HealthCheckResponse.SERVING
        return HealthCheckResponse(status=serving)
