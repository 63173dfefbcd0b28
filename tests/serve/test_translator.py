"""`Translator` in process: results, defaults, limits, bad input, and its search against the plain reference."""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from jumok_serve import BundleError, DeviceError, InvalidRequest, Translator
from jumok_serve.options import DecodingOptions
from jumok_serve.session import Graphs

from .reference_search import reference_search

TEXTS = ["A dog runs.", "Two men are cooking food.", "A girl.", "The old woman reads a book in the park."]


@pytest.fixture(scope="module")
def translator(tiny_bundle: Path) -> Iterator[Translator]:
    with Translator(tiny_bundle, precision="fp32", threads=1) as translator:
        yield translator


def log_probabilities(graphs: Graphs, source: list[int], prefix: Sequence[int]) -> np.ndarray:
    """[V], decoding the whole prefix anew, one sentence and one row: no cache is reused, reordered or shared."""
    lengths = np.array([len(source)])
    memory, _ = graphs.encode(np.array([source]), lengths)
    state = graphs.empty_state()
    for position, token in enumerate(prefix):
        logits, state = graphs.step(np.array([token]), np.array([position]), np.array([0]), lengths, memory, state)
    row: np.ndarray = logits.numpy()[0].astype(np.float64)
    scores: np.ndarray = row - np.logaddexp.reduce(row)
    return scores


@pytest.mark.parametrize(
    "options",
    [
        DecodingOptions(beam_size=1, max_length=8),
        DecodingOptions(beam_size=2, num_hypotheses=2, max_length=8),
        DecodingOptions(beam_size=5, num_hypotheses=5, max_length=6, length_penalty=0.6, early_stopping=True),
        DecodingOptions(beam_size=4, num_hypotheses=3, max_length=7, min_length=3, early_stopping="never"),
    ],
)
def test_search_over_real_graphs_equals_the_reference(translator: Translator, options: DecodingOptions) -> None:
    special = translator.manifest.special_tokens
    resolved = options.resolve(
        translator.manifest.generation,
        max_target_length=translator.manifest.limits.max_target_length,
        eos_ids=special.eos,
        suppress_tokens=special.suppress,
    )
    pending = translator.submit(TEXTS, options)
    for text, translation in zip(TEXTS, pending.collect(), strict=True):
        suffix = translator.manifest.languages.direction().source_suffix
        source = [*translator._bundle.tokenizer.encode(text), *suffix]
        step = partial(log_probabilities, translator._graphs, source)
        expected = reference_search(step, resolved, special.start)
        assert [hypothesis.token_ids for hypothesis in translation.hypotheses] == [
            hypothesis.token_ids for hypothesis in expected
        ]
        for hypothesis, reference in zip(translation.hypotheses, expected, strict=True):
            assert hypothesis.score == pytest.approx(reference.score, abs=1e-4)
            assert hypothesis.finish_reason is reference.finish_reason


def test_one_text_gives_one_translation_and_several_a_list(translator: Translator) -> None:
    alone = translator.translate(TEXTS[0])
    assert translator.translate(TEXTS)[0] == alone
    assert translator.translate(tuple(TEXTS[:1])) == [alone]
    assert alone.text == alone.hypotheses[0].text
    assert alone.score == alone.hypotheses[0].score
    assert (alone.model, alone.model_version) == (translator.name, translator.version)
    best = alone.hypotheses[0]
    assert len(best.tokens) == len(best.token_ids) == len(best.token_scores) == alone.output_token_count
    assert math.fsum(best.token_scores) / len(best.token_ids) == pytest.approx(best.score, abs=1e-5)
    assert alone.timings is not None
    assert 0 <= alone.timings.decode_s <= alone.timings.total_s


def test_special_tokens_are_no_text_and_are_never_chosen(translator: Translator) -> None:
    special = translator.manifest.special_tokens
    for translation in translator.translate(TEXTS, beam_size=4, num_hypotheses=4):
        for hypothesis in translation.hypotheses:
            assert not set(hypothesis.token_ids) & set(special.suppress)
            assert "</s>" not in hypothesis.text


@pytest.mark.parametrize("text", ["", " ", " \t \n ", "\u3000", "\x85"])
def test_a_text_without_content_is_translated_without_the_model(
    translator: Translator, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translator._graphs, "encode", None)
    translation = translator.translate(text)
    assert translation.text == ""
    assert translation.source_token_count == 0
    assert len(translation.hypotheses) == 1


