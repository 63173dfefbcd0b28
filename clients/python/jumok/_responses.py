"""Results, read from responses; a response that does not fit its request raises InternalError."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from google.protobuf.message import Message

from jumok._errors import item_error
from jumok._results import TranslationUpdate
from jumok_proto.alignment_conversion import alignments_from_proto
from jumok_proto.alignments import Alignment
from jumok_proto.conversion import (
    detected_from_proto,
    model_from_proto,
    response_from_proto,
    route_from_proto,
    scores_from_proto,
    timings_from_proto,
    translation_from_proto,
)
from jumok_proto.errors import InternalError, JumokError
from jumok_proto.glossaries.stored import StoredGlossary, stored_from_proto
from jumok_proto.glossaries.tsv import read_tsv
from jumok_proto.results import DetectedLanguage, Model, Route, Score, Translation
from jumok_proto.v1 import alignment_pb2, glossary_pb2, model_pb2, translation_pb2

Response = TypeVar("Response", bound=Message)


def read_translations(response: translation_pb2.TranslateTextResponse, count: int) -> list[Translation]:
    """Read the translations of ``count`` texts."""
    if len(response.translations) != count:
        raise InternalError(f"the server answered {count} texts with {len(response.translations)} translations")
    for number, answer in enumerate(response.translations):
        if not answer.hypotheses:
            raise InternalError(f"the server answered text {number} without a hypothesis")
    with _readable():
        return response_from_proto(response)


def readable(response: Response | None) -> Response:
    """Return a response; gRPC gives None for one that is no message, in event loops."""
    if response is None:
        raise InternalError("the server's answer cannot be read: it is no message of this version")
    return response


def is_empty(response: Message) -> bool:
    """True if a message of a stream has no content: Ray's proxy sends one to carry the status of a failure."""
    return not readable(response).ByteSize()


def read_update(response: translation_pb2.StreamTranslateTextResponse, before: str) -> TranslationUpdate:
    """Read a message of a stream, given the text of the message before."""
    text = response.stable_text
    if not text.startswith(before):
        raise InternalError("the server changed stable text of a translation")
    last = response.HasField("translation")
    translation = _translation(response.translation, response.timings) if last else None
    return TranslationUpdate(text=text, added=text[len(before) :], translation=translation)


def check_complete(update: TranslationUpdate | None) -> None:
    """Check that a stream ended with its translation."""
    if update is None or update.translation is None:
        raise InternalError("the server ended a stream before the translation")


def read_corpus_result(result: translation_pb2.CorpusResult) -> Translation | JumokError:
    """Read the translation or the error of one text of a corpus."""
    if result.HasField("error"):
        return item_error(result.error)
    return _translation(result.translation, result.timings)


def read_scores(response: translation_pb2.ScoreTextResponse, count: int) -> list[Score]:
    """Read the scores of ``count`` texts."""
    if len(response.scores) != count:
        raise InternalError(f"the server answered {count} texts with {len(response.scores)} scores")
    return scores_from_proto(response)


def read_alignments(response: alignment_pb2.AlignTextResponse, count: int) -> list[Alignment]:
    """Read the alignments of ``count`` texts."""
    if len(response.alignments) != count:
        raise InternalError(f"the server answered {count} texts with {len(response.alignments)} alignments")
    with _readable():
        return alignments_from_proto(response)


def read_languages(response: translation_pb2.DetectLanguageResponse, count: int) -> list[list[DetectedLanguage]]:
    """Read the languages of ``count`` texts."""
    if len(response.results) != count:
        raise InternalError(f"the server answered {count} texts with {len(response.results)} results")
    return detected_from_proto(response)


def read_models(response: model_pb2.ListModelsResponse) -> list[Model]:
    """Read the list of models."""
    return [model_from_proto(model) for model in response.models]


def read_routes(response: model_pb2.ListModelsResponse) -> list[Route]:
    """Read the list of routes."""
    return [route_from_proto(route) for route in response.routes]


def read_model(response: model_pb2.GetModelResponse) -> Model:
    """Read one model."""
    return model_from_proto(response.model)


def read_glossary(message: glossary_pb2.StoredGlossary) -> StoredGlossary:
    """Read the description of a glossary."""
    with _readable():
        return stored_from_proto(message)


def read_entries(entries: glossary_pb2.GlossaryEntries) -> dict[str, tuple[str, ...]]:
    """Read the target terms of a glossary by source term."""
    with _readable():
        return {line.source: line.targets for line in read_tsv(entries.tsv)}


def _translation(message: translation_pb2.Translation, timings: translation_pb2.Timings) -> Translation:
    if not message.hypotheses:
        raise InternalError("the server answered a text with no translation")
    with _readable():
        return translation_from_proto(message, timings_from_proto(timings))


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise InternalError(f"the server's answer cannot be read: {error}") from error
