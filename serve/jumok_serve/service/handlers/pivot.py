"""Translation by two models over a pivot language, text by text."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from jumok_proto.errors import InvalidArgumentError, OverloadedError
from jumok_proto.results import AppliedTerm, PivotTranslation, Timings, Translation
from jumok_serve.engine.sentence import Future
from jumok_serve.interrupts import Deadline
from jumok_serve.search.options import DecodingOptions
from jumok_serve.service.handlers.detection import longest
from jumok_serve.service.handlers.worker_pool import LoopWakeups, submit_when_there_is_room
from jumok_serve.service.models.registry import ChosenModels
from jumok_serve.service.rpc.statuses import drop_frames, is_expected
from jumok_serve.share import RETRY_AFTER_S
from jumok_serve.tasks.model import TranslationParameters
from jumok_serve.tasks.stand_ins import Hole, HoleFinder
from jumok_serve.tasks.terms import TermFinder, TermMatch, terms_apart
from jumok_serve.text.translation import Pending, PendingTexts
from jumok_serve.translator import Translator


class TermCopies(NamedTuple):
    """The terms of a request, to be copied; a `TermFinder`."""

    terms: TermFinder

    def find(self, text: str) -> list[TermMatch]:
        """Return the terms of a text, each with itself as its target."""
        return [match._replace(targets=(text[match.first : match.after],)) for match in self.terms.find(text)]


class _Copies(NamedTuple):
    """What the second model copies: placeholders, and targets in place of the terms that the first model has copied.

    Attributes:
        placeholders: finds the others, which no term overlaps.
        terms: terms of the request.
        sources: the copied terms, case-folded; a word of the pivot language may look like another term.
    """

    placeholders: HoleFinder | None
    terms: TermFinder
    sources: frozenset[str]

    @property
    def keeps_percentages(self) -> bool:
        """See `HoleFinder`."""
        return self.placeholders is not None and self.placeholders.keeps_percentages

    def find(self, text: str) -> list[Hole]:
        """Return the parts of a translation by the first model; a `HoleFinder`."""
        others = () if self.placeholders is None else self.placeholders.find(text)
        places = sorted((one.first, one.after) for one in others)
        terms = (
            Hole(one.first, one.after, "term", one.targets[0])
            for one in terms_apart(self.terms.find(text), places)
            if text[one.first : one.after].casefold() in self.sources
        )
        return sorted([*others, *terms])


class _Literal(NamedTuple):
    """Placeholders of the first model's text; a `HoleFinder`."""

    pattern: re.Pattern[str]
    keeps_percentages: bool

    def find(self, text: str) -> list[Hole]:
        """Return their copies in a text."""
        return [Hole(*found.span(), "copied") for found in self.pattern.finditer(text)]


def carried_placeholders(parameters: TranslationParameters, text: str) -> HoleFinder | None:
    """Return the finder of a text's placeholders in its translation by the first model, or None if none are kept.

    Other words beside a placeholder would make the scanner see something else.
    """
    if parameters.placeholders is None or parameters.markup is not None:
        return parameters.placeholders
    holes = parameters.placeholders.find(text)
    if any(hole.kind == "icu" for hole in holes):
        return parameters.placeholders
    found = sorted({text[hole.first : hole.after] for hole in holes}, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, found)) or "(?!)")  # of nothing
    return _Literal(pattern, parameters.placeholders.keeps_percentages)


def carried(parameters: TranslationParameters, text: str, pivot: Translation) -> TranslationParameters:
    """Return the second model's parameters for a text's translation by the first model.

    A term in another language would break the sentence: the second model reads a stand-in for it.
    """
    placeholders, terms = carried_placeholders(parameters, text), parameters.terms
    sources = frozenset(one.source.casefold() for one in pivot.hypotheses[0].terms if one.satisfied)
    if terms is not None and sources:
        placeholders = _Copies(placeholders, terms, sources)
    return replace(parameters, terms=None, placeholders=placeholders)


