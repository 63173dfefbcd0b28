"""From the SDK through gRPC into a real model and back: the same answers as in process, and every bad input."""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import jumok
from jumok_serve import errors
from jumok_serve.options import DecodingOptions
from jumok_serve.translator import Translator

from .serving import IDLE, check_idle, serving
from .test_engine import Gate

TEXTS = ["a man in a blue shirt", "", "two young males", " \t\u3000", "a little girl climbing", "女孩 😀 ﷽ नमस्ते"]


@pytest.fixture(scope="module")
def translator(tiny_bundle: Path) -> Iterator[Translator]:
    with Translator(tiny_bundle, threads=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def address(translator: Translator) -> Iterator[str]:
    with serving(translator) as served:
        yield served


@pytest.fixture
def client(address: str) -> Iterator[jumok.Client]:
    with jumok.Client(address) as connected:
        yield connected


def check_same(answers: Sequence[jumok.Translation], expected: Sequence[jumok.Translation]) -> None:
    """The same hypotheses; scores as far as floating point promises, whatever shared the batch."""
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
    ],
)
def test_the_server_answers_as_the_translator_does(
    translator: Translator, address: str, client: jumok.Client, options: dict[str, Any]
) -> None:
    expected = translator.translate(TEXTS, **options)
    check_same(client.translate(TEXTS, **options), expected)
    check_same([client.translate(TEXTS[0], **options)], expected[:1])

    async def scenario() -> list[jumok.Translation]:
        async with jumok.AsyncClient(address) as async_client:
            return await async_client.translate(TEXTS, **options)

    check_same(asyncio.run(scenario()), expected)
    check_idle(translator)


def test_an_answer_says_where_its_time_went(client: jumok.Client) -> None:
    timings = client.translate(TEXTS[0]).timings
    assert timings is not None
    assert 0 < timings.encode_s < timings.total_s
    assert 0 < timings.decode_s < timings.total_s
    assert 0 <= timings.queue_s < timings.total_s


def test_a_text_without_content_has_an_empty_translation(client: jumok.Client) -> None:
    for answer in client.translate(["", "  ", "\n\t", "\u3000"]):
        assert (answer.text, answer.score, answer.source_token_count, answer.output_token_count) == ("", 0.0, 0, 0)


LONG = "a man in a blue shirt " * 100

REFUSALS: Sequence[tuple[list[str], dict[str, Any], str]] = [
    ([], {}, "contents"),
    (["a", LONG], {}, "contents[1]"),
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
]


@pytest.mark.parametrize(("texts", "options", "field"), REFUSALS)
def test_bad_input_is_refused_alike_in_process_and_by_the_server(
    translator: Translator, client: jumok.Client, texts: list[str], options: dict[str, Any], field: str
) -> None:
    with pytest.raises(errors.InvalidRequest) as local:
        translator.translate(texts, **options)
    with pytest.raises(jumok.InvalidArgument) as remote:
        client.translate(texts, **options)
    assert (local.value.field, remote.value.field) == (field, field)
    assert remote.value.reason == "INVALID_REQUEST"
    if field.startswith("contents"):
        assert str(remote.value).startswith(field)
    assert client.translate("a man").text == translator.translate("a man").text


def test_a_long_text_is_truncated_where_that_is_asked_for(translator: Translator, client: jumok.Client) -> None:
    short, long = client.translate(["a", LONG], truncate=True)
    assert not short.source_truncated
    assert long.source_truncated
    assert long.source_token_count == translator.manifest.limits.max_source_length


def test_texts_of_any_script_have_a_translation(client: jumok.Client) -> None:
    texts = ["😀👨\u200d👩\u200d👧", "漢字", "العربية", "\u202e\ufeff\u0301", "\U0010ffff", "\x01\x7f"]
    assert len(client.translate(texts, max_length=4)) == len(texts)


