"""Services of one process: models, servicers, gate of all calls and health, without a port."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

from jumok_proto.results import ModelState
from jumok_proto.v1 import admin_pb2, file_pb2, glossary_pb2, model_pb2, translation_pb2
from jumok_serve.service.auth.tokens import TokenFile
from jumok_serve.service.handlers.api import Api
from jumok_serve.service.handlers.file_service import FileService
from jumok_serve.service.handlers.glossary_service import GlossaryService
from jumok_serve.service.handlers.health import Health
from jumok_serve.service.handlers.model_service import AdminService, ModelService
from jumok_serve.service.handlers.reflection import REFLECTION_SERVICES
from jumok_serve.service.handlers.translation_service import TranslationService
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.models.lifecycle import Administration, Lifecycle
from jumok_serve.service.models.registry import LoadedModel, ModelRegistry
from jumok_serve.service.rpc.call import CallCounts, CallGate, CallObserver
from jumok_serve.service.rpc.interceptor import UnreadResponses, guarded_handlers
from jumok_serve.service.rpc.request_reader import Intake, make_intake
from jumok_serve.text.terms import GlossaryStore

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
        models: Sequence[LoadedModel],
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

    async def finish_loads(self) -> None:
        """Wait for the end of a running load, after all calls have ended."""
        if self._lifecycle is not None:
            await self._lifecycle.stop()

    async def close_models(self) -> None:
        """Close all models, after all calls have ended."""
        entries = self.models.entries()
        await asyncio.gather(*(asyncio.to_thread(entry.model.close, drain=False) for entry in entries))