def terms_over_pivot(terms: TermFinder | None, pivot: Translation, translation: Translation) -> Translation:
    """Return a translation by the second model with the terms of the first model's text.

    Their places are in the text of the first model and in the translation. A term that the first model could not copy
    is not satisfied.
    """
    copied = pivot.hypotheses[0].terms
    if not copied:
        return translation
    hypotheses = []
    for hypothesis in translation.hypotheses:
        waiting: dict[str, list[AppliedTerm]] = {}
        for one in reversed(hypothesis.terms):
            waiting.setdefault(one.source, []).append(one)
        joined = []
        for one in copied:
            found = () if terms is None else terms.find(one.source)
            targets = next((match.targets for match in found), one.targets)
            of_copy = waiting.get(targets[0]) if one.satisfied else None
            target = of_copy.pop() if of_copy else replace(one, satisfied=False, target_span=None)
            joined.append(replace(target, source=one.source, source_span=one.source_span, targets=targets))
        hypotheses.append(replace(hypothesis, terms=tuple(joined)))
    return replace(translation, hypotheses=tuple(hypotheses))


Run = Callable[[Callable[[], list[Translation]]], Awaitable[list[Translation]]]


Submit = Callable[
    [Translator, Sequence[str], TranslationParameters, Sequence[str] | None, Callable[[], None] | None],
    Awaitable[PendingTexts],
]
"""Submits texts with their prefixes to one model; long ones are tokenized in a thread."""


def split_parameters(
    parameters: TranslationParameters, pivot: str
) -> tuple[TranslationParameters, TranslationParameters]:
    """Return the parameters of the two models.

    The first model takes the beam size and its own defaults, as the other options are meant for the translation. Both
    take the deadline, and both split sentences: the second model's text is the joined translation of the first. The
    first model copies terms, and the second writes their targets in place of the copies.
    """
    options = DecodingOptions(beam_size=parameters.options.beam_size, num_hypotheses=1)
    copies = None if parameters.terms is None else TermCopies(parameters.terms)
    first = replace(parameters, target_language=pivot, options=options, terms=copies)
    return first, replace(parameters, source_language=pivot)


@dataclass(eq=False)
class _Text:
    """A text on its way.

    Attributes:
        first: its translation by the first model.
        second: translation of that by the second model; None: not queued yet.
        future: the second translation, once it is done.
    """

    first: Pending
    second: Pending | None = None
    future: Future[Pending] = field(default_factory=Future)

    def cancel(self) -> None:
        """Free the rows of both models."""
        self.future.cancel()
        self.first.cancel()
        if self.second is not None:
            self.second.cancel()


async def submit_over_pivot(
    chosen: ChosenModels,
    texts: Sequence[str],
    parameters: TranslationParameters,
    prefixes: Sequence[str] | None,
    on_progress: Callable[[], None] | None,
    *,
    submit: Submit,
    run: Run,
    wakeups: LoopWakeups,
) -> "PivotPending":
    """Queue texts for the first model; each goes on to the second when its translation is complete.

    Args:
        run: collects translations that are done, in a thread if it takes long.

    Raises:
        JumokError: the second model cannot use the parameters, or its queue is full; errors of the first model.
    """
    started = time.monotonic()
    first_model, second_model = chosen.models
    first, second = split_parameters(parameters, chosen.pivot)
    if second_model.is_full(parameters.caller):
        raise OverloadedError("the queue of the second model is full", retry_after_s=RETRY_AFTER_S)
    pending = await submit(first_model, texts, first, None, None)
    try:
        # Texts without content take no room; the second model refuses unusable options, and too much work, now instead
        # of after the first. A translation has about as many sentences as its text.
        expected = replace(second, later_sentences=len(pending.futures))
        await submit(second_model, [""] * len(texts), expected, prefixes, None)
    except BaseException:
        pending.cancel()
        raise

    async def go_on(index: int, pivot: Translation) -> Pending:
        prefix = None if prefixes is None else [prefixes[index]]
        of_text = carried(second, texts[index], pivot)

        async def submit_text() -> Pending:
            Deadline(parameters.deadline).check("the second model's queue was full")
            return await submit(second_model, [pivot.text], of_text, prefix, on_progress)

        try:
            return await submit_when_there_is_room(submit_text)
        except InvalidArgumentError as error:
            name = error.field.replace("[0]", f"[{index}]")
            message = str(error).replace(error.field, name) if error.field else str(error)
            raise InvalidArgumentError(f"after translation into {chosen.pivot}: {message}", field=name) from error

    return PivotPending(pending, go_on, run=run, wakeups=wakeups, started=started, terms=parameters.terms)


