"""Results survive the wire; values that it cannot hold are refused."""

from dataclasses import replace
from typing import Any, cast

import pytest

from jumok_proto.conversion import (
    model_from_proto,
    model_to_proto,
    options_from_proto,
    options_to_proto,
    response_from_proto,
    response_to_proto,
    scores_from_proto,
    scores_to_proto,
)
from jumok_proto.options import OPTIONS, EarlyStopping, Options, check_names
from jumok_proto.results import (
    AppliedTerm,
    DecodingDefaults,
    FinishReason,
    Hypothesis,
    LanguagePair,
    Model,
    PivotTranslation,
    Score,
    TextSpan,
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
        hypotheses=hypotheses,
        source_token_count=7,
        source_truncated=True,
        source_unknown_count=2,
        prefix_unknown_count=1,
        source_language="en",
        target_language="de",
        model="multi30k",
        model_version="1.2",
    )


def test_translations_survive_the_wire() -> None:
    pivot = PivotTranslation(text="Een", language="nl", model="first", model_version="3")
    terms = (
        AppliedTerm(
            source="man",
            targets=("Mann", "Herr"),
            source_span=TextSpan(2, 5),
            satisfied=True,
            target_span=TextSpan(4, 8),
        ),
        AppliedTerm(source="{a}", targets=("{a}",), source_span=TextSpan(6, 9), satisfied=False),
    )
    with_terms = replace(translation(replace(BEST, terms=terms)), beam_size=8)
    sent = [translation(BEST, CUT), translation(EMPTY), replace(translation(CUT), pivot=pivot), with_terms]
    data = response_to_proto(sent, TIMINGS).SerializeToString()
    received = response_from_proto(translation_pb2.TranslateTextResponse.FromString(data))
    assert received == sent
    assert [answer.timings for answer in received] == [TIMINGS] * 4
    assert (received[0].text, received[0].score, received[0].output_token_count) == (BEST.text, BEST.score, 3)
    assert received[1].output_token_count == 0


@pytest.mark.parametrize("attention", [None, (), ((0.5, 0.25, 0.25), (0.0, 1.0, 0.0), (0.125, 0.375, 0.5))])
def test_attention_survives_the_wire(attention: tuple[tuple[float, ...], ...] | None) -> None:
    sent = [replace(translation(replace(BEST, attention=attention)), source_tokens=("▁A", "▁man", "</s>"))]
    sent.append(translation(replace(EMPTY, attention=())))  # of a text without tokens
    data = response_to_proto(sent, TIMINGS).SerializeToString()
    assert response_from_proto(translation_pb2.TranslateTextResponse.FromString(data)) == sent


@pytest.mark.parametrize("columns", [0, 2])
def test_attention_of_a_wrong_size_is_refused(columns: int) -> None:
    message = response_to_proto([translation(BEST)], TIMINGS)
    attention = translation_pb2.Attention(weights=[0.5, 0.25, 0.25], columns=columns)
    message.translations[0].hypotheses[0].attention.CopyFrom(attention)
    with pytest.raises(ValueError, match=f"3 weights, which are no rows of {columns}"):
        response_from_proto(message)


def test_scores_survive_the_wire() -> None:
    some = Score(
        score=-0.1,
        tokens=("▁Ein", "</s>"),
        token_ids=(5, 3),
        token_scores=(-0.1, -0.1),
        source_token_count=7,
        source_truncated=True,
        model="multi30k",
        model_version="1.2",
        source_unknown_count=3,
        target_unknown_count=1,
    )
    none = replace(some, score=0.0, tokens=(), token_ids=(), token_scores=(), source_truncated=False)
    sent = [some, replace(none, source_token_count=0, source_unknown_count=0, target_unknown_count=0)]
    data = scores_to_proto(sent).SerializeToString()
    assert scores_from_proto(translation_pb2.ScoreTextResponse.FromString(data)) == sent


