"""The client for programs built on asyncio."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from types import TracebackType
from typing import Self, TypeVar, Unpack, overload

import grpc.aio
from google.protobuf.message import Message

from jumok import _calls
from jumok._attempts import MAX_ATTEMPTS, Attempts, Endpoints, check_attempts
from jumok._channel import Tls, addresses, open_async_channel
from jumok._corpus import DEFAULT_WINDOW, make_corpus
from jumok._corpus_tasks import CorpusTasks, responses
from jumok._errors import CallError, Cancelled, call_error
from jumok._results import TextResult, TranslationUpdate
from jumok_proto.alignments import Alignment, AttentionKind
from jumok_proto.options import Options
from jumok_proto.results import Model, Score, Translation
from jumok_proto.v1.model_pb2 import ListModelsRequest
from jumok_proto.v1.model_pb2_grpc import ModelServiceStub
from jumok_proto.v1.translation_pb2 import (
    StreamTranslateTextRequest,
    TranslateCorpusRequest,
    TranslateCorpusResponse,
)
from jumok_proto.v1.translation_pb2_grpc import TranslationServiceStub

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


class _Stubs:
    """The services of one server."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.translation = TranslationServiceStub(channel)
        self.models = ModelServiceStub(channel)


class AsyncClient:
    """A connection to a server or several, made where an event loop runs and shared by all of its tasks.

    The same as ``Client``, with methods to await; a cancelled task cancels its call on the server too.

        async with AsyncClient("localhost:50051") as client:
            print((await client.translate("A man sleeps.")).text)
    """

    def __init__(
        self,
        server: str | Sequence[str],
        *,
        tls: Tls | None = None,
        token: str | None = None,
        timeout_s: float = _calls.DEFAULT_TIMEOUT_S,
        max_attempts: int = MAX_ATTEMPTS,
    ) -> None:
        self._servers = addresses(server)
        self._timeout_s = _calls.check_timeout(timeout_s)
        self._max_attempts = check_attempts(max_attempts)
        self._endpoints = Endpoints(len(self._servers))
        self._stubs = [_Stubs(open_async_channel(address, tls=tls, token=token)) for address in self._servers]
        self._closed = False

    @overload
    async def translate(  # type: ignore[overload-overlap]  # a str is a sequence of str too
        self,
        texts: str,
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        target_prefix: str | None = None,
        attention: bool = False,
        truncate: bool = False,
        split_sentences: bool = False,
        model: str = "",
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Translation: ...

    @overload
    async def translate(
        self,
        texts: Sequence[str],
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        target_prefix: Sequence[str | None] | None = None,
        attention: bool = False,
        truncate: bool = False,
        split_sentences: bool = False,
        model: str = "",
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> list[Translation]: ...

    async def translate(
        self,
        texts: str | Sequence[str],
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        target_prefix: str | Sequence[str | None] | None = None,
        attention: bool = False,
        truncate: bool = False,
        split_sentences: bool = False,
        model: str = "",
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Translation | list[Translation]:
        """Translate one text, or several in one request; as ``Client.translate``."""
        request = _calls.translate_request(
            texts,
            source_language=source_language,
            target_language=target_language,
            target_prefix=target_prefix,
            attention=attention,
            truncate=truncate,
            split_sentences=split_sentences,
            model=model,
            options=options,
        )
        response = await self._call(lambda stubs: stubs.translation.TranslateText, request, timeout_s)
        translations = _calls.read_translations(response, len(request.contents))
        return translations[0] if isinstance(texts, str) else translations

    @overload
    async def score(  # type: ignore[overload-overlap]  # a str is a sequence of str too
        self,
        texts: str,
        targets: str,
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        length_penalty: float | None = None,
        truncate: bool = False,
        model: str = "",
        timeout_s: float | None = None,
    ) -> Score: ...

    @overload
    async def score(
        self,
        texts: Sequence[str],
        targets: Sequence[str],
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        length_penalty: float | None = None,
        truncate: bool = False,
        model: str = "",
        timeout_s: float | None = None,
    ) -> list[Score]: ...

    async def score(
        self,
        texts: str | Sequence[str],
        targets: str | Sequence[str],
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        length_penalty: float | None = None,
        truncate: bool = False,
        model: str = "",
        timeout_s: float | None = None,
    ) -> Score | list[Score]:
        """Score given translations; as ``Client.score``."""
        request = _calls.score_request(
            texts,
            targets,
            source_language=source_language,
            target_language=target_language,
            length_penalty=length_penalty,
            truncate=truncate,
            model=model,
        )
        response = await self._call(lambda stubs: stubs.translation.ScoreText, request, timeout_s)
        scores = _calls.read_scores(response, len(request.contents))
        return scores[0] if isinstance(texts, str) else scores

    @overload
    async def align(  # type: ignore[overload-overlap]  # a str is a sequence of str too
        self,
        texts: str,
        targets: str | None = None,
        *,
        kinds: Sequence[AttentionKind] = ("cross",),
        layer: int | None = None,
        head: int | None = None,
        each_head: bool = False,
        source_language: str | None = None,
        target_language: str | None = None,
        truncate: bool = False,
        model: str = "",
        timeout_s: float | None = None,
    ) -> Alignment: ...

    @overload
    async def align(
        self,
        texts: Sequence[str],
        targets: Sequence[str | None] | None = None,
        *,
        kinds: Sequence[AttentionKind] = ("cross",),
        layer: int | None = None,
        head: int | None = None,
        each_head: bool = False,
        source_language: str | None = None,
        target_language: str | None = None,
        truncate: bool = False,
        model: str = "",
        timeout_s: float | None = None,
    ) -> list[Alignment]: ...

    async def align(
        self,
        texts: str | Sequence[str],
        targets: str | Sequence[str | None] | None = None,
        *,
        kinds: Sequence[AttentionKind] = ("cross",),
        layer: int | None = None,
        head: int | None = None,
        each_head: bool = False,
        source_language: str | None = None,
        target_language: str | None = None,
        truncate: bool = False,
        model: str = "",
        timeout_s: float | None = None,
    ) -> Alignment | list[Alignment]:
        """Give attention of texts and translations; as ``Client.align``."""
        request = _calls.align_request(
            texts,
            targets,
            kinds=kinds,
            layer=layer,
            head=head,
            each_head=each_head,
            source_language=source_language,
            target_language=target_language,
            truncate=truncate,
            model=model,
        )
        response = await self._call(lambda stubs: stubs.translation.AlignText, request, timeout_s)
        alignments = _calls.read_alignments(response, len(request.contents))
        return alignments[0] if isinstance(texts, str) else alignments

    def translate_stream(
        self,
        text: str,
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        target_prefix: str | None = None,
        attention: bool = False,
        truncate: bool = False,
        split_sentences: bool = False,
        model: str = "",
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> AsyncGenerator[TranslationUpdate, None]:
        """Translate one text, and give what is sure of its translation while it is written.

        As ``Client.translate_stream``, for ``async for``; leave one early with ``contextlib.aclosing``.
        """
        request = _calls.stream_request(
            text,
            source_language=source_language,
            target_language=target_language,
            target_prefix=target_prefix,
            attention=attention,
            truncate=truncate,
            split_sentences=split_sentences,
            model=model,
            options=options,
        )
        self._limit(timeout_s)  # here, and not when the first update is asked for
        _calls.check_open(self._closed)
        return self._stream(request, timeout_s)

    def translate_iter(
        self,
        lines: Iterable[str] | AsyncIterable[str],
        *,
        window: int = DEFAULT_WINDOW,
        start: int = 0,
        source_language: str | None = None,
        target_language: str | None = None,
        target_prefix: str | None = None,
        attention: bool = False,
        truncate: bool = False,
        split_sentences: bool = False,
        model: str = "",
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> AsyncGenerator[TextResult, None]:
        """Translate any number of texts, and give their results in order as they come.

        As ``Client.translate_iter``, for ``async for``; leave one early with ``contextlib.aclosing``. ``lines`` may be
        asynchronous; a plain iterable is read on the event loop, so it should not block.
        """
        corpus = make_corpus(
            self._endpoints,
            window=window,
            start=start,
            source_language=source_language,
            target_language=target_language,
            target_prefix=target_prefix,
            attention=attention,
            truncate=truncate,
            split_sentences=split_sentences,
            model=model,
            timeout_s=self._limit(timeout_s),
            max_attempts=self._max_attempts,
            options=options,
        )
        _calls.check_open(self._closed)
        return CorpusTasks(corpus, lines, start, self._open_corpus, lambda: not self._closed).results()

    def _open_corpus(
        self, endpoint: int, requests: AsyncIterator[TranslateCorpusRequest]
    ) -> AsyncIterator[TranslateCorpusResponse]:
        _calls.check_open(self._closed)
        return responses(
            self._stubs[endpoint].translation.TranslateCorpus(requests),
            lambda error: call_error(error, self._servers[endpoint]),
        )

    async def list_models(self, *, timeout_s: float | None = None) -> list[Model]:
        """List the server's models, sorted by name."""
        request = ListModelsRequest()
        return _calls.read_models(await self._call(lambda stubs: stubs.models.ListModels, request, timeout_s))

    async def get_model(self, name: str, *, timeout_s: float | None = None) -> Model:
        """Describe one model; raise NotFound where the server has none of that name."""
        request = _calls.get_model_request(name)
        return _calls.read_model(await self._call(lambda stubs: stubs.models.GetModel, request, timeout_s))

    async def close(self) -> None:
        """Close the connection; calls that still run fail with Cancelled, and further ones with ValueError."""
        self._closed = True
        for stubs in self._stubs:
            await stubs.channel.close(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _call(
        self,
        method: Callable[[_Stubs], grpc.aio.UnaryUnaryMultiCallable[Request, Response]],
        request: Request,
        timeout_s: float | None,
    ) -> Response:
        attempts = Attempts(self._endpoints, self._limit(timeout_s), self._max_attempts, time.monotonic())
        while True:
            _calls.check_open(self._closed)
            remaining_s = attempts.begin(time.monotonic())
            try:
                response = await method(self._stubs[attempts.endpoint])(request, timeout=remaining_s)
            except grpc.aio.AioRpcError as error:
                await self._wait_to_repeat(attempts, error)
            except asyncio.CancelledError as error:
                self._raise_if_closed(error)
                raise
            else:
                attempts.succeeded()
                return response

    async def _stream(
        self, request: StreamTranslateTextRequest, timeout_s: float | None
    ) -> AsyncGenerator[TranslationUpdate, None]:
        attempts = Attempts(self._endpoints, self._limit(timeout_s), self._max_attempts, time.monotonic())
        update: TranslationUpdate | None = None
        while update is None:
            _calls.check_open(self._closed)
            remaining_s = attempts.begin(time.monotonic())
            call = self._stubs[attempts.endpoint].translation.StreamTranslateText(request, timeout=remaining_s)
            try:
                async for response in call:
                    attempts.succeeded()
                    update = _calls.read_update(response, update.text if update else "")
                    yield update
                _calls.check_complete(update)
            except grpc.aio.AioRpcError as error:
                if update is not None:  # what was given is not to come again
                    raise call_error(error, self._servers[attempts.endpoint]) from error
                await self._wait_to_repeat(attempts, error)
            except asyncio.CancelledError as error:
                self._raise_if_closed(error)
                raise
            finally:
                call.cancel()

    async def _wait_to_repeat(self, attempts: Attempts, error: grpc.aio.AioRpcError) -> None:
        """Wait as long as it takes before the next attempt; raise the error of the last."""
        try:
            delay_s = attempts.failed(call_error(error, self._servers[attempts.endpoint]), time.monotonic())
        except CallError as failure:
            raise failure from error
        await asyncio.sleep(delay_s)

    def _raise_if_closed(self, error: asyncio.CancelledError) -> None:
        """Tell a call that was cancelled with its client from a task that was."""
        task = asyncio.current_task()
        if self._closed and task is not None and not task.cancelling():
            raise Cancelled("the client was closed") from error

    def _limit(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else _calls.check_timeout(timeout_s)
