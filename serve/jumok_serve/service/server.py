"""The server: its address, its life, and its end."""

import asyncio
import logging
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from jumok_proto.results import ModelState
from jumok_proto.v1 import admin_pb2, model_pb2, translation_pb2
from jumok_serve.bundle.model_root import ModelRoot
from jumok_serve.errors import ListenError
from jumok_serve.service.address import check_address, joined
from jumok_serve.service.auth.tls import TlsFiles
from jumok_serve.service.auth.tokens import TokenFile
from jumok_serve.service.handlers.admin_service import AdminService
from jumok_serve.service.handlers.health import Health
from jumok_serve.service.handlers.model_service import ModelService
from jumok_serve.service.handlers.translation_service import TranslationService
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.models.lifecycle import Lifecycle
from jumok_serve.service.models.loaded_model import LoadedModel
from jumok_serve.service.models.registry import ModelRegistry
from jumok_serve.service.rpc.access import Gate
from jumok_serve.service.rpc.call_counts import CallCounts
from jumok_serve.service.rpc.error_boundary import guarded
from jumok_serve.service.rpc.interceptor import CallObserver, Interceptor

logger = logging.getLogger(__name__)

TRANSLATION_SERVICE = translation_pb2.DESCRIPTOR.services_by_name["TranslationService"]
MODEL_SERVICE = model_pb2.DESCRIPTOR.services_by_name["ModelService"]
ADMIN_SERVICE = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]
HEALTH_SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"]
REFLECTION_SERVICE = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]
SERVICES = (TRANSLATION_SERVICE.full_name, MODEL_SERVICE.full_name)

QUEUED = [f"/{TRANSLATION_SERVICE.full_name}/{method}" for method in ("TranslateText", "StreamTranslateText")]
"""Methods whose texts wait in a model's queue, or are refused."""

MODEL_HEALTH = "models/"
"""What the health service calls a model: this, and its name."""


@dataclass(frozen=True, kw_only=True)
class Administration:
    """What AdminService is configured with.

    Attributes:
        root: the folder whose bundles it may load.
        load: opens a bundle and tries it, in a thread.
        host: address of its own port.
        port: on which it listens alone; 0: any free; None: on that of the other services.
    """

    root: Path
    load: Callable[[Path], LoadedModel]
    host: str = "127.0.0.1"
    port: int | None = None


