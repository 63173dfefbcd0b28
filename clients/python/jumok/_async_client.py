"""The client for programs built on asyncio."""

from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Sequence
from typing import Unpack, overload

from jumok._async_glossaries import AsyncGlossaries
from jumok._corpus.aio import AsyncCorpusRun
from jumok._corpus.state import DEFAULT_WINDOW, Corpus
from jumok._files import FileOptions, FileResult, FileSource, FileTarget
from jumok._requests import (
    AlignParameters,
    RequestSettings,
    TranslateParameters,
    align_request,
    score_request,
    stream_request,
    translate_request,
)
from jumok._responses import (
    TextResult,
    TranslationUpdate,
    read_alignments,
    read_languages,
    read_scores,
    read_translations,
)
from jumok._transport.aio import AsyncConnected, AsyncConnection
from jumok._transport.retry import MAX_ATTEMPTS
from jumok._transport.servers import Servers, Tls
from jumok._validation import check_count, check_text, check_texts
from jumok_proto.alignments import Alignment
from jumok_proto.attention import AttentionKind
from jumok_proto.conversion import model_from_proto, route_from_proto
from jumok_proto.results import DetectedLanguage, Model, Route, Score, Translation
from jumok_proto.text_options import TranslateOptions
from jumok_proto.v1.model_pb2 import GetModelRequest, ListModelsRequest, ListModelsResponse
from jumok_proto.v1.translation_pb2 import DetectLanguageRequest

DEFAULT_TIMEOUT_S = 60.0


