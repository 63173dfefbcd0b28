"""Between results and protobuf messages: the one place that knows both."""

from collections.abc import Sequence
from typing import Literal, TypedDict

from google.protobuf.duration_pb2 import Duration

from jumok_proto.results import (
    DecodingDefaults,
    FinishReason,
    Hypothesis,
    LanguagePair,
    Model,
    Timings,
    Translation,
)
from jumok_proto.v1 import decoding_pb2, model_pb2, translation_pb2

EarlyStopping = bool | Literal["never"]

_FINISH_REASONS = {
    FinishReason.EOS: translation_pb2.FINISH_REASON_EOS,
    FinishReason.LENGTH: translation_pb2.FINISH_REASON_LENGTH,
}
_FINISH_REASONS_BACK = {number: reason for reason, number in _FINISH_REASONS.items()}

_EARLY_STOPPING: dict[EarlyStopping | None, decoding_pb2.EarlyStopping.ValueType] = {
    None: decoding_pb2.EARLY_STOPPING_UNSPECIFIED,
    False: decoding_pb2.EARLY_STOPPING_HEURISTIC,
    True: decoding_pb2.EARLY_STOPPING_IMMEDIATE,
    "never": decoding_pb2.EARLY_STOPPING_NEVER,
}
_EARLY_STOPPING_BACK = {number: value for value, number in _EARLY_STOPPING.items()}


class OptionFields(TypedDict):
    """The fields of a ``DecodingOptions`` message; None where a field is not set."""

    beam_size: int | None
    num_hypotheses: int | None
    length_penalty: float | None
    early_stopping: EarlyStopping | None
    min_length: int | None
    max_length: int | None


def options_to_proto(fields: OptionFields) -> decoding_pb2.DecodingOptions:
    """Raise TypeError or ValueError for a value that the message cannot hold."""
    return decoding_pb2.DecodingOptions(
        beam_size=fields["beam_size"],
        num_hypotheses=fields["num_hypotheses"],
        length_penalty=fields["length_penalty"],
        early_stopping=_EARLY_STOPPING[fields["early_stopping"]],
        min_length=fields["min_length"],
        max_length=fields["max_length"],
    )


def options_from_proto(message: decoding_pb2.DecodingOptions) -> OptionFields:
    """Raise ValueError for a way of early stopping that this version does not know."""
    if message.early_stopping not in _EARLY_STOPPING_BACK:
        raise ValueError(f"early_stopping has the unknown value {message.early_stopping}")
    return OptionFields(
        beam_size=message.beam_size if message.HasField("beam_size") else None,
        num_hypotheses=message.num_hypotheses if message.HasField("num_hypotheses") else None,
        length_penalty=message.length_penalty if message.HasField("length_penalty") else None,
        early_stopping=_EARLY_STOPPING_BACK[message.early_stopping],
        min_length=message.min_length if message.HasField("min_length") else None,
        max_length=message.max_length if message.HasField("max_length") else None,
    )


def response_to_proto(translations: Sequence[Translation], timings: Timings) -> translation_pb2.TranslateTextResponse:
    """Put the translations of one request, and its timings, into its answer."""
    return translation_pb2.TranslateTextResponse(
        translations=[_translation_to_proto(translation) for translation in translations],
        timings=translation_pb2.Timings(
            queue_duration=_duration(timings.queue_s),
            encode_duration=_duration(timings.encode_s),
            decode_duration=_duration(timings.decode_s),
            total_duration=_duration(timings.total_s),
        ),
    )


def response_from_proto(message: translation_pb2.TranslateTextResponse) -> list[Translation]:
    """Read an answer; every translation carries the request's timings.

    Raises ValueError for a reason to finish that this version does not know.
    """
    timings = Timings(
        queue_s=_seconds(message.timings.queue_duration),
        encode_s=_seconds(message.timings.encode_duration),
        decode_s=_seconds(message.timings.decode_duration),
        total_s=_seconds(message.timings.total_duration),
    )
    return [_translation_from_proto(translation, timings) for translation in message.translations]


def model_to_proto(model: Model) -> model_pb2.Model:
    """Describe a model on the wire."""
    defaults = model.defaults
    return model_pb2.Model(
        name=model.name,
        version=model.version,
        architecture=model.architecture,
        language_pairs=[
            model_pb2.LanguagePair(source_language_code=pair.source, target_language_code=pair.target)
            for pair in model.language_pairs
        ],
        max_source_length=model.max_source_length,
        max_target_length=model.max_target_length,
        default_options=options_to_proto(
            OptionFields(
                beam_size=defaults.beam_size,
                num_hypotheses=defaults.num_hypotheses,
                length_penalty=defaults.length_penalty,
                early_stopping=defaults.early_stopping,
                min_length=defaults.min_length,
                max_length=defaults.max_length,
            )
        ),
        precision=model.precision,
        device=model.device,
    )


def model_from_proto(message: model_pb2.Model) -> Model:
    """Read the description of a model."""
    options = message.default_options
    return Model(
        name=message.name,
        version=message.version,
        architecture=message.architecture,
        language_pairs=tuple(
            LanguagePair(source=pair.source_language_code, target=pair.target_language_code)
            for pair in message.language_pairs
        ),
        max_source_length=message.max_source_length,
        max_target_length=message.max_target_length,
        defaults=DecodingDefaults(
            beam_size=options.beam_size,
            num_hypotheses=options.num_hypotheses,
            length_penalty=options.length_penalty,
            early_stopping=_EARLY_STOPPING_BACK.get(options.early_stopping) or False,
            min_length=options.min_length,
            max_length=options.max_length,
        ),
        precision=message.precision,
        device=message.device,
    )


def _translation_to_proto(translation: Translation) -> translation_pb2.Translation:
    return translation_pb2.Translation(
        hypotheses=[
            translation_pb2.Hypothesis(
                text=hypothesis.text,
                score=hypothesis.score,
                tokens=hypothesis.tokens,
                token_ids=hypothesis.token_ids,
                token_scores=hypothesis.token_scores,
                finish_reason=_FINISH_REASONS[hypothesis.finish_reason],
            )
            for hypothesis in translation.hypotheses
        ],
        source_token_count=translation.source_token_count,
        output_token_count=translation.output_token_count,
        source_truncated=translation.source_truncated,
        model=translation.model,
        model_version=translation.model_version,
    )


def _translation_from_proto(message: translation_pb2.Translation, timings: Timings) -> Translation:
    return Translation(
        hypotheses=tuple(
            Hypothesis(
                text=hypothesis.text,
                score=hypothesis.score,
                tokens=tuple(hypothesis.tokens),
                token_ids=tuple(hypothesis.token_ids),
                token_scores=tuple(hypothesis.token_scores),
                finish_reason=_finish_reason(hypothesis.finish_reason),
            )
            for hypothesis in message.hypotheses
        ),
        source_token_count=message.source_token_count,
        source_truncated=message.source_truncated,
        model=message.model,
        model_version=message.model_version,
        timings=timings,
    )


def _finish_reason(number: int) -> FinishReason:
    if number not in _FINISH_REASONS_BACK:
        raise ValueError(f"finish_reason has the unknown value {number}; the sender may be of a newer version")
    return _FINISH_REASONS_BACK[translation_pb2.FinishReason.ValueType(number)]


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration


def _seconds(duration: Duration) -> float:
    return duration.ToNanoseconds() / 1e9
