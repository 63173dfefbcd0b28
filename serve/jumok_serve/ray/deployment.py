"""Deployment of Ray Serve: the RPCs of all services as methods, and the HTTP APIs."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack
from typing import Any

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from jumok_serve.cli.loading import make_checker, open_models, open_observers, service_arguments, tune_process
from jumok_serve.cli.settings import Configuration, listed
from jumok_serve.http.application import Application
from jumok_serve.http.port import make_application
from jumok_serve.ray.calls import METHODS, Calls, RayContext
from jumok_serve.service.server import Services
from jumok_serve.service.telemetry.logs import logging_to_stderr
from jumok_serve.translator import Translator

logger = logging.getLogger(__name__)


class Replica:
    """Models and services of one actor; has a method for each RPC, as Ray calls it.

    Args:
        settings: settings of the server.
        versions: version of each model, by name.

    Attributes:
        calls: gives calls to the services.

    Raises:
        BundleError: a bundle is missing on this machine, or cannot be used.
        ValueError: a bundle on this machine has another version.
    """

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, settings: Configuration, versions: Mapping[str, str]
    ) -> None:
        self._closing = ExitStack()
        self._settings = settings
        tune_process()
        self._closing.enter_context(logging_to_stderr(log_format=settings.log_format, level=settings.log_level))
        observers = open_observers(settings, self._closing)
        arguments = service_arguments(settings)
        models = await asyncio.to_thread(open_models, settings, make_checker(settings))
        for model in models:
            self._closing.callback(model.close, drain=False)
        check_versions(models, versions)
        self._services = Services(models, observers=observers, **arguments)
        self._closing.callback(self._services.stop_serving)
        loop = asyncio.get_running_loop()
        before_drain(lambda: loop.call_soon_threadsafe(self._services.stop_serving))
        self.calls = Calls(self._services)

    def __serve_build_asgi_app__(self) -> Application:
        """Make the HTTP application; Ray calls it after the constructor."""
        return make_application(
            self._services,
            timeout_s=self._settings.http_timeout_s,
            origins=listed(self._settings.http_origins),
            hosts=listed(self._settings.http_hosts),
            playground=self._settings.http_playground,
        )

    def check_health(self) -> None:
        """Raise if no model can decode; Ray replaces a replica that fails several times."""
        if not any(model.ready for model in self._services.models):
            raise RuntimeError("no model can decode: their engines are restarting")

    def __del__(self) -> None:
        self._closing.close()


def before_drain(call: Callable[[], object]) -> None:
    """Call a function when Ray begins to stop the replica of this process.

    Ray has no hook for it: it calls ``__del__`` once all calls have ended, and corpora would not end.
    """
    try:
        from ray.serve._private.replica import Replica as RayReplica  # noqa: PLC0415 - an extra

        stop = RayReplica.perform_graceful_shutdown
    except (ImportError, AttributeError):
        logger.warning("this version of Ray does not tell a replica that it stops: its corpora are cut after grace_s")
        return

    async def perform_graceful_shutdown(replica: RayReplica) -> None:
        call()
        await stop(replica)

    RayReplica.perform_graceful_shutdown = perform_graceful_shutdown


def check_versions(models: list[Translator], versions: Mapping[str, str]) -> None:
    """Check that models have the versions with which the application was built.

    Raises:
        ValueError: a model has another version, or another name.
    """
    for model in models:
        version = versions.get(model.name)
        if version != model.manifest.version:
            raise ValueError(
                f"the bundle of {model.name} has version {model.manifest.version} on this machine, and the application "
                f"was built with {version or 'other models'}: copy one version to all machines"
            )


def _add_rpc(method: MethodDescriptor) -> None:
    """Add the method of an RPC, as Ray calls it."""

    async def respond(self: Replica, request: bytes, grpc_context: RayContext) -> Message:
        return await self.calls.respond(method, request, grpc_context)

    async def stream(self: Replica, request: Any, grpc_context: RayContext) -> AsyncIterator[Message]:
        async for response in self.calls.stream(method, request, grpc_context):
            yield response

    setattr(Replica, method.name, stream if method.server_streaming else respond)


for _method in METHODS:
    _add_rpc(_method)
