"""gRPC server: services on ports, start and stop."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from jumok_proto.errors import InternalError
from jumok_serve.errors import ListenError
from jumok_serve.service.auth.tls import TlsFiles
from jumok_serve.service.auth.tokens import TokenFile
from jumok_serve.service.connections import (
    UNIX,
    allow_connections,
    bound_addresses,
    channel_arguments,
    check_address,
    format_address,
)
from jumok_serve.service.handlers.reflection import REFLECTION_SERVICES, reflection_servicers
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.models.lifecycle import Administration
from jumok_serve.service.models.registry import LoadedModel
from jumok_serve.service.rpc.call import CallObserver
from jumok_serve.service.rpc.interceptor import Floods, Interceptor, accept_any_name
from jumok_serve.service.services import HEALTH_SERVICE, Services
from jumok_serve.service.stop_signals import Stoppable, received_signals, serve_until_stopped
from jumok_serve.text.terms import GlossaryStore


class Front(Stoppable, Protocol):
    """Port on which a server speaks HTTP."""

    @property
    def address(self) -> str:
        """``host:port``; after ``start`` with the actual port."""

    @property
    def open_connections(self) -> int:
        """Number of open connections."""

    @property
    def responses(self) -> Mapping[int, int]:
        """Number of responses by status."""


class Server(Services):
    """Serves models over gRPC; made inside a running event loop.

    The caller closes the models.

    Args:
        host: address to listen on.
        port: port; 0: any free one.
        tls: certificate files; None: no TLS.
        administration: configuration of AdminService; None: no AdminService.
        pivot: language over which two models translate a pair that no model has; empty: none.
        glossaries: glossaries of callers; None: the server keeps none.
        make_front: makes the port of another protocol, with its calls through ``gate`` to ``services``.

    Attributes:
        tls: certificate files of all ports.
        front: port of another protocol; None: none.

    Raises:
        DuplicateModelError: two models have the same name.
    """

    def __init__(
        self,
        models: Sequence[LoadedModel],
        *,
        host: str = "127.0.0.1",
        port: int = 50051,
        limits: ServiceLimits = ServiceLimits(),  # noqa: B008 - frozen
        tls: TlsFiles | None = None,
        tokens: TokenFile | None = None,
        observers: Sequence[CallObserver] = (),
        administration: Administration | None = None,
        pivot: str = "en",
        glossaries: GlossaryStore | None = None,
        make_front: "Callable[[Server], Front] | None" = None,
    ) -> None:
        self._floods = Floods()
        self._ending: asyncio.Task[None] | None = None
        super().__init__(
            models,
            limits=limits,
            tokens=tokens,
            observers=(*observers, self._floods),
            administration=administration,
            pivot=pivot,
            glossaries=glossaries,
            close_connection=self._floods.close,
        )
        self.tls = tls
        self._admin_port: _Port | None = None
        if administration is None or administration.port is None:
            self.services = {**self.services, **self.administration}
        else:
            server = self._make_server({**self.administration, HEALTH_SERVICE: self.services[HEALTH_SERVICE]})
            self._admin_port = _Port(server, administration.host, administration.port, "--admin-port")
        self._port = _Port(self._make_server(self.services), host, port, "--port")
        self.front = None if make_front is None else make_front(self)

    def _make_server(self, services: Mapping[ServiceDescriptor, object]) -> grpc.aio.Server:
        """Make a server of these services and of reflection."""
        accept_any_name()
        # One a server, as it caches handlers by method.
        interceptor = Interceptor(self.gate, self._floods, self.unread, self.unread_checks)
        server = grpc.aio.server(
            interceptors=[interceptor],
            options=channel_arguments(self.limits),
        )
        names = [service.full_name for service in (*services, *REFLECTION_SERVICES)]
        server.add_generic_rpc_handlers(self.handlers({**services, **reflection_servicers(names, self.stopping)}))
        return server

    @property
    def address(self) -> str:
        """``host:port``; after ``start`` with the actual port."""
        return self._port.address

    @property
    def port(self) -> int:
        """Port; the actual one after ``start``."""
        return self._port.number

    @property
    def admin_address(self) -> str | None:
        """Address of AdminService, if it has its own port."""
        return None if self._admin_port is None else self._admin_port.address

    async def start(self) -> None:
        """Listen and serve.

        Raises:
            ListenError: the address cannot be bound.
            CredentialsError: the certificates are unusable.
        """
        ports = self._ports()
        allow_connections(self.limits, len(ports) + (self.front is not None))
        for port in ports:
            await port.start(self.tls, self.limits.max_connections_of_address)
        self._ending = asyncio.create_task(self._floods.end())
        if self.front is not None:
            await self.front.start()

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, wait ``grace_s`` seconds, then cancel the rest.

        Items of a corpus that were read are translated; the call then fails, and the client sends the rest elsewhere.
        """
        self.stop_serving()
        stopping = [port.stop(grace_s) for port in self._ports()]
        if self.front is not None:
            stopping.append(self.front.stop(grace_s))
        await asyncio.gather(*stopping)
        if self._ending is not None:
            self._ending.cancel()
        await self.finish_loads()

    async def wait_failed(self) -> None:
        """Wait until all gRPC ports were stopped.

        Raises:
            InternalError: one ended without a stop.
        """
        try:
            await asyncio.gather(*(port.server.wait_for_termination() for port in self._ports()))
        except Exception as error:
            raise InternalError(
                f"gRPC stopped accepting calls; start the server again, and report {error!r}"
            ) from error

    def _ports(self) -> "list[_Port]":
        return [self._port, *([] if self._admin_port is None else [self._admin_port])]


