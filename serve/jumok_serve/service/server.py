"""gRPC server: models, servicers, the gate of all calls and health; their ports, start and stop."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

from jumok_proto.errors import InternalError
from jumok_proto.results import ModelState
from jumok_proto.v1 import admin_pb2, file_pb2, glossary_pb2, model_pb2, translation_pb2
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
from jumok_serve.service.handlers.api import Api
from jumok_serve.service.handlers.file_service import FileService
from jumok_serve.service.handlers.glossary_service import GlossaryService
from jumok_serve.service.handlers.health import Health
from jumok_serve.service.handlers.model_service import AdminService, ModelService
from jumok_serve.service.handlers.reflection import REFLECTION_SERVICES, reflection_servicers
from jumok_serve.service.handlers.translation_service import TranslationService
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.models.lifecycle import Administration, Lifecycle
from jumok_serve.service.models.registry import ModelRegistry
from jumok_serve.service.rpc.call import CallCounts, CallGate, CallObserver
from jumok_serve.service.rpc.interceptor import Floods, Interceptor, UnreadResponses, accept_any_name, guarded_handlers
from jumok_serve.service.rpc.request_reader import Intake, make_intake
from jumok_serve.service.stop_signals import Stoppable, received_signals, serve_until_stopped
from jumok_serve.text.terms.store import GlossaryStore
from jumok_serve.translator import Translator

TRANSLATION_SERVICE = translation_pb2.DESCRIPTOR.services_by_name["TranslationService"]
FILE_SERVICE = file_pb2.DESCRIPTOR.services_by_name["FileService"]
GLOSSARY_SERVICE = glossary_pb2.DESCRIPTOR.services_by_name["GlossaryService"]
MODEL_SERVICE = model_pb2.DESCRIPTOR.services_by_name["ModelService"]
ADMIN_SERVICE = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]
HEALTH_SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"]

QUEUED_METHODS = [f"/{TRANSLATION_SERVICE.full_name}/{method}" for method in ("TranslateText", "StreamTranslateText")]
"""Methods whose texts go through a model's queue."""

HEALTH_READS = 8
"""Health checks that are read at once; more wait unread."""
MODEL_HEALTH_PREFIX = "models/"
"""Prefix of a model's name in the health service."""


class Services:
    """Servicers of models, behind one gate; made inside a running event loop.

    The caller closes the models.

    Args:
        administration: configuration of AdminService; None: no AdminService.
        pivot: language over which two models translate a pair that no model has; empty: none.
        glossaries: glossaries of callers; None: none are kept.
        close_connection: closes the connection of a peer in gRPC's notation.

    Attributes:
        models: registry of the models; the caller closes those loaded later too.
        api: what the services do for other transports.
        limits: limits of requests.
        stopping: event that ends calls without an end of their own.
        counts: counts of ended calls.
        gate: gate of all calls.
        intake: bounds on the reading of requests.
        unread: bounds on responses that are not read.
        unread_checks: the same for health checks.
        services: servicers by service, without administration.
        administration: servicer of AdminService by service; empty: none.

    Raises:
        DuplicateModelError: two models have the same name.
    """

    def __init__(
        self,
        models: Sequence[Translator],
        *,
        limits: ServiceLimits = ServiceLimits(),  # noqa: B008 - frozen
        tokens: TokenFile | None = None,
        observers: Sequence[CallObserver] = (),
        administration: Administration | None = None,
        pivot: str = "en",
        glossaries: GlossaryStore | None = None,
        close_connection: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.models = ModelRegistry(models, pivot)
        self.counts = CallCounts()
        self.limits = limits
        full = dict.fromkeys(QUEUED_METHODS, self.models.are_full)
        self.gate = CallGate(limits, tokens, (self.counts, *observers), full)
        self.intake, self._health_intake = make_intake(limits), make_intake(limits, HEALTH_READS)
        self.unread = UnreadResponses(limits, close_connection)
        self.unread_checks = UnreadResponses(limits, close_connection, checks=True)
        self._health = Health()
        self._keeps_glossaries = glossaries is not None
        self.api = Api(self.models, limits, glossaries)
        translation = TranslationService(self.api)
        self.stopping = translation.stopping
        self._loop = asyncio.get_running_loop()
        self.services: Mapping[ServiceDescriptor, object] = {
            TRANSLATION_SERVICE: translation,
            FILE_SERVICE: FileService(self.api, limits),
            GLOSSARY_SERVICE: GlossaryService(glossaries),
            MODEL_SERVICE: ModelService(self.models),
            HEALTH_SERVICE: self._health,
        }
        self.administration: Mapping[ServiceDescriptor, object] = {}
        self._lifecycle: Lifecycle | None = None
        if administration is not None:
            self._lifecycle = Lifecycle(self.models, administration, self._models_changed)
            self.administration = {ADMIN_SERVICE: AdminService(self.models, self._lifecycle)}
        self._models_changed()

    def handlers(
        self, services: Mapping[ServiceDescriptor, object]
    ) -> "tuple[grpc.GenericRpcHandler[Message, Message], ...]":
        """Make gRPC handlers of servicers, each within an error boundary."""
        return tuple(
            guarded_handlers(service, servicer, self.intake_of(service)) for service, servicer in services.items()
        )

    def intake_of(self, service: ServiceDescriptor) -> Intake:
        """Return the bounds on the reading of a service's requests."""
        if service in REFLECTION_SERVICES:
            return replace(self.intake, names=True)
        return self._health_intake if service == HEALTH_SERVICE else self.intake

    def _models_changed(self) -> None:
        """Update health now and whenever a model becomes ready or unready."""
        for model in self.models:
            model.on_ready_change(self._ready_changed)
        self._update_health()

    def _ready_changed(self) -> None:
        """Update health from an engine's thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._update_health)

    def _update_health(self) -> None:
        states = {
            f"{MODEL_HEALTH_PREFIX}{entry.name}": entry.state is ModelState.SERVING
            for entry in self.models.entries()
            if not entry.draining
        }
        services = {TRANSLATION_SERVICE.full_name: any(states.values()), MODEL_SERVICE.full_name: True}
        if self._keeps_glossaries:
            services[GLOSSARY_SERVICE.full_name] = True
        if self._lifecycle is not None:
            services[ADMIN_SERVICE.full_name] = True
        self._health.set(services | states)

    @property
    def open_calls(self) -> int:
        """Number of open calls."""
        return self.gate.open_calls

    @property
    def serving(self) -> bool:
        """True until the services stop."""
        return not self._health.stopped

    def stop_serving(self) -> None:
        """Report that nothing is served, and end corpora after the results of the items that were read."""
        self._health.stop()
        if self._lifecycle is not None:
            self._lifecycle.cancel()  # its call would keep a server open for the whole grace
        self.stopping.set()

    async def close_models(self) -> None:
        """Close all models, after all calls have ended."""
        entries = self.models.entries()
        await asyncio.gather(*(asyncio.to_thread(entry.model.close, drain=False) for entry in entries))


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
        models: Sequence[Translator],
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
        server = grpc.aio.server(interceptors=[interceptor], options=channel_arguments(self.limits))
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
        if self.front is not None or self.models.num_sources > 1:  # 76 MB that others may never need
            self.api.load_detector()

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
        if self._lifecycle is not None:  # a load goes on after its call
            await self._lifecycle.stop()

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

    async def serve() -> None:
        with received_signals() as signals:
            server = make_server()
            start = partial(on_start, server)
            try:
                await serve_until_stopped(
                    server, signals, grace_s, start, on_stop=on_stop, wait_failed=server.wait_failed
                )
            finally:
                await server.close_models()

    asyncio.run(serve())
