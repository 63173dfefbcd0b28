"""Results, and how they are read from responses; a response that does not fit its request raises InternalError."""

from collections.abc import Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import Message

from jumok._errors import item_error
from jumok_proto.alignments import Alignment
from jumok_proto.conversion import (
    alignments_from_proto,
    detected_from_proto,
    response_from_proto,
    scores_from_proto,
    timings_from_proto,
    translation_from_proto,
)
from jumok_proto.errors import InternalError, JumokError
from jumok_proto.glossaries import StoredGlossary, read_tsv, stored_from_proto
from jumok_proto.results import DetectedLanguage, Score, Translation
from jumok_proto.v1 import alignment_pb2, glossary_pb2, translation_pb2

Response = TypeVar("Response", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationUpdate:
    """The progress of a translation."""

    text: str
    """The stable beginning of the translation, target prefix included; in the last update the whole text."""
    added: str
    """The part of ``text`` that is new in this update; concatenated, these parts are the translation."""
    translation: Translation | None = None
    """The result with scores, tokens and timings; only in the last update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextResult:
    """The result of one text of many."""

    index: int
    """Index of the text in ``lines`` of ``translate_iter``, from 0."""
    text: str
    """The text."""
    outcome: Translation | JumokError
    """The translation, or the error."""

    @property
    def error(self) -> JumokError | None:
        """The error of the text; None if it has a translation."""
        return self.outcome if isinstance(self.outcome, JumokError) else None

    @property
    def translation(self) -> Translation:
        """The translation; raises ``error`` if there is none."""
        if isinstance(self.outcome, JumokError):
            raise self.outcome
        return self.outcome


def read_translations(response: translation_pb2.TranslateTextResponse, count: int) -> list[Translation]:
    """Read the translations of ``count`` texts."""
    _check_count(response.translations, count, "translations")
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
    _check_count(response.scores, count, "scores")
    return scores_from_proto(response)


def read_alignments(response: alignment_pb2.AlignTextResponse, count: int) -> list[Alignment]:
    """Read the alignments of ``count`` texts."""
    _check_count(response.alignments, count, "alignments")
    with _readable():
        return alignments_from_proto(response)


def read_languages(response: translation_pb2.DetectLanguageResponse, count: int) -> list[list[DetectedLanguage]]:
    """Read the languages of ``count`` texts."""
    _check_count(response.results, count, "results")
    return detected_from_proto(response)


def read_glossary(message: glossary_pb2.StoredGlossary) -> StoredGlossary:
    """Read the description of a glossary."""
    with _readable():
        return stored_from_proto(message)


def read_entries(entries: glossary_pb2.GlossaryEntries) -> dict[str, tuple[str, ...]]:
    """Read the target terms of a glossary by source term."""
    with _readable():
        return {line.source: line.targets for line in read_tsv(entries.tsv)}


def _check_count(found: Sized, count: int, name: str) -> None:
    if len(found) != count:
        raise InternalError(f"the server answered {count} texts with {len(found)} {name}")


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
