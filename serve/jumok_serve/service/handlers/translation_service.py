"""TranslationService: translates texts, and scores or aligns given translations."""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import cast

from jumok_proto.alignment_conversion import alignments_to_proto
from jumok_proto.conversion import (
    detected_to_proto,
    response_to_proto,
    scores_to_proto,
    timings_to_proto,
    translation_to_proto,
)
from jumok_proto.errors import InvalidArgumentError, OverloadedError
from jumok_proto.v1.alignment_pb2 import AlignTextRequest, AlignTextResponse
from jumok_proto.v1.translation_pb2 import (
    CORPUS_ORDER_COMPLETION,
    CorpusOrder,
    CorpusResult,
    CorpusSettings,
    DetectLanguageRequest,
    DetectLanguageResponse,
    ScoreTextRequest,
    ScoreTextResponse,
    StreamTranslateTextRequest,
    StreamTranslateTextResponse,
    TranslateCorpusRequest,
    TranslateCorpusResponse,
    TranslateTextRequest,
    TranslateTextResponse,
)
from jumok_serve.engine.share import RETRY_AFTER_S
from jumok_serve.manifest.languages import is_auto
from jumok_serve.service.handlers.corpus import Corpus, Item, Result, Stream, Written
from jumok_serve.service.handlers.detection import (
    LanguageDetection,
    translate_by_language,
    with_confidence,
    with_source,
)
from jumok_serve.service.handlers.glossary_service import stored_terms
from jumok_serve.service.handlers.pivot import submit_over_pivot
from jumok_serve.service.handlers.requests import (
    ParsedRequest,
    TranslationMessage,
    check_hypotheses,
    check_lengths,
    check_num_texts,
    check_request,
    check_tags,
    parse_attention_query,
    parse_request,
    single_text_field_names,
)
from jumok_serve.service.handlers.worker_pool import MAX_INLINE_TOKENS, LoopWakeups, RequestWork, size_of
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.models.registry import ChosenModels, LoadedModel, ModelRegistry, Scoring
from jumok_serve.service.rpc.call import Call, current_caller, record_items
from jumok_serve.service.rpc.request_reader import RequestReader
from jumok_serve.tasks.model import ScoringParameters, TextParameters, TranslationParameters
from jumok_serve.tasks.translation import Pending, PendingTexts
from jumok_serve.text.sentence_splitting import possible_ends
from jumok_serve.text.terms import GlossaryStore

MAX_ITEMS = 1024
"""Items of a message."""
MAX_WINDOW = 1024
DEFAULT_WINDOW = 256
"""Open items of a corpus: more than a batch has sentences, so that a finished sentence is replaced at once."""
MAX_INLINE_ENDS = 4
"""Possible ends of sentences in texts that are split on the event loop: 0.03 ms, in Catalan and Danish 0.8 ms."""

CORPUS_ORDERS = CorpusOrder.values()


