"""Requests, made of arguments of the right type and number; the server checks their values."""

from collections.abc import Sequence

from jumok._validation import (
    check_flag,
    check_integer,
    check_kinds,
    check_length,
    check_number,
    check_optional_texts,
    check_options,
    check_text,
    check_texts,
    invalid_field,
)
from jumok_proto.alignment_conversion import kinds_to_proto
from jumok_proto.attention import AttentionKind
from jumok_proto.conversion import options_to_proto
from jumok_proto.options import Options
from jumok_proto.v1 import alignment_pb2, model_pb2, translation_pb2


def translate_request(
    texts: str | Sequence[str],
    *,
    source_language: str | None,
    target_language: str | None,
    target_prefix: str | Sequence[str | None] | None,
    attention: bool,
    truncate: bool,
    split_sentences: bool,
    model: str,
    options: Options,
) -> translation_pb2.TranslateTextRequest:
    """Make a TranslateText request."""
    prefixes = [target_prefix] if isinstance(texts, str) and target_prefix is not None else target_prefix
    contents = check_texts("contents", texts)
    return translation_pb2.TranslateTextRequest(
        model=check_text("model", model),
        contents=contents,
        options=options_to_proto(check_options(options)),
        truncate=check_flag("truncate", truncate),
        split_sentences=check_flag("split_sentences", split_sentences),
        source_language_code=check_text("source_language_code", source_language or ""),
        target_language_code=check_text("target_language_code", target_language or ""),
        target_prefixes=check_optional_texts("target_prefixes", prefixes, len(contents)),
        attention=check_flag("attention", attention),
    )


def stream_request(
    text: str,
    *,
    source_language: str | None,
    target_language: str | None,
    target_prefix: str | None,
    attention: bool,
    truncate: bool,
    split_sentences: bool,
    model: str,
    options: Options,
) -> translation_pb2.StreamTranslateTextRequest:
    """Make a StreamTranslateText request."""
    return translation_pb2.StreamTranslateTextRequest(
        model=check_text("model", model),
        content=check_text("content", text),
        options=options_to_proto(check_options(options)),
        truncate=check_flag("truncate", truncate),
        split_sentences=check_flag("split_sentences", split_sentences),
        source_language_code=check_text("source_language_code", source_language or ""),
        target_language_code=check_text("target_language_code", target_language or ""),
        target_prefix=check_text("target_prefix", target_prefix or ""),
        attention=check_flag("attention", attention),
    )


def corpus_settings(
    *,
    source_language: str | None,
    target_language: str | None,
    attention: bool,
    truncate: bool,
    split_sentences: bool,
    model: str,
    window: int,
    options: Options,
) -> translation_pb2.CorpusSettings:
    """Make the settings of a TranslateCorpus call."""
    return translation_pb2.CorpusSettings(
        model=check_text("model", model),
        options=options_to_proto(check_options(options)),
        truncate=check_flag("truncate", truncate),
        split_sentences=check_flag("split_sentences", split_sentences),
        source_language_code=check_text("source_language_code", source_language or ""),
        target_language_code=check_text("target_language_code", target_language or ""),
        attention=check_flag("attention", attention),
        window=window,
        order=translation_pb2.CORPUS_ORDER_INPUT,
    )


def score_request(
    texts: str | Sequence[str],
    targets: str | Sequence[str],
    *,
    source_language: str | None,
    target_language: str | None,
    length_penalty: float | None,
    truncate: bool,
    model: str,
) -> translation_pb2.ScoreTextRequest:
    """Make a ScoreText request."""
    if isinstance(texts, str) != isinstance(targets, str):
        raise invalid_field("targets", "must be a str for one text, and a sequence of them for several")
    contents = check_texts("contents", texts)
    return translation_pb2.ScoreTextRequest(
        model=check_text("model", model),
        contents=contents,
        targets=check_length("targets", check_texts("targets", targets), len(contents)),
        source_language_code=check_text("source_language_code", source_language or ""),
        target_language_code=check_text("target_language_code", target_language or ""),
        length_penalty=check_number("length_penalty", length_penalty),
        truncate=check_flag("truncate", truncate),
    )


def align_request(
    texts: str | Sequence[str],
    targets: str | Sequence[str | None] | None,
    *,
    kinds: Sequence[AttentionKind],
    layer: int | None,
    head: int | None,
    each_head: bool,
    source_language: str | None,
    target_language: str | None,
    truncate: bool,
    model: str,
) -> alignment_pb2.AlignTextRequest:
    """Make an AlignText request."""
    given = [targets] if isinstance(texts, str) and targets is not None else targets
    contents = check_texts("contents", texts)
    return alignment_pb2.AlignTextRequest(
        model=check_text("model", model),
        contents=contents,
        targets=check_optional_texts("targets", given, len(contents)),
        kinds=kinds_to_proto(check_kinds(kinds)),
        layer=check_integer("layer", layer),
        head=check_integer("head", head),
        each_head=check_flag("each_head", each_head),
        source_language_code=check_text("source_language_code", source_language or ""),
        target_language_code=check_text("target_language_code", target_language or ""),
        truncate=check_flag("truncate", truncate),
    )


def get_model_request(name: str) -> model_pb2.GetModelRequest:
    """Make a GetModel request."""
    return model_pb2.GetModelRequest(name=check_text("name", name))
