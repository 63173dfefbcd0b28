"""Backend of the HTTP APIs: what it offers, and the one of this process, with the gate and limits of its services."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, TypeVar, cast

from cachetools import LRUCache
from google.protobuf.message import Message

from jumok_proto.errors import DeadlineExceededError, JumokError
from jumok_proto.results import DetectedLanguage
from jumok_proto.v1.translation_pb2 import TranslateTextRequest
from jumok_serve.manifest.languages import tag_key
from jumok_serve.service.handlers.api import Settings
from jumok_serve.service.rpc.call import BEARER, Call, Write, full_name
from jumok_serve.service.services import Services
from jumok_serve.text.translation import Translated

TRANSLATE = "/jumok.v1.TranslationService/TranslateText"
DETECT = "/jumok.v1.TranslationService/DetectLanguage"
LIST_MODELS = "/jumok.v1.ModelService/ListModels"

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
        self._counts: LRUCache[str, int] = LRUCache(MAX_COUNTED)

    def add(self, key: str, texts: Iterable[str]) -> None:
        """Count the characters of texts."""
        self._counts[key] = self.of(key) + sum(map(len, texts))

    def of(self, key: str) -> int:
        """Return the characters of a key since the start."""
        return self._counts.get(key, 0)


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

    async def stream(self, method: str, request: Message, sender: Sender, write: Write) -> None:
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
        self._methods = {
            full_name(method): (getattr(servicer, method.name), method.client_streaming)
            for service, servicer in services.services.items()
            for method in service.methods
        }
        self._characters = CharacterCounts()
        self._directions = Directions()

    async def identify(self, method: str, sender: Sender) -> str:
        """Find the caller of a method by its token."""
        call = _new_call(method, sender)
        self._services.gate.identify(call)
        return call.account

    async def call(self, method: str, request: Message, sender: Sender, kind: type[Response]) -> Response:
        """Call a method with one response."""
        async with self._opened(method, sender, getattr(request, "contents", None)) as call:
            handle, _ = self._methods[method]
            response = await handle(request, call)
            if isinstance(request, TranslateTextRequest):
                self._characters.add(call.caller, request.contents)
        return cast("Response", response)

    async def translate(
        self, settings: Settings, texts: Sequence[str], exchange: Exchange, make: Callable[[Translated], Result]
    ) -> Result:
        """Translate texts, and make something of the translations."""
        async with self._opened(TRANSLATE, exchange.sender, texts) as call:
            made = await self._services.api.translate(settings, texts, deadline=call.deadline, make=make)
            self._characters.add(call.caller, texts)
        return made

    async def detect(self, texts: Sequence[str], sender: Sender) -> list[list[DetectedLanguage]]:
        """Return the possible languages of each text."""
        async with self._opened(DETECT, sender, texts):
            return await self._services.api.detect(texts)

    async def stream(self, method: str, request: Message, sender: Sender, write: Write) -> None:
        """Call a method with several responses."""
        handle, reads_stream = self._methods[method]
        async with self._opened(method, sender) as call:
            call.write = write
            await handle(OnlyRequest(request) if reads_stream else request, call)

    @asynccontextmanager
    async def _opened(self, method: str, sender: Sender, texts: Sequence[str] | None = None) -> AsyncIterator[Call]:
        """Pass a call through the gate, with its texts, until the time of its sender is over."""
        call = _new_call(method, sender)
        if texts is not None:
            call.record.note(texts)
        with self._services.gate.answering(call):
            try:
                async with asyncio.timeout(sender.timeout_s):
                    yield call
            except TimeoutError as error:
                if isinstance(error, JumokError):
                    raise
                raise DeadlineExceededError(f"the response was not complete within {sender.timeout_s:g} s") from error

    async def directions(self, sender: Sender) -> Directions:
        """Return the directions of all models and routes."""
        pairs = self._services.models.pairs()
        if pairs is not self._directions.pairs:  # they are made once for a set of models
            self._directions = Directions(pairs)
        return self._directions

    async def usage(self, sender: Sender) -> int:
        """Return the translated characters of a token."""
        async with self._opened(LIST_MODELS, sender) as call:
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