class TranslationService:
    """Translates, scores and aligns with the models of a registry.

    Attributes:
        stopping: event after which corpora are not read further, and end after the results of the items that were.
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
        self._detection = LanguageDetection(models, self._work.tokenizing)
        self.stopping = asyncio.Event()

    async def TranslateText(self, request: TranslateTextRequest, call: Call) -> TranslateTextResponse:  # noqa: N802
        """Translate all texts, or fail; cancellation frees the rows."""
        check_request(request)
        if not is_auto(request.source_language_code):
            return await self._translate(request, call)
        check_num_texts(self._limits, len(request.contents))
        detected = await self._detection.of_request(request, request.contents)
        return await translate_by_language(request, detected, lambda group: self._translate(group, call))

    async def _translate(self, request: TranslateTextRequest, call: Call) -> TranslateTextResponse:
        """Translate texts of one language."""
        with self._use(request) as chosen:
            parsed = await self._parse(chosen, request, call)
            check_num_texts(self._limits, len(request.contents))
            contents, prefixes = [*request.contents], [*request.target_prefixes]  # each access decodes them anew
            check_lengths(self._limits, contents=contents, target_prefixes=prefixes)
            if parsed.parameters.markup is not None:
                check_tags(self._limits, contents)
            check_hypotheses(self._limits, len(contents), parsed.beam_size, parsed.num_hypotheses)
            attends = parsed.parameters.attends
            with self._work.attention_slot(attends):
                pending = await self._submit(chosen, contents, parsed.parameters, prefixes or None)
                try:
                    await self._wakeups.wait(pending.futures)

                    def make_response() -> TranslateTextResponse:
                        return response_to_proto(pending.collect(), pending.timings())

                    return await self._work.run(make_response, attends, _max_tokens(chosen, parsed, pending, contents))
                finally:
                    pending.cancel()

    async def StreamTranslateText(  # noqa: N802 - writes its responses itself
        self,
        request: StreamTranslateTextRequest,
        call: Call,
    ) -> None:
        """Translate a text, and write its growing stable prefix, skipping old states."""
        check_request(request)
        request, detected = await self._detection.resolve(request, request.content)
        with self._use(request) as chosen:
            parsed = await self._parse(chosen, request, call)
            check_hypotheses(self._limits, 1, parsed.beam_size, parsed.num_hypotheses)
            progress = asyncio.Event()
            prefixes = [request.target_prefix] if request.target_prefix else None
            with self._work.attention_slot(parsed.parameters.attends), single_text_field_names():
                check_lengths(self._limits, contents=[request.content], target_prefixes=prefixes or [])
                pending = await self._submit(
                    chosen,
                    [request.content],
                    parsed.parameters,
                    prefixes,
                    on_progress=lambda: self._wakeups.call_soon(progress.set),
                )
                try:
                    await self._write_progress(pending, progress, call)

                    def make_response() -> StreamTranslateTextResponse:
                        (translation,) = with_confidence(pending, detected).collect()
                        return StreamTranslateTextResponse(
                            stable_text=translation.text,
                            translation=translation_to_proto(translation),
                            timings=timings_to_proto(pending.timings()),
                        )

                    max_tokens = _max_tokens(chosen, parsed, pending, [request.content])
                    attends = parsed.parameters.attends
                    response = await self._work.run(make_response, attends, max_tokens)
                    await call.write(response, counted=True)
                finally:
                    pending.cancel()

    async def _write_progress(self, pending: Pending, progress: asyncio.Event, call: Call) -> None:
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
                await call.write(StreamTranslateTextResponse(stable_text=stable), counted=True)

    async def TranslateCorpus(  # noqa: N802 - writes its responses itself
        self,
        requests: RequestReader,
        call: Call,
    ) -> None:
        """Translate a stream of items, window by window; cancellation frees all rows."""
        first = cast("TranslateCorpusRequest | None", await requests.next())
        if first is None or not first.HasField("settings"):
            raise InvalidArgumentError("the first message must carry settings", field="settings")
        check_request(first)
        settings = CorpusSettings()
        settings.CopyFrom(first.settings)  # a part of a message keeps all of it in memory
        unread = [_items(first)]
        del first

        async def read(busy: Callable[[], bool]) -> Sequence[Item] | None:
            if unread:
                return unread.pop()
            message = cast("TranslateCorpusRequest | None", await requests.next(busy))
            if message is None:
                return None
            check_request(message)
            if message.HasField("settings"):
                raise InvalidArgumentError("settings are allowed in the first message only", field="settings")
            return _items(message)

        await self.translate_corpus(settings, call, Stream(read, _corpus_response, call.write), self.stopping)

    async def translate_corpus(
        self, settings: CorpusSettings, call: Call, stream: Stream[Written], stopping: asyncio.Event
    ) -> None:
        """Translate a stream of items until an event, after which no further item is read."""
        if not 0 <= settings.window <= MAX_WINDOW:
            raise InvalidArgumentError(
                f"window must be at most {MAX_WINDOW}, and at least 1 or left out, got {settings.window}",
                field="window",
            )
        if settings.order not in CORPUS_ORDERS:
            raise InvalidArgumentError(f"order has the unknown value {settings.order}", field="order")
        example = self._detection.example(settings)
        with self._use(example) as chosen:
            parsed = await self._parse(chosen, example, call)
        check_hypotheses(self._limits, 1, parsed.beam_size, parsed.num_hypotheses)

        parsed_for = {} if is_auto(settings.source_language_code) else {settings.source_language_code: parsed}

        async def parse_for(source: str, chosen: ChosenModels) -> ParsedRequest:
            """Parse the settings once for each source language."""
            if source not in parsed_for:
                try:
                    parsed_for[source] = await self._parse(chosen, with_source(settings, source), call)
                except OverloadedError:  # calls that wait for memory hold none, or they would wait for each other
                    parsed_for.clear()
                    raise
            return parsed_for[source]

        async def submit(item: Item) -> Pending:
            prefixes = [item.target_prefix] if item.target_prefix else None
            check_lengths(self._limits, contents=[item.content], target_prefixes=prefixes or [])
            detected = await self._detection.of_item(settings, item.content)
            source = settings.source_language_code if detected is None else detected.language
            # After a model was replaced, later items go to the new one.
            with ExitStack() as used:
                chosen = used.enter_context(self._models.use(settings.model, source, settings.target_language_code))
                of_item = await parse_for(source, chosen)
                pending = await self._submit(chosen, [item.content], of_item.parameters, prefixes, spare=True)
                if len(chosen.models) > 1:  # a text between two models is in no engine, which would finish it
                    release = used.pop_all().close
                    pending.futures[0].add_done_callback(lambda _: self._wakeups.call_soon(release))
                return with_confidence(pending, detected)

        corpus = Corpus(
            stream=stream,
            window=min(settings.window or DEFAULT_WINDOW, self._limits.max_hypotheses // parsed.num_hypotheses),
            in_order=settings.order != CORPUS_ORDER_COMPLETION,
            submit=submit,
            run_work=partial(self._work.run, attention=parsed.parameters.attends),
            wakeups=self._wakeups,
            stopping=stopping,
            record=record_items(),
        )
        with self._work.attention_slot(parsed.parameters.attends):
            await corpus.run()

    async def DetectLanguage(self, request: DetectLanguageRequest, call: Call) -> DetectLanguageResponse:  # noqa: N802
        """Detect the languages of all texts."""
        check_request(request)
        check_num_texts(self._limits, len(request.contents))
        check_lengths(self._limits, contents=request.contents)
        return detected_to_proto(await self._detection.rank(request.contents))

    async def ScoreText(self, request: ScoreTextRequest, call: Call) -> ScoreTextResponse:  # noqa: N802
        """Score all targets, or fail; a cancelled call stops between two batches."""
        check_request(request)
        with self._use(request) as chosen:
            check_num_texts(self._limits, len(request.contents))
            contents, targets = [*request.contents], [*request.targets]
            check_lengths(self._limits, contents=contents, targets=targets)
            start = partial(
                chosen.only("scoring").scoring,
                contents,
                targets,
                ScoringParameters(
                    source_language=request.source_language_code,
                    target_language=request.target_language_code,
                    length_penalty=request.length_penalty if request.HasField("length_penalty") else None,
                    truncate=request.truncate,
                    deadline=call.deadline,
                    caller=current_caller(),
                ),
            )
            scoring = await self._work.tokenize(start, contents, targets)
            try:
                return await self._work.score(_scored(scoring))
            finally:
                scoring.cancel()

    async def AlignText(self, request: AlignTextRequest, call: Call) -> AlignTextResponse:  # noqa: N802
        """Align all texts, or fail; cancellation frees the rows and stops."""
        check_request(request)
        with self._use(request) as chosen:
            check_num_texts(self._limits, len(request.contents))
            contents, targets = [*request.contents], [*request.targets]
            check_lengths(self._limits, contents=contents, targets=targets)
            start = partial(
                chosen.only("alignment").aligning,
                contents,
                targets or None,
                parse_attention_query(request),
                TextParameters(
                    source_language=request.source_language_code,
                    target_language=request.target_language_code,
                    truncate=request.truncate,
                    deadline=call.deadline,
                    caller=current_caller(),
                ),
            )
            with self._work.attention_slot(True):
                aligning = await self._work.tokenize(start, contents, targets)
                try:
                    await self._wakeups.wait(aligning.futures)
                    return await self._work.run(lambda: alignments_to_proto(aligning.collect()), attention=True)
                finally:
                    aligning.cancel()

    def _use(
        self, request: TranslationMessage | ScoreTextRequest | AlignTextRequest
    ) -> AbstractContextManager[ChosenModels]:
        """Keep the models of a request open."""
        return self._models.use(request.model, request.source_language_code, request.target_language_code)

    async def _parse(self, chosen: ChosenModels, request: TranslationMessage, call: Call) -> ParsedRequest:
        """Parse a request, and read the stored glossary that it names."""
        stored = await stored_terms(self._glossaries, chosen, request) if request.glossary.stored else None
        return parse_request(chosen.last, request, call.deadline, stored)

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
            model: LoadedModel,
            texts: Sequence[str],
            parameters: TranslationParameters,
            prefixes: Sequence[str] | None,
            on_progress: Callable[[], None] | None = None,
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
        max_tokens = MAX_INLINE_TOKENS + 1 if parameters.in_parts else first_defaults.max_length
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


def _items(message: TranslateCorpusRequest) -> list[Item]:
    if len(message.items) > MAX_ITEMS:
        raise InvalidArgumentError(
            f"a message takes at most {MAX_ITEMS} items, got {len(message.items)}; send several", field="items"
        )
    return [Item(item.id, item.content, item.target_prefix) for item in message.items]


def _corpus_response(results: Sequence[Result]) -> TranslateCorpusResponse:
    return TranslateCorpusResponse(
        results=[
            CorpusResult(
                id=one.id,
                translation=None if one.translation is None else translation_to_proto(one.translation),
                timings=None if one.timings is None else timings_to_proto(one.timings),
                error=one.error,
            )
            for one in results
        ]
    )


def _scored(scoring: Scoring) -> Generator[int, None, ScoreTextResponse]:
    """Score in pieces, and make the response."""
    scores = yield from scoring.pieces()
    return scores_to_proto(scores)


def _max_tokens(chosen: ChosenModels, parsed: ParsedRequest, pending: Pending, texts: Sequence[str]) -> int:
    """Return the most tokens of a request's translations; texts that no model translates count by their size."""
    if parsed.parameters.in_parts and len(chosen.models) > 1:  # the sentences of the second model are not known
        return MAX_INLINE_TOKENS + 1
    return max(len(pending.futures) * parsed.max_tokens, size_of(texts))


def _is_quick(texts: Sequence[str], parameters: TranslationParameters) -> bool:
    """True if finding the sentences of short texts, without terms, takes little time."""
    ends = sum(map(possible_ends, texts)) if parameters.in_parts else 0
    return parameters.markup is None and parameters.terms is None and ends <= MAX_INLINE_ENDS
