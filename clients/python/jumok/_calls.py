"""What both clients share: how a request is made and checked, and how an answer is read."""

from collections.abc import Iterable, Sequence
from typing import SupportsFloat, SupportsIndex

from jumok._errors import invalid_field
from jumok._results import TranslationUpdate
from jumok_proto.alignment_conversion import alignments_from_proto, kinds_to_proto
from jumok_proto.alignments import ATTENTION_KINDS, Alignment, AttentionKind
from jumok_proto.conversion import (
    model_from_proto,
    options_to_proto,
    response_from_proto,
    scores_from_proto,
    timings_from_proto,
    translation_from_proto,
)
from jumok_proto.error_conversion import error_from_proto
from jumok_proto.errors import InternalError, JumokError
from jumok_proto.options import EarlyStopping, Options, check_names
from jumok_proto.results import Model, Score, Translation
from jumok_proto.v1 import alignment_pb2, model_pb2, translation_pb2

DEFAULT_TIMEOUT_S = 60.0
LONGEST_TIMEOUT_S = 365.0 * 24 * 3600
"""Longer ones, infinity among them, overflow gRPC's clock, which then calls them past."""


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
    """Make a request; raise InvalidArgumentError for what cannot be sent. What can be sent is for the server to judge."""
    prefixes = [target_prefix] if isinstance(texts, str) and target_prefix is not None else target_prefix
    contents = _texts("contents", texts)
    return translation_pb2.TranslateTextRequest(
        model=check_text("model", model),
        contents=contents,
        options=options_to_proto(_checked(options)),
        truncate=_flag("truncate", truncate),
        split_sentences=_flag("split_sentences", split_sentences),
        source_language_code=check_text("source_language_code", source_language or ""),
        target_language_code=check_text("target_language_code", target_language or ""),
        target_prefixes=_optional_texts("target_prefixes", prefixes, len(contents)),
        attention=_flag("attention", attention),
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
    """Make a request; raise InvalidArgumentError for what cannot be sent. What can be sent is for the server to judge."""
    return translation_pb2.StreamTranslateTextRequest(
        model=check_text("model", model),
        content=check_text("content", text),
        options=options_to_proto(_checked(options)),
        truncate=_flag("truncate", truncate),
        split_sentences=_flag("split_sentences", split_sentences),
        source_language_code=check_text("source_language_code", source_language or ""),
        target_language_code=check_text("target_language_code", target_language or ""),
        target_prefix=check_text("target_prefix", target_prefix or ""),
        attention=_flag("attention", attention),
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
    """Make the settings of a corpus; raise InvalidArgumentError for what cannot be sent."""
    return translation_pb2.CorpusSettings(
        model=check_text("model", model),
        options=options_to_proto(_checked(options)),
        truncate=_flag("truncate", truncate),
        split_sentences=_flag("split_sentences", split_sentences),
        source_language_code=check_text("source_language_code", source_language or ""),
        target_language_code=check_text("target_language_code", target_language or ""),
        attention=_flag("attention", attention),
        window=window,
        order=translation_pb2.CORPUS_ORDER_INPUT,
    )


def check_content(text: object) -> None:
    """Raise InvalidArgumentError for what is no text that can be sent."""
    check_text("content", text)


def check_prefix(prefix: str | None) -> str:
    """Give back what all translations begin with; raise InvalidArgumentError for what is no text that can be sent."""
    return check_text("target_prefix", prefix or "")


def check_complete(update: TranslationUpdate | None) -> None:
    """Raise InternalError where a stream has ended before its translation."""
    if update is None or update.translation is None:
        raise InternalError("the server ended a stream before the translation")


def check_count(field: str, value: object, *, least: int, most: int | None = None) -> int:
    """Give back a number; raise InvalidArgumentError where it is no whole one, or out of its bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        bounds = f"from {least} on" if most is None else f"from {least} to {most}"
        raise invalid_field(field, f"must be a whole number {bounds}, got {value!r}")
    return value


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
    """Make a request; raise InvalidArgumentError for what cannot be sent. What can be sent is for the server to judge."""
    if isinstance(texts, str) != isinstance(targets, str):
        raise invalid_field("targets", "must be a str for one text, and a sequence of them for several")
    contents = _texts("contents", texts)
    return translation_pb2.ScoreTextRequest(
        model=check_text("model", model),
        contents=contents,
        targets=_one_each("targets", _texts("targets", targets), len(contents)),
        source_language_code=check_text("source_language_code", source_language or ""),
        target_language_code=check_text("target_language_code", target_language or ""),
        length_penalty=_number("length_penalty", length_penalty),
        truncate=_flag("truncate", truncate),
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
    """Make a request; raise InvalidArgumentError for what cannot be sent. What can be sent is for the server to judge."""
    given = [targets] if isinstance(texts, str) and targets is not None else targets
    contents = _texts("contents", texts)
    return alignment_pb2.AlignTextRequest(
        model=check_text("model", model),
        contents=contents,
        targets=_optional_texts("targets", given, len(contents)),
        kinds=kinds_to_proto(_kinds(kinds)),
        layer=_integer("layer", layer),
        head=_integer("head", head),
        each_head=_flag("each_head", each_head),
        source_language_code=check_text("source_language_code", source_language or ""),
        target_language_code=check_text("target_language_code", target_language or ""),
        truncate=_flag("truncate", truncate),
    )


def get_model_request(name: str) -> model_pb2.GetModelRequest:
    """Ask for one model."""
    return model_pb2.GetModelRequest(name=check_text("name", name))


def read_translations(response: translation_pb2.TranslateTextResponse, count: int) -> list[Translation]:
    """Read an answer to a request of ``count`` texts."""
    if len(response.translations) != count or not all(answer.hypotheses for answer in response.translations):
        raise InternalError(f"the server answered {count} texts with {len(response.translations)} translations")
    try:
        return response_from_proto(response)
    except ValueError as error:
        raise InternalError(f"the server's answer cannot be read: {error}") from error


def read_update(response: translation_pb2.StreamTranslateTextResponse, before: str) -> TranslationUpdate:
    """Read a message of a stream whose text ``before`` is known."""
    text = response.stable_text
    if not text.startswith(before):
        raise InternalError("the server took back what it had said was sure of a translation")
    last = response.HasField("translation")
    translation = _read(response.translation, response.timings) if last else None
    return TranslationUpdate(text=text, added=text[len(before) :], translation=translation)


def read_corpus_result(result: translation_pb2.CorpusResult) -> Translation | JumokError:
    """Read what has become of one text of a corpus."""
    if result.HasField("error"):
        return error_from_proto(result.error)
    return _read(result.translation, result.timings)


def _read(message: translation_pb2.Translation, timings: translation_pb2.Timings) -> Translation:
    if not message.hypotheses:
        raise InternalError("the server answered a text with no translation")
    try:
        return translation_from_proto(message, timings_from_proto(timings))
    except ValueError as error:
        raise InternalError(f"the server's answer cannot be read: {error}") from error


def read_scores(response: translation_pb2.ScoreTextResponse, count: int) -> list[Score]:
    """Read an answer to a request to score ``count`` texts."""
    if len(response.scores) != count:
        raise InternalError(f"the server answered {count} texts with {len(response.scores)} scores")
    return scores_from_proto(response)


def read_alignments(response: alignment_pb2.AlignTextResponse, count: int) -> list[Alignment]:
    """Read an answer to a request to align ``count`` texts."""
    if len(response.alignments) != count:
        raise InternalError(f"the server answered {count} texts with {len(response.alignments)} alignments")
    try:
        return alignments_from_proto(response)
    except ValueError as error:
        raise InternalError(f"the server's answer cannot be read: {error}") from error


def read_models(response: model_pb2.ListModelsResponse) -> list[Model]:
    """Read the list of models."""
    return [model_from_proto(model) for model in response.models]


def read_model(response: model_pb2.GetModelResponse) -> Model:
    """Read one model."""
    return model_from_proto(response.model)


def check_open(closed: bool) -> None:
    """Refuse to use a client after its end, as a closed file would."""
    if closed:
        raise ValueError("the client is closed")


def check_timeout(timeout_s: float) -> float:
    """Give back a time limit in seconds; raise InvalidArgumentError where it is none."""
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s > 0:
        raise invalid_field("timeout_s", f"must be a number of seconds above 0, got {timeout_s!r}")
    return float(min(timeout_s, LONGEST_TIMEOUT_S))


def _checked(options: Options) -> Options:
    """The options in the types that a message takes; raise InvalidArgumentError, or TypeError for one that there is not."""
    check_names(options)
    return Options(
        beam_size=_integer("options.beam_size", options.get("beam_size")),
        num_hypotheses=_integer("options.num_hypotheses", options.get("num_hypotheses")),
        length_penalty=_number("options.length_penalty", options.get("length_penalty")),
        early_stopping=_early_stopping(options.get("early_stopping")),
        min_length=_integer("options.min_length", options.get("min_length")),
        max_length=_integer("options.max_length", options.get("max_length")),
        no_repeat_ngram_size=_integer("options.no_repeat_ngram_size", options.get("no_repeat_ngram_size")),
        repetition_penalty=_number("options.repetition_penalty", options.get("repetition_penalty")),
        suppress_tokens=_tokens("suppress_tokens", options.get("suppress_tokens")),
        end_tokens=_tokens("end_tokens", options.get("end_tokens")),
        forced_first_token=_integer("options.forced_first_token", options.get("forced_first_token")),
        sample=None if (sample := options.get("sample")) is None else _flag("options.sample", sample),
        temperature=_number("options.temperature", options.get("temperature")),
        top_k=_integer("options.top_k", options.get("top_k")),
        top_p=_number("options.top_p", options.get("top_p")),
        seed=_integer("options.seed", options.get("seed"), bits=64),
    )


def _texts(field: str, texts: str | Sequence[str]) -> list[str]:
    if not isinstance(texts, Iterable):
        raise invalid_field(field, f"must be a str, or a sequence of them for several texts, got {texts!r}")
    return [
        check_text(f"{field}[{index}]", text) for index, text in enumerate([texts] if isinstance(texts, str) else texts)
    ]


def _optional_texts(field: str, values: object, texts: int) -> list[str]:
    """One for each text, or none at all; a text without one has None, which is sent as an empty one."""
    if values is None:
        return []
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise invalid_field(field, "must be a str for one text, and a sequence of them for several")
    sent = ["" if value is None else check_text(f"{field}[{index}]", value) for index, value in enumerate(values)]
    return _one_each(field, sent, texts)


def _kinds(kinds: Sequence[AttentionKind]) -> Sequence[AttentionKind]:
    usable = isinstance(kinds, Sequence) and not isinstance(kinds, str)
    if not usable or not kinds or any(kind not in ATTENTION_KINDS for kind in kinds):
        raise invalid_field("kinds", f"must be a sequence of some of {', '.join(ATTENTION_KINDS)}, got {kinds!r}")
    return kinds


def _one_each(field: str, values: list[str], texts: int) -> list[str]:
    if len(values) != texts:
        raise invalid_field(field, f"must be one for each of {texts} texts, got {len(values)}")
    return values


def check_text(field: str, text: object) -> str:
    """Give back a text; raise InvalidArgumentError for what is none, or cannot be sent."""
    if not isinstance(text, str):
        raise invalid_field(field, f"must be a str, got {type(text).__name__}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise invalid_field(
            field, f"holds a lone surrogate (U+{ord(text[error.start]):04X} at {error.start}), which is no character"
        ) from error
    return text


def _flag(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise invalid_field(field, f"must be True or False, got {value!r}")
    return value


def _integer(field: str, value: SupportsIndex | None, *, bits: int = 32) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise invalid_field(field, f"must be an integer, got {value!r}")
    number = value.__index__()
    bound = 2 ** (bits - 1)
    if not -bound <= number < bound:
        raise invalid_field(field, f"must lie between {-bound} and {bound - 1}, got {number}")
    return number


def _tokens(name: str, values: Sequence[SupportsIndex] | None) -> list[int] | None:
    if values is None:
        return None
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise invalid_field(f"options.{name}", f"must be a sequence of token ids, got {values!r}")
    ids = [_integer(f"options.{name}", value) for value in values]
    if None in ids:
        raise invalid_field(f"options.{name}", "must be a sequence of token ids, got None among them")
    return [token for token in ids if token is not None]


def _number(field: str, value: SupportsFloat | None) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, SupportsFloat):
        raise invalid_field(field, f"must be a number, got {value!r}")
    try:
        return float(value)
    except OverflowError as error:
        raise invalid_field(field, "must be a finite number, got an integer beyond all of them") from error


def _early_stopping(value: EarlyStopping | None) -> EarlyStopping | None:
    if value is not None and not isinstance(value, bool) and value != "never":
        raise invalid_field("options.early_stopping", f"must be False, True or 'never', got {value!r}")
    return value
