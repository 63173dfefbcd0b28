"""What all HTTP APIs share: the backend that answers, and the exchange of request and response, errors included."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, Protocol, TypeVar, cast

from cachetools import LRUCache
from google.protobuf.message import Message
from google.rpc.status_pb2 import Status
from grpc import StatusCode
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from jumok_proto.error_conversion import status_to_proto
from jumok_proto.errors import (
    DeadlineExceededError,
    Details,
    GlossaryNotFoundError,
    InternalError,
    InvalidArgumentError,
    JumokError,
    LanguageNotFoundError,
    ResourceExhaustedError,
)
from jumok_proto.results import DetectedLanguage
from jumok_proto.v1.translation_pb2 import TranslateTextRequest
from jumok_serve.http.documents import Documents
from jumok_serve.http.requests import Body, ClientDisconnectedError, Fields, parse_fields, parse_form, text_field
from jumok_serve.manifest.languages import tag_key
from jumok_serve.service.handlers.api import Settings
from jumok_serve.service.handlers.worker_pool import WorkerPool
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.rpc.call import BEARER, Call, Write, full_name
from jumok_serve.service.rpc.interceptor import UnreadResponse, UnreadResponses
from jumok_serve.service.rpc.request_reader import ByteBudget, Intake
from jumok_serve.service.rpc.statuses import drop_frames, stopping, to_status
from jumok_serve.service.server import Services
from jumok_serve.share import account_of, peer_name
from jumok_serve.text.translation import Translated

logger = logging.getLogger(__name__)

Called = TypeVar("Called", bound=Message)
Result = TypeVar("Result")

TRANSLATE = "/jumok.v1.TranslationService/TranslateText"
TRANSLATE_FILE = "/jumok.v1.FileService/TranslateFile"
DETECT = "/jumok.v1.TranslationService/DetectLanguage"
LIST_MODELS = "/jumok.v1.ModelService/ListModels"


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
    """Characters by key; event loop only."""

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


class Backend(Protocol):
    """Services behind the HTTP APIs.

    All errors are JumokErrors, as a gRPC client gets them.
    """

    async def identify(self, method: str, sender: Sender) -> str:
        """Find the caller of a method by its token, before the request is read.

        Returns:
            The key of the caller's shares.
        """

    async def call(self, method: str, request: Message, sender: Sender, kind: type[Called]) -> Called:
        """Call a method with one response, which is of the given type."""

    async def translate(
        self, settings: Settings, texts: Sequence[str], incoming: "Incoming", make: Callable[[Translated], Result]
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
        self._directions = Directions()

    async def identify(self, method: str, sender: Sender) -> str:
        """Find the caller of a method by its token."""
        call = _new_call(method, sender)
        self._services.gate.identify(call)
        return call.account

    async def call(self, method: str, request: Message, sender: Sender, kind: type[Called]) -> Called:
        """Call a method with one response."""
        async with self._opened(method, sender, getattr(request, "contents", None)) as call:
            handle, _ = self._methods[method]
            return cast("Called", await handle(request, call))

    async def translate(
        self, settings: Settings, texts: Sequence[str], incoming: "Incoming", make: Callable[[Translated], Result]
    ) -> Result:
        """Translate texts, and make something of the translations."""
        async with self._opened(TRANSLATE, incoming.sender, texts) as call:
            return await self._services.api.translate(settings, texts, deadline=call.deadline, make=make)

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


HTTP_STATUSES: dict[StatusCode, int] = {
    StatusCode.INVALID_ARGUMENT: 400,
    StatusCode.FAILED_PRECONDITION: 400,
    StatusCode.UNAUTHENTICATED: 401,
    StatusCode.PERMISSION_DENIED: 403,
    StatusCode.NOT_FOUND: 404,
    StatusCode.RESOURCE_EXHAUSTED: 429,
    StatusCode.CANCELLED: 499,
    StatusCode.UNIMPLEMENTED: 501,
    StatusCode.UNAVAILABLE: 503,
    StatusCode.DEADLINE_EXCEEDED: 504,
}
"""Statuses by gRPC code, as in ``google.rpc.Code``; 500 for others."""
TOO_LARGE = 413


def http_status(error: JumokError) -> int:
    """Return the HTTP status of an error."""
    if type(error) is ResourceExhaustedError:  # a request that is too large; the others are of subclasses
        return TOO_LARGE
    return HTTP_STATUSES.get(error.code, 500)


def status_of_others(error: JumokError) -> int:
    """Return the HTTP status of an error in the APIs of other services, in which only glossaries can be unknown."""
    code = http_status(error)
    return code if isinstance(error, GlossaryNotFoundError) else {401: 403, 404: 400}.get(code, code)


def describe(error: JumokError, request_id: str) -> Status:
    """Describe an error, as `to_status` does, and also a request that is too large, which gRPC describes itself."""
    if type(error) is ResourceExhaustedError:
        return status_to_proto(error.code, str(error), Details(request_id=request_id))
    return to_status(error, request_id)


def with_field_of(names: Mapping[str, str], error: JumokError) -> JumokError:
    """Return an error with an API's name for its field, which keeps its index."""
    if not isinstance(error, InvalidArgumentError | LanguageNotFoundError):
        return error
    name, bracket, index = error.field.partition("[")
    if error.field in names:
        field = names[error.field]
    elif name in names:
        field = names[name] + bracket + index
    else:
        return error
    return type(error)(str(error).replace(error.field, field), field=field)


