"""Detection of source languages for requests, in threads."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from jumok_proto.results import DetectedLanguage, Timings, Translation
from jumok_serve.engine.sentence import Future
from jumok_serve.service.handlers.worker_pool import Pieces, WorkerPool
from jumok_serve.service.models.registry import ModelRegistry
from jumok_serve.tasks.translation import Pending
from jumok_serve.text.detection import MAX_CHARACTERS, detect_source, group_by_language, rank_languages
from jumok_serve.text.sentence_translation import blamed_texts
from jumok_serve.tokenizers.input_processor import check_count

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

    async def sources(self, model: str, target: str, texts: Sequence[str]) -> list[DetectedLanguage]:
        """Return the source language of each text of a request.

        Raises:
            JumokError: no model can translate the request; errors of `ModelRegistry.sources_into`.
        """
        sources = self._models.sources_into(model, target)
        tags = self._models.languages()
        return await self._each(texts, lambda text: detect_source(text, tags, sources))

    async def _each(self, texts: Sequence[str], work: Callable[[str], Result]) -> list[Result]:
        def pieces() -> Pieces[list[Result]]:
            results = []
            for text in texts:
                yield min(len(text), MAX_CHARACTERS)
                results.append(work(text))
            return results

        return await self._pool.finish(pieces())


class Translated(NamedTuple):
    """Translations of a request in the order of its texts, and their longest times."""

    translations: list[Translation]
    timings: Timings


async def translate_by_language(
    detected: Sequence[DetectedLanguage],
    prefixes: Sequence[str],
    translate: Callable[[str, Sequence[int]], Awaitable[Translated]],
) -> Translated:
    """Translate the texts of each language together: all texts, or none.

    Args:
        detected: language of each text.
        prefixes: beginnings of the translations; none, or one for each text.
        translate: translates the texts with some indices from a language.
    """
    if prefixes:
        check_count("target_prefixes", prefixes, len(detected))
    groups = group_by_language(detected)

    async def of_group(language: str, indices: Sequence[int]) -> Translated:
        with blamed_texts(indices.__getitem__):  # errors name the index in the whole request
            return await translate(language, indices)

    tasks = [asyncio.ensure_future(of_group(language, indices)) for language, indices in groups.items()]
    try:
        results = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    by_index = dict[int, Translation]()
    for indices, result in zip(groups.values(), results, strict=True):
        by_index.update(zip(indices, result.translations, strict=True))
    translations = [replace(by_index[index], source_confidence=one.confidence) for index, one in enumerate(detected)]
    return Translated(translations, _longest([result.timings for result in results]))


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