def test_texts_without_content_keep_their_place(translator: Translator) -> None:
    mixed = translator.translate(["", TEXTS[0], "  ", TEXTS[1]])
    assert [translation.text == "" for translation in mixed] == [True, False, True, False]
    assert mixed[1::2] == translator.translate(TEXTS[:2])


@pytest.mark.parametrize(
    "text", ["🙂🙃 👩‍👩‍👧", "번역 서비스", "翻訳", "\u200b", "x" * 20, "a\u0301\u0302", "\ufeffA dog."]
)
def test_text_that_the_tokenizer_never_saw(translator: Translator, text: str) -> None:
    assert translator.translate(text, max_length=5).hypotheses


@pytest.mark.parametrize(("text", "message"), [("a\ud800b", "U\\+D800"), ("nul\0", "NUL|U\\+0000")])
def test_unusable_characters_are_named_with_their_place(translator: Translator, text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        translator.translate([TEXTS[0], text])
    assert refused.value.field == "contents[1]"


def test_a_text_over_the_limit_is_refused_or_truncated(translator: Translator) -> None:
    longest = translator.manifest.limits.max_source_length
    text = "dog " * (2 * longest)
    with pytest.raises(InvalidRequest, match=f"the model reads at most {longest}") as refused:
        translator.translate(["A dog.", text])
    assert refused.value.field == "contents[1]"
    truncated = translator.translate(text, truncate=True, max_length=4)
    assert truncated.source_truncated
    assert truncated.source_token_count == longest
    assert not translator.translate(TEXTS[0], truncate=True).source_truncated


def test_a_text_far_over_the_limit_is_not_tokenized(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = translator.manifest.limits.max_source_length
    text = "dog " * 100_000
    assert translator.translate(text, truncate=True, max_length=4) == translator.translate(
        "dog " * longest, truncate=True, max_length=4
    )
    monkeypatch.setattr(translator._bundle.tokenizer, "encode", None)
    with pytest.raises(InvalidRequest, match="399999 characters, far more than"):
        translator.translate(text)


@pytest.mark.parametrize("timeout_s", [0, -1, math.nan])
def test_a_timeout_that_is_none_is_refused(translator: Translator, timeout_s: float) -> None:
    with pytest.raises(InvalidRequest, match="timeout_s must be a number of seconds above 0"):
        translator.translate(TEXTS[0], timeout_s=timeout_s)


def test_the_longest_source_and_target(translator: Translator) -> None:
    limits = translator.manifest.limits
    translation = translator.translate(
        "dog " * (2 * limits.max_source_length),
        truncate=True,
        beam_size=1,
        min_length=limits.max_target_length,
        max_length=limits.max_target_length,
    )
    assert translation.output_token_count == limits.max_target_length
    assert all(math.isfinite(score) for score in translation.hypotheses[0].token_scores)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("beam_size", 0),
        ("beam_size", 65),
        ("beam_size", "many"),
        ("beam_size", 2.5),
        ("num_hypotheses", 0),
        ("max_length", 100_000),
        ("length_penalty", math.nan),
        ("early_stopping", "sometimes"),
    ],
)
def test_bad_options_are_named(translator: Translator, option: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        translator.translate(TEXTS[0], **{option: value})  # type: ignore[call-overload]
    assert refused.value.field == f"options.{option}"
    assert translator.translate(TEXTS[0]).text


def test_a_bundle_without_the_precision(tiny_bundle: Path) -> None:
    with pytest.raises(BundleError, match="has no precision 'fp16'"):
        Translator(tiny_bundle, precision="fp16")


def test_precision_auto_takes_int8_on_a_cpu(tiny_bundle: Path) -> None:
    with Translator(tiny_bundle, threads=1) as translator:
        assert (translator.precision, translator.device) == ("int8", "cpu")


def test_cuda_without_cuda_is_an_error(tiny_bundle: Path) -> None:
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has CUDA")
    with pytest.raises(DeviceError, match="no CUDAExecutionProvider"):
        Translator(tiny_bundle, device="cuda")
    with Translator(tiny_bundle, device="auto", threads=1) as translator:
        assert translator.device == "cpu"