REQUEST_ID = "jumok.request_id"
"""Key of the request id in ASGI scopes."""
MAX_INLINE_BYTES = 64 * 1024
"""Bytes of a request or response that the event loop reads or writes itself; a thread does larger ones."""
PARSING_THREADS = 2
MAX_PARSING = 256
"""Requests and responses of a caller that threads read or write, or that wait for it."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """Parts that all endpoints share.

    Attributes:
        intake: bounds on the reading of bodies.
        unread: bounds on responses that are not read.
        timeout_s: time for a response once its request is read, in seconds.
        answering: tasks that make responses, or their events; a server that stops cancels those left.
        reading: tasks that read bodies; a server that stops cancels those for which nothing arrives.
        parsing: threads that read large requests, and write large messages.
        characters: characters that were translated since the start, by token; without tokens, of all together.
        documents: files that are translated, and their results.
    """

    backend: Backend
    limits: ServiceLimits
    intake: Intake
    unread: UnreadResponses
    timeout_s: float
    answering: set["asyncio.Task[Any]"] = field(default_factory=set)
    reading: dict["asyncio.Task[Any]", Body] = field(default_factory=dict)
    parsing: WorkerPool = field(
        default_factory=lambda: WorkerPool("parsed", threads=PARSING_THREADS, max_jobs=MAX_PARSING)
    )
    characters: CharacterCounts = field(default_factory=CharacterCounts)
    documents: Documents = field(default_factory=Documents)

    def begin(self, work: Coroutine[Any, Any, Result]) -> "asyncio.Task[Result]":
        """Start a task of a response."""
        task = asyncio.create_task(work)
        self.answering.add(task)
        task.add_done_callback(self.answering.discard)
        return task

    async def read(self, body: Body, headers: Headers, budget: ByteBudget, caller: str) -> None:
        """Read a body, as `Body.read` does, unless the server stops and nothing arrives."""
        task = asyncio.create_task(body.read(headers, budget, caller))
        self.reading[task] = body
        try:
            await task
        finally:
            del self.reading[task]

    async def work(self, work: Callable[[], Result], size: int, caller: str) -> Result:
        """Read or write bytes, many of them in a thread.

        Args:
            size: number of the bytes.
            caller: key of the caller's share of the threads.

        Raises:
            OverloadedError: too many requests wait for the threads.
        """
        if size <= MAX_INLINE_BYTES:
            return work()
        return await asyncio.wrap_future(self.parsing.submit(work, caller, size))


@dataclass(frozen=True, kw_only=True)
class Incoming:
    """A request that was read.

    Attributes:
        size: bytes of the body.
        caller: key of the sender's shares.
        unread: the response, once it is made.
    """

    site: Site
    scope: Scope
    headers: Headers
    size: int
    fields: Fields
    sender: Sender
    caller: str
    unread: UnreadResponse

    @property
    def path(self) -> Mapping[str, str]:
        """Parameters of the path."""
        parameters: Mapping[str, str] = self.scope["path_params"]
        return parameters

    @property
    def owner(self) -> str:
        """Key of the sender's token; empty without tokens, as clients may then send any text as theirs."""
        return self.caller if self.site.backend.needs_token else ""

    async def call(self, method: str, request: Message, kind: type[Called]) -> Called:
        """Call a method with one response, which is counted until the client has read what is made of it.

        Raises:
            OverloadedError: other responses that the caller has not read leave no room.
            JumokError: the errors of the method.
        """
        response = await self.site.backend.call(method, request, self.sender, kind)
        if isinstance(request, TranslateTextRequest):
            self.site.characters.add(self.owner, request.contents)
        self.unread.hold(response.ByteSize())
        return response

    async def translate(
        self, settings: Settings, texts: Sequence[str], make: Callable[[Translated], object]
    ) -> Response:
        """Translate texts, and respond with JSON of what is made of the translations.

        Raises:
            JumokError: the errors of a translation.
        """
        response = await self.site.backend.translate(
            settings, texts, self, lambda translated: JSONResponse(make(translated))
        )
        self.site.characters.add(self.owner, texts)
        return response

    async def work(self, work: Callable[[], Result], size: int) -> Result:
        """Read or write bytes for the caller, as `Site.work` does."""
        return await self.site.work(work, size, self.caller)

    async def json(self, make: Callable[[], object], size: int, status: int = 200) -> Response:
        """Make a response of JSON, a large one in a thread."""
        return await self.work(lambda: JSONResponse(make(), status), size)


