"""DeepL's API by its official client, unmodified: texts, languages, usage, errors."""

import html
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepl
import pytest

from jumok_serve.http import site
from jumok_serve.service.auth.tokens import TokenFile
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.translator import Translator
from tests.support.servers.http_server import Served, call, serving_http
from tests.support.servers.tokens import token_file

TEXTS = ["a man in a blue shirt", "a dog", "two young men"]
PARAGRAPH = "A man is standing.  A dog runs.\nTwo men."


@pytest.fixture
def client(served: Served) -> deepl.DeepLClient:
    return deepl.DeepLClient("any", server_url=served.url)


def test_texts_are_translated_in_order(client: deepl.DeepLClient, translator: Translator) -> None:
    expected = [one.text for one in translator.translate(TEXTS, split_sentences=True)]
    found = client.translate_text(TEXTS, source_lang="EN", target_lang="DE")
    assert isinstance(found, list)
    assert [one.text for one in found] == expected
    assert {one.detected_source_lang for one in found} == {"EN"}
    assert [one.billed_characters for one in found] == [len(text) for text in TEXTS]
    single = client.translate_text(TEXTS[0], target_lang="DE", context="ignored", formality="prefer_less")
    assert isinstance(single, deepl.TextResult)
    assert single.text == expected[0]


def test_texts_of_other_languages_are_kept(client: deepl.DeepLClient) -> None:
    texts = ["Der alte Mann und das Meer", "Le vieil homme et la mer"]
    found = client.translate_text(texts, target_lang="DE")
    assert isinstance(found, list)
    assert [(one.text, one.detected_source_lang) for one in found] == list(zip(texts, ("DE", "FR"), strict=True))


def test_sentences_are_split_as_asked(client: deepl.DeepLClient, translator: Translator) -> None:
    for splitting, text, split in (
        (deepl.SplitSentences.ALL, PARAGRAPH, True),
        (deepl.SplitSentences.OFF, PARAGRAPH, False),
        (deepl.SplitSentences.NO_NEWLINES, PARAGRAPH.replace("\n", " "), True),
    ):
        found = client.translate_text(PARAGRAPH, source_lang="EN", target_lang="DE", split_sentences=splitting)
        assert isinstance(found, deepl.TextResult)
        assert found.text == translator.translate(text, split_sentences=split).text
    for end in ("\r\n", "\r"):
        sent = PARAGRAPH.replace("\n", end)
        found = client.translate_text(sent, source_lang="EN", target_lang="DE", split_sentences=splitting)
        assert isinstance(found, deepl.TextResult)
        assert found.text == translator.translate(text, split_sentences=True).text


def test_forms_are_read_too(served: Served, translator: Translator) -> None:
    expected = [one.text for one in translator.translate(TEXTS, split_sentences=True)]
    form = {"text": TEXTS, "source_lang": "en", "target_lang": "de", "split_sentences": "1"}
    answer = call(f"{served.url}/v2/translate", form=form)
    assert [one["text"] for one in answer.content["translations"]] == expected


def test_plain_texts_need_no_model_for_markup(client: deepl.DeepLClient, translator: Translator) -> None:
    expected = translator.translate(TEXTS[0], split_sentences=True).text
    for handling in ("xml", "html"):
        found = client.translate_text(TEXTS[0], target_lang="DE", tag_handling=handling, ignore_tags=["x"])
        assert isinstance(found, deepl.TextResult)
        assert found.text == html.escape(expected, quote=False)


def test_languages(client: deepl.DeepLClient) -> None:
    assert [(one.code, one.name) for one in client.get_source_languages()] == [("EN", "English")]
    (target,) = client.get_target_languages()
    assert (target.code, target.name, target.supports_formality) == ("DE", "German", False)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"target_lang": "FR"}, "target_lang"),
        ({"source_lang": "FR"}, "source_lang"),
        ({"formality": "more"}, "formality"),
        ({"tag_handling": "json"}, "tag_handling must be html or xml"),
        ({"tag_handling": {}}, "tag_handling must be html or xml"),
        ({"tag_handling": "xml", "ignore_tags": [1]}, "ignore_tags[0] must be a string"),
        ({"split_sentences": "often"}, "split_sentences must be"),
        ({"split_sentences": []}, "split_sentences must be"),
        ({"glossary_id": "1"}, "keeps no glossaries"),
        ({"custom_instructions": ["rhyme"]}, "custom_instructions"),
        ({"text": None}, "the field text is missing"),
        ({"text": 1}, "text must be a string"),
        ({"text": [["a"]]}, "text[0] must be a string"),
        ({"target_lang": None}, "the field target_lang is missing"),
        ({"target_lang": 7}, "target_lang must be a string"),
    ],
)
def test_wrong_fields_are_named(served: Served, fields: dict[str, Any], words: str) -> None:
    request = {"text": ["a dog"], "source_lang": "EN", "target_lang": "DE", **fields}
    answer = call(f"{served.url}/v2/translate", {name: value for name, value in request.items() if value is not None})
    assert (answer.status, words in answer.content["message"]) == (400, True), answer


def test_a_refusal_is_an_exception_of_the_client(client: deepl.DeepLClient) -> None:
    with pytest.raises(deepl.DeepLException, match=r"Bad request.*target_lang") as caught:
        client.translate_text("a dog", target_lang="FR")
    assert caught.value.http_status_code == 400


def test_a_request_that_is_too_large(translator: Translator) -> None:
    with serving_http(translator, limits=ServiceLimits(max_message_bytes=1024)) as served:
        client = deepl.DeepLClient("any", server_url=served.url)
        with pytest.raises(deepl.DeepLException) as caught:
            client.translate_text("a" * 1500, source_lang="EN", target_lang="DE")
        assert caught.value.http_status_code == 413


@pytest.fixture
def keys(translator: Translator, tmp_path: Path) -> Iterator[tuple[str, str, str]]:
    """A server, and the keys of two callers with a rate of calls."""
    file, (one, other) = token_file(tmp_path, "weblate", "other")
    limits = ServiceLimits(requests_per_second=0.001, request_burst=4)
    with serving_http(translator, tokens=TokenFile(file), limits=limits) as served:
        yield served.url, one, other


def test_usage_is_counted_by_key(keys: tuple[str, str, str]) -> None:
    url, key, other = keys
    mine = deepl.DeepLClient(key, server_url=url)
    mine.translate_text(["a dog", "a man"], source_lang="EN", target_lang="DE")
    for client, characters in ((mine, 10), (deepl.DeepLClient(other, server_url=url), 0)):
        usage = client.get_usage().character
        assert usage.count == characters
        assert not usage.limit_reached


def test_the_key_that_is_idle_for_longest_is_no_longer_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "MAX_COUNTED", 2)
    counts = site.CharacterCounts()
    for key in ("a", "b", "a", "c"):
        counts.add(key, ["one", "two"])
    assert [counts.of(key) for key in ("a", "b", "c", "d")] == [12, 0, 6, 0]


def test_a_wrong_key_and_one_over_its_rate(keys: tuple[str, str, str]) -> None:
    url, key, _ = keys
    with pytest.raises(deepl.AuthorizationException, match="does not know the token"):
        deepl.DeepLClient("wrong", server_url=url).get_source_languages()
    client = deepl.DeepLClient(key, server_url=url)
    for _ in range(4):
        client.translate_text("a dog", source_lang="EN", target_lang="DE")
    with pytest.raises(deepl.TooManyRequestsException, match="calls per second"):
        client.translate_text("a dog", source_lang="EN", target_lang="DE")
