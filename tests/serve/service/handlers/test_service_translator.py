"""SDK, gRPC and a real model, end to end: results as in process, and bad inputs."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

import jumok
from jumok_proto.v1 import model_pb2, translation_pb2
from jumok_serve.engine.request_queue import EngineLimits
from jumok_serve.search.options import DecodingOptions
from jumok_serve.tasks.model import TranslationParameters
from jumok_serve.translator import Translator
from tests.serve.engine.test_engine import Gate
from tests.support.clients import await_
from tests.support.hang import HANG_S, until
from tests.support.models.variants import edited, multilingual
from tests.support.servers.fake_model import stub_of
from tests.support.servers.in_process_server import IDLE, check_idle, serving

TEXTS = ["a man in a blue shirt", "", "two young males", " \t\u3000", "a little girl climbing", "女孩 😀 ﷽ नमस्ते"]


@pytest.fixture(scope="module")
def translator(tiny_bundle: Path) -> Iterator[Translator]:
    """In int8, as a server loads it by default."""
    with Translator(tiny_bundle, threads=1) as opened:
        yield opened


def check_same(answers: Sequence[jumok.Translation], expected: Sequence[jumok.Translation]) -> None:
    """Equal hypotheses; scores within the tolerance of batch invariance."""
    assert [[h.text for h in answer.hypotheses] for answer in answers] == [
        [h.text for h in answer.hypotheses] for answer in expected
    ]
    for answer, other in zip(answers, expected, strict=True):
        assert replace(answer, hypotheses=()) == replace(other, hypotheses=())
        for got, wanted in zip(answer.hypotheses, other.hypotheses, strict=True):
            assert (got.tokens, got.token_ids, got.finish_reason) == (
                wanted.tokens,
                wanted.token_ids,
                wanted.finish_reason,
            )
            assert got.score == pytest.approx(wanted.score, abs=1e-4)
            assert got.token_scores == pytest.approx(wanted.token_scores, abs=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beam_size": 1, "max_length": 6},
        {"beam_size": 3, "num_hypotheses": 3, "length_penalty": 0.5, "max_length": 5, "early_stopping": "never"},
        {"beam_size": 2, "min_length": 4, "max_length": 7, "early_stopping": True},
        {"beam_size": 3, "no_repeat_ngram_size": 2, "repetition_penalty": 1.3, "max_length": 9},
        {"suppress_tokens": [4, 6], "end_tokens": (3, 15), "forced_first_token": 53, "max_length": 9},
        {"sample": True, "temperature": 1.5, "top_k": 30, "top_p": 0.9, "seed": 2**40, "max_length": 9},
        {"source_language": "EN", "target_language": "de", "max_length": 3},
        {"beam_size": 3, "num_hypotheses": 2, "coverage_penalty": 0.5, "max_length": 9},
        {"beam_size": 1, "replace_unknowns": True, "forced_first_token": 1, "max_length": 9},
        {"target_prefix": ["Ein Mann", None, "Zwei", "Ein", "", "Ein"], "max_length": 5},
    ],
)
def test_the_server_answers_as_the_translator_does(
    translator: Translator, address: str, client: jumok.Client, options: dict[str, Any]
) -> None:
    expected = translator.translate(TEXTS, **options)
    check_same(client.translate(TEXTS, **options), expected)
    prefix = {"target_prefix": options["target_prefix"][0]} if "target_prefix" in options else {}
    check_same([client.translate(TEXTS[0], **options | prefix)], expected[:1])
    check_same(await_("translate", address, TEXTS, timeout_s=HANG_S, **options), expected)
    check_idle(translator)


def test_attention_arrives_as_it_was_computed(translator: Translator, client: jumok.Client) -> None:
    options: dict[str, Any] = {"beam_size": 2, "num_hypotheses": 2, "max_length": 6, "attention": True}
    answers, expected = client.translate(TEXTS, **options), translator.translate(TEXTS, **options)
    check_same(answers, expected)
    for answer, wanted in zip(answers, expected, strict=True):
        for got, other in zip(answer.hypotheses, wanted.hypotheses, strict=True):
            assert got.attention is not None
            assert other.attention is not None
            assert len(got.attention) == len(got.token_ids)
            for row, wanted_row in zip(got.attention, other.attention, strict=True):
                assert row == pytest.approx(wanted_row, abs=1e-4)
                assert len(row) == len(answer.source_tokens)


def test_scores_arrive_as_they_were_computed(
    translator: Translator, address: str, client: jumok.Client, sentences: tuple[list[str], list[str]]
) -> None:
    options: dict[str, Any] = {"length_penalty": 0.5, "source_language": "en", "target_language": "DE"}
    expected = translator.score(*sentences, **options)
    asynchronous = await_("score", address, *sentences, timeout_s=HANG_S, **options)
    for scores in (client.score(*sentences, **options), asynchronous):
        for score, wanted in zip(scores, expected, strict=True):
            assert (score.tokens, score.token_ids) == (wanted.tokens, wanted.token_ids)
            assert score.token_scores == pytest.approx(wanted.token_scores, abs=1e-4)
            assert score.score == pytest.approx(wanted.score, abs=1e-4)
            assert (score.source_token_count, score.model) == (wanted.source_token_count, wanted.model)
    alone = client.score(sentences[0][0], sentences[1][0], **options)
    assert alone.score == pytest.approx(expected[0].score, abs=1e-4)


def test_an_answer_says_where_its_time_went(client: jumok.Client) -> None:
    timings = client.translate(TEXTS[0]).timings
    assert timings is not None
    assert 0 < timings.encode_s < timings.total_s
    assert 0 < timings.decode_s < timings.total_s
    assert 0 <= timings.queue_s < timings.total_s


LONG = "a man in a blue shirt " * 100

REFUSALS: Sequence[tuple[list[Any], dict[str, Any], str]] = [
    ([], {}, "contents"),
    (["a", LONG], {"split_sentences": False}, "contents[1]"),
    (["a", "b", "\0"], {}, "contents[2]"),
    (["a", "b\udc80"], {}, "contents[1]"),
    (["a"], {"beam_size": 0}, "options.beam_size"),
    (["a"], {"beam_size": 65}, "options.beam_size"),
    (["a"], {"beam_size": -1}, "options.beam_size"),
    (["a"], {"beam_size": "many"}, "options.beam_size"),
    (["a"], {"beam_size": 2, "num_hypotheses": 3}, "options.num_hypotheses"),
    (["a"], {"length_penalty": float("nan")}, "options.length_penalty"),
    (["a"], {"length_penalty": float("inf")}, "options.length_penalty"),
    (["a"], {"early_stopping": "sometimes"}, "options.early_stopping"),
    (["a"], {"max_length": 0}, "options.max_length"),
    (["a"], {"max_length": 1_000_000}, "options.max_length"),
    (["a"], {"min_length": 5, "max_length": 4}, "options.min_length"),
    (["a"], {"no_repeat_ngram_size": -1}, "options.no_repeat_ngram_size"),
    (["a"], {"repetition_penalty": 0.0}, "options.repetition_penalty"),
    (["a"], {"suppress_tokens": [3]}, "options.suppress_tokens"),
    (["a"], {"suppress_tokens": [5000]}, "options.suppress_tokens"),
    (["a"], {"suppress_tokens": "5"}, "options.suppress_tokens"),
    (["a"], {"end_tokens": []}, "options.end_tokens"),
    (["a"], {"forced_first_token": 5000}, "options.forced_first_token"),
    (["a"], {"temperature": 0.0}, "options.temperature"),
    (["a"], {"top_p": 1.5}, "options.top_p"),
    (["a"], {"top_k": -1}, "options.top_k"),
    (["a"], {"seed": -1}, "options.seed"),
    (["a"], {"coverage_penalty": 101.0}, "options.coverage_penalty"),
    (["a"], {"coverage_penalty": 1.0, "seed": 3}, "options.coverage_penalty"),
    (["a"], {"sample": False, "top_k": 3}, "options.top_k"),
    (["a"], {"sample": True, "beam_size": 2}, "options.beam_size"),
    (["a", "b"], {"target_prefix": ["Ein"]}, "target_prefixes"),
    (["a", "b"], {"target_prefix": [None, "Ein " * 60]}, "target_prefixes[1]"),
]
SCORE_REFUSALS: Sequence[tuple[list[str], list[str], dict[str, Any], str]] = [
    ([], [], {}, "contents"),
    (["a", "b"], ["c", "eine " * 60], {}, "targets[1]"),
    (["a", "b"], ["c", "d\0"], {}, "targets[1]"),
    (["a", ""], ["c", "d"], {}, "targets[1]"),
    (["a", "dog " * 60], ["c", "d"], {}, "contents[1]"),
    (["a"], ["c"], {"length_penalty": float("inf")}, "length_penalty"),
]


@pytest.mark.parametrize(
    ("method", "arguments", "options", "field"),
    [("translate", [texts], options, field) for texts, options, field in REFUSALS]
    + [("score", [texts, targets], options, field) for texts, targets, options, field in SCORE_REFUSALS],
)
def test_bad_input_is_refused_alike_in_process_and_by_the_server(
    translator: Translator,
    client: jumok.Client,
    method: str,
    arguments: list[list[str]],
    options: dict[str, Any],
    field: str,
) -> None:
    for called in (translator, client):
        with pytest.raises(jumok.InvalidArgumentError) as refused:
            getattr(called, method)(*arguments, **options)
        assert refused.value.field == field
    assert refused.value.reason == "INVALID_REQUEST"
    if field.startswith("contents"):
        assert str(refused.value).startswith(field.replace("contents", "texts"))
    assert client.translate("a man").text == translator.translate("a man").text


def test_a_long_text_is_truncated_where_that_is_asked_for(translator: Translator, client: jumok.Client) -> None:
    short, long = client.translate(["a", LONG], truncate=True)
    assert not short.source_truncated
    assert long.source_truncated
    assert long.source_token_count == translator.manifest.limits.max_source_length


def test_texts_of_any_script_have_a_translation(client: jumok.Client) -> None:
    texts = ["😀👨\u200d👩\u200d👧", "漢字", "العربية", "\u202e\ufeff\u0301", "\U0010ffff", "\x01\x7f"]
    assert len(client.translate(texts, max_length=4)) == len(texts)


def test_the_model_describes_itself(translator: Translator, client: jumok.Client) -> None:
    (model,) = client.list_models()
    manifest = translator.manifest
    assert model == client.get_model(manifest.name)
    assert (model.version, model.precision, model.device) == (manifest.version, translator.precision, "cpu")
    assert model.max_source_length == manifest.limits.max_source_length
    assert model.defaults.beam_size == manifest.generation.beam_size
    assert model.defaults.early_stopping == manifest.generation.early_stopping
    generation, special = manifest.generation, manifest.special_tokens
    assert (model.defaults.suppress_tokens, model.defaults.end_tokens) == (special.suppress, special.eos)
    assert (model.defaults.forced_first_token, model.defaults.sample) == (None, False)
    assert model.defaults.repetition_penalty == generation.repetition_penalty
    assert (model.source_languages, model.target_languages) == (("en",), ("de",))
    assert model.language_pairs == ()
    assert model.default_pair == jumok.LanguagePair(source="en", target="de")


def slow(translator: Translator) -> dict[str, Any]:
    """Options of the longest possible decoding."""
    longest = translator.manifest.limits.max_target_length
    return {"beam_size": 16, "min_length": longest - 1, "max_length": longest}


def test_a_deadline_ends_the_work_on_the_server_too(translator: Translator, client: jumok.Client) -> None:
    with pytest.raises(jumok.DeadlineExceededError) as caught:
        client.translate(["a man in a blue shirt"] * 500, timeout_s=0.05, **slow(translator))
    assert isinstance(caught.value, TimeoutError)
    client.translate("a man", max_length=4)
    check_idle(translator)


async def test_a_cancelled_task_ends_the_work_on_the_server_too(translator: Translator, address: str) -> None:
    async with jumok.AsyncClient(address, timeout_s=HANG_S) as client:
        call = asyncio.ensure_future(client.translate(["a man in a blue shirt"] * 500, **slow(translator)))
        await until(lambda: translator.load() != IDLE)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await client.translate("a man", max_length=4)
        check_idle(translator)


def test_a_full_queue_says_when_to_come_back(tiny_bundle: Path) -> None:
    with (
        Translator(tiny_bundle, threads=1, limits=EngineLimits(max_batch_tokens=1, max_queue_requests=2)) as translator,
        serving(translator) as address,
        jumok.Client(address) as client,
    ):
        gate = Gate(translator)
        running = translator.submit(["a"], TranslationParameters(options=DecodingOptions()))
        gate.arrive()
        waiting = translator.submit(["a"] * 2, TranslationParameters(options=DecodingOptions()))
        with pytest.raises(jumok.ResourceExhaustedError) as caught:
            client.translate("a")
        assert caught.value.reason == "OVERLOADED"
        assert caught.value.retryable
        assert caught.value.retry_after_s is not None
        assert caught.value.retry_after_s > 0
        gate.open()
        for future in (*running.futures, *waiting.futures):
            future.result(HANG_S)
        assert len(running.collect() + waiting.collect()) == 3
        assert len(client.translate(["a"] * 2, max_length=2)) == 2
        with pytest.raises(jumok.InvalidArgumentError, match="takes at most 2 sentences") as refused:
            client.translate(["a"] * 3)
        assert not refused.value.retryable


def test_the_options_of_a_models_description_may_be_sent_back(address: str, translator: Translator) -> None:
    name = translator.manifest.name
    with grpc.insecure_channel(address) as channel:
        model = stub_of(channel).GetModel(model_pb2.GetModelRequest(name=name), timeout=HANG_S).model
        request = translation_pb2.TranslateTextRequest(contents=TEXTS[:1], options=model.default_options)
        answer = stub_of(channel).TranslateText(request, timeout=HANG_S)
    assert answer.translations[0].hypotheses[0].text == translator.translate(TEXTS[0]).text


def test_a_model_of_several_languages_describes_them(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = edited(tiny_bundle, tmp_path / "multilingual", multilingual)
    with Translator(bundle, threads=1) as translator, serving(translator) as address, jumok.Client(address) as client:
        (model,) = client.list_models()
        assert (model.source_languages, model.target_languages) == (("en", "fr-FR"), ("de", "nl", "pt-BR"))
        assert [(pair.source, pair.target) for pair in model.language_pairs] == [
            ("en", "de"),
            ("en", "nl"),
            ("fr-FR", "nl"),
            ("fr-FR", "pt-BR"),
        ]
        assert model.default_pair == jumok.LanguagePair(source="en", target="de")
        answer = client.translate("a man", source_language="fr_fr", target_language="NL", max_length=3)
        assert (answer.source_language, answer.target_language) == ("fr-FR", "nl")
        check_same(
            [answer], [translator.translate("a man", source_language="fr-FR", target_language="nl", max_length=3)]
        )


def test_where_no_language_is_the_default_one_must_be_named(tiny_bundle: Path, tmp_path: Path) -> None:
    def undecided(manifest: dict[str, Any]) -> None:
        multilingual(manifest)
        manifest["languages"]["default"] = None
        manifest["languages"]["pairs"] = []

    bundle = edited(tiny_bundle, tmp_path / "undecided", undecided)
    with Translator(bundle, threads=1) as translator, serving(translator) as address, jumok.Client(address) as client:
        (model,) = client.list_models()
        assert (model.default_pair, model.language_pairs) == (None, ())
        with pytest.raises(jumok.InvalidArgumentError, match="several source languages and no default") as caught:
            client.translate("a", target_language="de")
        assert caught.value.field == "source_language_code"
