"""The client for programs that wait for each answer."""

from collections.abc import Sequence
from types import TracebackType
from typing import Literal, Self, TypeVar, overload

import grpc
from google.protobuf.message import Message

from jumok import _calls
from jumok._errors import call_error
from jumok_proto.results import Model, Translation
from jumok_proto.v1.model_pb2 import ListModelsRequest
from jumok_proto.v1.model_pb2_grpc import ModelServiceStub
from jumok_proto.v1.translation_pb2_grpc import TranslationServiceStub

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


class Client:
    """A connection to a server, to be shared by all threads of a program.

    ``server`` is ``host:port``. ``timeout_s`` bounds every call that does not bring its own limit. All methods raise
    subclasses of ``CallError``.

        with Client("localhost:50051") as client:
            print(client.translate("A man sleeps.").text)
    """

    def __init__(self, server: str, *, timeout_s: float = _calls.DEFAULT_TIMEOUT_S) -> None:
        self._server = server
        self._timeout_s = _calls.check_timeout(timeout_s)
        self._channel = grpc.insecure_channel(server, options=_calls.CHANNEL_OPTIONS)
        self._translation = TranslationServiceStub(self._channel)
        self._models = ModelServiceStub(self._channel)
        self._closed = False

    @overload
    def translate(  # type: ignore[overload-overlap]  # a str is a sequence of str too
        self,
        texts: str,
        *,
        beam_size: int | None = None,
        num_hypotheses: int | None = None,
        length_penalty: float | None = None,
        early_stopping: bool | Literal["never"] | None = None,
        min_length: int | None = None,
        max_length: int | None = None,
        truncate: bool = False,
        model: str = "",
        timeout_s: float | None = None,
    ) -> Translation: ...

    @overload
    def translate(
        self,
        texts: Sequence[str],
        *,
        beam_size: int | None = None,
        num_hypotheses: int | None = None,
        length_penalty: float | None = None,
        early_stopping: bool | Literal["never"] | None = None,
        min_length: int | None = None,
        max_length: int | None = None,
        truncate: bool = False,
        model: str = "",
        timeout_s: float | None = None,
    ) -> list[Translation]: ...

    def translate(
        self,
        texts: str | Sequence[str],
        *,
        beam_size: int | None = None,
        num_hypotheses: int | None = None,
        length_penalty: float | None = None,
        early_stopping: bool | Literal["never"] | None = None,
        min_length: int | None = None,
        max_length: int | None = None,
        truncate: bool = False,
        model: str = "",
        timeout_s: float | None = None,
    ) -> Translation | list[Translation]:
        """Translate one text, or several in one request: all are translated, or none is.

        Options that are None keep the model's default. ``beam_size`` 1 is greedy decoding; ``num_hypotheses`` is how
        many candidates to return; ``length_penalty`` divides the score by length ** penalty; ``early_stopping`` is
        False (stop when a better candidate is unlikely), True (at once) or "never" (only when none is possible);
        lengths are in tokens. ``truncate`` cuts texts that are too long for the model instead of refusing them.
        ``model`` may be left out where the server holds only one.
        """
        request = _calls.translate_request(
            texts,
            beam_size=beam_size,
            num_hypotheses=num_hypotheses,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            min_length=min_length,
            max_length=max_length,
            truncate=truncate,
            model=model,
        )
        response = self._call(self._translation.TranslateText, request, timeout_s)
        translations = _calls.read_translations(response, len(request.contents))
        return translations[0] if isinstance(texts, str) else translations

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
