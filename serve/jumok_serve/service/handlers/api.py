"""What the service does, whatever transport asks for it: translations, scores, alignments and languages of texts."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import NamedTuple, TypeVar

from jumok_proto.alignments import Alignment
from jumok_proto.errors import InvalidArgumentError, OverloadedError
from jumok_proto.results import DetectedLanguage, Score
from jumok_serve.manifest.languages import is_auto
from jumok_serve.service.handlers.corpus import Corpus, Item, Stream, Written
from jumok_serve.service.handlers.detection import (
    Detected,
    Unchanged,
    in_pieces,
    joined,
    translate_by_language,
)
from jumok_serve.service.handlers.glossary_service import stored_terms
from jumok_serve.service.handlers.pivot import submit_over_pivot
from jumok_serve.service.handlers.worker_pool import MAX_INLINE_TOKENS, LoopWakeups, RequestWork, size_of
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.models.registry import ChosenModels, ModelRegistry
from jumok_serve.service.rpc.call import Counts, current_caller, current_record
from jumok_serve.service.rpc.request_reader import check_name
from jumok_serve.share import RETRY_AFTER_S
from jumok_serve.tasks.alignment import AttentionQuery
from jumok_serve.tasks.model import ScoringParameters, TextParameters, TranslationParameters
from jumok_serve.tasks.scoring import PendingScores
from jumok_serve.text.detection import Source, detect_source, group_by_language, load_detector, rank_languages
from jumok_serve.text.sentence_splitting import possible_ends
from jumok_serve.text.terms.glossary import PLACEHOLDERS, Terminology, count_marks
from jumok_serve.text.terms.store import GlossaryStore
from jumok_serve.text.translation import Pending, PendingTexts, Translated
from jumok_serve.tokenizers.input_processor import check_count
from jumok_serve.translator import Translator

DEFAULT_WINDOW = 256
"""Open items of a corpus: more than a batch has sentences, so that a finished sentence is replaced at once."""
ENOUGH_WAITING, UNHURRIED_S = 128, 0.002
"""A corpus pauses before each item, for these seconds, if more texts than these wait for the model.

A corpus may read a thousand items at once, half a millisecond each. Sentences of another caller took 70 to 230 ms
meanwhile, and with the pause 16 to 67 (two cores, November 2026)."""
MAX_INLINE_ENDS = 4
"""Possible ends of sentences in texts that are split on the event loop: 0.03 ms, in Catalan and Danish 0.8 ms."""
MAX_INLINE_MARKS = 16
"""Marks that may begin placeholders in texts that are read on the event loop."""

MAX_TAGS = 200_000
"""Tags and entities of a request: each takes up to 300 bytes until the request is answered."""
MAX_TAG_NAMES = 1000
MAX_TAG_CHARACTERS = 20_000
"""Names of tags in the rules of a request, and their characters together; each text compares its tags with all."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a request for translations says besides its texts.

    Attributes:
        model: name of the model; empty: the one that has the languages.
        parameters: languages and options; caller, deadline and stored terms are added here.
        stored_glossary: id or name of a stored glossary; empty: none.

    Raises:
        InvalidArgumentError: a name is too long.
    """

    model: str = ""
    parameters: TranslationParameters = TranslationParameters()  # noqa: RUF009 - frozen
    stored_glossary: str = ""

    def __post_init__(self) -> None:
        check_name("model", self.model)
        check_name("source_language_code", self.source)
        check_name("target_language_code", self.target)
        check_name("glossary.stored", self.stored_glossary)

    @property
    def source(self) -> str:
        """The source language; empty: the model's default."""
        return self.parameters.source_language or ""

    @property
    def target(self) -> str:
        """The target language; empty: the model's default."""
        return self.parameters.target_language or ""

    def from_language(self, source: str) -> "Settings":
        """Return the settings with a source language."""
        return replace(self, parameters=replace(self.parameters, source_language=source))


class _Plan(NamedTuple):
    """Settings for one model.

    Attributes:
        num_hypotheses: hypotheses of each text.
        max_tokens: most tokens of the hypotheses of a sentence.
    """

    parameters: TranslationParameters
    beam_size: int
    num_hypotheses: int
    max_tokens: int


