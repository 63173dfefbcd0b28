"""The client for programs built on asyncio."""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self, TypeVar, Unpack, overload

import grpc.aio
from google.protobuf.message import Message

from jumok import _calls
from jumok._channel import Tls, open_async_channel
from jumok._errors import Cancelled, call_error
from jumok_proto.options import Options
from jumok_proto.results import Model, Score, Translation
from jumok_proto.v1.model_pb2 import ListModelsRequest
from jumok_proto.v1.model_pb2_grpc import ModelServiceStub
from jumok_proto.v1.translation_pb2_grpc import TranslationServiceStub

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


class AsyncClient:
    """A connection to a server, made where an event loop runs and shared by all of its tasks.

    The same as ``Client``, with methods to await; a cancelled task cancels its call on the server too.

        async with AsyncClient("localhost:50051") as client:
            print((await client.translate("A man sleeps.")).text)
    """

    def __init__(
        self,
        server: str,
        *,
        tls: Tls | None = None,
        token: str | None = None,
        timeout_s: float = _calls.DEFAULT_TIMEOUT_S,
    ) -> None:
        self._server = server
        self._timeout_s = _calls.check_timeout(timeout_s)
        self._channel = open_async_channel(server, tls=tls, token=token, options=_calls.CHANNEL_OPTIONS)
        self._translation = TranslationServiceStub(self._channel)
        self._models = ModelServiceStub(self._channel)
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
            model=model,
            options=options,
        )
        response = await self._call(self._translation.TranslateText, request, timeout_s)
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
        response = await self._call(self._translation.ScoreText, request, timeout_s)
        scores = _calls.read_scores(response, len(request.contents))
        return scores[0] if isinstance(texts, str) else scores

    async def list_models(self, *, timeout_s: float | None = None) -> list[Model]:
        """List the server's models, sorted by name."""
        return _calls.read_models(await self._call(self._models.ListModels, ListModelsRequest(), timeout_s))

    async def get_model(self, name: str, *, timeout_s: float | None = None) -> Model:
        """Describe one model; raise NotFound where the server has none of that name."""
        return _calls.read_model(await self._call(self._models.GetModel, _calls.get_model_request(name), timeout_s))

    async def close(self) -> None:
        """Close the connection; calls that still run fail with Cancelled, and further ones with ValueError."""
        self._closed = True
        await self._channel.close(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _call(
        self, method: grpc.aio.UnaryUnaryMultiCallable[Request, Response], request: Request, timeout_s: float | None
    ) -> Response:
        _calls.check_open(self._closed)
        limit_s = self._timeout_s if timeout_s is None else _calls.check_timeout(timeout_s)
        try:
            return await method(request, timeout=limit_s)
        except grpc.aio.AioRpcError as error:
            raise call_error(error, self._server) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if self._closed and task is not None and not task.cancelling():  # the call was cancelled, not its caller
                raise Cancelled("the client was closed") from error
            raise
