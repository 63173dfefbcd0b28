"""A scripted gRPC service for tests of clients."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc

from jumok_proto.alignments import Alignment
from jumok_proto.attention import AlignedToken, AttentionWeights
from jumok_proto.conversion import (
    alignments_to_proto,
    detected_to_proto,
    response_to_proto,
    scores_to_proto,
    timings_to_proto,
    translation_to_proto,
)
from jumok_proto.results import DetectedLanguage, Score, Timings, Translation
from jumok_proto.v1 import alignment_pb2, translation_pb2
from jumok_proto.v1.translation_pb2_grpc import TranslationServiceServicer
from jumok_serve.service.rpc.statuses import to_status
from tests.support.corpus_jobs import translation
from tests.support.hang import HANG_S

TIMINGS = Timings(queue_s=0.0, encode_s=0.25, decode_s=0.5, total_s=1.0)
CODES = {code.value[0]: code for code in grpc.StatusCode}


def capitals(text: str) -> Translation:
    """The answer to a text."""
    return translation(text.upper())


def length(target: str) -> Score:
    """The score of a translation: minus its number of characters."""
    return Score(
        score=-float(len(target)),
        tokens=(target,),
        token_ids=(7,),
        token_scores=(-float(len(target)),),
        source_token_count=1,
        source_truncated=False,
        model="m",
        model_version="1",
    )


def itself(text: str) -> Alignment:
    """The attention of a text of one token, translated in capitals."""
    source, target = (AlignedToken(text),), (AlignedToken(text.upper()),)
    weights = AttentionWeights(rows=target, columns=source, layers=(0,), heads=(0,), mean=((1.0,),))
    return Alignment(
        target=text.upper(),
        source_tokens=source,
        target_tokens=target,
        decoder_tokens=(AlignedToken("<s>", special=True),),
        cross=weights,
        source_truncated=False,
        model="m",
        model_version="1",
    )


@dataclass
class Scripted(TranslationServiceServicer):
    """Answers in capitals, or with the error it is given."""

    error: Exception | None = None
    requests: list[translation_pb2.TranslateTextRequest] = field(default_factory=list)
    score_requests: list[translation_pb2.ScoreTextRequest] = field(default_factory=list)
    align_requests: list[alignment_pb2.AlignTextRequest] = field(default_factory=list)
    drop_answers: bool = False
    lost: list[str] = field(default_factory=list)
    """Messages of a proxy that has lost its server, for the next calls."""
    hold: threading.Event | None = None

    def TranslateText(
        self, request: translation_pb2.TranslateTextRequest, context: grpc.ServicerContext
    ) -> translation_pb2.TranslateTextResponse:
        self.requests.append(request)
        if self.hold is not None:
            self.hold.wait(HANG_S)
        if self.lost:
            context.abort(grpc.StatusCode.INTERNAL, self.lost.pop(0))
        if self.error is not None:
            status = to_status(self.error, "id-1")
            details: Any = (("grpc-status-details-bin", status.SerializeToString()),)
            context.set_trailing_metadata(details)
            context.abort(CODES[status.code], status.message)
        answers = [] if self.drop_answers else [capitals(text) for text in request.contents]
        return response_to_proto(answers, TIMINGS)

    def StreamTranslateText(
        self, request: translation_pb2.StreamTranslateTextRequest, context: grpc.ServicerContext
    ) -> Iterator[translation_pb2.StreamTranslateTextResponse]:
        answer = capitals(request.content)
        yield translation_pb2.StreamTranslateTextResponse(
            stable_text=answer.text, translation=translation_to_proto(answer), timings=timings_to_proto(TIMINGS)
        )

    def TranslateCorpus(
        self, request_iterator: Iterator[translation_pb2.TranslateCorpusRequest], context: grpc.ServicerContext
    ) -> Iterator[translation_pb2.TranslateCorpusResponse]:
        for request in request_iterator:
            answers = [(item.id, translation_to_proto(capitals(item.content))) for item in request.items]
            results = [translation_pb2.CorpusResult(id=number, translation=answer) for number, answer in answers]
            yield translation_pb2.TranslateCorpusResponse(results=results)

    def ScoreText(
        self, request: translation_pb2.ScoreTextRequest, context: grpc.ServicerContext
    ) -> translation_pb2.ScoreTextResponse:
        self.score_requests.append(request)
        return scores_to_proto([] if self.drop_answers else [length(target) for target in request.targets])

    def DetectLanguage(
        self, request: translation_pb2.DetectLanguageRequest, context: grpc.ServicerContext
    ) -> translation_pb2.DetectLanguageResponse:
        results = [] if self.drop_answers else [[DetectedLanguage("en", 1.0)] for _ in request.contents]
        return detected_to_proto(results)

    def AlignText(
        self, request: alignment_pb2.AlignTextRequest, context: grpc.ServicerContext
    ) -> alignment_pb2.AlignTextResponse:
        self.align_requests.append(request)
        return alignments_to_proto([] if self.drop_answers else [itself(text) for text in request.contents])