class PivotPending:
    """Texts that two models translate one after the other; see `Pending`. Made in the event loop.

    Args:
        first: translations of the first model.
        go_on: gives the translation of a text by the first model, with the text's index, to the second.
        terms: terms of the request, which the first model has copied.
    """

    def __init__(
        self,
        first: PendingTexts,
        go_on: Callable[[int, Translation], Awaitable[Pending]],
        *,
        run: Run,
        wakeups: LoopWakeups,
        started: float,
        terms: TermFinder | None = None,
    ) -> None:
        self._texts = [_Text(part) for part in first.by_text()]
        self._wakeups = wakeups
        self._run = run
        self._started = started
        self._terms = terms
        self._timings: Timings | None = None
        for index, text in enumerate(self._texts):
            task = asyncio.ensure_future(self._translate(text, partial(go_on, index)))
            text.future.add_cancel_callback(partial(wakeups.call_soon, task.cancel))  # and keeps the task

    @property
    def futures(self) -> Sequence[Future[Pending]]:
        """One future per text."""
        return [text.future for text in self._texts]

    @property
    def has_placeholders(self) -> bool:
        """See `Pending`."""
        return any(text.second is not None and text.second.has_placeholders for text in self._texts)

    async def _translate(self, text: _Text, go_on: Callable[[Translation], Awaitable[Pending]]) -> None:
        try:
            await self._wakeups.wait(text.first.futures)
            (pivot,) = await self._run(text.first.collect)
            text.second = await go_on(pivot)
            await self._wakeups.wait(text.second.futures)
            text.future.set_result(text.second)
        except CancelledError:
            text.cancel()
        except Exception as error:
            if is_expected(error):  # others are logged with their frames
                drop_frames(error)  # which hold the future, and so the error itself
            text.future.set_exception(error)
            text.cancel()
        except asyncio.CancelledError:
            text.cancel()
            raise

    def cancel(self) -> None:
        """Cancel all texts that are not done."""
        for text in self._texts:
            text.cancel()

    def stable_texts(self) -> list[str]:
        """Return the stable beginnings that the second model has written."""
        return ["" if text.second is None else text.second.stable_texts()[0] for text in self._texts]

    def collect(self) -> list[Translation]:
        """Wait for the translations and return them in the order of the texts."""
        try:
            for text in self._texts:
                text.future.result()
        except BaseException:
            self.cancel()
            raise
        timings = self.timings()
        return [
            _joined(pivot, terms_over_pivot(self._terms, pivot, translation), timings)
            for text in self._texts
            for pivot, translation in zip(text.first.collect(), text.future.result().collect(), strict=True)
        ]

    def timings(self) -> Timings:
        """Return the sums of both models' longest times; the total ends at the first call."""
        if self._timings is None:
            first = longest([text.first.timings() for text in self._texts])
            second = longest([text.future.result().timings() for text in self._texts])
            self._timings = Timings(
                queue_s=first.queue_s + second.queue_s,
                encode_s=first.encode_s + second.encode_s,
                decode_s=first.decode_s + second.decode_s,
                total_s=time.monotonic() - self._started,
            )
        return self._timings


def _joined(pivot: Translation, translation: Translation, timings: Timings) -> Translation:
    """Describe both models' work in one result."""
    return replace(
        translation,
        source_language=pivot.source_language,
        source_token_count=pivot.source_token_count,
        source_truncated=pivot.source_truncated or translation.source_truncated,
        source_unknown_count=pivot.source_unknown_count,
        cut_sentences=(*pivot.cut_sentences, *translation.cut_sentences),
        pivot=PivotTranslation(
            text=pivot.text,
            language=pivot.target_language,
            model=pivot.model,
            model_version=pivot.model_version,
        ),
        timings=timings,
    )
