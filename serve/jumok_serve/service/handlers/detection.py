"""Detection of source languages for requests, in threads."""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from jumok_proto.conversion import timings_from_proto, timings_to_proto
from jumok_proto.results import DetectedLanguage, Timings, Translation
from jumok_proto.v1 import translation_pb2
from jumok_proto.v1.translation_pb2 import CorpusSettings, TranslateTextRequest, TranslateTextResponse
from jumok_serve.engine.sentence import Future
from jumok_serve.manifest.languages import is_auto
from jumok_serve.service.handlers.requests import TranslationMessage
from jumok_serve.service.handlers.worker_pool import Pieces, WorkerPool
from jumok_serve.service.models.registry import ModelRegistry
from jumok_serve.tasks.translation import Pending
from jumok_serve.text.detection import MAX_CHARACTERS, detect_source, group_by_language, rank_languages
from jumok_serve.text.sentence_translation import blamed_texts
from jumok_serve.tokenizers.input_processor import check_count

Message = TypeVar("Message", bound=TranslationMessage)
Result = TypeVar("Result")


class LanguageDetection:
    """Detects the languages of texts, among those of the server's models.

    Args:
        pool: threads that detect.
    """

    def __init__(self, models: ModelRegistry, pool: WorkerPool) -> None:
        self._models = models
        self._pool = pool

    async def rank(self, texts: Sequence[str]) -> list[list[DetectedLanguage]]:
        """Return the possible languages of each text, best first."""
        tags = self._models.languages()
        return await self._each(texts, lambda text: rank_languages(text, tags))

    async def of_request(self, request: TranslationMessage, texts: Sequence[str]) -> list[DetectedLanguage]:
        """Return the source language of each text of a request.

        Raises:
            JumokError: no model can translate the request; errors of `ModelRegistry.sources_into`.
        """
        sources = self._models.sources_into(request.model, request.target_language_code)
        tags = self._models.languages()
        return await self._each(texts, lambda text: detect_source(text, tags, sources))

    async def resolve(self, request: Message, text: str) -> tuple[Message, DetectedLanguage | None]:
        """Return a request with the language of its only text, if that is to be detected; raises as `of_request`."""
        detected = await self.of_item(request, text)
        return request if detected is None else with_source(request, detected.language), detected

    async def of_item(self, request: TranslationMessage, text: str) -> DetectedLanguage | None:
        """Return the language of a text, or None if it is not to be detected; raises as `of_request`."""
        if not is_auto(request.source_language_code):
            return None
        (detected,) = await self.of_request(request, [text])
        return detected

    def example(self, settings: CorpusSettings) -> CorpusSettings:
        """Return settings that an item may have; raises as `of_request`."""
        if not is_auto(settings.source_language_code):
            return settings
        sources = self._models.sources_into(settings.model, settings.target_language_code)
        changed = with_source(settings, sources[0])
        changed.glossary.ClearField("stored")  # it may have entries for other languages only
        return changed

    async def _each(self, texts: Sequence[str], work: Callable[[str], Result]) -> list[Result]:
        def pieces() -> Pieces[list[Result]]:
            results = []
            for text in texts:
                yield min(len(text), MAX_CHARACTERS)
                results.append(work(text))
            return results

        return await self._pool.finish(pieces())


def with_source(request: Message, language: str) -> Message:
    """Return a request with a source language."""
    changed = copy.deepcopy(request)
    changed.source_language_code = language
    return changed


async def translate_by_language(
    request: TranslateTextRequest,
    detected: Sequence[DetectedLanguage],
    translate: Callable[[TranslateTextRequest], Awaitable[TranslateTextResponse]],
) -> TranslateTextResponse:
    """Translate the texts of each language in a request of its own: all texts, or none."""
    if request.target_prefixes:
        check_count("target_prefixes", list(request.target_prefixes), len(detected))
    groups = group_by_language(detected)
    without_texts = copy.deepcopy(request)
    without_texts.ClearField("contents")
    without_texts.ClearField("target_prefixes")
    tasks = [
        asyncio.ensure_future(_translate_group(request, with_source(without_texts, language), indices, translate))
        for language, indices in groups.items()
    ]
    try:
        responses = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    by_index = dict[int, translation_pb2.Translation]()
    for indices, response in zip(groups.values(), responses, strict=True):
        by_index.update(zip(indices, response.translations, strict=True))
    for index, one in enumerate(detected):
        by_index[index].source_language_confidence = one.confidence
    times = [timings_from_proto(response.timings) for response in responses]
    return TranslateTextResponse(
        translations=[by_index[index] for index in range(len(detected))], timings=timings_to_proto(_longest(times))
    )


async def _translate_group(
    request: TranslateTextRequest,
    group: TranslateTextRequest,
    indices: Sequence[int],
    translate: Callable[[TranslateTextRequest], Awaitable[TranslateTextResponse]],
) -> TranslateTextResponse:
    """Translate some texts of a request; errors name the index in the whole request."""
    for field in ("contents", "target_prefixes"):
        texts = getattr(request, field)
        getattr(group, field).extend(texts[index] for index in indices if texts)
    with blamed_texts(indices.__getitem__):
        return await translate(group)


def _longest(times: Sequence[Timings]) -> Timings:
    """Return the longest of each time."""
    names = ("queue_s", "encode_s", "decode_s", "total_s")
    return Timings(**{name: max((getattr(one, name) for one in times), default=0.0) for name in names})


def with_confidence(pending: Pending, detected: DetectedLanguage | None) -> Pending:
    """Return a text whose translation says how its language was detected, if it was."""
    return pending if detected is None else DetectedText(pending, detected)


class DetectedText:
    """A text whose language was detected; see `Pending`."""

    def __init__(self, pending: Pending, detected: DetectedLanguage) -> None:
        self._pending = pending
        self._confidence = detected.confidence
        self.cancel = pending.cancel
        self.stable_texts = pending.stable_texts
        self.timings = pending.timings

    @property
    def futures(self) -> Sequence[Future[Any]]:
        """Futures of its sentences."""
        return self._pending.futures

    def collect(self) -> list[Translation]:
        """Wait for the translation."""
        return [replace(one, source_confidence=self._confidence) for one in self._pending.collect()]
