"""TranslationService: takes texts to a model and brings their translations, or scores of given ones, back."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from functools import lru_cache, partial
from typing import Protocol, TypeVar

import grpc

from jumok_proto.conversion import options_from_proto, response_to_proto, scores_to_proto
from jumok_proto.v1 import decoding_pb2, translation_pb2
from jumok_proto.v1.translation_pb2_grpc import TranslationServiceServicer
from jumok_serve.errors import InvalidRequest, Overloaded
from jumok_serve.options import DecodingOptions
from jumok_serve.queue import RETRY_AFTER_S
from jumok_serve.service.arrivals import Arrivals
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.models import ModelRegistry
from jumok_serve.service.unknown_fields import check_known
from jumok_serve.service.workers import Workers

MAX_LISTED_TOKENS = 256
"""Of an option that is a list of tokens: each is looked at in every row of every step."""
MAX_CHARACTERS_AT_ONCE = 2048
"""Of all texts and prefixes of a request that is read on the event loop, where others wait meanwhile: 0.1 ms with
SentencePiece, 0.8 ms at worst with byte-level BPE."""
CHARACTERS_OF_ANY_TEXT = 64
"""What a text counts besides those that it has: searches and futures take as long as reading so many."""
MAX_TOKENS_AT_ONCE = 2048
"""Of the longest translations that a request can have, if its answer is made on the event loop: 1 ms."""
MAX_REMEMBERED_OPTIONS = 256
MAX_TOKENIZING = 256
"""Requests that are tokenized or wait for it."""
TOKENIZING_THREADS = 2
MAX_SCORING = 64
"""Requests whose targets are scored or wait for it."""
SCORING_THREADS = 1
MAX_ATTENDING = 256
"""Requests for attention that are under way, be they decoded or waiting for it."""
ATTENDING_THREADS = 1


class Cancellable(Protocol):
    """What is under way for a request."""

    def cancel(self) -> None:
        """Give it up."""


Job = TypeVar("Job", bound=Cancellable)


class TranslationService(TranslationServiceServicer):
    """Translates with the models of a registry, and scores."""

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

    async def TranslateText(  # noqa: N802
        self,
        request: translation_pb2.TranslateTextRequest,
        context: grpc.aio.ServicerContext[translation_pb2.TranslateTextRequest, translation_pb2.TranslateTextResponse],
    ) -> translation_pb2.TranslateTextResponse:
        """Translate all texts, or fail; a call that ends early frees the rows of its texts."""
        check_known(request)
        model = self._models.find_or_only(request.model)
        options = _read_options(request.options.SerializeToString())
        self._limits.check_number(len(request.contents))
        self._limits.check_lengths(contents=request.contents, target_prefixes=request.target_prefixes)
        defaults = model.manifest.generation
        hypotheses = options.num_hypotheses or defaults.num_hypotheses
        self._limits.check_hypotheses(len(request.contents), options.beam_size or defaults.beam_size, hypotheses)
        tokens = len(request.contents) * hypotheses * (options.max_length or defaults.max_length)
        submit = partial(
            model.submit,
            list(request.contents),
            options,
            source_language=request.source_language_code,
            target_language=request.target_language_code,
            target_prefixes=list(request.target_prefixes) or None,
            attention=request.attention,
            truncate=request.truncate,
            deadline=_deadline(context.time_remaining()),
        )
        with self._room_for_attention() if request.attention else nullcontext():
            short = _is_short(request.contents, request.target_prefixes)
            pending = submit() if short else await self._tokenize(submit)
            try:
                await self._arrivals.wait(pending.futures)

                def answer() -> translation_pb2.TranslateTextResponse:
                    return response_to_proto(pending.collect(), pending.timings())

                if request.attention:
                    return await asyncio.wrap_future(self._attending.start(answer))
                if tokens <= MAX_TOKENS_AT_ONCE:
                    return answer()
                return await asyncio.get_running_loop().run_in_executor(None, answer)
            finally:
                pending.cancel()

    async def ScoreText(  # noqa: N802
        self,
        request: translation_pb2.ScoreTextRequest,
        context: grpc.aio.ServicerContext[translation_pb2.ScoreTextRequest, translation_pb2.ScoreTextResponse],
    ) -> translation_pb2.ScoreTextResponse:
        """Score all targets, or fail; a call that ends early is given up between two batches."""
        check_known(request)
        model = self._models.find_or_only(request.model)
        self._limits.check_number(len(request.contents))
        self._limits.check_lengths(contents=request.contents, targets=request.targets)
        read = partial(
            model.scoring,
            list(request.contents),
            list(request.targets),
            source_language=request.source_language_code,
            target_language=request.target_language_code,
            length_penalty=request.length_penalty if request.HasField("length_penalty") else None,
            truncate=request.truncate,
            deadline=_deadline(context.time_remaining()),
        )
        short = _is_short(request.contents, request.targets)
        scoring = read() if short else await self._tokenize(read)
        try:
            return await asyncio.wrap_future(self._scoring.start(lambda: scores_to_proto(scoring.collect())))
        finally:
            scoring.cancel()

    @contextmanager
    def _room_for_attention(self) -> Iterator[None]:
        """Count a request in that asks for attention, before anything is done for it."""
        if self._number_attending >= MAX_ATTENDING:
            raise Overloaded(
                f"{MAX_ATTENDING} requests for attention are under way: no room for another",
                retry_after_s=RETRY_AFTER_S,
            )
        self._number_attending += 1
        try:
            yield
        finally:
            self._number_attending -= 1

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


@lru_cache(MAX_REMEMBERED_OPTIONS)
def _read_options(serialized: bytes) -> DecodingOptions:
    """What a request asks for; most ask for the same as others, in the same bytes."""
    message = decoding_pb2.DecodingOptions.FromString(serialized)
    for name, listed in (("suppress_tokens", message.suppress_tokens), ("end_tokens", message.end_tokens)):
        if len(listed.ids) > MAX_LISTED_TOKENS:
            raise InvalidRequest(
                f"{name} takes at most {MAX_LISTED_TOKENS} tokens here, got {len(listed.ids)}", field=f"options.{name}"
            )
    try:
        options = options_from_proto(message)
    except ValueError as error:
        raise InvalidRequest(str(error), field="options.early_stopping") from error
    return DecodingOptions(**options)


def _deadline(remaining_s: float | None) -> float | None:
    return None if remaining_s is None else time.monotonic() + remaining_s


def _cancel_late(job: "Future[Job]") -> None:
    """Give up what was begun for a caller who left while it was being tokenized."""
    if not job.cancelled() and job.exception() is None:
        job.result().cancel()
