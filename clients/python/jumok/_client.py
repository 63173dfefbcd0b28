"""The client for programs that wait for each answer."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self, TypeVar, Unpack, overload

import grpc
from google.protobuf.message import Message

from jumok import _calls
from jumok._channel import Tls, open_channel
from jumok._errors import call_error
from jumok_proto.options import Options
from jumok_proto.results import Model, Score, Translation
from jumok_proto.v1.model_pb2 import ListModelsRequest
from jumok_proto.v1.model_pb2_grpc import ModelServiceStub
from jumok_proto.v1.translation_pb2_grpc import TranslationServiceStub

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


class Client:
    """A connection to a server, to be shared by all threads of a program.

    ``server`` is ``host:port``. ``tls`` says how to speak TLS with it, where it is to be spoken, and ``token`` is what
    the server knows the caller by; it is sent over TLS only, and without raises ValueError. ``timeout_s`` bounds every
    call that does not bring its own limit. All methods raise subclasses of ``CallError``.

        with Client("localhost:50051") as client:
            print(client.translate("A man sleeps.").text)
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
        self._channel = open_channel(server, tls=tls, token=token, options=_calls.CHANNEL_OPTIONS)
        self._translation = TranslationServiceStub(self._channel)
        self._models = ModelServiceStub(self._channel)
        self._closed = False

    @overload
    def translate(  # type: ignore[overload-overlap]  # a str is a sequence of str too
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
    def translate(
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

    def translate(
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
        """Translate one text, or several in one request: all are translated, or none is.

        Languages are spelled as in the model's description, or with other case, or ``_`` for ``-``; what is left out is
        the model's default. ``target_prefix`` is what the translation begins with, for several texts one for each or
        None: a hypothesis' ``text`` is the whole translation, its tokens and scores are those behind the prefix. With
        ``attention`` every hypothesis carries the cross-attention from its tokens to the translation's
        ``source_tokens``. ``truncate`` cuts texts that are too long for the model instead of refusing them. ``model``
        may be left out where the server holds only one. ``Options`` describes the decoding options; one that there is
        not is a TypeError.
        """
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
        response = self._call(self._translation.TranslateText, request, timeout_s)
        translations = _calls.read_translations(response, len(request.contents))
        return translations[0] if isinstance(texts, str) else translations

    @overload
    def score(  # type: ignore[overload-overlap]  # a str is a sequence of str too
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
    def score(
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

    def score(
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
        """Score a given translation of one text, or one of each of several in one request.

        The scores are the model's own log-probabilities: decoding options and constraints take no part. Sums are
        divided by length ** ``length_penalty``, which is the model's default where it is left out. A text without
        content has only the empty translation, with score 0. The rest is as in ``translate``.
        """
        request = _calls.score_request(
            texts,
            targets,
            source_language=source_language,
            target_language=target_language,
            length_penalty=length_penalty,
            truncate=truncate,
            model=model,
        )
        response = self._call(self._translation.ScoreText, request, timeout_s)
        scores = _calls.read_scores(response, len(request.contents))
        return scores[0] if isinstance(texts, str) else scores

    def list_models(self, *, timeout_s: float | None = None) -> list[Model]:
        """List the server's models, sorted by name."""
        return _calls.read_models(self._call(self._models.ListModels, ListModelsRequest(), timeout_s))

    def get_model(self, name: str, *, timeout_s: float | None = None) -> Model:
        """Describe one model; raise NotFound where the server has none of that name."""
        return _calls.read_model(self._call(self._models.GetModel, _calls.get_model_request(name), timeout_s))

    def close(self) -> None:
        """Close the connection; calls that still run fail with Cancelled, and further ones with ValueError."""
        self._closed = True
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _call(
        self, method: "grpc.UnaryUnaryMultiCallable[Request, Response]", request: Request, timeout_s: float | None
    ) -> Response:
        _calls.check_open(self._closed)
        limit_s = self._timeout_s if timeout_s is None else _calls.check_timeout(timeout_s)
        try:
            return method(request, timeout=limit_s)
        except grpc.RpcError as error:
            raise call_error(error, self._server) from error
