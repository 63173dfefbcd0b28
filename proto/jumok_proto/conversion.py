"""Results, options, terms and alignments as protobuf messages, and back."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeAlias, TypeVar, cast, get_args, get_origin

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from jumok_proto.alignments import Alignment
from jumok_proto.attention import ATTENTION_KINDS, AlignedToken, AttentionKind, AttentionWeights, Matrix
from jumok_proto.markup import MarkupKind, MarkupRules
from jumok_proto.options import OPTIONS, EarlyStopping, Options
from jumok_proto.results import (
    AppliedTerm,
    BundleState,
    BundleSummary,
    DecodingDefaults,
    DetectedLanguage,
    FinishReason,
    Hypothesis,
    LanguagePair,
    LoadResult,
    Model,
    ModelState,
    PivotTranslation,
    Route,
    Score,
    TextSpan,
    Timings,
    Translation,
)
from jumok_proto.v1 import admin_pb2, alignment_pb2, decoding_pb2, model_pb2, translation_pb2
from jumok_proto.v1.decoding_pb2 import TokenIds

if TYPE_CHECKING:
    from google.protobuf.internal.enum_type_wrapper import _EnumTypeWrapper

# --- fields of results, by name ---

Value = TypeVar("Value")
Sent = TypeVar("Sent", bound=Message)
Name = TypeVar("Name", bound=str)
Number = TypeVar("Number", bound=int)

_SENT_NAMES = {
    "language": "language_code",
    "source": "source_language_code",
    "source_language": "source_language_code",
    "source_languages": "source_language_codes",
    "source_confidence": "source_language_confidence",
    "target": "target_language_code",
    "target_language": "target_language_code",
    "target_languages": "target_language_codes",
    "default_pair": "default_language_pair",
    "queue_s": "queue_duration",
    "encode_s": "encode_duration",
    "decode_s": "decode_duration",
    "total_s": "total_duration",
    "created": "create_time",
    "type": "resource_type",
    "name": "resource_name",
}
"""Fields of messages without a field of the same name, by the results' names."""


class Form(NamedTuple):
    """How messages hold a value."""

    to_proto: Callable[[Any], Any]
    from_proto: Callable[[Any], Any]


AnyForm: TypeAlias = "Form | Conversion[Any, Any] | Enumeration[Any, Any]"


def each(form: "AnyForm") -> Form:
    """Give the form of a repeated field, with the form of its items."""
    return Form(lambda values: map(form.to_proto, values), lambda messages: tuple(map(form.from_proto, messages)))


class Conversion(Generic[Value, Sent]):
    """Conversion of a type of results.

    Args:
        kind: dataclass or named tuple.
        message: message with a field for each field of ``kind``.
        fields: fields to convert; all by default.
        form: form of all fields without another one.
        forms: forms of fields that messages hold in another way.
    """

    def __init__(
        self,
        kind: type[Value],
        message: type[Sent],
        *,
        fields: Iterable[str] | None = None,
        form: Form | None = None,
        **forms: "AnyForm",
    ) -> None:
        self._kind: Callable[..., Value] = kind
        self._message = message
        known = message.DESCRIPTOR.fields_by_name
        self._writers: list[tuple[str, Callable[[Value], Any]]] = []
        self._readers: list[tuple[str, Callable[[Sent], Any]]] = []
        for name in kind.__annotations__ if fields is None else fields:
            field, annotation = known[name if name in known else _SENT_NAMES[name]], kind.__annotations__[name]
            origin: Any = get_origin(annotation)
            chosen = forms.get(name, form) or (Form(tuple, tuple) if origin is tuple else None)
            optional = NoneType in get_args(annotation)
            self._writers.append((field.name, _writer(name, chosen)))
            self._readers.append(
                (name, _reader(field.name, chosen, optional=optional, has_presence=field.has_presence))
            )

    def to_proto(self, result: Value, **others: object) -> Sent:
        """Make the message of a result, with values of its other fields."""
        return self._message(**{name: write(result) for name, write in self._writers}, **others)

    def from_proto(self, message: Sent, **others: object) -> Value:
        """Read a message into a result, with values of its other fields."""
        return self._kind(**self.read(message), **others)

    def read(self, message: Sent) -> dict[str, Any]:
        """Read the fields of a message."""
        return {name: read(message) for name, read in self._readers}


