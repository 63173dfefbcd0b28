"""Detection of source languages for requests, in threads."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from jumok_proto.results import Timings, Translation
from jumok_serve.engine.sentence import Future
from jumok_serve.service.handlers.worker_pool import Pieces
from jumok_serve.text.detection import MAX_CHARACTERS, Source, in_order, unchanged
from jumok_serve.text.translation import Translated, blamed_texts

Result = TypeVar("Result")


class Detected(NamedTuple):
    """The source language of each text of a request, and the target language."""

    sources: list[Source]
    target: str


def in_pieces(texts: Sequence[str], work: Callable[[str], Result]) -> Pieces[list[Result]]:
    """Detect something in each text, one after the other."""
    results = []
    for text in texts:
        yield min(len(text), MAX_CHARACTERS)
        results.append(work(text))
    return results


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

    if len(groups) == 1:
        return [await of_group(*one) for one in groups.items()]
    tasks = [asyncio.ensure_future(of_group(language, indices)) for language, indices in groups.items()]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def joined(
    texts: Sequence[str], detected: Detected, groups: Mapping[str, Sequence[int]], results: list[Translated]
) -> Translated:
    """Return the translations of groups, and texts without one, in their order; takes them out of the list."""
    timings = longest([result.timings for result in results])
    translated = ((indices, results.pop(0).translations) for indices in groups.values())
    return Translated(in_order(texts, detected.sources, detected.target, translated), timings)


class Unchanged:
    """A text that is its own translation; see `Pending`.

    Attributes:
        futures: none.
        has_placeholders: False, as none are to be placed.
    """

    futures: Sequence[Future[Any]] = ()
    has_placeholders = False

    def __init__(self, text: str, detected: Detected) -> None:
        (source,) = detected.sources
        self._translation = unchanged(text, source, detected.target)

    def cancel(self) -> None:
        """See `Pending`."""

    def stable_texts(self) -> list[str]:
        """See `Pending`."""
        return [self._translation.text]

    def collect(self) -> list[Translation]:
        """See `Pending`."""
        return [self._translation]

    def timings(self) -> Timings:
        """See `Pending`."""
        return longest([])


def longest(times: Sequence[Timings]) -> Timings:
    """Return the longest of each time."""
    names = ("queue_s", "encode_s", "decode_s", "total_s")
    return Timings(**{name: max((getattr(one, name) for one in times), default=0.0) for name in names})
