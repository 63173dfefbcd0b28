"""TranslationService: requests of gRPC for `Api`, and its results as responses."""

import asyncio
from collections.abc import Callable, Sequence
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
from jumok_proto.errors import InvalidArgumentError
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
from jumok_serve.service.handlers.api import Api
from jumok_serve.service.handlers.corpus import Item, Result, Stream
from jumok_serve.service.handlers.requests import parse_attention_query, parse_settings
from jumok_serve.service.rpc.call import Call, current_request_id
from jumok_serve.service.rpc.request_reader import RequestReader, check_request
from jumok_serve.service.rpc.statuses import to_status
from jumok_serve.tasks.model import ScoringParameters, TextParameters
from jumok_serve.text.translation import Translated

MAX_ITEMS = 1024
"""Items of a message."""
MAX_WINDOW = 1024
CORPUS_ORDERS = CorpusOrder.values()


class TranslationService:
    """Translates, scores and aligns.

    Attributes:
        stopping: event after which corpora are not read further, and end after the results of the items that were.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self.stopping = asyncio.Event()

    async def TranslateText(self, request: TranslateTextRequest, call: Call) -> TranslateTextResponse:  # noqa: N802
        """Translate all texts, or fail; cancellation frees the rows."""
        contents = [*request.contents]  # each access decodes it anew
        call.record.note(contents)
        check_request(request)
        return await self._api.translate(
            parse_settings(request),
            contents,
            [*request.target_prefixes],
            deadline=call.deadline,
            make=lambda translated: response_to_proto(*translated),
        )

    async def StreamTranslateText(self, request: StreamTranslateTextRequest, call: Call) -> None:  # noqa: N802
        """Translate a text, and write its growing stable prefix, skipping old states."""
        call.record.note([request.content])
        check_request(request)

        async def write_stable(text: str) -> None:
            await call.write(StreamTranslateTextResponse(stable_text=text), counted=True)

        last = await self._api.stream(
            parse_settings(request),
            request.content,
            request.target_prefix,
            deadline=call.deadline,
            write_stable=write_stable,
            make=_last_of_stream,
        )
        await call.write(last, counted=True)

    async def TranslateCorpus(self, requests: RequestReader, call: Call) -> None:  # noqa: N802
        """Translate a stream of items, window by window; cancellation frees all rows."""
        first = cast("TranslateCorpusRequest | None", await requests.next())
        if first is None or not first.HasField("settings"):
            raise InvalidArgumentError("the first message must carry settings", field="settings")
        check_request(first)
        settings = CorpusSettings()
        settings.CopyFrom(first.settings)  # a part of a message keeps all of it in memory
        unread = [_items(first)]
        del first
        check_corpus(settings)

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

        await self._api.translate_corpus(
            parse_settings(settings),
            Stream(read, _corpus_response, call.write),
            window=settings.window,
            in_order=settings.order != CORPUS_ORDER_COMPLETION,
            deadline=call.deadline,
            stopping=self.stopping,
        )

    async def DetectLanguage(self, request: DetectLanguageRequest, call: Call) -> DetectLanguageResponse:  # noqa: N802
        """Detect the languages of all texts."""
        contents = [*request.contents]
        call.record.note(contents)
        check_request(request)
        return detected_to_proto(await self._api.detect(contents))

    async def ScoreText(self, request: ScoreTextRequest, call: Call) -> ScoreTextResponse:  # noqa: N802
        """Score all targets, or fail; a cancelled call stops between two batches."""
        contents, targets = [*request.contents], [*request.targets]
        call.record.note(contents, targets)
        check_request(request)
        parameters = ScoringParameters(
            source_language=request.source_language_code,
            target_language=request.target_language_code,
            length_penalty=request.length_penalty if request.HasField("length_penalty") else None,
            truncate=request.truncate,
            deadline=call.deadline,
        )
        return await self._api.score(request.model, contents, targets, parameters=parameters, make=scores_to_proto)

    async def AlignText(self, request: AlignTextRequest, call: Call) -> AlignTextResponse:  # noqa: N802
        """Align all texts, or fail; cancellation frees the rows and stops."""
        contents, targets = [*request.contents], [*request.targets]
        call.record.note(contents, targets)
        check_request(request)
        parameters = TextParameters(
            source_language=request.source_language_code,
            target_language=request.target_language_code,
            truncate=request.truncate,
            deadline=call.deadline,
        )
        query = partial(parse_attention_query, request)
        return await self._api.align(
            request.model, contents, targets, query=query, parameters=parameters, make=alignments_to_proto
        )


def check_corpus(settings: CorpusSettings) -> None:
    """Check the settings of a corpus that texts of one request do not have.

    Raises:
        InvalidArgumentError: window or order.
    """
    if not 0 <= settings.window <= MAX_WINDOW:
        raise InvalidArgumentError(
            f"window must be at most {MAX_WINDOW}, and at least 1 or left out, got {settings.window}", field="window"
        )
    if settings.order not in CORPUS_ORDERS:
        raise InvalidArgumentError(f"order has the unknown value {settings.order}", field="order")


def _last_of_stream(translated: Translated) -> StreamTranslateTextResponse:
    (translation,) = translated.translations
    return StreamTranslateTextResponse(
        stable_text=translation.text,
        translation=translation_to_proto(translation),
        timings=timings_to_proto(translated.timings),
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
                error=None if one.error is None else to_status(one.error, current_request_id()),
            )
            for one in results
        ]
    )