@dataclass(eq=False)
class _Port:
    """Listening port of a gRPC server."""

    server: grpc.aio.Server
    host: str
    number: int
    setting: str
    _bounding: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """``host:port``; after ``start`` with the actual port."""
        return format_address(self.host, self.number)

    async def start(self, tls: TlsFiles | None, most_of_address: int) -> None:
        """Listen and serve; raises as ``Server.start``."""
        await asyncio.to_thread(check_address, self.host, self.number, self.setting)
        try:
            if tls is None:
                self.number = self.server.add_insecure_port(self.address)
            else:
                self.number = self.server.add_secure_port(self.address, tls.credentials())
        except RuntimeError as error:
            raise ListenError(f"cannot listen on {self.address}: {error}") from error
        await self.server.start()
        if not self.host.startswith(UNIX):
            self._bounding = asyncio.create_task(bound_addresses(self.number, most_of_address))

    async def stop(self, grace_s: float) -> None:
        """Stop as ``Server.stop``."""
        await self.server.stop(grace_s)
        if self._bounding is not None:
            self._bounding.cancel()


def run_server(
    make_server: Callable[[], Server],
    *,
    grace_s: float,
    on_start: Callable[[Server], AbstractContextManager[None]],
    on_stop: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGTERM or SIGINT, finish open calls, and close the models.

    A second signal cancels open calls.

    Args:
        make_server: makes the server, in the event loop.
        grace_s: time for open calls after the first signal, in seconds.
        on_start: context to keep open while serving.
        on_stop: called at the first signal.
    """
    asyncio.run(_serve(make_server, grace_s, on_start, on_stop))


async def _serve(
    make_server: Callable[[], Server],
    grace_s: float,
    on_start: Callable[[Server], AbstractContextManager[None]],
    on_stop: Callable[[], None],
) -> None:
    with received_signals() as signals:
        server = make_server()
        try:
            await serve_until_stopped(
                server,
                signals,
                grace_s,
                lambda: on_start(server),
                on_stop=on_stop,
                wait_failed=server.wait_failed,
            )
        finally:
            await server.close_models()
