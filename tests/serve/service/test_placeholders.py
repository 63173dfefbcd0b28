"""Placeholders over all ways in: each is in every translation once, and the APIs' defaults."""

import io
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepl
import grpc
import pytest

import jumok
from jumok_proto.v1 import translation_pb2
from jumok_proto.v1.translation_pb2_grpc import TranslationServiceStub
from jumok_serve import Translator
from tests.serve.text.test_placeholder_translation import check, made_text, placeholders
from tests.support.command import run_here
from tests.support.models.variants import directed, edited
from tests.support.servers.http_server import Served, call, serving_http
from tests.support.servers.in_process_server import check_idle, serving

SHORT: dict[str, Any] = {"max_length": 12}
PIVOT: dict[str, Any] = {"source_language": "de", "target_language": "fr"}
TEXT = "The man {name} runs to %1$s, and %(count)d dogs. See https://example.org/a?b=1."


def texts(seed: int, count: int = 40) -> list[str]:
    rng = random.Random(seed)
    return [made_text(rng) for _ in range(count)]


@pytest.fixture(scope="module")
def pivots(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[jumok.Client]:
    folder = tmp_path_factory.mktemp("bundles")
    bundles = [edited(tiny_bundle, folder / f"{a}-{b}", directed(a, b)) for a, b in (("de", "en"), ("en", "fr"))]
    with (
        Translator(bundles[0], precision="fp32", threads=1) as first,
        Translator(bundles[1], precision="fp32", threads=1) as second,
        serving(first, second) as address,
        jumok.Client(address) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def served(translator: Translator) -> Iterator[Served]:
    with serving_http(translator) as served:
        yield served


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beam_size": 3, "num_hypotheses": 2, "split_sentences": False},
        {"sample": True, "split_sentences": False},
        {"split_sentences": False, "target_prefix": "ein"},
    ],
)
def test_texts_and_corpora(client: jumok.Client, options: dict[str, Any]) -> None:
    prefix = options.get("target_prefix")
    several = {**SHORT, **options} | ({"target_prefix": [prefix] * 40} if prefix else {})
    for text, translation in zip(texts(1), client.translate(texts(1), **several), strict=True):
        check(text, translation)
    for text, result in zip(texts(2), client.translate_iter(texts(2), **{**SHORT, **options}), strict=True):
        assert result.translation is not None
        check(text, result.translation)


def test_streams(client: jumok.Client) -> None:
    for text in texts(3, 20):
        *updates, last = client.translate_stream(text, **SHORT)
        assert last.translation is not None
        check(text, last.translation)
        assert all(last.text.startswith(update.text) for update in updates)


def test_files(client: jumok.Client, translator: Translator) -> None:
    lines = [line for text in texts(4) for line in text.split("\n")]
    out = io.BytesIO()
    client.translate_file(io.BytesIO("\n".join(lines).encode()), out, file_format="text", **SHORT)
    for line, written in zip(lines, out.getvalue().decode().split("\n"), strict=True):
        assert {one: written.count(one) for one in placeholders(line)} == placeholders(line)
    check_idle(translator)


@pytest.mark.parametrize(
    "options", [{}, {"split_sentences": False, "truncate": True, "sample": True}, {"markup": "html"}]
)
def test_a_pivot(pivots: jumok.Client, options: dict[str, Any]) -> None:
    for text, translation in zip(texts(5), pivots.translate(texts(5), **PIVOT, **SHORT, **options), strict=True):
        if "markup" in options:
            content = {one: translation.text.count(one) for one in placeholders(text) if "&" not in one}
            assert content.items() <= placeholders(text).items()
        else:
            check(text, translation)
            assert translation.pivot is not None
            assert {one: translation.pivot.text.count(one) for one in placeholders(text)} == placeholders(text)


def test_http(served: Served) -> None:
    sent = {"q": texts(6), "source": "en", "target": "de"}
    for more in ({}, {"alternatives": 2}):
        answer = call(f"{served.url}/translate", sent | more).content
        several = zip(texts(6), answer["translatedText"], answer.get("alternatives") or [[]] * 40, strict=True)
        for text, written, others in several:
            for one in (written, *others):
                assert {content: one.count(content) for content in placeholders(text)} == placeholders(text)
    client = deepl.DeepLClient("any", server_url=served.url)
    found = client.translate_text(texts(7), source_lang="EN", target_lang="DE")
    assert isinstance(found, list)
    for text, result in zip(texts(7), found, strict=True):
        assert {content: result.text.count(content) for content in placeholders(text)} == placeholders(text)


def test_grpc_and_the_own_api_keep_them_if_that_is_asked_for(
    client: jumok.Client, address: str, served: Served, translator: Translator
) -> None:
    text = "The man {name} runs to %1$s."
    plain = translator.translate(text, split_sentences=False).text
    kept = translator.translate(text, split_sentences=False, placeholders=True).text
    assert plain != kept
    with grpc.insecure_channel(address) as channel:
        stub = TranslationServiceStub(channel)
        for keep, expected in ((False, plain), (True, kept)):
            request = translation_pb2.TranslateTextRequest(contents=[text], keep_placeholders=keep)
            assert stub.TranslateText(request).translations[0].hypotheses[0].text == expected
    answer = call(f"{served.url}/v1/text:translate", {"contents": [text], "keepPlaceholders": True}).content
    hypothesis = answer["translations"][0]["hypotheses"][0]
    assert hypothesis["text"] == kept
    assert [term.get("spliced", False) for term in hypothesis["terms"]] == [True] * 2


def test_the_client_turns_them_off_and_names_kinds(client: jumok.Client, translator: Translator) -> None:
    for placeholders_option in (False, ["url"], True):
        found = client.translate(TEXT, placeholders=placeholders_option, **SHORT)
        assert found == translator.translate(TEXT, placeholders=placeholders_option, **SHORT)
    for wrong, message in (("url", "must be True, False or a sequence"), (["tags"], "unknown kind 'tags'")):
        with pytest.raises(jumok.InvalidArgumentError, match=message):
            client.translate(TEXT, placeholders=wrong)


def test_the_command(address: str, translator: Translator, tiny_bundle: Path) -> None:
    for flags, kinds in (([], True), (["--no-placeholders"], False), (["--placeholder", "url"], ["url"])):
        expected = translator.translate(TEXT, placeholders=kinds, **SHORT)
        for place in (("--server", address), ("--bundle", str(tiny_bundle), "--precision", "fp32")):
            done = run_here("translate", *place, *flags, "--max-length", "12", "--json", TEXT)
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)["hypotheses"][0]["text"] == expected.text
    done = run_here("translate", "--server", address, "--no-placeholders", "--placeholder", "url", TEXT)
    assert done.returncode == 2
    assert b"leave --placeholder out" in done.stderr
