"""The client for programs built on asyncio."""

from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Sequence
from types import TracebackType
from typing import Self, Unpack, overload

from jumok import _calls
from jumok._corpus.aio import CorpusTasks
from jumok._corpus.state import DEFAULT_WINDOW, make_corpus
from jumok._results import TextResult, TranslationUpdate
from jumok._transport.aio import AsyncConnection
from jumok._transport.channel import Tls
from jumok._transport.retry import MAX_ATTEMPTS
from jumok_proto.alignments import Alignment, AttentionKind
from jumok_proto.options import Options
from jumok_proto.results import Model, Score, Translation
from jumok_proto.v1.model_pb2 import ListModelsRequest


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
        self._connection = AsyncConnection(server, tls=tls, token=token, timeout_s=timeout_s, max_attempts=max_attempts)

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
        response = await self._connection.call(lambda stubs: stubs.translation.TranslateText, request, timeout_s)
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
        response = await self._connection.call(lambda stubs: stubs.translation.ScoreText, request, timeout_s)
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
        response = await self._connection.call(lambda stubs: stubs.translation.AlignText, request, timeout_s)
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
        return self._connection.stream(request, timeout_s)

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
            self._connection.endpoints,
            window=window,
            start=start,
            source_language=source_language,
            target_language=target_language,
            target_prefix=target_prefix,
            attention=attention,
            truncate=truncate,
            split_sentences=split_sentences,
            model=model,
            timeout_s=self._connection.limit(timeout_s),
            max_attempts=self._connection.max_attempts,
            options=options,
        )
        self._connection.check_open()
        return CorpusTasks(corpus, lines, start, self._connection.open_corpus, self._connection.is_open).results()

    async def list_models(self, *, timeout_s: float | None = None) -> list[Model]:
        """List the server's models, sorted by name."""
        request = ListModelsRequest()
        return _calls.read_models(
            await self._connection.call(lambda stubs: stubs.models.ListModels, request, timeout_s)
        )

    async def get_model(self, name: str, *, timeout_s: float | None = None) -> Model:
        """Describe one model; raise NotFoundError where the server has none of that name."""
        request = _calls.get_model_request(name)
        return _calls.read_model(await self._connection.call(lambda stubs: stubs.models.GetModel, request, timeout_s))

    async def close(self) -> None:
        """Close the connection; calls that still run fail with CallCancelledError, and further ones with ValueError."""
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
