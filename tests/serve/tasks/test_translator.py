"""`Translator` in process: results, defaults, limits, wrong input, and an oracle of its search."""

import itertools
import math
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from jumok_serve import (
    AttentionUnavailableError,
    BundleError,
    DeviceError,
    InvalidArgumentError,
    Options,
    SamplingUnavailableError,
    ScoringUnavailableError,
    Translator,
)
from jumok_serve.search.options import DecodingOptions
from jumok_serve.tasks.model import TranslationParameters
from jumok_serve.text.sentence_splitting import MAX_SENTENCES
from tests.support.models.stepping import logits_of
from tests.support.models.variants import edited, without
from tests.support.reference_search import reference_search
from tests.support.refusals import refused

TEXTS = ["A dog runs.", "Two men are cooking food.", "A girl.", "The old woman reads a book in the park."]


@pytest.mark.parametrize(
    "options",
    [
        DecodingOptions(beam_size=1, max_length=8),
        DecodingOptions(beam_size=2, num_hypotheses=2, max_length=8),
        DecodingOptions(beam_size=5, num_hypotheses=5, max_length=6, length_penalty=0.6, early_stopping=True),
        DecodingOptions(beam_size=4, num_hypotheses=3, max_length=7, min_length=3, early_stopping="never"),
        DecodingOptions(beam_size=1, max_length=12, no_repeat_ngram_size=2, repetition_penalty=1.5),
        DecodingOptions(beam_size=3, max_length=12, no_repeat_ngram_size=1, suppress_tokens=(4, 6)),
        DecodingOptions(beam_size=2, num_hypotheses=2, max_length=9, end_tokens=(3, 4), forced_first_token=53),
    ],
)
def test_search_over_real_graphs_equals_the_reference(translator: Translator, options: DecodingOptions) -> None:
    special = translator.manifest.special_tokens
    resolved = options.resolve(
        translator.manifest.generation, special, translator.manifest.limits, vocabulary=translator.tokenizer.vocab_size
    )
    pending = translator.submit(TEXTS, TranslationParameters(options=options))
    for text, translation in zip(TEXTS, pending.collect(), strict=True):
        suffix = translator.manifest.languages.direction().source_suffix
        source = [*translator.tokenizer.encode(text), *suffix]
        step = partial(logits_of, translator.graphs, source)
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
    assert (alone.model, alone.model_version) == (translator.name, translator.manifest.version)
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
    monkeypatch.setattr(translator.graphs, "encode", None)
    assert translator.translate(text).text == text
    translation = translator.translate(text, split_sentences=False)
    assert translation.text == ""
    assert translation.source_token_count == 0
    assert len(translation.hypotheses) == 1


def test_texts_without_content_keep_their_place(translator: Translator) -> None:
    mixed = translator.translate(["", TEXTS[0], "  ", TEXTS[1]])
    assert [mixed[0].text, mixed[2].text] == ["", "  "]
    many = [" "] * (MAX_SENTENCES + 1)  # the bound is one of texts that are split
    assert len(translator.translate(many, split_sentences=False)) == len(many)
    assert mixed[1::2] == translator.translate(TEXTS[:2])


@pytest.mark.parametrize(
    "text", ["🙂🙃 👩‍👩‍👧", "번역 서비스", "翻訳", "\u200b", "x" * 20, "a\u0301\u0302", "\ufeffA dog."]
)
def test_unseen_text_is_translated(translator: Translator, text: str) -> None:
    assert translator.translate(text, max_length=5).hypotheses


def test_a_text_over_the_limit_is_refused_or_truncated(translator: Translator) -> None:
    longest = translator.manifest.limits.max_source_length
    text = "dog " * (2 * longest)
    with refused("contents[1]", f"special ones included, and the model reads at most {longest}: split it"):
        translator.translate(["A dog.", text], split_sentences=False)
    truncated = translator.translate(text, truncate=True, max_length=4)
    assert truncated.source_truncated
    assert truncated.source_token_count == longest
    assert not translator.translate(TEXTS[0], truncate=True).source_truncated


