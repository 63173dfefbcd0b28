"""Backend of the HTTP APIs: what it offers, and the one of this process, with the gate and limits of its services."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol, TypeVar, cast

from google.protobuf.message import Message

from jumok_proto.errors import DeadlineExceededError, InternalError, JumokError
from jumok_proto.results import DetectedLanguage
from jumok_proto.v1.translation_pb2 import TranslateTextRequest
from jumok_serve.manifest.languages import tag_key
from jumok_serve.service.handlers.api import Settings
from jumok_serve.service.rpc.call import BEARER, Call
from jumok_serve.service.rpc.statuses import drop_frames, is_expected
from jumok_serve.service.services import Services
from jumok_serve.text.translation import Translated

TRANSLATE = "/jumok.v1.TranslationService/TranslateText"
DETECT = "/jumok.v1.TranslationService/DetectLanguage"
LIST_MODELS = "/jumok.v1.ModelService/ListModels"

logger = logging.getLogger(__name__)

Response = TypeVar("Response", bound=Message)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Sender of a request.

    Attributes:
        peer: address in gRPC's notation.
        request_id: id in logs, traces and errors.
        token: bearer token; empty: none.
        timeout_s: time for the response, in seconds.
    """

    peer: str
    request_id: str
    token: str
    timeout_s: float


MAX_COUNTED = 2**16
"""Keys whose characters are counted; those of the one that is idle for longest go first."""


class CharacterCounts:
    """Translated characters by key; event loop only."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, key: str, texts: Iterable[str]) -> None:
        """Count the characters of texts."""
        count = self._counts.pop(key, 0) + sum(map(len, texts))
        self._counts[key] = count  # as the last
        if len(self._counts) > MAX_COUNTED:
            del self._counts[next(iter(self._counts))]

    def of(self, key: str) -> int:
        """Return the characters of a key since the start."""
        return self._counts[key]


class Directions:
    """Directions of translation, in the models' spelling, of each language the first.

    Args:
        pairs: source and target language of each direction, sorted.

    Attributes:
        targets: target languages of each source language.
        all_targets: target languages of all of them.
    """

    def __init__(self, pairs: tuple[tuple[str, str], ...] = ()) -> None:
        self.pairs = pairs
        first: dict[str, str] = {}
        spelled = {tag: first.setdefault(tag_key(tag), tag) for tag in dict.fromkeys(chain.from_iterable(pairs))}
        self.targets: dict[str, dict[str, None]] = {}
        for source, target in pairs:
            self.targets.setdefault(spelled[source], {})[spelled[target]] = None
        self.all_targets = sorted(set(chain.from_iterable(self.targets.values())))


class Exchange(Protocol):
    """The exchange that a call belongs to."""

    @property
    def sender(self) -> Sender:
        """Sender of the request."""

    async def work(self, work: Callable[[], Result], size: int) -> Result:
        """Read or write a number of bytes for the caller, many of them in a thread."""

    def hold(self, size: int) -> None:
        """Count bytes of the response until the client has read it; raises OverloadedError without room."""


class Backend(Protocol):
    """Services behind the HTTP APIs.

    All errors are JumokErrors, as a gRPC client gets them.
    """

    async def identify(self, method: str, sender: Sender) -> str:
        """Find the caller of a method by its token, before the request is read.

        Returns:
            The key of the caller's shares.
        """

    async def call(self, method: str, request: Message, sender: Sender, kind: type[Response]) -> Response:
        """Call a method with one response, which is of the given type."""

    async def translate(
        self, settings: Settings, texts: Sequence[str], exchange: Exchange, make: Callable[[Translated], Result]
    ) -> Result:
        """Translate texts, and make something of the translations, in a thread if that may take long."""

    async def detect(self, texts: Sequence[str], sender: Sender) -> list[list[DetectedLanguage]]:
        """Return the possible languages of each text, best first."""

    async def stream(
        self, method: str, request: Message, sender: Sender, write: Callable[[Message], Awaitable[None]]
    ) -> None:
        """Call a method with several responses; each is written before the next is made.

        A method that reads a stream of requests gets one.
        """

    async def directions(self, sender: Sender) -> Directions:
        """Return the directions of all models and routes, the same until they change; the sender needs no token."""

    async def usage(self, sender: Sender) -> int:
        """Return the characters that a token has had translated over HTTP since the start; without tokens, of all."""

    @property
    def serving(self) -> bool:
        """True if requests can be answered."""

    @property
    def needs_token(self) -> bool:
        """True if calls need a token."""


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
        with self._opened(method, sender, getattr(request, "contents", None)) as call:
            async with asyncio.timeout(sender.timeout_s):
                response = await self._methods[method](request, call)
            if isinstance(request, TranslateTextRequest):
                self._characters.add(call.caller, request.contents)
        return cast("Response", response)

    async def translate(
        self, settings: Settings, texts: Sequence[str], exchange: Exchange, make: Callable[[Translated], Result]
    ) -> Result:
        """Translate texts, and make something of the translations."""
        with self._opened(TRANSLATE, exchange.sender, texts) as call:
            async with asyncio.timeout(exchange.sender.timeout_s):
                made = await self._services.api.translate(settings, texts, deadline=call.deadline, make=make)
            self._characters.add(call.caller, texts)
        return made

    async def detect(self, texts: Sequence[str], sender: Sender) -> list[list[DetectedLanguage]]:
        """Return the possible languages of each text."""
        with self._opened(DETECT, sender, texts):
            async with asyncio.timeout(sender.timeout_s):
                return await self._services.api.detect(texts)

    async def stream(
        self, method: str, request: Message, sender: Sender, write: Callable[[Message], Awaitable[None]]
    ) -> None:
        """Call a method with several responses."""
        requests = OnlyRequest(request) if method in self._reading_streams else request

        def write_now(message: Message, /, *, counted: bool = False) -> Awaitable[None]:
            return write(message)

        with self._opened(method, sender) as call:
            call.write = write_now
            async with asyncio.timeout(sender.timeout_s):
                await self._methods[method](requests, call)

    @contextmanager
    def _opened(self, method: str, sender: Sender, texts: Sequence[str] | None = None) -> Iterator[Call]:
        """Pass a call through the gate, with its texts, status, reason and errors."""
        call = _new_call(method, sender)
        if texts is not None:
            call.record.note(texts)
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
        with self._opened(LIST_MODELS, sender) as call:
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
