"""TranslationService: takes texts to a model and brings their translations back."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import grpc
from google.protobuf.unknown_fields import UnknownFieldSet

from jumok_proto.conversion import options_from_proto, response_to_proto
from jumok_proto.v1 import decoding_pb2, translation_pb2
from jumok_proto.v1.translation_pb2_grpc import TranslationServiceServicer
from jumok_serve.engine import RETRY_AFTER_S
from jumok_serve.errors import InvalidRequest, Overloaded
from jumok_serve.options import DecodingOptions
from jumok_serve.service.models import ModelRegistry, Pending

MAX_CONTENTS = 1024
MAX_HYPOTHESES = 4096
"""Of all texts of a request together, which bounds its answer."""
MAX_TOKENIZING = 256
"""Requests that are tokenized or wait for it."""
TOKENIZING_THREADS = 2


class TranslationService(TranslationServiceServicer):
    """Translates with the models of a registry."""

    def __init__(self, models: ModelRegistry) -> None:
        self._models = models
        self._threads = ThreadPoolExecutor(TOKENIZING_THREADS, thread_name_prefix="tokenize")
        self._room = threading.Semaphore(MAX_TOKENIZING)

    async def TranslateText(  # noqa: N802
        self,
        request: translation_pb2.TranslateTextRequest,
        context: grpc.aio.ServicerContext[translation_pb2.TranslateTextRequest, translation_pb2.TranslateTextResponse],
    ) -> translation_pb2.TranslateTextResponse:
        """Translate all texts, or fail; a call that ends early frees the rows of its texts."""
        model = self._models.find_or_only(request.model)
        options = _read_options(request.options)
        if len(request.contents) > MAX_CONTENTS:
            raise InvalidRequest(
                f"a request takes at most {MAX_CONTENTS} texts, got {len(request.contents)}; send several requests",
                field="contents",
            )
        hypotheses = len(request.contents) * (options.num_hypotheses or model.manifest.generation.num_hypotheses)
        if hypotheses > MAX_HYPOTHESES:
            raise InvalidRequest(
                f"a request takes at most {MAX_HYPOTHESES} hypotheses of all texts together, got {hypotheses}; send "
                "several requests",
                field="contents",
            )
        submit = partial(
            model.submit,
            list(request.contents),
            options,
            truncate=request.truncate,
            deadline=_deadline(context.time_remaining()),
        )
        # Tokenizing and detokenizing take their time; elsewhere, so that other calls, and health checks, go on.
        job = self._tokenize(submit)
        try:
            pending = await asyncio.wrap_future(job)
        except asyncio.CancelledError:  # a job that has not begun is cancelled with this
            job.add_done_callback(_cancel_late)
            raise
        try:
            await asyncio.gather(*(asyncio.wrap_future(future) for future in pending.futures))
        finally:
            _cancel(pending)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, lambda: response_to_proto(pending.collect(), pending.timings()))

    def _tokenize(self, submit: Callable[[], Pending]) -> "Future[Pending]":
        """Start a job on a thread; raise Overloaded where too many wait for one."""
        if not self._room.acquire(blocking=False):
            raise Overloaded(f"{MAX_TOKENIZING} requests wait to be tokenized", retry_after_s=RETRY_AFTER_S)
        job = self._threads.submit(submit)
        job.add_done_callback(lambda _: self._room.release())
        return job


def _read_options(message: decoding_pb2.DecodingOptions) -> DecodingOptions:
    # Ignoring an option that was asked for would give another translation than the caller wanted, and say nothing.
    unknown = UnknownFieldSet(message)
    if len(unknown) > 0:
        raise InvalidRequest(
            f"options hold the field number {unknown[0].field_number} with a value that this server does not know",
            field="options",
        )
    try:
        fields = options_from_proto(message)
    except ValueError as error:
        raise InvalidRequest(str(error), field="options.early_stopping") from error
    return DecodingOptions(**fields)


def _deadline(remaining_s: float | None) -> float | None:
    return None if remaining_s is None else time.monotonic() + remaining_s


def _cancel(pending: Pending) -> None:
    for future in pending.futures:
        future.cancel()


def _cancel_late(job: "Future[Pending]") -> None:
    """Free what was queued for a caller who left while it was being tokenized."""
    if not job.cancelled() and job.exception() is None:
        _cancel(job.result())
