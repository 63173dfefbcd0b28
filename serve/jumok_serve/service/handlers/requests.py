"""Parsing of messages for translations, and the terms that they have."""

import threading
from collections import OrderedDict
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

from jumok_proto.alignment_conversion import kinds_from_proto
from jumok_proto.conversion import markup_from_proto, options_from_proto, rules_from_proto
from jumok_proto.errors import InvalidArgumentError
from jumok_proto.term_conversion import kinds_from_proto as placeholder_kinds_from_proto
from jumok_proto.v1 import alignment_pb2, decoding_pb2, translation_pb2
from jumok_serve.search.options import DecodingOptions
from jumok_serve.service.handlers.api import Settings, check_tag_names
from jumok_serve.tasks.attention_query import AttentionQuery
from jumok_serve.tasks.model import TranslationParameters
from jumok_serve.tasks.terms import TermFinder, TermMatch
from jumok_serve.text.terms import Glossary, Placeholders, Terminology

MAX_REQUEST_ENTRIES: Final = 1000
"""Most glossary entries of a request."""
MAX_KEPT_BYTES: Final = 16 * 2**20
"""Memory of the terms that are kept after they were read; those of a single request are kept in any case."""
MIN_BYTES: Final = 4096
"""Memory of the terms of a request, besides its entries and patterns."""


class RequestTerms(NamedTuple):
    """Serialized glossary and parts to copy of a request; a `TermFinder`."""

    glossary: bytes
    do_not_translate: bytes

    def find(self, text: str) -> list[TermMatch]:
        """Return the terms of a text; raises InvalidArgumentError if the request's terms cannot be used."""
        return READ.get(self).find(text)


def request_terms(
    glossary: translation_pb2.Glossary, do_not_translate: translation_pb2.DoNotTranslate
) -> TermFinder | None:
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
    if not glossary.entries and not do_not_translate.kinds and not do_not_translate.patterns:
        return None
    return RequestTerms(
        translation_pb2.Glossary(entries=glossary.entries).SerializeToString(), do_not_translate.SerializeToString()
    )


class _Read(NamedTuple):
    """Terms that were read, and the memory that they take."""

    terminology: Terminology
    num_bytes: int


class ReadTerms:
    """The terms that were used last; any thread may call the methods.

    All texts of a request use its terms, and many requests send the same ones.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[RequestTerms, _Read] = OrderedDict()  # last used last
        self._num_bytes = 0

    def get(self, terms: RequestTerms) -> Terminology:
        """Return terms, read if they are not kept; raises InvalidArgumentError if they cannot be used."""
        with self._lock:
            found = self._kept.get(terms)
            if found is not None:
                self._kept.move_to_end(terms)
                return found.terminology
        found = _read(terms)
        with self._lock:
            if terms not in self._kept:  # another thread may have read them too
                self._kept[terms] = found
                self._num_bytes += found.num_bytes
            while len(self._kept) > 1 and self._num_bytes > MAX_KEPT_BYTES:
                _, dropped = self._kept.popitem(last=False)
                self._num_bytes -= dropped.num_bytes
        return found.terminology


READ: Final = ReadTerms()


def _read(terms: RequestTerms) -> _Read:
    entries = dict[str, tuple[str, ...]]()
    for entry in translation_pb2.Glossary.FromString(terms.glossary).entries:
        if entry.source in entries:
            raise InvalidArgumentError(
                f"glossary: two entries match {entry.source!r}: put all target terms into one entry", field="glossary"
            )
        entries[entry.source] = tuple(entry.targets)
    copied = translation_pb2.DoNotTranslate.FromString(terms.do_not_translate)
    try:
        kinds = placeholder_kinds_from_proto(copied.kinds)
    except ValueError as error:
        raise InvalidArgumentError(str(error), field="do_not_translate") from error
    glossary = Glossary(entries)
    placeholders = Placeholders(kinds, copied.patterns)
    num_bytes = MIN_BYTES + len(terms.glossary) + len(terms.do_not_translate)
    return _Read(Terminology(placeholders, glossary), num_bytes + glossary.num_bytes + placeholders.num_bytes)


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
            terms=request_terms(request.glossary, request.do_not_translate),
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
