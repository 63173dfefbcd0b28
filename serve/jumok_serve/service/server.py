"""The server: its address, its life, and its end."""

import asyncio
import errno
import logging
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from jumok_proto.v1 import model_pb2, translation_pb2
from jumok_serve.errors import ListenError
from jumok_serve.service.counts import CallCounts
from jumok_serve.service.gate import Gate
from jumok_serve.service.guard import guarded
from jumok_serve.service.health import Health
from jumok_serve.service.interception import CallObserver, Interceptor
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.model_service import ModelService
from jumok_serve.service.models import LoadedModel, ModelRegistry
from jumok_serve.service.tls import TlsFiles
from jumok_serve.service.tokens import TokenFile
from jumok_serve.service.translation_service import TranslationService

logger = logging.getLogger(__name__)

TRANSLATION_SERVICE = translation_pb2.DESCRIPTOR.services_by_name["TranslationService"]
MODEL_SERVICE = model_pb2.DESCRIPTOR.services_by_name["ModelService"]
HEALTH_SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"]
REFLECTION_SERVICE = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]
SERVICES = (TRANSLATION_SERVICE.full_name, MODEL_SERVICE.full_name)
REFLECTED = (*SERVICES, HEALTH_SERVICE.full_name, REFLECTION_SERVICE.full_name)

MODEL_HEALTH = "models/"
"""What the health service calls a model: this, and its name."""


class Server:
    """Serves models on an address; made where an event loop runs. The models stay the caller's to close.

    Args:
        models: what it serves.
        host: address to listen on.
        port: 0 leaves it to the system.
        limits: of requests, connections and callers.
        tls: where its certificates are; None: it serves in plain text.
        tokens: what callers need one of; None: nothing.
        observers: who is told of every call.

    Attributes:
        models: what it serves.
        counts: what it counts of its calls.

    Raises:
        DuplicateModel: two models have the same name.
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
    ) -> None:
        self.models = ModelRegistry(models)
        self.counts = CallCounts()
        self._host = host
        self._port = port
        self._tls = tls
        self._gate = Gate(limits, tokens)
        self._health = Health((*SERVICES, *(f"{MODEL_HEALTH}{model.manifest.name}" for model in self.models)))
        self._server = grpc.aio.server(
            interceptors=[Interceptor(self._gate, (self.counts, *observers))],
            options=(
                ("grpc.so_reuseport", 0),  # or a second server on the same port would start, and share its calls
                ("grpc.max_receive_message_length", limits.max_message_bytes),
                ("grpc.max_send_message_length", -1),  # what was computed is sent; bounds on requests bound it
                ("grpc.max_concurrent_streams", limits.max_streams),
            ),
        )
        self._translation = TranslationService(self.models, limits)
        self._server.add_generic_rpc_handlers(
            (
                guarded(TRANSLATION_SERVICE, self._translation),
                guarded(MODEL_SERVICE, ModelService(self.models)),
                guarded(HEALTH_SERVICE, self._health),
                guarded(REFLECTION_SERVICE, reflection.aio.ReflectionServicer(REFLECTED)),
            )
        )

    @property
    def address(self) -> str:
        """``host:port``; the port is the real one after ``start``."""
        return _join(self._host, self._port)

    @property
    def port(self) -> int:
        """The port; the real one after ``start``."""
        return self._port

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
        await asyncio.to_thread(_check_address, self._host, self._port)
        try:
            if self._tls is None:
                self._port = self._server.add_insecure_port(self.address)
            else:
                self._port = self._server.add_secure_port(self.address, self._tls.credentials())
        except RuntimeError as error:
            raise ListenError(f"cannot listen on {self.address}: {error}") from error
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Take no further call, finish what runs within ``grace_s`` seconds, and cancel what is left then.

        Of a corpus what was read is translated, and its caller told to send the rest elsewhere.
        """
        self._health.stop()
        self._translation.stop()
        await self._server.stop(grace_s)


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
        await asyncio.gather(*(asyncio.to_thread(model.close, drain=False) for model in server.models))


def _check_address(host: str, port: int) -> None:
    """Try the address first: of gRPC's own failure only a log line for programmers tells the reason."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except UnicodeError as error:
        raise ListenError(f"cannot listen on {_join(host, port)}: not a host name") from error
    except OSError as error:
        way_out = "; another program has it, so choose another --port" if error.errno == errno.EADDRINUSE else ""
        raise ListenError(f"cannot listen on {_join(host, port)}: {error.strerror}{way_out}") from error


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
