"""Backend of other servers, over gRPC."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TypeVar, cast

import grpc
from cachetools import TTLCache
from google.protobuf import descriptor_pool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from jumok_proto.conversion import (
    detected_from_proto,
    markup_to_proto,
    options_to_proto,
    response_from_proto,
    rules_to_proto,
    timings_from_proto,
)
from jumok_proto.error_conversion import make_error, read_details
from jumok_proto.errors import GlossaryNotFoundError, JumokError, UnavailableError
from jumok_proto.options import Options
from jumok_proto.results import DetectedLanguage
from jumok_proto.v1.file_pb2 import TranslateFileRequest
from jumok_proto.v1.glossary_pb2 import (
    DeleteGlossaryRequest,
    GetGlossaryRequest,
    GetGlossaryResponse,
    UpdateGlossaryRequest,
)
from jumok_proto.v1.model_pb2 import ListModelsRequest, ListModelsResponse
from jumok_proto.v1.translation_pb2 import (
    DetectLanguageRequest,
    DetectLanguageResponse,
    Glossary,
    TranslateTextRequest,
    TranslateTextResponse,
)
from jumok_serve.http.site import (
    DETECT,
    LIST_MODELS,
    TRANSLATE,
    Called,
    Directions,
    Incoming,
    Sender,
)
from jumok_serve.service.handlers.api import Settings
from jumok_serve.service.rpc.call import BEARER, REQUEST_ID, Write
from jumok_serve.service.rpc.statuses import DETAILS
from jumok_serve.share import account_of
from jumok_serve.text.terms.glossary import PLACEHOLDERS
from jumok_serve.text.translation import Translated

DIRECTIONS_S = 10.0
"""Seconds for which the servers' directions are kept."""
MAX_KNOWN, KNOWN_S = 2**16, 10.0
"""Tokens that are known, and seconds for which each is; the servers check each call again."""
FILE_PART = 2**20
"""Bytes of a file in a message."""
GET_GLOSSARY = "/jumok.v1.GlossaryService/GetGlossary"
_SENDABLE = re.compile(r"[ -~]{1,1024}")
"""A token that metadata of a call can carry; no server has another one."""

Result = TypeVar("Result")