def _writer(name: str, form: "AnyForm | None") -> Callable[[Any], Any]:
    """Make a function that gives the value of a message's field from a result; None leaves it out."""
    get = attrgetter(name)
    if form is None:
        return get
    return lambda result: None if (value := get(result)) is None else form.to_proto(value)


def _reader(name: str, form: "AnyForm | None", *, optional: bool, has_presence: bool) -> Callable[[Any], Any]:
    """Make a function that gives the value of a result's field from a message.

    Args:
        optional: True for None if the message lacks the field, or if it has the default of a field without presence.
        has_presence: True if messages tell a field that is not set from one with the default.
    """
    get: Callable[[Any], Any] = attrgetter(name)
    read: Callable[[Any], Any] = get if form is None else lambda message: form.from_proto(get(message))
    if not optional:
        return read
    if has_presence:
        return lambda message: read(message) if message.HasField(name) else None
    return lambda message: read(message) or None


class Enumeration(Generic[Name, Number]):
    """Conversion of the names of an enum's values, in small letters and without prefix.

    Args:
        prefix: beginning of the values' names.
        refusal: message of the ValueError for an unknown number, with ``{}`` for the number.
        default: name for an unknown number, instead of an error.
    """

    def __init__(
        self,
        names: Iterable[Name],
        enum: "_EnumTypeWrapper[Number]",
        prefix: str,
        *,
        refusal: str = "",
        default: Name | None = None,
    ) -> None:
        self.numbers = {name: enum.Value(f"{prefix}_{name.upper()}") for name in names}
        self._names: dict[int, Name | None] = {number: name for name, number in self.numbers.items()}
        self._refusal, self._default = refusal, default

    def to_proto(self, name: Name) -> Number:
        """Give the number of a name."""
        return self.numbers[name]

    def from_proto(self, number: int) -> Name:
        """Give the name of a number."""
        if (name := self._names.get(number, self._default)) is None:
            raise ValueError(self._refusal.format(number))
        return name


# --- options, scores and models ---

_MARKUP: Enumeration[MarkupKind, translation_pb2.Markup.ValueType] = Enumeration(
    get_args(MarkupKind), translation_pb2.Markup, "MARKUP", refusal="markup has the unknown value {}"
)

_EARLY_STOPPING: dict[EarlyStopping | None, decoding_pb2.EarlyStopping.ValueType] = {
    None: decoding_pb2.EARLY_STOPPING_UNSPECIFIED,
    False: decoding_pb2.EARLY_STOPPING_HEURISTIC,
    True: decoding_pb2.EARLY_STOPPING_IMMEDIATE,
    "never": decoding_pb2.EARLY_STOPPING_NEVER,
}
_EARLY_STOPPING_BACK = {number: value for value, number in _EARLY_STOPPING.items()}

_TOKEN_IDS = {name for name, option in OPTIONS.items() if option.kind == "token_ids"}


def markup_to_proto(kind: MarkupKind | None) -> translation_pb2.Markup.ValueType:
    """Make the value of a markup; raise ValueError for an unknown one."""
    if kind is None:
        return translation_pb2.MARKUP_UNSPECIFIED
    if kind not in _MARKUP.numbers:
        raise ValueError(f"must be 'html', 'xml' or None, got {kind!r}")
    return _MARKUP.to_proto(kind)


def markup_from_proto(number: int) -> MarkupKind | None:
    """Read a markup; raise ValueError for an unknown one."""
    return None if number == translation_pb2.MARKUP_UNSPECIFIED else _MARKUP.from_proto(number)


_RULES = Conversion(MarkupRules, translation_pb2.MarkupRules)
rules_to_proto, rules_from_proto = _RULES.to_proto, _RULES.from_proto
"""Make the message of rules for elements, and read it."""


def options_to_proto(options: Options) -> decoding_pb2.DecodingOptions:
    """Make the message of options.

    Raises:
        TypeError: a value has the wrong type.
        ValueError: a value is out of range.
    """
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    for name in _TOKEN_IDS & given.keys():
        given[name] = TokenIds(ids=given[name])
    given["early_stopping"] = _EARLY_STOPPING[options.get("early_stopping")]
    return decoding_pb2.DecodingOptions(**given)


