"""Detection of source languages for requests, in threads."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from jumok_proto.results import DetectedLanguage, Timings, Translation
from jumok_serve.service.handlers.worker_pool import Pieces, WorkerPool
from jumok_serve.service.models.registry import ModelRegistry
from jumok_serve.text.detection import MAX_CHARACTERS, detect_source, rank_languages
from jumok_serve.text.translation import Translated, blamed_texts

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


async def translate_by_language(
    groups: Mapping[str, Sequence[int]], translate: Callable[[str, Sequence[int]], Awaitable[Translated]]
) -> list[Translated]:
    """Translate the texts of each language together: all texts, or none.

    Args:
        groups: indices of the texts by language.
        translate: translates the texts with some indices from a language.

    Returns:
        The translations of each group.
    """

    async def of_group(language: str, indices: Sequence[int]) -> Translated:
        with blamed_texts(indices.__getitem__):  # errors name the index in the whole request
            return await translate(language, indices)

    tasks = [asyncio.ensure_future(of_group(language, indices)) for language, indices in groups.items()]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def joined(
    detected: Sequence[DetectedLanguage], groups: Mapping[str, Sequence[int]], results: list[Translated]
) -> Translated:
    """Return the translations of groups in the order of the texts; takes them out of the list."""
    by_index = dict[int, Translation]()
    for indices, result in zip(groups.values(), results, strict=True):
        by_index.update(zip(indices, result.translations, strict=True))
    timings = _longest([result.timings for result in results])
    results.clear()
    translations = [
        replace(by_index.pop(index), source_confidence=one.confidence) for index, one in enumerate(detected)
    ]
    return Translated(translations, timings)


def _longest(times: Sequence[Timings]) -> Timings:
    """Return the longest of each time."""
    names = ("queue_s", "encode_s", "decode_s", "total_s")
    return Timings(**{name: max((getattr(one, name) for one in times), default=0.0) for name in names})
