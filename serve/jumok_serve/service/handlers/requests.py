"""Parsing and validation of requests within their limits, and the terms that they have."""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from jumok_proto.alignment_conversion import kinds_from_proto
from jumok_proto.conversion import markup_from_proto, options_from_proto, rules_from_proto
from jumok_proto.errors import InvalidArgumentError
from jumok_proto.term_conversion import kinds_from_proto as placeholder_kinds_from_proto
from jumok_proto.v1 import alignment_pb2, decoding_pb2, translation_pb2
from jumok_serve.search.options import DecodingOptions
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.models.registry import LoadedModel
from jumok_serve.service.rpc.call import current_caller
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
    glossary: translation_pb2.Glossary,
    do_not_translate: translation_pb2.DoNotTranslate,
    stored: TermFinder | None = None,
) -> TermFinder | None:
    """Return the terms of a request, or None without any.

    Args:
        stored: the stored glossary that the request names.

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
        return stored
    terms = RequestTerms(
        translation_pb2.Glossary(entries=glossary.entries).SerializeToString(), do_not_translate.SerializeToString()
    )
    return terms if stored is None else Terminology(terms, stored)


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


MAX_TAGS = 200_000
"""Tags and entities of a request: each takes up to 300 bytes until the request is answered."""
MAX_TAG_NAMES = 1000
MAX_TAG_CHARACTERS = 20_000
"""Names of tags in the rules of a request, and their characters together; each text compares its tags with all."""


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


MAX_LISTED_TOKENS = 256
"""Most tokens of a list option; every step reads the list for every row."""
MAX_CACHED_OPTIONS = 256
MAX_NAME_CHARACTERS = 100_000
"""Most characters of a name, or of a language, as of a text: longer ones take a tenth of a second to compare."""
NAMES = frozenset({"model", "name", "source_language_code", "target_language_code", "glossary", "stored", "format"})
"""Fields that have a name; ``glossary`` is one where it is no message."""

SINGLE_TEXT_FIELDS = {"contents": "content", "contents[0]": "content", "target_prefixes[0]": "target_prefix"}

TranslationMessage: TypeAlias = (
    translation_pb2.TranslateTextRequest | translation_pb2.StreamTranslateTextRequest | translation_pb2.CorpusSettings
)


class ParsedRequest(NamedTuple):
    """A request for translations without its texts.

    Attributes:
        num_hypotheses: hypotheses of each text.
        max_tokens: most tokens of the hypotheses of a sentence.
    """

    parameters: TranslationParameters
    beam_size: int
    num_hypotheses: int
    max_tokens: int


def parse_request(
    model: LoadedModel, request: TranslationMessage, deadline: float | None, stored: TermFinder | None = None
) -> ParsedRequest:
    """Parse a request with a deadline, in ``time.monotonic()`` seconds; ``stored``: the glossary that it names.

    Raises:
        InvalidArgumentError: invalid options.
    """
    options = _parse_options(request.options.SerializeToString())
    defaults = model.manifest.generation
    parameters = TranslationParameters(
        options=options,
        source_language=request.source_language_code,
        target_language=request.target_language_code,
        attention=request.attention,
        truncate=request.truncate,
        split_sentences=request.split_sentences,
        cut_long_sentences=request.cut_long_sentences if request.HasField("cut_long_sentences") else None,
        copy_unreadable=request.copy_unreadable,
        **_parse_markup(request),
        terms=request_terms(request.glossary, request.do_not_translate, stored),
        deadline=deadline,
        caller=current_caller(),
    )
    num_hypotheses = options.num_hypotheses or (1 if parameters.in_parts else defaults.num_hypotheses)
    return ParsedRequest(
        parameters,
        beam_size=options.beam_size or defaults.beam_size,
        num_hypotheses=num_hypotheses,
        max_tokens=num_hypotheses * (options.max_length or defaults.max_length),
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


def check_request(message: Message, field: str = "") -> None:
    """Refuse a request with a field of a later version, at any depth, or with a name that is too long.

    Ignoring a field would give another result than the caller wanted, silently. Names are compared, and come back in
    errors.

    Raises:
        InvalidArgumentError: an unknown field; ``field`` is the path of its message, or ``request``.
    """
    unknown = UnknownFieldSet(message)
    if len(unknown) > 0:
        raise InvalidArgumentError(
            f"{field or 'the request'} holds the field number {unknown[0].field_number} with a value that this server "
            "does not know: leave it out, or call a newer server",
            field=field or "request",
        )
    for descriptor, value in message.ListFields():
        name = f"{field}.{descriptor.name}".lstrip(".")
        if descriptor.message_type is not None:
            for number, part in enumerate(value if descriptor.is_repeated else (value,)):
                check_request(part, f"{name}[{number}]" if descriptor.is_repeated else name)
        elif descriptor.name in NAMES and len(value) > MAX_NAME_CHARACTERS:
            raise InvalidArgumentError(
                f"{name} takes at most {MAX_NAME_CHARACTERS} characters, got {len(value)}: shorten it", field=name
            )


def check_num_texts(limits: ServiceLimits, num_texts: int) -> None:
    """Raise InvalidArgumentError for too many texts."""
    if num_texts > limits.max_texts:
        raise InvalidArgumentError(
            f"a request takes at most {limits.max_texts} texts, got {num_texts}; send several requests",
            field="contents",
        )


def check_lengths(limits: ServiceLimits, **texts: Sequence[str]) -> None:
    """Raise InvalidArgumentError for a text that is too long; keywords are request fields."""
    for field, field_texts in texts.items():
        for index, text in enumerate(field_texts):
            if len(text) > limits.max_characters:
                raise InvalidArgumentError(
                    f"a text takes at most {limits.max_characters} characters here, got {len(text)}: split it",
                    field=f"{field}[{index}]",
                )


def check_tags(limits: ServiceLimits, texts: Sequence[str]) -> None:
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


@contextmanager
def single_text_field_names() -> Iterator[None]:
    """Rename fields of InvalidArgumentError for a request of one text, as models take lists."""
    try:
        yield
    except InvalidArgumentError as error:
        if error.field not in SINGLE_TEXT_FIELDS:
            raise
        name = SINGLE_TEXT_FIELDS[error.field]
        raise InvalidArgumentError(str(error).replace(error.field, name), field=name) from error