def options_from_proto(message: decoding_pb2.DecodingOptions) -> Options:
    """Read options; raise ValueError for an unknown value of early stopping."""
    if message.early_stopping not in _EARLY_STOPPING_BACK:
        raise ValueError(f"early_stopping has the unknown value {message.early_stopping}")
    values: dict[str, Any] = dict.fromkeys(Options.__annotations__)
    for field, value in message.ListFields():
        values[field.name] = tuple(value.ids) if field.name in _TOKEN_IDS else value
    values["early_stopping"] = _EARLY_STOPPING_BACK[message.early_stopping]
    return cast("Options", values)


def response_to_proto(translations: Sequence[Translation], timings: Timings) -> translation_pb2.TranslateTextResponse:
    """Make the response of a request from translations and timings."""
    return translation_pb2.TranslateTextResponse(
        translations=map(translation_to_proto, translations), timings=timings_to_proto(timings)
    )


def response_from_proto(message: translation_pb2.TranslateTextResponse) -> list[Translation]:
    """Read the translations of a response, each with the timings of the request.

    Raises:
        ValueError: an unknown finish reason, or attention of a wrong size.
    """
    timings = timings_from_proto(message.timings)
    return [translation_from_proto(translation, timings) for translation in message.translations]


def _duration(seconds: float) -> Duration:
    whole, nanoseconds = divmod(round(seconds * 1e9), 1_000_000_000)
    return Duration(seconds=whole, nanos=nanoseconds)


def _seconds(duration: Duration) -> float:
    return duration.ToNanoseconds() / 1e9


_TIMINGS = Conversion(Timings, translation_pb2.Timings, form=Form(_duration, _seconds))
timings_to_proto, timings_from_proto = _TIMINGS.to_proto, _TIMINGS.from_proto
"""Make the message of timings, and read it."""

_SCORE = Conversion(Score, translation_pb2.Score)


def scores_to_proto(scores: Iterable[Score]) -> translation_pb2.ScoreTextResponse:
    """Make the response of a request from scores."""
    return translation_pb2.ScoreTextResponse(scores=map(_SCORE.to_proto, scores))


def scores_from_proto(message: translation_pb2.ScoreTextResponse) -> list[Score]:
    """Read the scores of a response."""
    return list(map(_SCORE.from_proto, message.scores))


_IDS = Form(lambda ids: TokenIds(ids=ids), lambda message: tuple(message.ids))
_DEFAULTS = Conversion(
    DecodingDefaults,
    decoding_pb2.DecodingOptions,
    fields=[name for name in Options.__annotations__ if name in DecodingDefaults.__annotations__],
    **dict.fromkeys(_TOKEN_IDS, _IDS),
    early_stopping=Form(_EARLY_STOPPING.__getitem__, lambda number: _EARLY_STOPPING_BACK.get(number) or False),
)
_CONSTRAINTS = Conversion(
    DecodingDefaults,
    model_pb2.DecodingConstraints,
    fields=model_pb2.DecodingConstraints.DESCRIPTOR.fields_by_name,
    begin_suppress_tokens=_IDS,
    bad_words=each(_IDS),
    forced_last_tokens=_IDS,
)
_PAIR = Conversion(LanguagePair, model_pb2.LanguagePair)
_MODEL = Conversion(
    Model,
    model_pb2.Model,
    fields=[name for name in Model.__annotations__ if name != "defaults"],
    language_pairs=each(_PAIR),
    default_pair=_PAIR,
    state=Enumeration(ModelState, model_pb2.ModelState, "MODEL_STATE", default=ModelState.SERVING),
)


def model_to_proto(model: Model) -> model_pb2.Model:
    """Make the message of a model."""
    return _MODEL.to_proto(
        model,
        default_options=_DEFAULTS.to_proto(model.defaults),
        constraints=_CONSTRAINTS.to_proto(model.defaults),
    )


def model_from_proto(message: model_pb2.Model) -> Model:
    """Read the description of a model."""
    defaults = DecodingDefaults(**_DEFAULTS.read(message.default_options), **_CONSTRAINTS.read(message.constraints))
    return _MODEL.from_proto(message, defaults=defaults)


_ROUTE = Conversion(Route, model_pb2.Route)
route_to_proto, route_from_proto = _ROUTE.to_proto, _ROUTE.from_proto
"""Make the message of a route, and read it."""


# --- terms ---