def test_unknown_source_tokens_are_counted(translator: Translator) -> None:
    texts = ["A dog.", "😀 a dog 猫 😀 .", "猫 猫", "", "dog " * 60 + "猫"]
    known, some, none_known, empty, cut = translator.translate(texts, truncate=True, max_length=4)
    unknown = translator.tokenizer.source_unknown
    assert (known.source_unknown_count, empty.source_unknown_count) == (0, 0)
    assert some.source_unknown_count == translator.tokenizer.encode(texts[1]).count(cast("int", unknown)) == 3
    assert none_known.source_unknown_count == 2
    assert cut.source_unknown_count == 0  # cut off
    split = translator.translate("A 猫. A 猫 dog.", split_sentences=True, max_length=4)
    assert split.source_unknown_count == 2


def test_unknown_tokens_of_target_prefixes_are_counted(translator: Translator) -> None:
    texts, prefixes = ["A dog.", "A dog.", "A 猫.", ""], ["Ein 猫 und 😀", "Ein", None, "猫"]
    found = translator.translate(texts, target_prefix=prefixes, max_length=6)
    assert [one.prefix_unknown_count for one in found] == [2, 0, 0, 1]
    split = translator.translate("A dog. A cat.", target_prefix="Ein 猫", split_sentences=True, max_length=4)
    assert split.prefix_unknown_count == 1


def test_a_text_far_over_the_limit_is_not_tokenized(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = translator.manifest.limits.max_source_length
    text = "dog " * 100_000
    assert translator.translate(text, truncate=True, max_length=4) == translator.translate(
        "dog " * longest, truncate=True, max_length=4
    )
    monkeypatch.setattr(translator.tokenizer, "encode", None)
    with pytest.raises(InvalidArgumentError, match="399999 characters, far more than"):
        translator.translate(text, split_sentences=False)


@pytest.mark.parametrize("timeout_s", [math.inf, 10**400])
def test_a_timeout_may_be_any_length(translator: Translator, timeout_s: float) -> None:
    assert translator.translate(TEXTS[0], beam_size=1, max_length=1, timeout_s=timeout_s).hypotheses


@pytest.mark.parametrize("texts", [5, b"a man", {"a man", "a dog"}, {"a man": "a dog"}, iter(["a man"])])
def test_unordered_texts_are_refused(translator: Translator, texts: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: translator.translate(texts),
        lambda: translator.translate(texts, split_sentences=True),
        lambda: translator.score(texts, ["ein Mann"]),
        lambda: translator.align(texts),
        *(partial(translator.submit, "a man", TranslationParameters(split_sentences=split)) for split in (False, True)),
    ]
    for call in calls:
        with refused("contents", "texts must be a str, or a sequence of them"):
            call()
    with refused("contents[0]", r"^texts\[0\]: character 0"):
        translator.score("\0", "a")
    with refused("source_language_code", "^source_language must"):
        translator.align("a", source_language=3)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("texts", "asked", "message", "field"),
    [
        (["a", "b\ud800c"], {}, "U\\+D800", "contents[1]"),
        (["a", "\0"], {}, r"^texts\[1\]: character 0 .*NUL", "contents[1]"),
        *(
            ("a", {"timeout_s": value}, "must be a number of seconds above 0", "timeout_s")
            for value in (0, -1, math.nan)
        ),
        ("a", {"max_length": 100_000}, "max_length", "options.max_length"),
        ("a", {"beam_size": 0}, "^beam_size must", "options.beam_size"),
        ("a", {"target_language": 7}, "target_language must be a string, got int", "target_language_code"),
        (["a"], {"target_prefix": []}, "^target_prefix must be one for", "target_prefixes"),
        ("a", {"target_prefix": "Ein " * 60}, "no room for another", "target_prefixes[0]"),
        ("a", {"target_prefix": "E" * 2000}, "2000 characters, far more than the 48 tokens", "target_prefixes[0]"),
        ("a", {"target_prefix": "E\0"}, "NUL", "target_prefixes[0]"),
        ("a", {"target_prefix": ["Ein"]}, "must be a string, got list", "target_prefixes[0]"),
        (["a", "b"], {"target_prefix": ["Ein", "E\ud800"]}, "U\\+D800", "target_prefixes[1]"),
        (["a", "b"], {"target_prefix": ["Ein", 3]}, "must be a string, got int", "target_prefixes[1]"),
        (["a", "b"], {"target_prefix": ["Ein"]}, "one for each of 2 texts, got 1", "target_prefixes"),
        (["a", "b"], {"target_prefix": "Ein"}, "one for each of 2 texts, got str", "target_prefixes"),
        ("a", {"target_prefix": "Ein Mann", "max_length": 48}, "after a target prefix of", "options.max_length"),
        ("a", {"target_prefix": "Ein Mann", "min_length": 48}, "min_length must be at most", "options.min_length"),
        ("a", {"forced_first_token": 180}, "beyond the model's vocabulary", "options.forced_first_token"),
        ("a", {"forced_first_token": 0}, "is one that the model never writes", "options.forced_first_token"),
        ("a", {"beam_size": 2, "top_k": 3}, "excludes a beam_size above 1", "options.beam_size"),
        ("a", {"beam_size": 2, "num_hypotheses": 3}, "num_hypotheses must be at most", "options.num_hypotheses"),
    ],
)
def test_what_does_not_fit_is_refused_by_field(
    translator: Translator, texts: Any, asked: dict[str, Any], message: str, field: str
) -> None:
    with refused(field, message):
        translator.translate(texts, **asked)


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