class Server:
    """Serves models on an address; made where an event loop runs. The models stay the caller's to close.

    Args:
        models: what it serves at first.
        host: address to listen on.
        port: 0 leaves it to the system.
        limits: of requests, connections and callers.
        tls: where its certificates are; None: it serves in plain text.
        tokens: what callers need one of; None: nothing.
        observers: who is told of every call.
        administration: how models may be loaded and unloaded; None: not at all.

    Attributes:
        models: what it serves; those that were loaded since are the caller's to close too.
        counts: what it counts of its calls.

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
    ) -> None:
        self.models = ModelRegistry(models)
        self.counts = CallCounts()
        self._tls = tls
        self._gate = Gate(limits, tokens)
        self._observers = (self.counts, *observers)
        self._health = Health()
        self._translation = TranslationService(self.models, limits)
        self._loop = asyncio.get_running_loop()
        services = {TRANSLATION_SERVICE: self._translation, MODEL_SERVICE: ModelService(self.models)}
        self._lifecycle: Lifecycle | None = None
        self._admin_port: _Port | None = None
        if administration is not None:
            self._lifecycle = Lifecycle(
                self.models,
                root=ModelRoot(administration.root),
                load=administration.load,
                changed=self._models_changed,
            )
            admin = {ADMIN_SERVICE: AdminService(self.models, self._lifecycle)}
            if administration.port is None:
                services |= admin
            else:
                server = self._make_server(admin, limits)
                self._admin_port = _Port(server, administration.host, administration.port, "--admin-port")
        self._port = _Port(self._make_server(services, limits), host, port, "--port")
        self._models_changed()

    def _make_server(self, services: Mapping[ServiceDescriptor, object], limits: ServiceLimits) -> grpc.aio.Server:
        """A server of these services, of health, and of reflection."""
        full = dict.fromkeys(QUEUED if TRANSLATION_SERVICE in services else (), lambda: self.models.full)
        interceptor = Interceptor(self._gate, self._observers, full)  # it remembers the methods of one server
        server = grpc.aio.server(
            interceptors=[interceptor],
            options=(
                ("grpc.so_reuseport", 0),  # or a second server on the same port would start, and share its calls
                ("grpc.max_receive_message_length", limits.max_message_bytes),
                ("grpc.max_send_message_length", -1),  # what was computed is sent; bounds on requests bound it
                ("grpc.max_concurrent_streams", limits.max_streams),
                # Else gRPC refuses what comes while the event loop is busy, without a word on why and what to do.
                ("grpc.server.max_pending_requests", limits.max_calls),
                ("grpc.server.max_pending_requests_hard_limit", limits.max_calls),
            ),
        )
        names = [service.full_name for service in (*services, HEALTH_SERVICE, REFLECTION_SERVICE)]
        reflected = reflection.aio.ReflectionServicer(names)  # type: ignore[attr-defined]  # its types lack it
        standard = {HEALTH_SERVICE: self._health, REFLECTION_SERVICE: reflected}
        server.add_generic_rpc_handlers(
            tuple(guarded(service, servicer) for service, servicer in {**services, **standard}.items())
        )
        return server

    def _models_changed(self) -> None:
        """Tell health what is served now, and have it told when that changes."""
        for model in self.models:
            model.on_ready_change(self._ready_changed)
        self._tell_health()

    def _ready_changed(self) -> None:
        """Is called in the thread of an engine."""
        with suppress(RuntimeError):  # the loop is closed: nobody asks any more
            self._loop.call_soon_threadsafe(self._tell_health)

    def _tell_health(self) -> None:
        states = {
            f"{MODEL_HEALTH}{held.name}": held.state is ModelState.SERVING
            for held in self.models.held()
            if not held.draining
        }
        services = {TRANSLATION_SERVICE.full_name: any(states.values()), MODEL_SERVICE.full_name: True}
        if self._lifecycle is not None:
            services[ADMIN_SERVICE.full_name] = True
        self._health.set(services | states)

    @property
    def address(self) -> str:
        """``host:port``; the port is the real one after ``start``."""
        return self._port.address

    @property
    def port(self) -> int:
        """The port; the real one after ``start``."""
        return self._port.number

    @property
    def admin_address(self) -> str | None:
        """The same of AdminService, where it has a port of its own."""
        return None if self._admin_port is None else self._admin_port.address

    @property
    def open_calls(self) -> int:
        """Calls that are under way."""
        return self._gate.open_calls

    @property
    def serving(self) -> bool:
        """Whether it takes calls, or is about to: False once it stops."""
        return not self._health.stopped

    async def start(self) -> None:
        """Listen and serve.

        Raises:
            ListenError: the address cannot be had.
            CredentialsError: the certificates cannot be used.
        """
        for port in self._ports():
            await port.start(self._tls)

    async def stop(self, grace_s: float) -> None:
        """Take no further call, finish what runs within ``grace_s`` seconds, and cancel what is left then.

        Of a corpus what was read is translated, and its caller told to send the rest elsewhere.
        """
        self._health.stop()
        self._translation.stop()
        await asyncio.gather(*(port.server.stop(grace_s) for port in self._ports()))
        if self._lifecycle is not None:
            await self._lifecycle.stop()

    def _ports(self) -> "list[_Port]":
        return [self._port, *([] if self._admin_port is None else [self._admin_port])]


class _Port:
    """A gRPC server and where it listens.

    Args:
        server: has not started.
        host: address to listen on.
        number: 0: any free.
        setting: what says which port.
    """

    def __init__(self, server: grpc.aio.Server, host: str, number: int, setting: str) -> None:
        self.server = server
        self.number = number
        self._host = host
        self._setting = setting

    @property
    def address(self) -> str:
        """``host:port``; the port is the real one once it has started."""
        return joined(self._host, self.number)

    async def start(self, tls: TlsFiles | None) -> None:
        """Listen and serve; raises what ``Server.start`` does."""
        await asyncio.to_thread(check_address, self._host, self.number, self._setting)
        try:
            if tls is None:
                self.number = self.server.add_insecure_port(self.address)
            else:
                self.number = self.server.add_secure_port(self.address, tls.credentials())
        except RuntimeError as error:
            raise ListenError(f"cannot listen on {self.address}: {error}") from error
        await self.server.start()


def run_server(
    make_server: Callable[[], Server], *, grace_s: float, on_start: Callable[[Server], AbstractContextManager[None]]
) -> None:
    """Serve until SIGTERM or SIGINT, then finish what runs; a second signal ends it at once. Closes the models.

    Args:
        make_server: makes it, in the event loop.
        grace_s: seconds that calls have after the first signal.
        on_start: what is to be open while it serves.
    """
    asyncio.run(_serve(make_server, grace_s, on_start))


async def _serve(
    make_server: Callable[[], Server], grace_s: float, on_start: Callable[[Server], AbstractContextManager[None]]
) -> None:
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, number)
    server = make_server()
    try:
        await server.start()
        with on_start(server):
            received = await signals.get()
            logger.info("%s: finishing what runs, for %g s at most", received.name, grace_s)
            stopping = asyncio.ensure_future(server.stop(grace_s))
            again = asyncio.ensure_future(signals.get())
            await asyncio.wait({stopping, again}, return_when=asyncio.FIRST_COMPLETED)
            if again.done():
                await server.stop(0)
            again.cancel()
            await stopping
    finally:
        # Every call has its answer by now, so nothing is left to drain.
        await asyncio.gather(*(asyncio.to_thread(held.model.close, drain=False) for held in server.models.held()))
