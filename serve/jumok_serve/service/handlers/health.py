"""The standard health service: what is served, and who is told when that changes."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthServicer

Context = grpc.aio.ServicerContext[HealthCheckRequest, HealthCheckResponse]


class Health(HealthServicer):  # type: ignore[misc]  # its package has no types
    """Answers for services by name, and for the server as a whole under the empty name; in the event loop alone.

    Unlike the one of grpcio-health-checking, it ends the streams of its watchers when the server stops: a graceful stop
    waits for every running call, and would wait for them until its grace is over.
    """

    def __init__(self) -> None:
        self._serving: dict[str, bool] = {"": True}
        self._changed = asyncio.Event()  # replaced by another at every change
        self._stopped = False

    def set(self, services: Mapping[str, bool]) -> None:
        """Say of each service whether it is served; there are no others but the server as a whole."""
        self._serving = {"": True, **services}
        self._tell()

    def stop(self) -> None:
        """Say from now on that nothing is served."""
        self._stopped = True
        self._tell()

    @property
    def stopped(self) -> bool:
        """Whether nothing is served any more."""
        return self._stopped

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def Check(self, request: HealthCheckRequest, context: Context) -> HealthCheckResponse:  # noqa: N802
        """Give the state of a service."""
        if request.service not in self._serving:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return HealthCheckResponse(status=self._status(request.service))

    async def List(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Give the state of every service; packages of the health service know this method since 1.72."""
        states = {service: HealthCheckResponse(status=self._status(service)) for service in self._serving}
        return health_pb2.HealthListResponse(statuses=states)

    async def Watch(self, request: HealthCheckRequest, context: Context) -> AsyncIterator[HealthCheckResponse]:  # noqa: N802
        """Give the state of a service now and when it changes; it may be one that there is not yet."""
        told: int | None = None
        while True:
            changed = self._changed  # taken first, so that no change is missed while the answer is written
            status = self._status(request.service)
            if status != told:
                told = status
                yield HealthCheckResponse(status=status)
            if self._stopped and changed is self._changed:
                return
            await changed.wait()

    def _status(self, service: str) -> int:
        if service not in self._serving:
            state = HealthCheckResponse.SERVICE_UNKNOWN
        elif self._serving[service] and not self._stopped:
            state = HealthCheckResponse.SERVING
        else:
            state = HealthCheckResponse.NOT_SERVING
        return int(state)