class StubBackend:
    """Calls servers in turn; a call that a server does not take goes to the next one.

    Made in a running event loop.

    Args:
        channels: channels to the servers, which all have the same models.
        token: token for the list of languages if a client has none.
        needs_token: True if the servers need tokens.
    """

    def __init__(self, channels: Sequence[grpc.aio.Channel], *, token: str = "", needs_token: bool = False) -> None:
        self._channels = list(channels)
        self._token = token
        self._needs_token = needs_token
        self._listed = ListModelsResponse()
        self._directions = Directions()
        self._directions_end = 0.0
        self._known: TTLCache[str, None] = TTLCache(MAX_KNOWN, KNOWN_S)  # tokens that a server took lately

    async def __aenter__(self) -> "StubBackend":
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(channel.close(None) for channel in self._channels))

    async def identify(self, method: str, sender: Sender) -> str:
        """Find the caller by its token, which a server knows."""
        if not self._needs_token:
            return account_of(sender.peer)
        if sender.token not in self._known:
            await self._call(LIST_MODELS, ListModelsRequest(), sender, ListModelsResponse)
            self._known[sender.token] = None
        return sender.token

    async def call(self, method: str, request: Message, sender: Sender, kind: type[Called]) -> Called:
        """Call a method with one response."""
        if isinstance(request, DeleteGlossaryRequest | UpdateGlossaryRequest):
            return await self._change(method, request, sender, kind)
        return await self._call(method, request, sender, kind)

    async def translate(
        self, settings: Settings, texts: Sequence[str], incoming: Incoming, make: Callable[[Translated], Result]
    ) -> Result:
        """Translate texts, and make something of the translations."""
        request = await incoming.work(partial(translate_request, settings, texts), sum(map(len, texts)))

        async def translate_one(channel: grpc.aio.Channel, left_s: float) -> Result:
            response = await _call_one(TRANSLATE, request, incoming.sender, channel, left_s, kind=TranslateTextResponse)
            incoming.unread.hold(response.ByteSize())
            return await incoming.work(lambda: make(_translated(response)), response.ByteSize())

        return await self._with_next(translate_one, incoming.sender)

    async def detect(self, texts: Sequence[str], sender: Sender) -> list[list[DetectedLanguage]]:
        """Return the possible languages of each text."""
        response = await self.call(DETECT, DetectLanguageRequest(contents=texts), sender, DetectLanguageResponse)
        return detected_from_proto(response)

    async def _call(self, method: str, request: Message, sender: Sender, kind: type[Called]) -> Called:
        return await self._with_next(partial(_call_one, method, request, sender, kind=kind), sender)

    async def _change(
        self, method: str, request: DeleteGlossaryRequest | UpdateGlossaryRequest, sender: Sender, kind: type[Called]
    ) -> Called:
        """Delete a glossary, or change it; the next server gets the call also if a first one has done it already."""
        until = time.monotonic() + sender.timeout_s
        named = GetGlossaryRequest(glossary=request.glossary)
        found = (await self._call(GET_GLOSSARY, named, sender, GetGlossaryResponse)).glossary
        request.glossary = found.id  # which no change takes away
        left_s = max(until - time.monotonic(), 0.001)
        try:
            return await self._call(method, request, replace(sender, timeout_s=left_s), kind)
        except GlossaryNotFoundError:
            if isinstance(request, UpdateGlossaryRequest):
                raise
            return kind(glossary=found)

    async def stream(self, method: str, request: Message, sender: Sender, write: Write) -> None:
        """Call a method with several responses."""
        service, _, name = method.removeprefix("/").partition("/")
        described = descriptor_pool.Default().FindServiceByName(service).FindMethodByName(name)
        begun = False

        async def pass_on(data: bytes) -> None:
            nonlocal begun
            response = _parse(GetMessageClass(described.output_type), data)
            begun = True
            await write(response)

        async def stream_one(channel: grpc.aio.Channel, left_s: float) -> None:
            make_stub: Any = channel.stream_stream if described.client_streaming else channel.unary_stream
            stub = make_stub(method, request_serializer=type(request).SerializeToString)
            sent = _sent(request) if described.client_streaming else request
            empty = False  # the last response; before a failure it only carries the status
            async for data in stub(sent, timeout=left_s, metadata=_metadata(sender)):
                if empty:
                    await pass_on(b"")
                empty = not data
                if data:
                    await pass_on(data)
            if empty:
                await pass_on(b"")
            if not begun:
                raise _foreign(GetMessageClass(described.output_type))

        await self._with_next(stream_one, sender, lambda: not begun)

    async def _with_next(
        self,
        work: Callable[[grpc.aio.Channel, float], Awaitable[Result]],
        sender: Sender,
        again: Callable[[], bool] = lambda: True,
    ) -> Result:
        """Work with the next server; with each other one while they are unavailable and nothing was answered.

        Args:
            work: calls a server, within the given time in seconds.
        """
        until = time.monotonic() + sender.timeout_s
        self._channels.append(self._channels.pop(0))
        last: JumokError = UnavailableError("no server is named")
        for channel in list(self._channels):
            try:
                return await work(channel, max(until - time.monotonic(), 0.001))
            except grpc.aio.AioRpcError as error:
                last = _error_of(error)
            except UnavailableError as error:
                last = error
            if not isinstance(last, UnavailableError) or not again():
                break
        raise last

    async def directions(self, sender: Sender) -> Directions:
        """Return the directions of a server's models and routes."""
        if time.monotonic() >= self._directions_end:
            asking = sender if sender.token else replace(sender, token=self._token)
            models = await self.call(LIST_MODELS, ListModelsRequest(), asking, ListModelsResponse)
            if models != self._listed:
                self._listed, self._directions = models, Directions(_pairs_of(models))
            self._directions_end = time.monotonic() + DIRECTIONS_S
        return self._directions

    @property
    def serving(self) -> bool:
        """True while a server can be reached, or may be."""
        broken = grpc.ChannelConnectivity.TRANSIENT_FAILURE
        return any(channel.get_state(try_to_connect=True) is not broken for channel in self._channels)

    @property
    def needs_token(self) -> bool:
        """True if calls need a token."""
        return self._needs_token


