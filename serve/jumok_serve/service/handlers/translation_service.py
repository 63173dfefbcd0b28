"""TranslationService: messages of gRPC, their parsing for `Api`, and its results as responses."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, TypeAlias, cast

from cachetools import LRUCache, cached

from jumok_proto.conversion import (
    alignments_to_proto,
    detected_to_proto,
    kinds_from_proto,
    markup_from_proto,
    options_from_proto,
    placeholder_kinds_from_proto,
    response_to_proto,
    rules_from_proto,
    scores_to_proto,
    timings_to_proto,
    translation_to_proto,
)
from jumok_proto.errors import InvalidArgumentError
from jumok_proto.v1 import alignment_pb2, decoding_pb2, translation_pb2
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
from jumok_serve.search.options import DecodingOptions
from jumok_serve.service.handlers.api import Api, Settings, check_tag_names
from jumok_serve.service.handlers.corpus import Item, Result, Stream, single_text_field_names
from jumok_serve.service.rpc.call import Call, current_request_id
from jumok_serve.service.rpc.request_reader import RequestReader, check_request
from jumok_serve.service.rpc.statuses import to_status
from jumok_serve.tasks.alignment import AttentionQuery
from jumok_serve.tasks.model import ScoringParameters, TextParameters, TranslationParameters
from jumok_serve.tasks.stand_ins import Hole, HoleFinder
from jumok_serve.tasks.terms import TermFinder, TermMatch
from jumok_serve.text.holes import DEFAULT_KINDS
from jumok_serve.text.terms.glossary import PLACEHOLDERS, Glossary, Placeholders
from jumok_serve.text.translation import Translated

MAX_REQUEST_ENTRIES: Final = 1000
"""Most glossary entries of a request."""
MAX_KEPT_BYTES: Final = 16 * 2**20
"""Memory of the terms that are kept after they were read; those of a single request are kept in any case."""
MIN_BYTES: Final = 4096
"""Memory of the terms of a request, besides its entries and patterns."""


class RequestTerms(NamedTuple):
    """Serialized glossary of a request; a `TermFinder`."""

    glossary: bytes

    def find(self, text: str) -> list[TermMatch]:
        """Return the terms of a text; raises InvalidArgumentError if the request's terms cannot be used."""
        found: list[TermMatch] = _READ(self).finder.find(text)
        return found


class RequestPlaceholders(NamedTuple):
    """Serialized parts to copy of a request; a `HoleFinder`.

    Attributes:
        every_kind: True for placeholders of all kinds.
    """

    do_not_translate: bytes
    every_kind: bool

    def find(self, text: str) -> list[Hole]:
        """Return the parts of a text to copy; raises InvalidArgumentError if the request's cannot be used."""
        found: list[Hole] = _READ(self).finder.find(text)
        return found

    @property
    def keeps_percentages(self) -> bool:
        """See `HoleFinder`."""
        return bool(_READ(self).finder.keeps_percentages)


def request_placeholders(do_not_translate: translation_pb2.DoNotTranslate, *, every_kind: bool) -> HoleFinder | None:
    """Return the finder of the parts to copy of a request, or None without any."""
    if not do_not_translate.patterns and (every_kind or not do_not_translate.kinds):
        return PLACEHOLDERS if every_kind else None
    return RequestPlaceholders(do_not_translate.SerializeToString(), every_kind)


def request_terms(glossary: translation_pb2.Glossary) -> TermFinder | None:
    """Return the terms of a request, or None without any.

    Raises:
        InvalidArgumentError: too many entries.
    """
    if len(glossary.entries) > MAX_REQUEST_ENTRIES:
        raise InvalidArgumentError(
            f"glossary: a request takes at most {MAX_REQUEST_ENTRIES} entries, got {len(glossary.entries)}: send those "
            "of its texts",
            field="glossary",
        )
    if not glossary.entries:
        return None
    return RequestTerms(translation_pb2.Glossary(entries=glossary.entries).SerializeToString())


class _Read(NamedTuple):
    """Terms or parts to copy that were read, and the memory that they take."""

    finder: Any
    num_bytes: int


def terms_reader(most_bytes: int = MAX_KEPT_BYTES) -> Callable[[RequestTerms | RequestPlaceholders], _Read]:
    """Return a function that reads terms, and keeps those that were used last; any thread may call it.

    All texts of a request use its terms, and many requests send the same ones. The function raises
    InvalidArgumentError if terms cannot be used.
    """
    kept: LRUCache[Any, _Read] = LRUCache(most_bytes, getsizeof=lambda read: min(read.num_bytes, most_bytes))
    return cached(kept, lock=threading.Lock())(_read)


