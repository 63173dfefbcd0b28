"""Results and options as protobuf messages, and back."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, cast

from google.protobuf.duration_pb2 import Duration

from jumok_proto.markup import MarkupKind, MarkupRules
from jumok_proto.options import EarlyStopping, Options
from jumok_proto.results import (
    DecodingDefaults,
    DetectedLanguage,
    FinishReason,
    Hypothesis,
    LanguagePair,
    Model,
    ModelState,
    PivotTranslation,
    Route,
    Score,
    Timings,
    Translation,
)
from jumok_proto.term_conversion import applied_from_proto, applied_to_proto
from jumok_proto.v1 import decoding_pb2, model_pb2, translation_pb2
from jumok_proto.v1.decoding_pb2 import TokenIds

_FINISH_REASONS = {
    FinishReason.EOS: translation_pb2.FINISH_REASON_EOS,
    FinishReason.LENGTH: translation_pb2.FINISH_REASON_LENGTH,
}
_FINISH_REASONS_BACK = {number: reason for reason, number in _FINISH_REASONS.items()}

_MARKUP: dict[MarkupKind | None, translation_pb2.Markup.ValueType] = {
    None: translation_pb2.MARKUP_UNSPECIFIED,
    "html": translation_pb2.MARKUP_HTML,
    "xml": translation_pb2.MARKUP_XML,
}
_MARKUP_BACK = {number: kind for kind, number in _MARKUP.items()}

_MODEL_STATES = {
    ModelState.SERVING: model_pb2.MODEL_STATE_SERVING,
    ModelState.RECOVERING: model_pb2.MODEL_STATE_RECOVERING,
    ModelState.DRAINING: model_pb2.MODEL_STATE_DRAINING,
}
_MODEL_STATES_BACK = {number: state for state, number in _MODEL_STATES.items()}

_EARLY_STOPPING: dict[EarlyStopping | None, decoding_pb2.EarlyStopping.ValueType] = {
    None: decoding_pb2.EARLY_STOPPING_UNSPECIFIED,
    False: decoding_pb2.EARLY_STOPPING_HEURISTIC,
    True: decoding_pb2.EARLY_STOPPING_IMMEDIATE,
    "never": decoding_pb2.EARLY_STOPPING_NEVER,
}
_EARLY_STOPPING_BACK = {number: value for value, number in _EARLY_STOPPING.items()}

_TOKEN_IDS = {"suppress_tokens", "end_tokens"}
"""Options that are sequences of token ids."""
_DEFAULTS = [name for name in Options.__annotations__ if name in DecodingDefaults.__annotations__]
"""Options with a default of the model."""


def markup_to_proto(kind: MarkupKind | None) -> translation_pb2.Markup.ValueType:
    """Make the value of a markup; raise ValueError for an unknown one."""
    if kind not in _MARKUP:
        raise ValueError(f"must be 'html', 'xml' or None, got {kind!r}")
    return _MARKUP[kind]


def markup_from_proto(number: int) -> MarkupKind | None:
    """Read a markup; raise ValueError for an unknown one."""
    if number not in _MARKUP_BACK:
        raise ValueError(f"markup has the unknown value {number}")
    return _MARKUP_BACK[translation_pb2.Markup.ValueType(number)]


def rules_to_proto(rules: MarkupRules) -> translation_pb2.MarkupRules:
    """Make the message of rules for elements."""
    return translation_pb2.MarkupRules(
        ignore_tags=rules.ignore_tags,
        non_splitting_tags=rules.non_splitting_tags,
        splitting_tags=rules.splitting_tags,
    )


def rules_from_proto(message: translation_pb2.MarkupRules) -> MarkupRules:
    """Read rules for elements."""
    return MarkupRules(
        ignore_tags=tuple(message.ignore_tags),
        non_splitting_tags=tuple(message.non_splitting_tags),
        splitting_tags=tuple(message.splitting_tags),
    )


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
        translations=[translation_to_proto(translation) for translation in translations],
        timings=timings_to_proto(timings),
    )


def response_from_proto(message: translation_pb2.TranslateTextResponse) -> list[Translation]:
    """Read the translations of a response, each with the timings of the request.

    Raises:
        ValueError: an unknown finish reason, or attention of a wrong size.
    """
    timings = timings_from_proto(message.timings)
    return [translation_from_proto(translation, timings) for translation in message.translations]


def timings_to_proto(timings: Timings) -> translation_pb2.Timings:
    """Make the message of timings."""
    return translation_pb2.Timings(
        queue_duration=_duration(timings.queue_s),
        encode_duration=_duration(timings.encode_s),
        decode_duration=_duration(timings.decode_s),
        total_duration=_duration(timings.total_s),
    )


def timings_from_proto(message: translation_pb2.Timings) -> Timings:
    """Read timings."""
    return Timings(
        queue_s=_seconds(message.queue_duration),
        encode_s=_seconds(message.encode_duration),
        decode_s=_seconds(message.decode_duration),
        total_s=_seconds(message.total_duration),
    )


def scores_to_proto(scores: Sequence[Score]) -> translation_pb2.ScoreTextResponse:
    """Make the response of a request from scores."""
    return translation_pb2.ScoreTextResponse(
        scores=[
            translation_pb2.Score(
                score=score.score,
                tokens=score.tokens,
                token_ids=score.token_ids,
                token_scores=score.token_scores,
                source_token_count=score.source_token_count,
                source_truncated=score.source_truncated,
                source_unknown_count=score.source_unknown_count,
                target_unknown_count=score.target_unknown_count,
                model=score.model,
                model_version=score.model_version,
            )
            for score in scores
        ]
    )


def scores_from_proto(message: translation_pb2.ScoreTextResponse) -> list[Score]:
    """Read the scores of a response."""
    return [
        Score(
            score=score.score,
            tokens=tuple(score.tokens),
            token_ids=tuple(score.token_ids),
            token_scores=tuple(score.token_scores),
            source_token_count=score.source_token_count,
            source_truncated=score.source_truncated,
            source_unknown_count=score.source_unknown_count,
            target_unknown_count=score.target_unknown_count,
            model=score.model,
            model_version=score.model_version,
        )
        for score in message.scores
    ]


def model_to_proto(model: Model) -> model_pb2.Model:
    """Make the message of a model."""
    defaults = model.defaults
    return model_pb2.Model(
        name=model.name,
        version=model.version,
        architecture=model.architecture,
        source_language_codes=model.source_languages,
        target_language_codes=model.target_languages,
        language_pairs=[_pair_to_proto(pair) for pair in model.language_pairs],
        default_language_pair=_pair_to_proto(model.default_pair) if model.default_pair else None,
        max_source_length=model.max_source_length,
        max_target_length=model.max_target_length,
        default_options=options_to_proto(cast("Options", {name: getattr(defaults, name) for name in _DEFAULTS})),
        constraints=model_pb2.DecodingConstraints(
            begin_suppress_tokens=_tokens(defaults.begin_suppress_tokens),
            bad_words=[TokenIds(ids=word) for word in defaults.bad_words],
            forced_last_tokens=_tokens(defaults.forced_last_tokens),
            renormalize=defaults.renormalize,
        ),
        precision=model.precision,
        device=model.device,
        state=_MODEL_STATES[model.state],
    )


def model_from_proto(message: model_pb2.Model) -> Model:
    """Read the description of a model."""
    options, constraints = message.default_options, message.constraints
    values: dict[str, Any] = {name: getattr(options, name) for name in _DEFAULTS}
    values |= {name: tuple(values[name].ids) for name in _TOKEN_IDS}
    values["early_stopping"] = _EARLY_STOPPING_BACK.get(options.early_stopping) or False
    values["forced_first_token"] = options.forced_first_token if options.HasField("forced_first_token") else None
    has_default = message.HasField("default_language_pair")
    return Model(
        name=message.name,
        version=message.version,
        architecture=message.architecture,
        source_languages=tuple(message.source_language_codes),
        target_languages=tuple(message.target_language_codes),
        language_pairs=tuple(_pair_from_proto(pair) for pair in message.language_pairs),
        default_pair=_pair_from_proto(message.default_language_pair) if has_default else None,
        max_source_length=message.max_source_length,
        max_target_length=message.max_target_length,
        defaults=DecodingDefaults(
            **values,
            begin_suppress_tokens=tuple(constraints.begin_suppress_tokens.ids),
            bad_words=tuple(tuple(word.ids) for word in constraints.bad_words),
            forced_last_tokens=tuple(constraints.forced_last_tokens.ids),
            renormalize=constraints.renormalize,
        ),
        precision=message.precision,
        device=message.device,
        state=_MODEL_STATES_BACK.get(message.state, ModelState.SERVING),
    )


def route_to_proto(route: Route) -> model_pb2.Route:
    """Make the message of a route."""
    return model_pb2.Route(source_language_code=route.source, target_language_code=route.target, models=route.models)


def route_from_proto(message: model_pb2.Route) -> Route:
    """Read a route."""
    return Route(source=message.source_language_code, target=message.target_language_code, models=tuple(message.models))


def _tokens(ids: Sequence[int] | None) -> TokenIds | None:
    return None if ids is None else TokenIds(ids=ids)


def _pair_to_proto(pair: LanguagePair) -> model_pb2.LanguagePair:
    return model_pb2.LanguagePair(source_language_code=pair.source, target_language_code=pair.target)


def _pair_from_proto(pair: model_pb2.LanguagePair) -> LanguagePair:
    return LanguagePair(source=pair.source_language_code, target=pair.target_language_code)


def translation_to_proto(translation: Translation) -> translation_pb2.Translation:
    """Make the message of a translation, without its timings."""
    columns = len(translation.source_tokens)
    return translation_pb2.Translation(
        hypotheses=[
            translation_pb2.Hypothesis(
                text=hypothesis.text,
                score=hypothesis.score,
                tokens=hypothesis.tokens,
                token_ids=hypothesis.token_ids,
                token_scores=hypothesis.token_scores,
                finish_reason=_FINISH_REASONS[hypothesis.finish_reason],
                attention=None
                if hypothesis.attention is None
                else translation_pb2.Attention(weights=chain.from_iterable(hypothesis.attention), columns=columns),
                terms=map(applied_to_proto, hypothesis.terms),
            )
            for hypothesis in translation.hypotheses
        ],
        source_token_count=translation.source_token_count,
        output_token_count=translation.output_token_count,
        source_truncated=translation.source_truncated,
        source_unknown_count=translation.source_unknown_count,
        prefix_unknown_count=translation.prefix_unknown_count,
        source_tokens=translation.source_tokens,
        source_language_code=translation.source_language,
        target_language_code=translation.target_language,
        cut_sentences=translation.cut_sentences,
        model=translation.model,
        model_version=translation.model_version,
        pivot=None
        if (pivot := translation.pivot) is None
        else translation_pb2.PivotTranslation(
            text=pivot.text, language_code=pivot.language, model=pivot.model, model_version=pivot.model_version
        ),
        beam_size=translation.beam_size or 0,
        source_language_confidence=translation.source_confidence,
    )


def detected_to_proto(results: Iterable[Iterable[DetectedLanguage]]) -> translation_pb2.DetectLanguageResponse:
    """Make the message of the languages of texts."""
    response = translation_pb2.DetectLanguageResponse()
    for languages in results:
        result = response.results.add()
        for language, confidence in languages:
            result.languages.add(language_code=language, confidence=confidence)
    return response


def detected_from_proto(response: translation_pb2.DetectLanguageResponse) -> list[list[DetectedLanguage]]:
    """Read the languages of texts."""
    return [
        [DetectedLanguage(one.language_code, one.confidence) for one in result.languages] for result in response.results
    ]


def translation_from_proto(message: translation_pb2.Translation, timings: Timings) -> Translation:
    """Read the translation of one text; raises as ``response_from_proto``."""
    return Translation(
        hypotheses=tuple(
            Hypothesis(
                text=hypothesis.text,
                score=hypothesis.score,
                tokens=tuple(hypothesis.tokens),
                token_ids=tuple(hypothesis.token_ids),
                token_scores=tuple(hypothesis.token_scores),
                finish_reason=_finish_reason(hypothesis.finish_reason),
                attention=_rows(hypothesis.attention) if hypothesis.HasField("attention") else None,
                terms=tuple(map(applied_from_proto, hypothesis.terms)),
            )
            for hypothesis in message.hypotheses
        ),
        source_token_count=message.source_token_count,
        source_truncated=message.source_truncated,
        source_unknown_count=message.source_unknown_count,
        prefix_unknown_count=message.prefix_unknown_count,
        source_tokens=tuple(message.source_tokens),
        source_language=message.source_language_code,
        target_language=message.target_language_code,
        cut_sentences=tuple(message.cut_sentences),
        model=message.model,
        model_version=message.model_version,
        pivot=PivotTranslation(
            text=message.pivot.text,
            language=message.pivot.language_code,
            model=message.pivot.model,
            model_version=message.pivot.model_version,
        )
        if message.HasField("pivot")
        else None,
        beam_size=message.beam_size or None,
        source_confidence=message.source_language_confidence
        if message.HasField("source_language_confidence")
        else None,
        timings=timings,
    )


def _rows(attention: translation_pb2.Attention) -> tuple[tuple[float, ...], ...]:
    weights, columns = tuple(attention.weights), attention.columns
    if len(weights) % columns if columns else weights:
        raise ValueError(f"attention has {len(weights)} weights, which are no rows of {columns}")
    return tuple(weights[start : start + columns] for start in range(0, len(weights), columns or 1))


def _finish_reason(number: int) -> FinishReason:
    if number not in _FINISH_REASONS_BACK:
        raise ValueError(f"finish_reason has the unknown value {number}; the sender may be of a newer version")
    return _FINISH_REASONS_BACK[translation_pb2.FinishReason.ValueType(number)]


def _duration(seconds: float) -> Duration:
    whole, nanoseconds = divmod(round(seconds * 1e9), 1_000_000_000)
    return Duration(seconds=whole, nanos=nanoseconds)


def _seconds(duration: Duration) -> float:
    return duration.ToNanoseconds() / 1e9