def _sent(request: Message) -> Iterator[Message]:
    """Yield a request as messages that servers take: a file in parts."""
    if not isinstance(request, TranslateFileRequest):
        yield request
        return
    yield TranslateFileRequest(settings=request.settings)
    file = request.file
    for start in range(0, len(file), FILE_PART):
        yield TranslateFileRequest(file=file[start : start + FILE_PART])


async def _call_one(
    method: str, request: Message, sender: Sender, channel: grpc.aio.Channel, left_s: float, *, kind: type[Called]
) -> Called:
    """Call a method of one server, within the given time in seconds."""
    stub = channel.unary_unary(method, request_serializer=type(request).SerializeToString, response_deserializer=None)
    data = await stub(request, timeout=left_s, metadata=_metadata(sender))
    response = _parse(kind, data)
    if not _is_whole(request, response):
        raise _foreign(kind)
    return response


def _translated(response: TranslateTextResponse) -> Translated:
    """Read a response.

    Raises:
        UnavailableError: it has values that are not known here.
    """
    try:
        return Translated(response_from_proto(response), timings_from_proto(response.timings))
    except ValueError as error:
        raise _foreign(TranslateTextResponse) from error


def translate_request(settings: Settings, texts: Sequence[str]) -> TranslateTextRequest:
    """Make the message that `parse_settings` reads; the HTTP APIs have no terms but those of stored glossaries."""
    parameters = settings.parameters
    assert parameters.terms is None
    assert parameters.placeholders in {None, PLACEHOLDERS}
    return TranslateTextRequest(
        contents=texts,
        model=settings.model,
        source_language_code=settings.source,
        target_language_code=settings.target,
        options=options_to_proto(cast("Options", asdict(parameters.options))),
        attention=parameters.attention,
        truncate=parameters.truncate,
        split_sentences=parameters.split_sentences,
        cut_long_sentences=parameters.cut_long_sentences,
        copy_unreadable=parameters.copy_unreadable,
        markup=markup_to_proto(parameters.markup),
        markup_rules=None if parameters.markup is None else rules_to_proto(parameters.markup_rules),
        keep_placeholders=parameters.placeholders is not None,
        glossary=Glossary(stored=settings.stored_glossary) if settings.stored_glossary else None,
    )


def _parse(kind: type[Called], data: bytes) -> Called:
    """Make a server's response; gRPC would make None of an invalid one."""
    with suppress(DecodeError):
        return kind.FromString(data)
    raise _foreign(kind)


def _is_whole(request: Message, response: Message) -> bool:
    """True if a response has a result of each text."""
    if isinstance(request, TranslateTextRequest) and isinstance(response, TranslateTextResponse):
        results = [one.hypotheses for one in response.translations]
        return len(results) == len(request.contents) and all(results)
    if isinstance(request, DetectLanguageRequest) and isinstance(response, DetectLanguageResponse):
        return len(response.results) == len(request.contents)
    return True


def _foreign(kind: type[Message]) -> UnavailableError:
    return UnavailableError(f"a server sent what is no {kind.DESCRIPTOR.name}; name servers of this version of jumok")


def _metadata(sender: Sender) -> list[tuple[str, str]]:
    metadata = [(REQUEST_ID, sender.request_id)] if sender.request_id else []
    is_sendable = _SENDABLE.fullmatch(sender.token)
    return [*metadata, ("authorization", f"{BEARER}{sender.token}")] if is_sendable else metadata


def _error_of(error: grpc.aio.AioRpcError) -> JumokError:
    packed = dict(cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())).get(DETAILS, b"")
    details = read_details(packed if isinstance(packed, bytes) else b"")
    if error.code() is grpc.StatusCode.INTERNAL and not details.reason:  # a proxy, such as Ray's, lost the server
        return UnavailableError(error.details() or "the call was lost", details=details)
    return make_error(error.code(), error.details() or "", details)


def _pairs_of(models: ListModelsResponse) -> tuple[tuple[str, str], ...]:
    pairs = {(one.source_language_code, one.target_language_code) for one in models.routes}
    for model in models.models:
        listed = model.language_pairs or (
            [model.default_language_pair] if model.HasField("default_language_pair") else []
        )
        pairs |= {(pair.source_language_code, pair.target_language_code) for pair in listed}
        if not model.language_pairs:
            pairs |= {
                (source, target) for source in model.source_language_codes for target in model.target_language_codes
            }
    return tuple(sorted(pairs))
