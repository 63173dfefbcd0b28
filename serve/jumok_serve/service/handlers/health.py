"""The standard gRPC health service."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from jumok_serve.service.rpc.call import Call
from jumok_serve.service.rpc.statuses import Ending


class Health:
    """Health of services by name; the empty name is the whole server.

    Used in the event loop only.

    Unlike grpcio-health-checking it ends its watchers' streams when the server stops. A graceful stop waits for every
    running call, so open streams would use up the grace period.
    """

    def __init__(self) -> None:
        self._serving: dict[str, bool] = {"": True}
        self._changed = asyncio.Event()  # replaced by another at every change
        self.stopped = False

    def set(self, services: Mapping[str, bool]) -> None:
        """Replace the services and their health; the whole server stays."""
        self._serving = {"": True, **services}
        self._notify()

    def stop(self) -> None:
        """Report from now on that nothing is served."""
        self.stopped = True
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def Check(self, request: HealthCheckRequest, call: Call) -> HealthCheckResponse | Ending:  # noqa: N802
        """Return the health of a service."""
        if request.service not in self._serving:
            return Ending(grpc.StatusCode.NOT_FOUND, "no such service")
        return HealthCheckResponse(status=self._status(request.service))

    async def List(self, request: Any, call: Call) -> Any:  # noqa: N802
        """Return the health of every service; grpcio-health-checking has this method since 1.72."""
        states = {service: HealthCheckResponse(status=self._status(service)) for service in self._serving}
        return health_pb2.HealthListResponse(statuses=states)

    async def Watch(self, request: HealthCheckRequest, call: Call) -> AsyncIterator[HealthCheckResponse]:  # noqa: N802
        """Stream the health of a service, known or not, at every change."""
        sent: int | None = None
        while True:
            changed = self._changed  # read first, so that no change is missed while the response is written
            status = self._status(request.service)
            if status != sent:
                sent = status
                yield HealthCheckResponse(status=status)
            if self.stopped and changed is self._changed:
                return
            await changed.wait()

    def _status(self, service: str) -> int:
        if service not in self._serving:
            return int(HealthCheckResponse.SERVICE_UNKNOWN)
        serves = self._serving[service] and not self.stopped
        return int(HealthCheckResponse.SERVING if serves else HealthCheckResponse.NOT_SERVING)