_PLACEHOLDERS = Enumeration(
    (
        *("braces", "double_braces", "percent", "url", "email", "mention", "element", "icu", "variable", "reference"),
        *("path", "option", "hashtag", "version", "unit", "entity", "escape", "mask"),
    ),
    translation_pb2.PlaceholderKind,
    "PLACEHOLDER_KIND",
    refusal="do_not_translate: unknown kind of placeholders {}; leave it out",
)
PLACEHOLDER_KINDS: Final[Mapping[str, translation_pb2.PlaceholderKind.ValueType]] = MappingProxyType(
    _PLACEHOLDERS.numbers
)
"""Kinds of placeholders by name."""

_SPAN = Conversion(TextSpan, translation_pb2.TextSpan)
_APPLIED = Conversion(AppliedTerm, translation_pb2.AppliedTerm, source_span=_SPAN, target_span=_SPAN)


def placeholder_kinds_from_proto(kinds: Iterable[int]) -> list[str]:
    """Read kinds of placeholders.

    Raises:
        ValueError: a kind does not exist.
    """
    return list(map(_PLACEHOLDERS.from_proto, kinds))


# --- translations ---


def _rows(attention: translation_pb2.Attention) -> tuple[tuple[float, ...], ...]:
    weights, columns = tuple(attention.weights), attention.columns
    if len(weights) % columns if columns else weights:
        raise ValueError(f"attention has {len(weights)} weights, which are no rows of {columns}")
    return tuple(weights[start : start + columns] for start in range(0, len(weights), columns or 1))


_HYPOTHESIS = Conversion(
    Hypothesis,
    translation_pb2.Hypothesis,
    finish_reason=Enumeration(
        FinishReason,
        translation_pb2.FinishReason,
        "FINISH_REASON",
        refusal="finish_reason has the unknown value {}; the sender may be of a newer version",
    ),
    attention=Form(lambda rows: translation_pb2.Attention(weights=chain.from_iterable(rows)), _rows),
    terms=each(_APPLIED),
)
_TRANSLATION = Conversion(
    Translation,
    translation_pb2.Translation,
    fields=[name for name in Translation.__annotations__ if name != "timings"],
    hypotheses=each(_HYPOTHESIS),
    pivot=Conversion(PivotTranslation, translation_pb2.PivotTranslation),
)


def translation_to_proto(translation: Translation) -> translation_pb2.Translation:
    """Make the message of a translation, without its timings."""
    message = _TRANSLATION.to_proto(translation, output_token_count=translation.output_token_count)
    for hypothesis in message.hypotheses:
        if hypothesis.HasField("attention"):
            hypothesis.attention.columns = len(translation.source_tokens)
    return message


def translation_from_proto(message: translation_pb2.Translation, timings: Timings) -> Translation:
    """Read the translation of one text; raises as ``response_from_proto``."""
    return _TRANSLATION.from_proto(message, timings=timings)


_DETECTED = Conversion(DetectedLanguage, translation_pb2.DetectedLanguage)


def detected_to_proto(results: Iterable[Iterable[DetectedLanguage]]) -> translation_pb2.DetectLanguageResponse:
    """Make the message of the languages of texts."""
    return translation_pb2.DetectLanguageResponse(
        results=[
            translation_pb2.DetectedLanguages(languages=map(_DETECTED.to_proto, languages)) for languages in results
        ]
    )


def detected_from_proto(response: translation_pb2.DetectLanguageResponse) -> list[list[DetectedLanguage]]:
    """Read the languages of texts."""
    return [list(map(_DETECTED.from_proto, result.languages)) for result in response.results]


# --- alignments ---

_ATTENTION: Enumeration[AttentionKind, alignment_pb2.AttentionKind.ValueType] = Enumeration(
    ATTENTION_KINDS, alignment_pb2.AttentionKind, "ATTENTION_KIND", refusal="kinds has the unknown value {}"
)
_ALIGNED = each(Conversion(AlignedToken, alignment_pb2.AlignedToken))
_ALIGNMENT = Conversion(
    Alignment,
    alignment_pb2.Alignment,
    fields=[name for name in Alignment.__annotations__ if name not in ATTENTION_KINDS],
    source_tokens=_ALIGNED,
    target_tokens=_ALIGNED,
    decoder_tokens=_ALIGNED,
)


def kinds_to_proto(kinds: Iterable[AttentionKind]) -> list[alignment_pb2.AttentionKind.ValueType]:
    """Make the enum values of kinds of attention."""
    return list(map(_ATTENTION.to_proto, kinds))


