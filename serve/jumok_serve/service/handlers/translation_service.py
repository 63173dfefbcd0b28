"""TranslationService: takes texts to a model and brings translations, or scores or attention of given ones, back."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import Protocol, TypeVar

import grpc

from jumok_proto.alignment_conversion import alignments_to_proto
from jumok_proto.conversion import (
    response_to_proto,
    scores_to_proto,
    timings_to_proto,
    translation_to_proto,
)
from jumok_proto.errors import InvalidArgumentError, OverloadedError
from jumok_proto.v1 import alignment_pb2, translation_pb2
from jumok_proto.v1.translation_pb2_grpc import TranslationServiceServicer
from jumok_serve.engine.admission import RETRY_AFTER_S
from jumok_serve.service.handlers.corpus import Corpus
from jumok_serve.service.handlers.loop_wakeups import Arrivals
from jumok_serve.service.handlers.one_text import naming_one_text
from jumok_serve.service.handlers.requests import deadline_in, read_asked, read_query
from jumok_serve.service.handlers.unknown_fields import check_known
from jumok_serve.service.handlers.worker_pool import Workers
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.models.registry import ModelRegistry
from jumok_serve.service.rpc.error_boundary import next_request
from jumok_serve.tasks.parameters import ScoringParameters, TextParameters
from jumok_serve.tasks.translation import Pending

MAX_WINDOW = 1024
DEFAULT_WINDOW = 256
"""Of a corpus: more than a batch has sentences, so that those that end are followed by others at once."""
MAX_CHARACTERS_AT_ONCE = 2048
"""Of all texts and prefixes of a request that is read on the event loop, where others wait meanwhile: 0.1 ms with
SentencePiece, 0.8 ms at worst with byte-level BPE."""
CHARACTERS_OF_ANY_TEXT = 64
"""What a text counts besides those that it has: searches and futures take as long as reading so many."""
MAX_TOKENS_AT_ONCE = 2048
"""Of the longest translations that a request can have, if its answer is made on the event loop: 1 ms."""
MAX_TOKENIZING = 256
"""Requests that are tokenized or wait for it."""
TOKENIZING_THREADS = 2
MAX_SCORING = 64
"""Requests whose targets are scored or wait for it."""
SCORING_THREADS = 1
MAX_ATTENDING = 256
"""Requests for attention that are under way, be they decoded or waiting for it."""
ATTENDING_THREADS = 1

CORPUS_ORDERS = translation_pb2.CorpusOrder.values()


class Cancellable(Protocol):
    """What is under way for a request."""

    def cancel(self) -> None:
        """Give it up."""


Job = TypeVar("Job", bound=Cancellable)
Result = TypeVar("Result")


class TranslationService(TranslationServiceServicer):
    """Translates with the models of a registry, scores and aligns."""

    def __init__(self, models: ModelRegistry, limits: ServiceLimits = ServiceLimits()) -> None:  # noqa: B008 - frozen
        self._models = models
        self._limits = limits
        self._arrivals = Arrivals()
        # What takes its time is done elsewhere, so that other calls, and health checks, go on.
        self._tokenizing = Workers("tokenized", threads=TOKENIZING_THREADS, most=MAX_TOKENIZING)
        self._scoring = Workers("scored", threads=SCORING_THREADS, most=MAX_SCORING)
        # A thread can still be busy for a caller who has left, and no longer counts as under way.
        self._attending = Workers("attended", threads=ATTENDING_THREADS, most=MAX_ATTENDING + ATTENDING_THREADS)
        self._number_attending = 0
        self._stopping = asyncio.Event()

    async def TranslateText(  # noqa: N802
        self,
        request: translation_pb2.TranslateTextRequest,
        context: grpc.aio.ServicerContext[translation_pb2.TranslateTextRequest, translation_pb2.TranslateTextResponse],
    ) -> translation_pb2.TranslateTextResponse:
        """Translate all texts, or fail; a call that ends early frees the rows of its texts."""
        check_known(request)
        with self._models.use(request.model) as model:
            asked = read_asked(model, request, context.time_remaining())
            self._limits.check_number(len(request.contents))
            self._limits.check_lengths(contents=request.contents, target_prefixes=request.target_prefixes)
            self._limits.check_hypotheses(len(request.contents), asked.beam_size, asked.hypotheses)
            tokens = len(request.contents) * asked.hypotheses * asked.tokens
            prefixes = list(request.target_prefixes) or None
            submit = partial(model.submit, list(request.contents), asked.parameters, target_prefixes=prefixes)
            with self._room_for_attention(request.attention):
                pending = await self._read(submit, request.contents, request.target_prefixes)
                try:
                    await self._arrivals.wait(pending.futures)

                    def answer() -> translation_pb2.TranslateTextResponse:
                        return response_to_proto(pending.collect(), pending.timings())

                    return await self._work(answer, request.attention, tokens)
                finally:
                    pending.cancel()

    async def StreamTranslateText(  # type: ignore[override]  # noqa: N802 - it writes its answers itself
        self,
        request: translation_pb2.StreamTranslateTextRequest,
        context: grpc.aio.ServicerContext[
            translation_pb2.StreamTranslateTextRequest, translation_pb2.StreamTranslateTextResponse
        ],
    ) -> None:
        """Translate a text, and write what is sure of its translation as the caller reads: the newest, not all."""
        check_known(request)
        with self._models.use(request.model) as model:
            asked = read_asked(model, request, context.time_remaining())
            self._limits.check_hypotheses(1, asked.beam_size, asked.hypotheses)
            news = asyncio.Event()
            submit = partial(
                model.submit,
                [request.content],
                asked.parameters,
                target_prefixes=[request.target_prefix] if request.target_prefix else None,
                on_progress=lambda: self._arrivals.tell(news.set),
            )
            with self._room_for_attention(request.attention), naming_one_text():
                self._limits.check_lengths(contents=[request.content], target_prefixes=[request.target_prefix])
                pending = await self._read(submit, [request.content], [request.target_prefix])
                try:
                    await self._write_progress(pending, news, context)

                    def answer() -> translation_pb2.StreamTranslateTextResponse:
                        (translation,) = pending.collect()
                        return translation_pb2.StreamTranslateTextResponse(
                            stable_text=translation.text,
                            translation=translation_to_proto(translation),
                            timings=timings_to_proto(pending.timings()),
                        )

                    await context.write(await self._work(answer, request.attention, asked.hypotheses * asked.tokens))
                finally:
                    pending.cancel()

    async def _write_progress(
        self,
        pending: Pending,
        news: asyncio.Event,
        context: grpc.aio.ServicerContext[
            translation_pb2.StreamTranslateTextRequest, translation_pb2.StreamTranslateTextResponse
        ],
    ) -> None:
        """Write what is sure of a translation until it is done."""
        for future in pending.futures:
            future.add_done_callback(lambda _: self._arrivals.tell(news.set))
        sent = ""
        while not all(future.done() for future in pending.futures):
            await news.wait()
            news.clear()
            (sure,) = pending.stable_texts()
            if len(sure) > len(sent):
                sent = sure
                await context.write(translation_pb2.StreamTranslateTextResponse(stable_text=sure))

    async def TranslateCorpus(  # type: ignore[override]  # noqa: N802 - it writes its answers itself
        self,
        requests: object,
        context: grpc.aio.ServicerContext[
            translation_pb2.TranslateCorpusRequest, translation_pb2.TranslateCorpusResponse
        ],
    ) -> None:
        """Translate items as they come, a window of them at a time; a call that ends early frees the rows of all."""
        first = await next_request(context)
        if first is None or not first.HasField("settings"):
            raise InvalidArgumentError("the first message must carry settings", field="settings")
        check_known(first)
        settings = first.settings
        if not 0 <= settings.window <= MAX_WINDOW:
            raise InvalidArgumentError(
                f"window must be at most {MAX_WINDOW}, and at least 1 or left out, got {settings.window}",
                field="window",
            )
        if settings.order not in CORPUS_ORDERS:
            raise InvalidArgumentError(f"order has the unknown value {settings.order}", field="order")
        with self._models.use(settings.model) as model:
            asked = read_asked(model, settings, context.time_remaining())
        self._limits.check_hypotheses(1, asked.beam_size, asked.hypotheses)

        async def submit(item: translation_pb2.CorpusItem) -> Pending:
            prefixes = [item.target_prefix] if item.target_prefix else None
            self._limits.check_lengths(contents=[item.content], target_prefixes=prefixes or [])
            # A model that takes the place of another has the items that come from then on.
            with self._models.use(settings.model) as model:
                start = partial(model.submit, [item.content], asked.parameters, target_prefixes=prefixes)
                return await self._read(start, [item.content], prefixes or [])

        corpus = Corpus(
            context,
            window=min(settings.window or DEFAULT_WINDOW, self._limits.max_hypotheses // asked.hypotheses),
            in_order=settings.order != translation_pb2.CORPUS_ORDER_COMPLETION,
            submit=submit,
            work=partial(self._work, attention=settings.attention),
            arrivals=self._arrivals,
            stopping=self._stopping,
        )
        with self._room_for_attention(settings.attention):
            await corpus.run(first.items)

    def stop(self) -> None:
        """Read no further items of any corpus, and end these calls when what was read is answered."""
        self._stopping.set()

    async def ScoreText(  # noqa: N802
        self,
        request: translation_pb2.ScoreTextRequest,
        context: grpc.aio.ServicerContext[translation_pb2.ScoreTextRequest, translation_pb2.ScoreTextResponse],
    ) -> translation_pb2.ScoreTextResponse:
        """Score all targets, or fail; a call that ends early is given up between two batches."""
        check_known(request)
        with self._models.use(request.model) as model:
            self._limits.check_number(len(request.contents))
            self._limits.check_lengths(contents=request.contents, targets=request.targets)
            read = partial(
                model.scoring,
                list(request.contents),
                list(request.targets),
                ScoringParameters(
                    source_language=request.source_language_code,
                    target_language=request.target_language_code,
                    length_penalty=request.length_penalty if request.HasField("length_penalty") else None,
                    truncate=request.truncate,
                    deadline=deadline_in(context.time_remaining()),
                ),
            )
            scoring = await self._read(read, request.contents, request.targets)
            try:
                return await asyncio.wrap_future(self._scoring.start(lambda: scores_to_proto(scoring.collect())))
            finally:
                scoring.cancel()

    async def AlignText(  # noqa: N802
        self,
        request: alignment_pb2.AlignTextRequest,
        context: grpc.aio.ServicerContext[alignment_pb2.AlignTextRequest, alignment_pb2.AlignTextResponse],
    ) -> alignment_pb2.AlignTextResponse:
        """Align all texts, or fail; a call that ends early frees the rows of its texts, and computes no more."""
        check_known(request)
        with self._models.use(request.model) as model:
            self._limits.check_number(len(request.contents))
            self._limits.check_lengths(contents=request.contents, targets=request.targets)
            read = partial(
                model.aligning,
                list(request.contents),
                list(request.targets) or None,
                read_query(request),
                TextParameters(
                    source_language=request.source_language_code,
                    target_language=request.target_language_code,
                    truncate=request.truncate,
                    deadline=deadline_in(context.time_remaining()),
                ),
            )
            with self._room_for_attention(True):
                aligning = await self._read(read, request.contents, request.targets)
                try:
                    await self._arrivals.wait(aligning.futures)
                    return await self._work(lambda: alignments_to_proto(aligning.collect()), attention=True)
                finally:
                    aligning.cancel()

    @contextmanager
    def _room_for_attention(self, attention: bool) -> Iterator[None]:
        """Count a request in that asks for attention, before anything is done for it; others need no room."""
        if attention and self._number_attending >= MAX_ATTENDING:
            raise OverloadedError(
                f"{MAX_ATTENDING} requests for attention are under way: no room for another",
                retry_after_s=RETRY_AFTER_S,
            )
        self._number_attending += attention
        try:
            yield
        finally:
            self._number_attending -= attention

    async def _work(
        self, answer: Callable[[], Result], attention: bool, tokens: int = MAX_TOKENS_AT_ONCE + 1
    ) -> Result:
        """Make an answer where it holds nobody up; of so many ``tokens`` at most."""
        if attention:
            return await asyncio.wrap_future(self._attending.start(partial(copy_context().run, answer)))
        if tokens <= MAX_TOKENS_AT_ONCE:
            return answer()
        return await asyncio.to_thread(answer)

    async def _read(self, read: Callable[[], Job], *texts: Sequence[str]) -> Job:
        """Have texts read, where it holds nobody up."""
        return read() if _is_short(*texts) else await self._tokenize(read)

    async def _tokenize(self, read: Callable[[], Job]) -> Job:
        """Have texts read on a thread; what comes of it after the caller has left is given up."""
        job = self._tokenizing.start(read)
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:  # a job that has not begun is cancelled with this
            job.add_done_callback(_cancel_late)
            raise


def _is_short(*texts: Sequence[str]) -> bool:
    """Whether texts are read in less time than it takes to have a thread do it, or not much more."""
    return sum(CHARACTERS_OF_ANY_TEXT + len(text) for of_kind in texts for text in of_kind) <= MAX_CHARACTERS_AT_ONCE


def _cancel_late(job: "Future[Job]") -> None:
    """Give up what was begun for a caller who left while it was being tokenized."""
    if not job.cancelled() and job.exception() is None:
        job.result().cancel()