def test_an_unknown_model_is_not_found(translator: Translator, client: jumok.Client) -> None:
    for call in (lambda: client.translate("a", model="other"), lambda: client.get_model("other")):
        with pytest.raises(jumok.NotFound, match=f"'other' is not loaded; available: {translator.name}") as caught:
            call()
        assert caught.value.reason == "MODEL_NOT_FOUND"
        resource = caught.value.details.resource
        assert resource is not None
        assert (resource.type, resource.name) == ("jumok.v1.Model", "other")
    assert client.translate("a", model=translator.name).model == translator.name


def test_the_model_describes_itself(translator: Translator, client: jumok.Client) -> None:
    (model,) = client.list_models()
    manifest = translator.manifest
    assert model == client.get_model(manifest.name)
    assert (model.version, model.precision, model.device) == (manifest.version, translator.precision, "cpu")
    assert model.max_source_length == manifest.limits.max_source_length
    assert model.defaults.beam_size == manifest.generation.beam_size
    assert model.defaults.early_stopping == manifest.generation.early_stopping
    assert model.language_pairs == (jumok.LanguagePair(source="en", target="de"),)


def slow(translator: Translator) -> dict[str, Any]:
    """Options that decode for as long as the model can."""
    longest = translator.manifest.limits.max_target_length
    return {"beam_size": 16, "min_length": longest - 1, "max_length": longest}


def test_a_deadline_ends_the_work_on_the_server_too(translator: Translator, client: jumok.Client) -> None:
    with pytest.raises(jumok.DeadlineExceeded) as caught:
        client.translate(["a man in a blue shirt"] * 500, timeout_s=0.05, **slow(translator))
    assert isinstance(caught.value, TimeoutError)
    client.translate("a man", max_length=4)
    check_idle(translator)


def test_a_cancelled_task_ends_the_work_on_the_server_too(translator: Translator, address: str) -> None:
    async def scenario() -> None:
        async with jumok.AsyncClient(address) as client:
            call = asyncio.ensure_future(client.translate(["a man in a blue shirt"] * 500, **slow(translator)))
            while translator.load() == IDLE:
                await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await client.translate("a man", max_length=4)
            check_idle(translator)

    asyncio.run(scenario())


def test_a_full_queue_says_when_to_come_back(tiny_bundle: Path) -> None:
    with (
        Translator(tiny_bundle, threads=1, max_batch_tokens=1, max_queue_requests=2) as translator,
        serving(translator) as address,
        jumok.Client(address) as client,
    ):
        gate = Gate(translator)
        running = translator.submit(["a"], DecodingOptions())
        gate.arrive()
        waiting = translator.submit(["a"] * 2, DecodingOptions())
        with pytest.raises(jumok.ResourceExhausted) as caught:
            client.translate("a")
        assert caught.value.reason == "OVERLOADED"
        assert caught.value.retryable
        assert caught.value.retry_after_s is not None
        assert caught.value.retry_after_s > 0
        gate.open()
        assert len(running.collect() + waiting.collect()) == 3
        assert len(client.translate(["a"] * 2, max_length=2)) == 2
        with pytest.raises(jumok.InvalidArgument, match="takes at most 2 sentences") as refused:
            client.translate(["a"] * 3)
        assert not refused.value.retryable


def test_a_closed_model_is_unavailable_and_says_when_to_come_back(tiny_bundle: Path) -> None:
    with Translator(tiny_bundle, threads=1) as translator, serving(translator) as address:
        translator.close()
        with jumok.Client(address) as client, pytest.raises(jumok.Unavailable) as caught:
            client.translate("a")
        assert caught.value.reason == "UNAVAILABLE"
        assert caught.value.retry_after_s is not None


def test_concurrent_clients_get_their_own_answers_in_order(translator: Translator, address: str) -> None:
    texts = [[f"a man in a blue shirt {'is ' * (number % 5)}{client}" for number in range(8)] for client in range(12)]
    expected = [translator.translate(own, beam_size=2, max_length=6) for own in texts]

    def work(own: list[str]) -> list[jumok.Translation]:
        with jumok.Client(address) as client:
            return client.translate(own, beam_size=2, max_length=6)

    with ThreadPoolExecutor(len(texts)) as pool:
        answers = list(pool.map(work, texts))
    for answer, wanted in zip(answers, expected, strict=True):
        check_same(answer, wanted)
    check_idle(translator)