def kinds_from_proto(numbers: Iterable[int]) -> tuple[AttentionKind, ...]:
    """Read kinds of attention; none is cross-attention. Raise ValueError for an unknown kind."""
    return tuple(map(_ATTENTION.from_proto, numbers)) or ("cross",)


def alignments_to_proto(alignments: Iterable[Alignment]) -> alignment_pb2.AlignTextResponse:
    """Make the response of a request from alignments."""
    return alignment_pb2.AlignTextResponse(
        alignments=[
            _ALIGNMENT.to_proto(
                alignment, **{kind: _weights_to_proto(getattr(alignment, kind)) for kind in ATTENTION_KINDS}
            )
            for alignment in alignments
        ]
    )


def alignments_from_proto(message: alignment_pb2.AlignTextResponse) -> list[Alignment]:
    """Read the alignments of a response; raise ValueError for weights of a wrong size."""
    return [_alignment_from_proto(alignment) for alignment in message.alignments]


def _alignment_from_proto(message: alignment_pb2.Alignment) -> Alignment:
    alignment = _ALIGNMENT.from_proto(message)
    source, target = alignment.source_tokens, alignment.target_tokens
    sides: dict[AttentionKind, tuple[tuple[AlignedToken, ...], tuple[AlignedToken, ...]]] = {
        "cross": (target, source),
        "encoder": (source, source),
        "decoder": (target, alignment.decoder_tokens),
    }
    weights: dict[str, Any] = {
        kind: _weights(kind, getattr(message, kind), *sides[kind]) for kind in sides if message.HasField(kind)
    }
    return replace(alignment, **weights)


def _weights(
    kind: str,
    message: alignment_pb2.AttentionWeights,
    rows: tuple[AlignedToken, ...],
    columns: tuple[AlignedToken, ...],
) -> AttentionWeights:
    layers, heads = tuple(message.layers), tuple(message.heads)
    if len(message.by_head) not in {0, len(layers) * len(heads)}:
        raise ValueError(
            f"{kind} has {len(message.by_head)} matrices for {len(layers)} layers of {len(heads)} heads each"
        )
    mean, *by_head = (_matrix(kind, matrix, len(rows), len(columns)) for matrix in (message.mean, *message.by_head))
    of_layers = range(0, len(by_head), len(heads) or 1)
    return AttentionWeights(
        rows=rows,
        columns=columns,
        layers=layers,
        heads=heads,
        mean=mean,
        by_head=tuple(tuple(by_head[first : first + len(heads)]) for first in of_layers) if by_head else None,
    )


def _weights_to_proto(weights: AttentionWeights | None) -> alignment_pb2.AttentionWeights | None:
    if weights is None:
        return None
    return alignment_pb2.AttentionWeights(
        layers=weights.layers,
        heads=weights.heads,
        mean=_matrix_to_proto(weights.mean),
        by_head=map(_matrix_to_proto, chain.from_iterable(weights.by_head or ())),
    )


def _matrix_to_proto(matrix: Matrix) -> alignment_pb2.AttentionMatrix:
    return alignment_pb2.AttentionMatrix(weights=chain.from_iterable(matrix))


def _matrix(kind: str, message: alignment_pb2.AttentionMatrix, rows: int, columns: int) -> Matrix:
    weights = tuple(message.weights)
    if len(weights) != rows * columns:
        raise ValueError(f"{kind} has a matrix of {len(weights)} weights for {rows} by {columns} tokens")
    return tuple(weights[row * columns : (row + 1) * columns] for row in range(rows))


# --- bundles ---

_BUNDLE = Conversion(
    BundleSummary,
    admin_pb2.BundleSummary,
    state=Enumeration(BundleState, admin_pb2.BundleState, "BUNDLE_STATE", default=BundleState.AVAILABLE),
)
bundle_to_proto, bundle_from_proto = _BUNDLE.to_proto, _BUNDLE.from_proto
"""Make the message of a bundle, and read it."""

_LOADED = Conversion(LoadResult, admin_pb2.LoadModelResponse, model=Form(model_to_proto, model_from_proto))
loaded_to_proto, loaded_from_proto = _LOADED.to_proto, _LOADED.from_proto
"""Make the message of a load result, and read it."""