Answer = Callable[[Incoming], Coroutine[Any, Any, Response]]
Parse = Callable[[Headers, bytes, bytes, int], Fields]
"""Makes fields of headers, query string, body, and the most values that there may be."""


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """An API's spelling of keys, requests and errors.

    Attributes:
        error: makes the JSON of an error, which has the given status on the wire.
        status: returns the HTTP status of an error.
        fields: names of this API for fields of the contract, by the contract's.
        schemes: schemes of the header ``Authorization`` that have a key.
        key_field: field of query string or body that may have the key too; empty: none.
    """

    error: Callable[[JumokError, Status], object]
    status: Callable[[JumokError], int] = http_status
    fields: Mapping[str, str] = field(default_factory=dict)
    schemes: Sequence[str] = (BEARER,)
    key_field: str = ""
    parse: Parse = parse_fields

    def key(self, headers: Headers, query: bytes) -> str:
        """Return the key that stands before the body; empty: none."""
        credentials = headers.get("authorization", "")
        for scheme in self.schemes:
            if credentials.lower().startswith(scheme.lower()):
                return credentials[len(scheme) :].strip()
        return parse_form(query).get(self.key_field, [""])[0] if self.key_field else ""


class Endpoint:
    """ASGI application of one endpoint.

    Args:
        answer: makes the response; cancelled when the client leaves.
        method: method of the contract that it calls; empty: the endpoint needs no key, and reads no body.
        max_bytes: size of a request; 0: that of messages.
    """

    def __init__(self, site: Site, dialect: Dialect, answer: Answer, method: str, max_bytes: int = 0) -> None:
        self._site = site
        self._intake = replace(site.intake, max_bytes=max_bytes or site.intake.max_bytes)
        self._dialect = dialect
        self._answer = answer
        self._method = method

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read a request and answer it."""
        headers = Headers(scope=scope)
        body = Body(receive, self._intake)
        unread = UnreadResponse(self._site.unread, account_of(_peer_of(scope)))
        try:
            response = await self._respond(scope, headers, receive, body, unread)
            # A stream waits for its reader.
            async with asyncio.timeout(None if isinstance(response, StreamingResponse) else self._site.unread.read_s):
                await response(scope, receive, send)
        except (ClientDisconnectedError, TimeoutError):
            return  # uvicorn closes the connection
        finally:
            unread.close()
            body.close()

    async def _respond(
        self, scope: Scope, headers: Headers, receive: Receive, body: Body, unread: UnreadResponse
    ) -> Response:
        try:
            sender = Sender(
                peer=_peer_of(scope),
                request_id=scope[REQUEST_ID],
                token=self._dialect.key(headers, scope["query_string"]),
                timeout_s=self._site.timeout_s,
            )
            caller = await self._read(sender, headers, body)
            making = self._make_response(scope, headers, body, sender, caller, unread=unread)
            response = await unless_left(self._site.begin(making), receive)
            unread.hold(len(getattr(response, "body", b"")))
            return response
        except asyncio.CancelledError:
            refusal: JumokError = stopping()
        except JumokError as error:
            drop_frames(error)
            refusal = with_field_of(self._dialect.fields, error)
        except ClientDisconnectedError:
            raise
        except Exception as error:
            logger.exception("request %s: %s failed", scope[REQUEST_ID], scope["path"])
            drop_frames(error)
            refusal = InternalError()
        described = self._dialect.error(refusal, describe(refusal, scope[REQUEST_ID]))
        wait_s = refusal.retry_after_s
        waiting = None if wait_s is None else {"retry-after": str(max(1, math.ceil(wait_s)))}
        return JSONResponse(described, self._dialect.status(refusal), waiting)

    async def _read(self, sender: Sender, headers: Headers, body: Body) -> str:
        """Read the body of a caller that has the right to send it; returns the caller, or empty if it is unknown."""
        intake, address = self._site.intake, account_of(sender.peer)
        if not self._method:
            return address
        if sender.token or not self._dialect.key_field or not self._site.backend.needs_token:
            caller = await self._site.backend.identify(self._method, sender)
            await self._site.read(body, headers, intake.budget, caller)
            return caller
        await self._site.read(body, headers, intake.stranger_budget, address)
        return ""

    async def _make_response(
        self, scope: Scope, headers: Headers, body: Body, sender: Sender, caller: str, *, unread: UnreadResponse
    ) -> Response:
        content = body.take()
        parse = partial(self._dialect.parse, headers, scope["query_string"], content, self._site.intake.max_fields)
        size = len(content)
        del content
        fields = await self._site.work(parse, size, caller or account_of(sender.peer))
        del parse
        key = text_field(fields, self._dialect.key_field, "") if self._dialect.key_field else ""
        if self._method and not caller:
            sender = replace(sender, token=key)
            caller = await self._site.backend.identify(self._method, sender)
            body.move(self._site.intake.budget, caller)
        unread.caller = caller or unread.caller
        unread.hold()
        incoming = Incoming(
            site=self._site,
            scope=scope,
            headers=headers,
            size=size,
            fields=fields,
            sender=sender,
            caller=caller,
            unread=unread,
        )
        del fields
        return await self._answer(incoming)


class EventStream(StreamingResponse):
    """Response of server-sent events, which ends when the client leaves."""

    media_type = "text/event-stream"

    def __init__(self, site: Site, events: AsyncIterator[bytes]) -> None:
        super().__init__(events)
        self._site = site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        with suppress(ClientDisconnectedError):
            await unless_left(self._site.begin(self.stream_response(send)), receive)


async def unless_left(work: "asyncio.Task[Result]", receive: Receive) -> Result:
    """Wait for a task, and cancel it if the client leaves.

    Raises:
        ClientDisconnectedError: the client has left.
        CancelledError: of `asyncio`: the task was cancelled by others.
    """
    leaving = asyncio.create_task(_left(receive))
    try:
        await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnectedError
    finally:
        leaving.cancel()
        work.cancel()
    return work.result()


async def _left(receive: Receive) -> None:
    """Wait until the client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _peer_of(scope: Scope) -> str:
    """Return the sender's address in gRPC's notation, so that a caller has one account in all protocols."""
    if scope.get("client") is None:
        return "unix:"
    return peer_name(*scope["client"])


def route(
    site: Site, dialect: Dialect, path: str, verbs: str, answer: Answer, *, calls: str = "", max_bytes: int = 0
) -> Route:
    """Make the route of an endpoint.

    Args:
        verbs: HTTP's methods, separated by spaces.
        calls, max_bytes: the contract's method, and the size of a request, as for `Endpoint`.
    """
    endpoint: Any = Endpoint(site, dialect, answer, calls, max_bytes)
    return Route(path, endpoint, methods=verbs.split())
