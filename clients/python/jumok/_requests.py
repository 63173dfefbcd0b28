"""Requests, made of arguments of the right type and number; the server checks their values."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack, cast

from jumok._validation import (
    check_flag,
    check_glossary,
    check_integer,
    check_kinds,
    check_length,
    check_markup,
    check_number,
    check_optional_texts,
    check_options,
    check_placeholders,
    check_rules,
    check_text,
    check_texts,
    invalid_field,
)
from jumok_proto.attention import AttentionKind
from jumok_proto.conversion import kinds_to_proto, options_to_proto
from jumok_proto.glossaries import write_tsv
from jumok_proto.text_options import TextOptions, TranslateOptions, separate, splits_sentences
from jumok_proto.v1 import alignment_pb2, glossary_pb2, translation_pb2


class RequestSettings(TypedDict, total=False):
    """Settings of every request with texts."""

    source_language: str | None
    target_language: str | None
    truncate: bool
    model: str


class TranslateSettings(RequestSettings, total=False):
    """Settings of every request for translations."""

    attention: bool
    split_sentences: bool | None


class TranslateParameters(TranslateSettings, TranslateOptions, total=False):
    """Settings and options of a translation."""


class AlignParameters(RequestSettings, total=False):
    """Settings of a request for attention."""

    kinds: Sequence[AttentionKind]
    layer: int | None
    head: int | None
    each_head: bool


def translate_request(
    texts: str | Sequence[str],
    *,
    target_prefix: str | Sequence[str | None] | None,
    **settings: Unpack[TranslateParameters],
) -> translation_pb2.TranslateTextRequest:
    """Make a TranslateText request."""
    prefixes = [target_prefix] if isinstance(texts, str) and target_prefix is not None else target_prefix
    contents = check_texts("contents", texts)
    return translation_pb2.TranslateTextRequest(
        contents=contents,
        target_prefixes=check_optional_texts("target_prefixes", prefixes, len(contents)),
        **_translate_fields(settings, prefixes),
    )


def stream_request(
    text: str, *, target_prefix: str | None, **settings: Unpack[TranslateParameters]
) -> translation_pb2.StreamTranslateTextRequest:
    """Make a StreamTranslateText request."""
    if settings.get("markup"):
        raise invalid_field("markup", "tags have their places only at the end: use translate, or translate_iter")
    return translation_pb2.StreamTranslateTextRequest(
        content=check_text("content", text),
        target_prefix=check_text("target_prefix", target_prefix or ""),
        **_translate_fields(settings, target_prefix),
    )


def corpus_settings(
    *, target_prefix: str | None, window: int, **settings: Unpack[TranslateParameters]
) -> translation_pb2.CorpusSettings:
    """Make the settings of a TranslateCorpus call."""
    return translation_pb2.CorpusSettings(
        window=window, order=translation_pb2.CORPUS_ORDER_INPUT, **_translate_fields(settings, target_prefix)
    )


def _fields(settings: RequestSettings) -> dict[str, Any]:
    """Make the fields of every request with texts."""
    return {
        "model": check_text("model", settings.get("model", "")),
        "truncate": check_flag("truncate", settings.get("truncate", False)),
        "source_language_code": check_text("source_language_code", settings.get("source_language") or ""),
        "target_language_code": check_text("target_language_code", settings.get("target_language") or ""),
    }


def _translate_fields(settings: TranslateParameters, target_prefix: object) -> dict[str, Any]:
    """Make the fields of every request for translations."""
    attention = settings.get("attention", False)
    options = {name: value for name, value in settings.items() if name not in TranslateSettings.__annotations__}
    text_options, decoding = separate(cast("TranslateOptions", options))
    splits = splits_sentences(
        settings.get("split_sentences"), attention=attention, target_prefix=target_prefix, options=decoding
    )
    return {
        **_fields(settings),
        "options": options_to_proto(check_options(decoding)),
        "split_sentences": check_flag("split_sentences", splits),
        "attention": check_flag("attention", attention),
        **_text_fields(text_options),
    }


def _text_fields(options: TextOptions) -> dict[str, Any]:
    """Make the fields of a request from options for texts."""
    cut = options.get("cut_long_sentences")
    fields: dict[str, Any] = {
        "cut_long_sentences": None if cut is None else check_flag("cut_long_sentences", cut),
        "copy_unreadable": check_flag("copy_unreadable", options.get("copy_unreadable", False)),
    }
    if markup := options.get("markup"):
        fields["markup"] = check_markup(markup)
    if rules := options.get("markup_rules"):
        fields["markup_rules"] = check_rules(rules)
    glossary, stored = options.get("glossary"), options.get("stored_glossary")
    if glossary or stored:
        entries = check_glossary(glossary or {}).items()
        fields["glossary"] = translation_pb2.Glossary(
            entries=[translation_pb2.GlossaryEntry(source=source, targets=targets) for source, targets in entries],
            stored=check_text("glossary.stored", stored or ""),
        )
    patterns, kinds = options.get("do_not_translate") or (), options.get("placeholders", True)
    fields["keep_placeholders"] = kinds is True
    kinds = () if isinstance(kinds, bool) else kinds
    if patterns or kinds:
        texts = check_texts("do_not_translate", [*patterns] if not isinstance(patterns, str) else [patterns])
        fields["do_not_translate"] = translation_pb2.DoNotTranslate(patterns=texts, kinds=check_placeholders(kinds))
    return fields


def score_request(
    texts: str | Sequence[str],
    targets: str | Sequence[str],
    *,
    length_penalty: float | None,
    **settings: Unpack[RequestSettings],
) -> translation_pb2.ScoreTextRequest:
    """Make a ScoreText request."""
    if isinstance(texts, str) != isinstance(targets, str):
        raise invalid_field("targets", "must be a str for one text, and a sequence of them for several")
    contents = check_texts("contents", texts)
    return translation_pb2.ScoreTextRequest(
        contents=contents,
        targets=check_length("targets", check_texts("targets", targets), len(contents)),
        length_penalty=check_number("length_penalty", length_penalty),
        **_fields(settings),
    )


def align_request(
    texts: str | Sequence[str],
    targets: str | Sequence[str | None] | None,
    **settings: Unpack[AlignParameters],
) -> alignment_pb2.AlignTextRequest:
    """Make an AlignText request."""
    given = [targets] if isinstance(texts, str) and targets is not None else targets
    contents = check_texts("contents", texts)
    return alignment_pb2.AlignTextRequest(
        contents=contents,
        targets=check_optional_texts("targets", given, len(contents)),
        kinds=kinds_to_proto(check_kinds(settings["kinds"])),
        layer=check_integer("layer", settings["layer"]),
        head=check_integer("head", settings["head"]),
        each_head=check_flag("each_head", settings["each_head"]),
        **_fields(settings),
    )


def glossary_entries(
    entries: str | Mapping[str, str | Sequence[str]], source_language: str, target_language: str
) -> glossary_pb2.GlossaryEntries:
    """Make the entries of a stored glossary for a pair of languages."""
    if not isinstance(entries, str | Mapping):
        raise invalid_field("entries", f"must map source terms to target terms, got {type(entries).__name__}")
    try:
        tsv = entries if isinstance(entries, str) else write_tsv(entries)
    except ValueError as error:
        raise invalid_field("entries", str(error)) from error
    return glossary_pb2.GlossaryEntries(
        tsv=check_text("entries", tsv),
        source_language_code=check_text("source_language_code", source_language),
        target_language_code=check_text("target_language_code", target_language),
    )