def test_an_unknown_finish_reason_is_refused() -> None:
    message = response_to_proto([translation(BEST)], TIMINGS)
    message.translations[0].hypotheses[0].finish_reason = translation_pb2.FinishReason.ValueType(9)
    with pytest.raises(ValueError, match="unknown value 9"):
        response_from_proto(message)


MODEL = Model(
    name="multi30k",
    version="1.2",
    architecture="transformer",
    source_languages=("en", "fr"),
    target_languages=("de",),
    language_pairs=(),
    default_pair=LanguagePair(source="en", target="de"),
    max_source_length=128,
    max_target_length=100,
    defaults=DecodingDefaults(
        beam_size=5,
        num_hypotheses=1,
        length_penalty=0.6,
        early_stopping=False,
        min_length=0,
        max_length=90,
        no_repeat_ngram_size=3,
        repetition_penalty=1.25,
        suppress_tokens=(0, 2),
        end_tokens=(3,),
        forced_first_token=None,
        sample=False,
        temperature=0.5,
        top_k=50,
        top_p=0.75,
        begin_suppress_tokens=(3,),
        bad_words=((7,), (8, 9)),
        forced_last_tokens=(3,),
        renormalize=True,
    ),
    precision="int8",
    device="cpu",
)


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("forced", [None, 0, 7])
def test_a_model_survives_the_wire(early_stopping: EarlyStopping, forced: int | None) -> None:
    sent = replace(MODEL, defaults=replace(MODEL.defaults, early_stopping=early_stopping, forced_first_token=forced))
    message = model_to_proto(sent)
    assert message.default_options.HasField("min_length")
    assert model_from_proto(model_pb2.Model.FromString(message.SerializeToString())) == sent


def test_pairs_of_languages_survive_the_wire() -> None:
    pairs = (LanguagePair(source="en", target="de"), LanguagePair(source="fr", target="de"))
    sent = replace(MODEL, language_pairs=pairs, default_pair=None)
    assert model_from_proto(model_pb2.Model.FromString(model_to_proto(sent).SerializeToString())) == sent


UNSET = dict.fromkeys(Options.__annotations__)
FULL = {
    "beam_size": 4,
    "num_hypotheses": 3,
    "length_penalty": -0.5,
    "early_stopping": "never",
    "min_length": 1,
    "max_length": 9,
    "no_repeat_ngram_size": 2,
    "repetition_penalty": 1.5,
    "suppress_tokens": (7, 8),
    "end_tokens": (3, 2),
    "forced_first_token": 5,
    "sample": True,
    "temperature": 0.7,
    "top_k": 10,
    "top_p": 0.9,
    "seed": 2**63 - 1,
    "coverage_penalty": 0.25,
    "replace_unknowns": True,
}
ZERO = {name: type(value)() for name, value in FULL.items()} | {"early_stopping": False, "max_length": -1}
"""The zeros of all types, and a number below it."""


@pytest.mark.parametrize("values", [UNSET, ZERO, FULL], ids=["unset", "zero", "full"])
def test_options_survive_the_wire_and_a_zero_is_not_a_default(values: dict[str, Any]) -> None:
    assert (
        values.keys()
        == OPTIONS.keys()
        == Options.__annotations__.keys()
        == set(decoding_pb2.DecodingOptions.DESCRIPTOR.fields_by_name)
    )
    data = options_to_proto(cast("Options", values)).SerializeToString()
    assert options_from_proto(decoding_pb2.DecodingOptions.FromString(data)) == values
    assert (data == b"") == (values is UNSET)


def test_unknown_options_are_all_named() -> None:
    check_names(FULL)
    with pytest.raises(TypeError, match=r"no such option: beams, maxlen; decoding options are beam_size, num_hyp"):
        check_names({"beams": 4, "seed": 1, "maxlen": 3})


def test_an_unknown_early_stopping_is_refused() -> None:
    message = decoding_pb2.DecodingOptions(early_stopping=decoding_pb2.EarlyStopping.ValueType(9))
    with pytest.raises(ValueError, match="early_stopping has the unknown value 9"):
        options_from_proto(message)
