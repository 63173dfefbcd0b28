"""TranslationService: takes texts to a model and brings their translations back."""

import asyncio
import time
from functools import partial

import grpc
from google.protobuf.unknown_fields import UnknownFieldSet

from jumok_proto.conversion import options_from_proto, response_to_proto
from jumok_proto.v1 import decoding_pb2, translation_pb2
from jumok_proto.v1.translation_pb2_grpc import TranslationServiceServicer
from jumok_serve.errors import InvalidRequest
from jumok_serve.options import DecodingOptions
from jumok_serve.service.models import ModelRegistry, Pending

MAX_CONTENTS = 1024


class TranslationService(TranslationServiceServicer):
    """Translates with the models of a registry."""

    def __init__(self, models: ModelRegistry) -> None:
        self._models = models

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
        submit = partial(
            model.submit,
            list(request.contents),
            options,
            truncate=request.truncate,
            deadline=_deadline(context.time_remaining()),
        )
        # Tokenizing and detokenizing take their time; elsewhere, so that other calls, and health checks, go on.
        loop = asyncio.get_running_loop()
        submission = loop.run_in_executor(None, submit)
        try:
            pending = await asyncio.shield(submission)
        except asyncio.CancelledError:
            submission.add_done_callback(_cancel_late)
            raise
        try:
            await asyncio.gather(*(asyncio.wrap_future(future) for future in pending.futures))
        finally:
            _cancel(pending)
        return await loop.run_in_executor(None, lambda: response_to_proto(pending.collect(), pending.timings()))


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


def _cancel_late(submission: "asyncio.Future[Pending]") -> None:
    """Free what was queued for a caller who left while it was being tokenized."""
    if not submission.cancelled() and submission.exception() is None:
        _cancel(submission.result())
