"""Backend in the process of the gRPC server: same handlers, gate, limits and metrics."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from google.protobuf.message import Message

from jumok_proto.errors import DeadlineExceededError, InternalError, JumokError
from jumok_proto.v1.model_pb2 import ListModelsRequest
from jumok_proto.v1.translation_pb2 import TranslateTextRequest
from jumok_serve.http.backend import LIST_MODELS, CharacterCounts, Directions, Response, Sender
from jumok_serve.service.rpc.call import BEARER, Call
from jumok_serve.service.rpc.error_boundary import drop_frames, is_expected
from jumok_serve.service.services import Services

logger = logging.getLogger(__name__)


class OnlyRequest:
    """Stream of one request: the part of `RequestReader` that handlers use."""

    def __init__(self, request: Message) -> None:
        self._request: Message | None = request

    async def next(self, busy: Callable[[], bool] = lambda: False) -> Message | None:
        """Return the request, then None."""
        request, self._request = self._request, None
        return request


class EngineBackend:
    """Calls the services of this process in their event loop."""

    def __init__(self, services: Services) -> None:
        self._services = services
        methods = {
            f"/{service.full_name}/{method.name}": (method, getattr(servicer, method.name))
            for service, servicer in services.services.items()
            for method in service.methods
        }
        self._methods: dict[str, Callable[[Any, Call], Awaitable[Any]]] = {
            name: handler for name, (_, handler) in methods.items()
        }
        self._reading_streams = {name for name, (method, _) in methods.items() if method.client_streaming}
        self._characters = CharacterCounts()
        self._directions = Directions()

    async def identify(self, method: str, sender: Sender) -> str:
        """Find the caller of a method by its token."""
        call = _new_call(method, sender)
        self._services.gate.identify(call)
        return call.account

    async def call(self, method: str, request: Message, sender: Sender, kind: type[Response]) -> Response:
        """Call a method with one response."""
        with self._opened(method, request, sender) as call:
            async with asyncio.timeout(sender.timeout_s):
                response = await self._methods[method](request, call)
            call.response = response
            if isinstance(request, TranslateTextRequest):
                self._characters.add(call.caller, request.contents)
        return cast("Response", response)

    async def stream(
        self, method: str, request: Message, sender: Sender, write: Callable[[Message], Awaitable[None]]
    ) -> None:
        """Call a method with several responses."""
        requests = OnlyRequest(request) if method in self._reading_streams else request

        def write_now(message: Message, /, *, counted: bool = False) -> Awaitable[None]:
            return write(message)

        with self._opened(method, request, sender) as call:
            call.write = write_now
            async with asyncio.timeout(sender.timeout_s):
                await self._methods[method](requests, call)

    @contextmanager
    def _opened(self, method: str, request: Message, sender: Sender) -> Iterator[Call]:
        """Pass a call through the gate, with its status, reason and errors."""
        call = _new_call(method, sender)
        call.request = request
        with self._services.gate.opened(call):
            try:
                self._services.gate.admit(call)
                yield call
            except asyncio.CancelledError:
                call.code = "CANCELLED"
                raise
            except Exception as error:
                public = _public(error, call, sender.timeout_s)
                drop_frames(error)
                call.code, call.reason = public.code.name, public.reason
            else:
                call.code = "OK"
                return
        raise public

    async def directions(self, sender: Sender) -> Directions:
        """Return the directions of all models and routes."""
        pairs = self._services.models.pairs()
        if pairs is not self._directions.pairs:  # they are made once for a set of models
            self._directions = Directions(pairs)
        return self._directions

    async def usage(self, sender: Sender) -> int:
        """Return the translated characters of a token."""
        with self._opened(LIST_MODELS, ListModelsRequest(), sender) as call:
            return self._characters.of(call.caller)

    @property
    def serving(self) -> bool:
        """True until the server stops."""
        return self._services.serving

    @property
    def needs_token(self) -> bool:
        """True if calls need a token."""
        return self._services.gate.needs_token


def _new_call(method: str, sender: Sender) -> Call:
    metadata: dict[str, str | bytes] = {"authorization": f"{BEARER}{sender.token}"} if sender.token else {}
    deadline = time.monotonic() + sender.timeout_s
    return Call(method=method, request_id=sender.request_id, peer=sender.peer, metadata=metadata, deadline=deadline)


def _public(error: Exception, call: Call, timeout_s: float) -> JumokError:
    """Return the error that the caller sees; logs a fault of the server."""
    if isinstance(error, TimeoutError) and not isinstance(error, JumokError):
        return DeadlineExceededError(f"the response was not complete within {timeout_s:g} s")
    if isinstance(error, JumokError) and is_expected(error):
        return error
    logger.error("request %s: %s failed", call.request_id, call.method, exc_info=error)
    return InternalError("internal error")
