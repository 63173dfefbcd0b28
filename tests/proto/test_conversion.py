"""Results survive the wire unchanged, and what the wire cannot say is refused."""

import pytest

from jumok_proto.conversion import (
    EarlyStopping,
    OptionFields,
    model_from_proto,
    model_to_proto,
    options_from_proto,
    options_to_proto,
    response_from_proto,
    response_to_proto,
)
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

TIMINGS = Timings(queue_s=0.001, encode_s=0.25, decode_s=1.5, total_s=1.75)
BEST = Hypothesis(
    text="Ein Mann schläft 😀.",
    score=-0.1,
    tokens=("▁Ein", "▁Mann", "</s>"),
    token_ids=(5, 9, 3),
    token_scores=(-0.1, -0.2, 0.0),
    finish_reason=FinishReason.EOS,
)
CUT = Hypothesis(
    text="Ein", score=-2.0, tokens=("▁Ein",), token_ids=(5,), token_scores=(-2.0,), finish_reason=FinishReason.LENGTH
)
EMPTY = Hypothesis(text="", score=0.0, tokens=(), token_ids=(), token_scores=(), finish_reason=FinishReason.EOS)


def translation(*hypotheses: Hypothesis) -> Translation:
    return Translation(
        hypotheses=hypotheses, source_token_count=7, source_truncated=True, model="multi30k", model_version="1.2"
    )


def test_translations_survive_the_wire() -> None:
    sent = [translation(BEST, CUT), translation(EMPTY)]
    data = response_to_proto(sent, TIMINGS).SerializeToString()
    received = response_from_proto(translation_pb2.TranslateTextResponse.FromString(data))
    assert received == sent
    assert [answer.timings for answer in received] == [TIMINGS, TIMINGS]
    assert (received[0].text, received[0].score, received[0].output_token_count) == (BEST.text, BEST.score, 3)
    assert received[1].output_token_count == 0


def test_an_unknown_reason_to_finish_is_refused() -> None:
    message = response_to_proto([translation(BEST)], TIMINGS)
    message.translations[0].hypotheses[0].finish_reason = translation_pb2.FinishReason.ValueType(9)
    with pytest.raises(ValueError, match="unknown value 9"):
        response_from_proto(message)


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
def test_a_model_survives_the_wire(early_stopping: EarlyStopping) -> None:
    sent = Model(
        name="multi30k",
        version="1.2",
        architecture="transformer",
        language_pairs=(LanguagePair(source="en", target="de"),),
        max_source_length=128,
        max_target_length=100,
        defaults=DecodingDefaults(
            beam_size=5,
            num_hypotheses=1,
            length_penalty=0.6,
            early_stopping=early_stopping,
            min_length=0,
            max_length=90,
        ),
        precision="int8",
        device="cpu",
    )
    message = model_to_proto(sent)
    assert message.default_options.HasField("min_length")
    assert model_from_proto(model_pb2.Model.FromString(message.SerializeToString())) == sent


UNSET = OptionFields(
    beam_size=None,
    num_hypotheses=None,
    length_penalty=None,
    early_stopping=None,
    min_length=None,
    max_length=None,
)
SET = OptionFields(beam_size=0, num_hypotheses=0, length_penalty=0.0, early_stopping=False, min_length=0, max_length=-1)


@pytest.mark.parametrize("fields", [UNSET, SET])
def test_a_zero_is_not_a_default(fields: OptionFields) -> None:
    data = options_to_proto(fields).SerializeToString()
    assert options_from_proto(decoding_pb2.DecodingOptions.FromString(data)) == fields
    assert (data == b"") == (fields is UNSET)


def test_an_unknown_early_stopping_is_refused() -> None:
    message = decoding_pb2.DecodingOptions(early_stopping=decoding_pb2.EarlyStopping.ValueType(9))
    with pytest.raises(ValueError, match="early_stopping has the unknown value 9"):
        options_from_proto(message)