def _read(terms: RequestTerms | RequestPlaceholders) -> _Read:
    num_bytes = MIN_BYTES + len(terms[0])
    if isinstance(terms, RequestPlaceholders):
        copied = translation_pb2.DoNotTranslate.FromString(terms.do_not_translate)
        try:
            kinds = placeholder_kinds_from_proto(copied.kinds)
        except ValueError as error:
            raise InvalidArgumentError(str(error), field="do_not_translate") from error
        placeholders = Placeholders(DEFAULT_KINDS if terms.every_kind else kinds, copied.patterns)
        return _Read(placeholders, num_bytes + placeholders.num_bytes)
    entries = dict[str, tuple[str, ...]]()
    for entry in translation_pb2.Glossary.FromString(terms.glossary).entries:
        if entry.source in entries:
            raise InvalidArgumentError(
                f"glossary: two entries match {entry.source!r}: put all target terms into one entry", field="glossary"
            )
        entries[entry.source] = tuple(entry.targets)
    glossary = Glossary(entries)
    return _Read(glossary, num_bytes + glossary.num_bytes)


_READ: Final = terms_reader()


MAX_LISTED_TOKENS = 256
"""Most tokens of a list option; every step reads the list for every row."""
MAX_CACHED_OPTIONS = 256


TranslationMessage: TypeAlias = (
    translation_pb2.TranslateTextRequest | translation_pb2.StreamTranslateTextRequest | translation_pb2.CorpusSettings
)


def parse_settings(request: TranslationMessage) -> Settings:
    """Parse what a request for translations says besides its texts.

    Raises:
        InvalidArgumentError: invalid options.
    """
    return Settings(
        model=request.model,
        stored_glossary=request.glossary.stored,
        parameters=TranslationParameters(
            options=_parse_options(request.options.SerializeToString()),
            source_language=request.source_language_code,
            target_language=request.target_language_code,
            attention=request.attention,
            truncate=request.truncate,
            split_sentences=request.split_sentences,
            cut_long_sentences=request.cut_long_sentences if request.HasField("cut_long_sentences") else None,
            copy_unreadable=request.copy_unreadable,
            **_parse_markup(request),
            terms=request_terms(request.glossary),
            placeholders=request_placeholders(request.do_not_translate, every_kind=request.keep_placeholders),
        ),
    )


def _parse_markup(request: TranslationMessage) -> dict[str, Any]:
    """Parse markup and rules; streams have none."""
    if isinstance(request, translation_pb2.StreamTranslateTextRequest):
        return {}
    try:
        markup = markup_from_proto(request.markup)
    except ValueError as error:
        raise InvalidArgumentError(str(error), field="markup") from error
    if markup is None and request.HasField("markup_rules"):
        raise InvalidArgumentError("markup_rules need markup: set it to HTML or XML", field="markup_rules")
    rules = rules_from_proto(request.markup_rules)
    check_tag_names((*rules.ignore_tags, *rules.non_splitting_tags, *rules.splitting_tags), "markup_rules")
    return {"markup": markup, "markup_rules": rules}


@lru_cache(MAX_CACHED_OPTIONS)
def _parse_options(serialized: bytes) -> DecodingOptions:
    """Parse options; cached, as most requests send the same bytes."""
    message = decoding_pb2.DecodingOptions.FromString(serialized)
    for name, listed in (("suppress_tokens", message.suppress_tokens), ("end_tokens", message.end_tokens)):
        if len(listed.ids) > MAX_LISTED_TOKENS:
            raise InvalidArgumentError(
                f"{name} takes at most {MAX_LISTED_TOKENS} tokens here, got {len(listed.ids)}", field=f"options.{name}"
            )
    try:
        options = options_from_proto(message)
    except ValueError as error:
        raise InvalidArgumentError(str(error), field="options.early_stopping") from error
    return DecodingOptions(**options)


def parse_attention_query(request: alignment_pb2.AlignTextRequest) -> AttentionQuery:
    """Parse the attention that a request wants.

    Raises:
        InvalidArgumentError: unknown kind of attention.
    """
    try:
        kinds = kinds_from_proto(request.kinds)
    except ValueError as error:
        raise InvalidArgumentError(str(error), field="kinds") from error
    return AttentionQuery(
        kinds=kinds,
        layer=request.layer if request.HasField("layer") else None,
        head=request.head if request.HasField("head") else None,
        each_head=request.each_head,
    )


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

        with single_text_field_names():
            last = await self._api.translate(
                parse_settings(request),
                [request.content],
                [request.target_prefix] if request.target_prefix else (),
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
        length_penalty = request.length_penalty if request.HasField("length_penalty") else None
        parameters = ScoringParameters(length_penalty=length_penalty, **_text_parameters(request, call))
        return await self._api.score(request.model, contents, targets, parameters=parameters, make=scores_to_proto)

    async def AlignText(self, request: AlignTextRequest, call: Call) -> AlignTextResponse:  # noqa: N802
        """Align all texts, or fail; cancellation frees the rows and stops."""
        contents, targets = [*request.contents], [*request.targets]
        call.record.note(contents, targets)
        check_request(request)
        parameters = TextParameters(**_text_parameters(request, call))
        query = partial(parse_attention_query, request)
        return await self._api.align(
            request.model, contents, targets, query=query, parameters=parameters, make=alignments_to_proto
        )


def _text_parameters(request: ScoreTextRequest | AlignTextRequest, call: Call) -> dict[str, Any]:
    """Return the fields of `TextParameters`."""
    return {
        "source_language": request.source_language_code,
        "target_language": request.target_language_code,
        "truncate": request.truncate,
        "deadline": call.deadline,
    }


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
