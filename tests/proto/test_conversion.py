"""Results survive the wire; values that it cannot hold are refused."""

from dataclasses import replace
from datetime import UTC, datetime
from types import ModuleType
from typing import Any, cast

import pytest

from jumok_proto import conversion, glossaries
from jumok_proto.conversion import (
    model_from_proto,
    model_to_proto,
    options_from_proto,
    options_to_proto,
    response_from_proto,
    response_to_proto,
)
from jumok_proto.markup import MarkupRules
from jumok_proto.options import OPTIONS, EarlyStopping, Options, check_names
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
from jumok_proto.v1 import admin_pb2, decoding_pb2, model_pb2, translation_pb2

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


PIVOT = PivotTranslation(text="Een", language="nl", model="first", model_version="3")
TERMS = (
    AppliedTerm(
        source="man", targets=("Mann", "Herr"), source_span=TextSpan(2, 5), satisfied=True, target_span=TextSpan(4, 8)
    ),
    AppliedTerm(source="{a}", targets=("{a}",), source_span=TextSpan(6, 9), satisfied=False),
)
ATTENTION = ((0.5, 0.25, 0.25), (0.0, 1.0, 0.0), (0.125, 0.375, 0.5))
TRANSLATIONS = [
    translation(BEST, CUT),
    translation(EMPTY),
    replace(translation(CUT), pivot=PIVOT, cut_sentences=("Ein",), source_confidence=0.0),
    replace(translation(replace(BEST, terms=TERMS)), beam_size=8),
    replace(translation(replace(BEST, attention=ATTENTION)), source_tokens=("▁A", "▁man", "</s>")),
    translation(replace(EMPTY, attention=())),  # of a text without tokens
]


@pytest.mark.parametrize("columns", [0, 2])
def test_attention_of_a_wrong_size_is_refused(columns: int) -> None:
    message = response_to_proto([translation(BEST)], TIMINGS)
    attention = translation_pb2.Attention(weights=[0.5, 0.25, 0.25], columns=columns)
    message.translations[0].hypotheses[0].attention.CopyFrom(attention)
    with pytest.raises(ValueError, match=f"3 weights, which are no rows of {columns}"):
        response_from_proto(message)


SCORE = Score(
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
NOTHING = replace(SCORE, score=0.0, tokens=(), token_ids=(), token_scores=(), source_token_count=0)


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


def stopping(early_stopping: EarlyStopping, forced: int | None) -> Model:
    defaults = replace(MODEL.defaults, early_stopping=early_stopping, forced_first_token=forced)
    return replace(MODEL, defaults=defaults)


PAIRS = (LanguagePair(source="en", target="de"), LanguagePair(source="fr", target="de"))
BUNDLE = BundleSummary(bundle="a", model="b", version="1", state=BundleState.LOADED, problem="")
DICTIONARY = glossaries.GlossaryDictionary(source_language="en", target_language="", entry_count=3)
CREATED = datetime(2026, 11, 29, 12, 30, 15, 250000, UTC)
RESULTS: list[tuple[ModuleType, str, Any]] = [
    (conversion, "scores", [SCORE, NOTHING]),
    *((conversion, "model", stopping(early, forced)) for early in (False, True, "never") for forced in (None, 0, 7)),
    (conversion, "model", replace(MODEL, language_pairs=PAIRS, default_pair=None, state=ModelState.DRAINING)),
    (conversion, "route", Route(source="en", target="de", models=("a", "b"))),
    (conversion, "rules", MarkupRules(ignore_tags=("a", "b"), splitting_tags=("c",))),
    (conversion, "detected", [[DetectedLanguage("en", 0.75), DetectedLanguage("de", 0.25)], []]),
    (conversion, "bundle", BUNDLE),
    (conversion, "bundle", replace(BUNDLE, state=BundleState.UNUSABLE, problem="no manifest")),
    (conversion, "loaded", LoadResult(model=MODEL, replaced_version=None)),
    (conversion, "loaded", LoadResult(model=MODEL, replaced_version="1")),
    (glossaries, "stored", glossaries.StoredGlossary(id="1", name="a", dictionaries=(DICTIONARY,), created=CREATED)),
    (glossaries, "entries", glossaries.GlossaryEntries(tsv="a\tb\n", target_language="de")),
]


@pytest.mark.parametrize(("module", "name", "sent"), RESULTS)
def test_results_survive_the_wire(module: ModuleType, name: str, sent: object) -> None:
    message = getattr(module, f"{name}_to_proto")(sent)
    received = type(message).FromString(message.SerializeToString())
    assert getattr(module, f"{name}_from_proto")(received) == sent


def test_translations_survive_the_wire_with_their_timings() -> None:
    data = response_to_proto(TRANSLATIONS, TIMINGS).SerializeToString()
    received = response_from_proto(translation_pb2.TranslateTextResponse.FromString(data))
    assert received == TRANSLATIONS
    assert [answer.timings for answer in received] == [TIMINGS] * len(TRANSLATIONS)
    assert (received[0].text, received[0].score, received[0].output_token_count) == (BEST.text, BEST.score, 3)
    assert received[1].output_token_count == 0


def test_a_zero_default_is_sent() -> None:
    assert model_to_proto(MODEL).default_options.HasField("min_length")


def test_states_of_newer_servers_have_a_meaning() -> None:
    assert model_from_proto(model_pb2.Model(state=model_pb2.ModelState.ValueType(9))).state is ModelState.SERVING
    assert conversion.bundle_from_proto(admin_pb2.BundleSummary()).state is BundleState.AVAILABLE


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
