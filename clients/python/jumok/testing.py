"""A fake server for tests: real gRPC, canned translations.

with FakeServer({"A dog runs.": "Ein Hund rennt."}) as server, Client(server.address) as client:
    assert client.translate("A dog runs.").text == "Ein Hund rennt."
    server.fail(UnavailableError("restarting"), times=2)
    assert client.translate("A dog runs.").text == "Ein Hund rennt."  # the third attempt
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NoReturn, Self

import grpc
from google.protobuf.message import Message
from google.rpc import status_pb2

from jumok._validation import invalid_field
from jumok_proto.alignments import Alignment
from jumok_proto.attention import AlignedToken, AttentionWeights
from jumok_proto.conversion import (
    alignments_to_proto,
    detected_to_proto,
    model_to_proto,
    response_to_proto,
    scores_to_proto,
    timings_to_proto,
    translation_to_proto,
)
from jumok_proto.error_conversion import status_to_proto
from jumok_proto.errors import FieldViolation, JumokError, ModelNotFoundError
from jumok_proto.results import (
    DecodingDefaults,
    DetectedLanguage,
    FinishReason,
    Hypothesis,
    LanguagePair,
    Model,
    Score,
    Timings,
    Translation,
)
from jumok_proto.v1 import alignment_pb2, model_pb2, translation_pb2
from jumok_proto.v1.model_pb2_grpc import ModelServiceServicer, add_ModelServiceServicer_to_server
from jumok_proto.v1.translation_pb2_grpc import TranslationServiceServicer, add_TranslationServiceServicer_to_server

__all__ = ["FAKE_MODEL", "FakeServer", "fake_translation"]

THREADS = 32
"""Largest number of concurrent calls."""

TIMINGS = Timings(queue_s=0.0, encode_s=0.0, decode_s=0.0, total_s=0.0)

FAKE_MODEL = Model(
    name="fake",
    version="1",
    architecture="fake",
    source_languages=("en",),
    target_languages=("de",),
    language_pairs=(),
    default_pair=LanguagePair(source="en", target="de"),
    max_source_length=512,
    max_target_length=512,
    defaults=DecodingDefaults(max_length=512),
    precision="fp32",
    device="cpu",
)
"""The only model of the fake server."""

Translate = Callable[[str], "str | Translation"]


def fake_translation(text: str, *, score: float = -0.5) -> Translation:
    """Make a translation with one hypothesis, whose tokens are its words."""
    words = tuple(text.split())
    best = Hypothesis(
        text=text,
        score=score,
        tokens=words,
        token_ids=tuple(range(len(words))),
        token_scores=(score,) * len(words),
        finish_reason=FinishReason.EOS,
    )
    return Translation(
        hypotheses=(best,),
        source_token_count=len(words),
        source_truncated=False,
        source_language="en",
        target_language="de",
        model=FAKE_MODEL.name,
        model_version=FAKE_MODEL.version,
    )


class FakeServer:
    """A server on a free port of 127.0.0.1, running while its ``with`` block does.

    A stream returns a translation word by word; a corpus is answered item by item, in order. Options have no effect.

    Args:
        translate: translations by text, or a function from text to str or ``Translation``. A
            ``JumokError`` that it raises is the text's error; a text that a mapping lacks has an InvalidArgumentError.
        delay_s: seconds before each answer to a call, or to each item of a corpus.

    Attributes:
        requests: all messages received, in order.
    """

    def __init__(self, translate: Mapping[str, str] | Translate = str.upper, *, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.requests: list[Message] = []
        self._translate: Translate = translate if callable(translate) else _canned(translate)
        self._failures: deque[tuple[JumokError, int]] = deque()
        self._stopped = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(THREADS, thread_name_prefix="fake-server"))
        services = _Services(self)
        add_TranslationServiceServicer_to_server(services, self._server)
        add_ModelServiceServicer_to_server(services, self._server)
        self.port: int = self._server.add_insecure_port("127.0.0.1:0")

    @property
    def address(self) -> str:
        """Address for a client."""
        return f"127.0.0.1:{self.port}"

    @property
    def texts(self) -> list[str]:
        """All texts received, in order."""
        found: list[str] = []
        for request in list(self.requests):
            match request:
                case (
                    translation_pb2.TranslateTextRequest()
                    | translation_pb2.ScoreTextRequest()
                    | translation_pb2.DetectLanguageRequest()
                    | alignment_pb2.AlignTextRequest()
                ):
                    found += request.contents
                case translation_pb2.StreamTranslateTextRequest():
                    found.append(request.content)
                case translation_pb2.TranslateCorpusRequest():
                    found += [item.content for item in request.items]
        return found

    def fail(self, error: JumokError, *, times: int = 1, after: int = 0) -> None:
        """Make calls fail, after the failures that are already planned.

        Args:
            error: sent with its details; ``OverloadedError("full", retry_after_s=1.0)`` has the client retry.
            times: number of calls.
            after: answers of a stream or a corpus before the failure.
        """
        self._failures.extend([(error, after)] * times)

    def start(self) -> None:
        """Start to serve, as a ``with`` block does."""
        self._server.start()

    def stop(self) -> None:
        """Stop at once and break running calls."""
        self._stopped.set()
        self._server.stop(None).wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- for the services ---

    def _next_failure(self) -> "tuple[JumokError | None, int]":
        try:
            return self._failures.popleft()
        except IndexError:
            return None, 0

    def _answer(self, text: str) -> Translation:
        self._stopped.wait(self.delay_s)
        answer = self._translate(text)
        return fake_translation(answer) if isinstance(answer, str) else answer


class _Services(TranslationServiceServicer, ModelServiceServicer):
    def __init__(self, server: FakeServer) -> None:
        self._server = server

    def TranslateText(  # noqa: N802
        self, request: translation_pb2.TranslateTextRequest, context: grpc.ServicerContext
    ) -> translation_pb2.TranslateTextResponse:
        self._begin(request, context)
        try:
            return response_to_proto([self._server._answer(text) for text in request.contents], TIMINGS)
        except JumokError as error:
            _abort(context, error)

    def DetectLanguage(  # noqa: N802
        self, request: translation_pb2.DetectLanguageRequest, context: grpc.ServicerContext
    ) -> translation_pb2.DetectLanguageResponse:
        """Find the only source language in each text."""
        self._begin(request, context)
        return detected_to_proto([[DetectedLanguage(FAKE_MODEL.source_languages[0], 1.0)] for _ in request.contents])

    def StreamTranslateText(  # noqa: N802
        self, request: translation_pb2.StreamTranslateTextRequest, context: grpc.ServicerContext
    ) -> Iterator[translation_pb2.StreamTranslateTextResponse]:
        self._server.requests.append(request)
        failure, after = self._server._next_failure()
        try:
            translation = self._server._answer(request.content)
            words = translation.text.split(" ")
            for count in range(1, len(words)):
                if failure is not None and count > after:
                    raise failure
                yield translation_pb2.StreamTranslateTextResponse(stable_text=" ".join(words[:count]))
            if failure is not None:
                raise failure
            yield translation_pb2.StreamTranslateTextResponse(
                stable_text=translation.text,
                translation=translation_to_proto(translation),
                timings=timings_to_proto(TIMINGS),
            )
        except JumokError as error:
            _abort(context, error)

    def TranslateCorpus(  # noqa: N802
        self, request_iterator: Iterator[translation_pb2.TranslateCorpusRequest], context: grpc.ServicerContext
    ) -> Iterator[translation_pb2.TranslateCorpusResponse]:
        failure, left = self._server._next_failure()
        for request in request_iterator:
            self._server.requests.append(request)
            for item in request.items:
                if failure is not None and left == 0:
                    _abort(context, failure)
                left -= 1
                result = translation_pb2.CorpusResult(id=item.id, timings=timings_to_proto(TIMINGS))
                try:
                    result.translation.CopyFrom(translation_to_proto(self._server._answer(item.content)))
                except JumokError as error:
                    result.error.CopyFrom(_status(error))
                yield translation_pb2.TranslateCorpusResponse(results=[result])
        if failure is not None:
            _abort(context, failure)

    def ScoreText(  # noqa: N802
        self, request: translation_pb2.ScoreTextRequest, context: grpc.ServicerContext
    ) -> translation_pb2.ScoreTextResponse:
        """Give minus the number of words as score."""
        self._begin(request, context)
        scores = []
        for target in request.targets:
            words = tuple(target.split())
            scores.append(
                Score(
                    score=-float(len(words)),
                    tokens=words,
                    token_ids=tuple(range(len(words))),
                    token_scores=(-1.0,) * len(words),
                    source_token_count=1,
                    source_truncated=False,
                    model=FAKE_MODEL.name,
                    model_version=FAKE_MODEL.version,
                )
            )
        return scores_to_proto(scores)

    def AlignText(  # noqa: N802
        self, request: alignment_pb2.AlignTextRequest, context: grpc.ServicerContext
    ) -> alignment_pb2.AlignTextResponse:
        """Give cross-attention from each word to the word at its position, for any kinds."""
        self._begin(request, context)
        try:
            targets = request.targets or [""] * len(request.contents)
            return alignments_to_proto(
                [
                    _word_by_word(text, target or self._server._answer(text).text)
                    for text, target in zip(request.contents, targets, strict=True)
                ]
            )
        except JumokError as error:
            _abort(context, error)

    def ListModels(  # noqa: N802
        self, request: model_pb2.ListModelsRequest, context: grpc.ServicerContext
    ) -> model_pb2.ListModelsResponse:
        self._server.requests.append(request)
        return model_pb2.ListModelsResponse(models=[model_to_proto(FAKE_MODEL)])

    def GetModel(  # noqa: N802
        self, request: model_pb2.GetModelRequest, context: grpc.ServicerContext
    ) -> model_pb2.GetModelResponse:
        self._server.requests.append(request)
        if request.name != FAKE_MODEL.name:
            _abort(context, ModelNotFoundError.of(request.name, [FAKE_MODEL.name]))
        return model_pb2.GetModelResponse(model=model_to_proto(FAKE_MODEL))

    def _begin(self, request: Message, context: grpc.ServicerContext) -> None:
        self._server.requests.append(request)
        failure, _ = self._server._next_failure()
        if failure is not None:
            _abort(context, failure)


def _word_by_word(text: str, target: str) -> Alignment:
    columns, rows = ([AlignedToken(word) for word in each.split()] for each in (text, target))
    last = len(columns) - 1
    weights = tuple(
        tuple(float(column == min(row, last)) for column in range(len(columns))) for row in range(len(rows))
    )
    return Alignment(
        target=target,
        source_tokens=tuple(columns),
        target_tokens=tuple(rows),
        decoder_tokens=(AlignedToken("<s>", special=True), *rows)[: len(rows)],
        cross=AttentionWeights(rows=tuple(rows), columns=tuple(columns), layers=(0,), heads=(0,), mean=weights),
        source_truncated=False,
        model=FAKE_MODEL.name,
        model_version=FAKE_MODEL.version,
    )


def _canned(translations: Mapping[str, str]) -> Translate:
    def translate(text: str) -> str:
        if text not in translations:
            raise invalid_field("content", f"the fake server has no translation of {text!r}")
        return translations[text]

    return translate


def _status(error: JumokError) -> status_pb2.Status:
    """Describe an error as a server does."""
    violations = error.details.field_violations
    if error.field and not violations:
        violations = (FieldViolation(field=error.field, description=str(error)),)
    details = replace(
        error.details, reason=error.reason, field_violations=violations, retry_after_s=error.retry_after_s
    )
    return status_to_proto(error.code, str(error), details)


def _abort(context: grpc.ServicerContext, error: JumokError) -> NoReturn:
    details: Any = (("grpc-status-details-bin", _status(error).SerializeToString()),)
    context.set_trailing_metadata(details)
    context.abort(error.code, str(error))
    raise AssertionError("abort returns never")