class Api:
    """Translates, scores and aligns with the models of a registry; made in a running event loop.

    Deadlines are in ``time.monotonic()`` seconds; None: no limit. Results are given to a function of the caller, in a
    thread if that may take long. All methods raise JumokErrors, with the contract's names of fields.
    """

    def __init__(
        self,
        models: ModelRegistry,
        limits: ServiceLimits = ServiceLimits(),  # noqa: B008 - frozen
        glossaries: GlossaryStore | None = None,
    ) -> None:
        self._models = models
        self._glossaries = glossaries
        self._limits = limits
        self._wakeups = LoopWakeups()
        self._work = RequestWork()

    async def translate(
        self,
        settings: Settings,
        texts: Sequence[str],
        prefixes: Sequence[str] = (),
        *,
        deadline: float | None,
        make: Callable[[Translated], Result],
        write_stable: Callable[[str], Awaitable[None]] | None = None,
    ) -> Result:
        """Translate all texts, or fail; cancellation frees the rows.

        Args:
            prefixes: beginnings of the translations; none, or one for each text.
            write_stable: writes the growing stable beginning of the only translation, skipping old states; None: it
                is not followed.
        """
        if not is_auto(settings.source):
            return _counted(
                await self._translate(settings, texts, prefixes, deadline, _counting(make), write_stable=write_stable)
            )
        check_texts(self._limits, texts, target_prefixes=prefixes)
        detected = await self._detect_sources(settings, texts)
        if prefixes:
            check_count("target_prefixes", prefixes, len(texts))
        groups = group_by_language(detected.sources)

        def translate(language: str, indices: Sequence[int]) -> Awaitable[Translated]:
            of_group = [texts[index] for index in indices]
            of_texts = [prefixes[index] for index in indices] if prefixes else ()
            return self._translate(
                settings.from_language(language),
                of_group,
                of_texts,
                deadline,
                lambda found: found,
                write_stable=write_stable,
            )

        results = await translate_by_language(groups, translate)
        return _counted(await self._work.run(lambda: _counting(make)(joined(texts, detected, groups, results)), False))

    async def _translate(
        self,
        settings: Settings,
        texts: Sequence[str],
        prefixes: Sequence[str],
        deadline: float | None,
        make: Callable[[Translated], Result],
        *,
        write_stable: Callable[[str], Awaitable[None]] | None = None,
    ) -> Result:
        """Translate texts of one language; ``write_stable`` gets the growing stable beginning of the only one."""
        with self._use(settings.model, settings.parameters) as chosen:
            plan = await self._plan(chosen, settings, deadline)
            check_texts(self._limits, texts, target_prefixes=prefixes)
            if plan.parameters.markup is not None and size_of(texts) > MAX_TAGS:
                await self._work.run(partial(check_tags, texts), False)
            check_hypotheses(self._limits, len(texts), plan.beam_size, plan.num_hypotheses)
            attends = plan.parameters.attends
            with self._work.attention_slot(attends):
                progress = asyncio.Event()
                grown = None if write_stable is None else partial(self._wakeups.call_soon, progress.set)
                pending = await self._submit(chosen, texts, plan.parameters, prefixes or None, grown)
                try:
                    if write_stable is None:
                        await self._wakeups.wait(pending.futures)
                    else:
                        await self._write_progress(pending, progress, write_stable)
                    max_tokens = _max_tokens(chosen, plan, pending, texts)
                    return await self._work.run(
                        lambda: make(Translated(pending.collect(), pending.timings())), attends, max_tokens
                    )
                finally:
                    pending.cancel()

    async def _write_progress(
        self, pending: Pending, progress: asyncio.Event, write: Callable[[str], Awaitable[None]]
    ) -> None:
        """Write the stable beginning of a translation until it is done."""
        for future in pending.futures:
            future.add_done_callback(lambda _: self._wakeups.call_soon(progress.set))
        sent = ""
        while not all(future.done() for future in pending.futures):
            await progress.wait()
            progress.clear()
            (stable,) = pending.stable_texts()
            if len(stable) > len(sent):
                sent = stable
                await write(stable)

    async def translate_corpus(
        self,
        settings: Settings,
        stream: Stream[Written],
        *,
        window: int = 0,
        in_order: bool = True,
        deadline: float | None,
        stopping: asyncio.Event,
    ) -> None:
        """Translate a stream of items, window by window; cancellation frees all rows.

        Args:
            window: most open items; 0: `DEFAULT_WINDOW`.
            in_order: True to write results in the order of the items.
            stopping: event after which no further item is read.
        """
        detects = is_auto(settings.source)
        example = settings
        if detects:  # a stored glossary may have entries for other languages only
            sources, _ = self._models.sources_into(settings.model, settings.target)
            example = replace(settings.from_language(sources[0]), stored_glossary="")
        with self._use(example.model, example.parameters) as chosen:
            plan = await self._plan(chosen, example, deadline)
        check_hypotheses(self._limits, 1, plan.beam_size, plan.num_hypotheses)

        plans = {} if detects else {settings.source: plan}

        async def plan_for(source: str, chosen: ChosenModels) -> _Plan:
            """Plan once for each source language."""
            if source not in plans:
                try:
                    plans[source] = await self._plan(chosen, settings.from_language(source), deadline)
                except OverloadedError:  # calls that wait for memory hold none, or they would wait for each other
                    plans.clear()
                    raise
            return plans[source]

        async def submit(item: Item) -> Pending:
            prefixes = [item.target_prefix] if item.target_prefix else None
            check_texts(self._limits, [item.content], target_prefixes=prefixes or [])
            source, confidence = settings.source, None
            if detects:
                detected = await self._detect_sources(settings, [item.content])
                if not detected.sources[0].is_translated:
                    return Unchanged(item.content, detected)
                source, confidence, _ = detected.sources[0]
            # After a model was replaced, later items go to the new one.
            with ExitStack() as used:
                chosen = used.enter_context(self._models.use(settings.model, source, settings.target))
                parameters = (await plan_for(source, chosen)).parameters
                if confidence is not None:
                    parameters = replace(parameters, source_confidence=confidence)
                if chosen.models[0].load().queued_requests > ENOUGH_WAITING:
                    await asyncio.sleep(UNHURRIED_S)
                pending = await self._submit(chosen, [item.content], parameters, prefixes, spare=True)
                if len(chosen.models) > 1:  # a text between two models is in no engine, which would finish it
                    release = used.pop_all().close
                    pending.futures[0].add_done_callback(lambda _: self._wakeups.call_soon(release))
                return pending

        corpus = Corpus(
            stream=stream,
            window=min(window or DEFAULT_WINDOW, self._limits.max_hypotheses // plan.num_hypotheses),
            in_order=in_order,
            submit=submit,
            run_work=partial(self._work.run, attention=plan.parameters.attends),
            wakeups=self._wakeups,
            stopping=stopping,
            record=current_record(),
        )
        corpus.record.texts = 0
        with self._work.attention_slot(plan.parameters.attends):
            await corpus.run()

    def load_detector(self) -> None:
        """Load the detector of languages in a thread, so that no call waits for it."""
        threading.Thread(target=load_detector, name="detector", daemon=True).start()

    async def detect(self, texts: Sequence[str]) -> list[list[DetectedLanguage]]:
        """Return the possible languages of each text, best first."""
        check_texts(self._limits, texts)
        tags = self._models.languages()
        return await self._work.tokenizing.finish(in_pieces(texts, lambda text: rank_languages(text, tags)))

    async def score(
        self,
        model: str,
        texts: Sequence[str],
        targets: Sequence[str],
        *,
        parameters: ScoringParameters,
        make: Callable[[list[Score]], Result],
    ) -> Result:
        """Score all targets, or fail; a cancelled call stops between two batches.

        Args:
            model: name of the model; empty: the one that has the languages.
        """
        with self._use(model, parameters) as chosen:
            check_texts(self._limits, texts, targets=targets)
            start = partial(chosen.only("scoring").scoring, texts, targets, _of_caller(parameters))
            scoring = await self._work.tokenize(start, texts, targets)
            try:
                return await self._work.scoring.finish(_scored(scoring, make))
            finally:
                scoring.cancel()

    async def align(
        self,
        model: str,
        texts: Sequence[str],
        targets: Sequence[str],
        *,
        query: Callable[[], AttentionQuery],
        parameters: TextParameters,
        make: Callable[[list[Alignment]], Result],
    ) -> Result:
        """Align all texts, or fail; cancellation frees the rows and stops.

        Args:
            model: name of the model; empty: the one that has the languages.
            targets: translations; none: the model's own.
            query: makes the attention that is wanted.
        """
        with self._use(model, parameters) as chosen:
            check_texts(self._limits, texts, targets=targets)
            start = partial(chosen.only("alignment").aligning, texts, targets or None, query(), _of_caller(parameters))
            with self._work.attention_slot(True):
                aligning = await self._work.tokenize(start, texts, targets)
                try:
                    await self._wakeups.wait(aligning.futures)
                    return await self._work.run(lambda: make(aligning.collect()), attention=True)
                finally:
                    aligning.cancel()

    async def _detect_sources(self, settings: Settings, texts: Sequence[str]) -> Detected:
        """Detect the source language of each text of a request.

        Raises:
            JumokError: no model can translate the request, or a text.
        """
        sources, target = self._models.sources_into(settings.model, settings.target)
        fields = (f"contents[{index}]" for index in count())
        copies = settings.parameters.copy_unreadable

        def detect(text: str) -> Source:
            return detect_source(text, sources, target, copies=copies, field=next(fields))

        return Detected(await self._work.tokenizing.finish(in_pieces(texts, detect)), target)

    def languages(self, settings: Settings) -> tuple[str, str]:
        """Return the languages of a request, as it names them or as the model's defaults are.

        A source language that is to be detected is empty.

        Raises:
            JumokError: no model translates the request.
        """
        source, target = settings.source, settings.target
        if is_auto(source):
            source = self._models.sources_into(settings.model, target)[0][0]
        if not (source and target):
            with self._models.use(settings.model, source, target) as chosen:
                source, target = chosen.languages(source, target)
        return "" if is_auto(settings.source) else source, target

    def _use(self, model: str, parameters: TextParameters) -> AbstractContextManager[ChosenModels]:
        """Keep the models of a request open."""
        return self._models.use(model, parameters.source_language or "", parameters.target_language or "")

    async def _plan(self, chosen: ChosenModels, settings: Settings, deadline: float | None) -> _Plan:
        """Complete a request's parameters, with the stored glossary that it names."""
        terms = settings.parameters.terms
        if settings.stored_glossary:
            stored = await stored_terms(
                self._glossaries, settings.stored_glossary, *chosen.languages(settings.source, settings.target)
            )
            terms = stored if terms is None else Terminology(terms, stored)
        parameters = replace(settings.parameters, terms=terms, deadline=deadline, caller=current_caller())
        options, defaults = parameters.options, chosen.last.manifest.generation
        num_hypotheses = options.num_hypotheses or (1 if parameters.in_parts else defaults.num_hypotheses)
        return _Plan(
            parameters,
            beam_size=options.beam_size or defaults.beam_size,
            num_hypotheses=num_hypotheses,
            max_tokens=num_hypotheses * (options.max_length or defaults.max_length),
        )

    async def _submit(
        self,
        chosen: ChosenModels,
        texts: Sequence[str],
        parameters: TranslationParameters,
        prefixes: Sequence[str] | None,
        on_progress: Callable[[], None] | None = None,
        *,
        spare: bool = False,
    ) -> Pending:
        """Queue texts for one model, or for two one after the other; ``spare``: leave room to single calls."""

        def submit(
            model: Translator,
            texts: Sequence[str],
            parameters: TranslationParameters,
            prefixes: Sequence[str] | None,
            on_progress: Callable[[], None] | None,
        ) -> Awaitable[PendingTexts]:
            if spare and model.is_crowded(current_caller()):
                raise OverloadedError("the rest of the queue is for single calls", retry_after_s=RETRY_AFTER_S)
            start = partial(model.submit, texts, parameters, target_prefixes=prefixes, on_progress=on_progress)
            return self._work.tokenize(start, texts, prefixes or [], quick=partial(_is_quick, texts, parameters))

        if parameters.attention:
            chosen.only("attention")
        if len(chosen.models) == 1:
            return await submit(chosen.last, texts, parameters, prefixes, on_progress)
        first_defaults = chosen.models[0].manifest.generation
        takes_long = parameters.in_parts or parameters.placeholders is not None
        max_tokens = MAX_INLINE_TOKENS + 1 if takes_long else first_defaults.max_length
        return await submit_over_pivot(
            chosen,
            texts,
            parameters,
            prefixes,
            on_progress,
            submit=submit,
            run=lambda work: self._work.run(work, False, max_tokens),
            wakeups=self._wakeups,
        )


Parameters = TypeVar("Parameters", bound=TextParameters)


def _of_caller(parameters: Parameters) -> Parameters:
    """Return parameters with the caller of the current call."""
    return replace(parameters, caller=current_caller())


def _counting(make: Callable[[Translated], Result]) -> Callable[[Translated], tuple[Result, Counts]]:
    """Count too what is made something of: the translations themselves are freed in the same thread."""
    return lambda translated: (make(translated), Counts.of(*translated))


def _counted(result: tuple[Result, Counts]) -> Result:
    """Add the counts of what `_counting` made to the record of the current call."""
    made, counts = result
    current_record().add_request(counts)
    return made


def _scored(scoring: PendingScores, make: Callable[[list[Score]], Result]) -> Generator[int, None, Result]:
    """Score in pieces, and make of the scores what the caller wants."""
    scores = yield from scoring.pieces()
    return make(scores)


def _max_tokens(chosen: ChosenModels, plan: _Plan, pending: Pending, texts: Sequence[str]) -> int:
    """Return the most tokens of a request's translations; texts that no model translates count by their size."""
    unknown = plan.parameters.in_parts and len(chosen.models) > 1  # the sentences of the second model are not known
    if unknown or pending.has_placeholders:
        return MAX_INLINE_TOKENS + 1
    return max(len(pending.futures) * plan.max_tokens, size_of(texts))


def _is_quick(texts: Sequence[str], parameters: TranslationParameters) -> bool:
    """True if finding the sentences and placeholders of short texts, without terms, takes little time."""
    ends = sum(map(possible_ends, texts)) if parameters.in_parts else 0
    marks = 0 if parameters.placeholders is None else sum(map(count_marks, texts))
    plain = parameters.markup is None and parameters.terms is None and parameters.placeholders in {None, PLACEHOLDERS}
    return plain and ends <= MAX_INLINE_ENDS and marks <= MAX_INLINE_MARKS


def check_tag_names(written: Sequence[str], field: str) -> None:
    """Raise InvalidArgumentError for too many names of tags in the rules of a request.

    Args:
        written: names, which may also stand in one text with commas between them.
    """
    count, characters = sum(text.count(",") + 1 for text in written), sum(map(len, written))
    if count > MAX_TAG_NAMES or characters > MAX_TAG_CHARACTERS:
        raise InvalidArgumentError(
            f"rules take at most {MAX_TAG_NAMES} names of tags, of {MAX_TAG_CHARACTERS} characters together, got "
            f"{count} of {characters}; leave some out",
            field=field,
        )


def check_texts(limits: ServiceLimits, contents: Sequence[str], **others: Sequence[str]) -> None:
    """Raise InvalidArgumentError for too many texts, or one that is too long; keywords are request fields."""
    if len(contents) > limits.max_texts:
        raise InvalidArgumentError(
            f"a request takes at most {limits.max_texts} texts, got {len(contents)}; send several requests",
            field="contents",
        )
    for field, field_texts in {"contents": contents, **others}.items():
        for index, text in enumerate(field_texts):
            if len(text) > limits.max_characters:
                raise InvalidArgumentError(
                    f"a text takes at most {limits.max_characters} characters here, got {len(text)}: split it",
                    field=f"{field}[{index}]",
                )


def check_tags(texts: Sequence[str]) -> None:
    """Raise InvalidArgumentError for too many tags and entities of texts with markup."""
    count = sum(text.count("<") + text.count("&") for text in texts)
    if count > MAX_TAGS:
        raise InvalidArgumentError(
            f"texts of a request have at most {MAX_TAGS} tags and entities together, got {count}; send several "
            "requests",
            field="contents",
        )


def check_hypotheses(limits: ServiceLimits, num_texts: int, beam_size: int, num_hypotheses: int) -> None:
    """Raise InvalidArgumentError for too many hypotheses, in all or for one text."""
    if num_texts * num_hypotheses > limits.max_hypotheses:
        raise InvalidArgumentError(
            f"a request takes at most {limits.max_hypotheses} hypotheses of all texts together, got "
            f"{num_texts * num_hypotheses}; send several requests",
            field="contents",
        )
    if beam_size * num_hypotheses > limits.max_beam_hypotheses:
        raise InvalidArgumentError(
            f"beam_size times num_hypotheses is at most {limits.max_beam_hypotheses} here, got {beam_size} times "
            f"{num_hypotheses}",
            field="options.beam_size",
        )