def test_the_options_are_those_of_the_decoder() -> None:
    assert list(Options.__annotations__) == [field.name for field in fields(DecodingOptions)]


def test_unknown_option_is_a_type_error(translator: Translator) -> None:
    with pytest.raises(TypeError, match="no such option: beams; decoding options are beam_size"):
        translator.translate(TEXTS[0], beams=3)  # type: ignore[call-overload]


SAMPLING: dict[str, Any] = {"sample": True, "temperature": 1.5, "top_k": 20, "top_p": 0.95, "max_length": 8}


def test_the_same_seed_draws_the_same_whatever_is_in_the_batch(translator: Translator) -> None:
    alone = [translator.translate(text, seed=7, num_hypotheses=4, **SAMPLING) for text in TEXTS]
    searched = translator.submit(TEXTS, TranslationParameters(options=DecodingOptions(beam_size=4, min_length=8)))
    assert translator.translate(TEXTS, seed=7, num_hypotheses=4, **SAMPLING) == alone
    searched.collect()
    drawn = [hypothesis.token_ids for answer in alone for hypothesis in answer.hypotheses]
    assert [len(answer.hypotheses) for answer in alone] == [4] * len(TEXTS)
    assert len(set(drawn)) > len(TEXTS)
    others = [translator.translate(TEXTS, seed=seed, num_hypotheses=4, **SAMPLING) for seed in (8, None, None)]
    for one, other in itertools.combinations([alone, *others], 2):
        assert one != other


def test_sampling_from_one_token_is_greedy_search(translator: Translator) -> None:
    drawn = translator.translate(TEXTS, top_k=1, max_length=8)
    greedy = translator.translate(TEXTS, beam_size=1, max_length=8)
    assert [answer.hypotheses[0].token_ids for answer in drawn] == [answer.hypotheses[0].token_ids for answer in greedy]


def test_missing_graphs_are_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = edited(tiny_bundle, tmp_path / "plain", without("sampler", "scorer", "aligner"))
    with Translator(bundle, precision="fp32", replicas=1, threads=1) as plain:
        for kind, call in (
            (SamplingUnavailableError, lambda: plain.translate("A dog.", sample=True)),
            (ScoringUnavailableError, lambda: plain.score("A dog.", "Ein Hund.")),
            (AttentionUnavailableError, lambda: plain.translate("A dog.", attention=True)),
        ):
            with pytest.raises(kind, match=r"model 'tiny-en-de' (was exported without a|has no attention to show)"):
                call()
        assert plain.translate("A dog.", max_length=2).hypotheses


def test_a_bundle_without_the_precision(tiny_bundle: Path) -> None:
    with pytest.raises(BundleError, match="has no precision 'fp16'; it has fp32, int8"):
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