class AsyncClient(AsyncConnected):
    """A connection to a server, or to several with the same models.

    Shared by the tasks of a program, in any event loop. A forked process connects anew.

    A cancelled task cancels its call on the server too.

        async with AsyncClient("localhost:50051") as client:
            print((await client.translate("A man sleeps.")).text)

    Args:
        server: ``host:port``, or several: a sequence, or one string with commas. Calls go to the servers in turn, and
            to the addresses of a name in turn; a server that cannot be reached rests for some seconds.
        tls: TLS settings; None: plain text.
        token: the caller's token, sent over TLS only.
        timeout_s: timeout of each call without its own.
        max_attempts: attempts within the timeout, if no server can be reached, the queue is full, or a rate limit is
            exceeded. The wait between two attempts grows, and lasts at least as long as the server asks for. Calls that
            a server with too many of them did not read are repeated within the timeout, however often.

    Attributes:
        glossaries: the caller's glossaries on the server.

    Raises:
        JumokError: a subclass for each failure of a call; see ``jumok_proto.errors``.
        ValueError: a token without TLS.
    """

    def __init__(
        self,
        server: str | Sequence[str],
        *,
        tls: Tls | None = None,
        token: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        max_attempts: int = MAX_ATTEMPTS,
    ) -> None:
        check_count("max_attempts", max_attempts, least=1)
        servers = Servers(server, tls=tls, token=token, timeout_s=timeout_s, max_attempts=max_attempts)
        self._connection = AsyncConnection(servers)
        self.glossaries = AsyncGlossaries(self._connection)

    @overload
    async def translate(  # type: ignore[overload-overlap]  # a str is a sequence of str too
        self,
        texts: str,
        *,
        target_prefix: str | None = None,
        timeout_s: float | None = None,
        **settings: Unpack[TranslateParameters],
    ) -> Translation: ...

    @overload
    async def translate(
        self,
        texts: Sequence[str],
        *,
        target_prefix: Sequence[str | None] | None = None,
        timeout_s: float | None = None,
        **settings: Unpack[TranslateParameters],
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
        split_sentences: bool | None = None,
        model: str = "",
        timeout_s: float | None = None,
        **options: Unpack[TranslateOptions],
    ) -> Translation | list[Translation]:
        """Translate one text, or several in one request: all are translated, or none is.

        Args:
            texts: a text, or a sequence of texts.
            source_language: language of the texts, as the model spells it, in any case and with ``_`` or ``-``.
                None: the model's default; ``"auto"``: that of each text is detected.
            target_language: language to translate into; None: the model's default.
            target_prefix: beginning of the translation; for several texts a sequence, with None for no prefix. The
                ``text`` of a hypothesis includes the prefix, its tokens and scores do not.
            attention: return cross-attention from the tokens of each hypothesis to the ``source_tokens``.
            truncate: cut texts that are too long for the model instead of refusing them.
            split_sentences: translate the sentences of each text one by one and join them; the text then has one
                hypothesis. None: True unless ``attention``, ``target_prefix`` or several hypotheses are given.
            model: name of the model; empty: the first at the server's start that has both languages, or two over a
                pivot language (see ``Translation.pivot``), or the server's only model.
            timeout_s: timeout of the call; None: the client's.
            options: options for texts and for decoding; see ``TranslateOptions``. Others raise TypeError.
        """
        request = translate_request(
            texts,
            source_language=source_language,
            target_language=target_language,
            target_prefix=target_prefix,
            attention=attention,
            truncate=truncate,
            split_sentences=split_sentences,
            model=model,
            **options,
        )
        response = await self._connection.call(lambda stubs: stubs.translation.TranslateText, request, timeout_s)
        translations = read_translations(response, len(request.contents))
        return translations[0] if isinstance(texts, str) else translations

    @overload
    async def score(  # type: ignore[overload-overlap]  # a str is a sequence of str too
        self,
        texts: str,
        targets: str,
        *,
        length_penalty: float | None = None,
        timeout_s: float | None = None,
        **settings: Unpack[RequestSettings],
    ) -> Score: ...

    @overload
    async def score(
        self,
        texts: Sequence[str],
        targets: Sequence[str],
        *,
        length_penalty: float | None = None,
        timeout_s: float | None = None,
        **settings: Unpack[RequestSettings],
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
        """Score given translations of one text, or of several in one request.

        Scores are the model's own log-probabilities; decoding options and constraints do not change them. A text
        without content has only the empty translation, with score 0. Other arguments are those of ``translate``.

        Args:
            texts: a text, or a sequence of texts.
            targets: the translation, or a sequence with one for each text.
            length_penalty: the sum is divided by length ** ``length_penalty``; None: the model's default.
        """
        request = score_request(
            texts,
            targets,
            source_language=source_language,
            target_language=target_language,
            length_penalty=length_penalty,
            truncate=truncate,
            model=model,
        )
        response = await self._connection.call(lambda stubs: stubs.translation.ScoreText, request, timeout_s)
        scores = read_scores(response, len(request.contents))
        return scores[0] if isinstance(texts, str) else scores

    @overload
    async def align(  # type: ignore[overload-overlap]  # a str is a sequence of str too
        self,
        texts: str,
        targets: str | None = None,
        *,
        timeout_s: float | None = None,
        **settings: Unpack[AlignParameters],
    ) -> Alignment: ...

    @overload
    async def align(
        self,
        texts: Sequence[str],
        targets: Sequence[str | None] | None = None,
        *,
        timeout_s: float | None = None,
        **settings: Unpack[AlignParameters],
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
        """Compute attention for one text and translation, or several in one request.

        Other arguments are those of ``translate``.

        Args:
            texts: a text, or a sequence of texts.
            targets: the translation, or a sequence with one for each text. None or an empty text stands for the model's
                own translation, with its default options.
            kinds: ``"cross"``, ``"encoder"``, ``"decoder"``; see ``AttentionKind``.
            layer, head: the only layer or head to return, from 0; None: all.
            each_head: return the weights of each layer and head too, not only their mean.

        Raises:
            AttentionUnavailableError: the model has no such attention.
            InvalidArgumentError: the model has no such layer or head, or the request takes more than 2 ** 23 weights.
        """
        request = align_request(
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
        alignments = read_alignments(response, len(request.contents))
        return alignments[0] if isinstance(texts, str) else alignments

    def translate_stream(
        self,
        text: str,
        *,
        target_prefix: str | None = None,
        timeout_s: float | None = None,
        **settings: Unpack[TranslateParameters],
    ) -> AsyncGenerator[TranslationUpdate, None]:
        """Translate one text, and yield its stable beginning during decoding.

        The last update has the whole translation. Greedy search and sampling return token by token. Beam search returns
        the common beginning of all hypotheses that can still win, so no text is taken back. This beginning may stay
        short until the end. A slow reader gets fewer updates. Arguments are those of ``translate``. Close an iteration
        that you leave early, with ``contextlib.aclosing``: this cancels the call.
        """
        return self._connection.stream(stream_request(text, target_prefix=target_prefix, **settings), timeout_s)

    def translate_iter(
        self,
        lines: Iterable[str] | AsyncIterable[str],
        *,
        window: int = DEFAULT_WINDOW,
        start: int = 0,
        target_prefix: str | None = None,
        timeout_s: float | None = None,
        **settings: Unpack[TranslateParameters],
    ) -> AsyncGenerator[TextResult, None]:
        """Translate any number of texts; results come in order, each as soon as possible.

        A text that cannot be translated does not stop the others: ``error`` of its result gives the reason, and
        ``translation`` raises it. Close an iteration that you leave early, with ``contextlib.aclosing``.

        If a server restarts or dies, the client reconnects or fails over: no result is lost, repeated or out of order.
        A program that stopped continues with ``start``, the ``index`` of its last result plus one.

        Args:
            lines: the texts. A plain iterable is read on the event loop and must not block.
            window: texts that are read beyond the last result taken, 1 to 1024; bounds memory.
            start: texts to skip.
            target_prefix: beginning of every translation.
            timeout_s: longest time without any result while texts wait for one.
            settings: other arguments of ``translate``.

        Raises:
            JumokError: no server answered the first texts in ``max_attempts`` calls, or ``timeout_s`` passed. Results
                before the failure come first. An exception of ``lines`` is raised in the same way.
        """
        corpus = Corpus(
            lines,
            self._connection.servers,
            window=window,
            start=start,
            target_prefix=target_prefix,
            timeout_s=timeout_s,
            **settings,
        )
        self._connection.check_open()
        return AsyncCorpusRun(corpus, lines, start, self._connection).results()

    @overload
    async def detect_language(  # type: ignore[overload-overlap]  # a str is a sequence of str too
        self, texts: str, *, timeout_s: float | None = None
    ) -> list[DetectedLanguage]: ...

    @overload
    async def detect_language(
        self, texts: Sequence[str], *, timeout_s: float | None = None
    ) -> list[list[DetectedLanguage]]: ...

    async def detect_language(
        self, texts: str | Sequence[str], *, timeout_s: float | None = None
    ) -> list[DetectedLanguage] | list[list[DetectedLanguage]]:
        """Detect the language of one text, or of several in one request, among all that the server knows.

        Returns the possible languages of each text, best first; none of a text without letters.
        """
        request = DetectLanguageRequest(contents=check_texts("contents", texts))
        response = await self._connection.call(lambda stubs: stubs.translation.DetectLanguage, request, timeout_s)
        languages = read_languages(response, len(request.contents))
        return languages[0] if isinstance(texts, str) else languages

    async def translate_file(
        self, source: FileSource, target: FileTarget, **options: Unpack[FileOptions]
    ) -> FileResult:
        """Translate a file, or an open binary file, into another; one of a path changes only once all is written.

        The call is not repeated. Raises InvalidArgumentError with the line if the file cannot be read.
        """
        return await self._connection.translate_file(source, target, options)

    async def list_models(self, *, timeout_s: float | None = None) -> list[Model]:
        """List the server's models, sorted by name."""
        response = await self._list(timeout_s)
        return [model_from_proto(model) for model in response.models]

    async def list_routes(self, *, timeout_s: float | None = None) -> list[Route]:
        """List the pairs of languages that two of the server's models translate over a pivot language."""
        response = await self._list(timeout_s)
        return [route_from_proto(route) for route in response.routes]

    async def get_model(self, name: str, *, timeout_s: float | None = None) -> Model:
        """Describe one model; raise ModelNotFoundError if the server does not hold it."""
        request = GetModelRequest(name=check_text("name", name))
        response = await self._connection.call(lambda stubs: stubs.models.GetModel, request, timeout_s)
        return model_from_proto(response.model)

    async def _list(self, timeout_s: float | None) -> ListModelsResponse:
        return await self._connection.call(lambda stubs: stubs.models.ListModels, ListModelsRequest(), timeout_s)
