"""LibreTranslate's API: forms of requests, languages, errors, keys; unmodified clients from PyPI."""

import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from deep_translator import LibreTranslator
from deep_translator.exceptions import AuthorizationException
from libretranslatepy import LibreTranslateAPI

from jumok_proto.results import Translation
from jumok_serve import rank_languages
from jumok_serve.service.auth.tokens import TokenFile
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.translator import Translator
from tests.support.servers.http_server import Served, call, serving_http
from tests.support.servers.tokens import token_file

TEXTS = ["a man in a blue shirt", "a dog", "two young men"]
PARAGRAPH = "A man is standing.  A dog runs.\nTwo men."


@pytest.fixture(scope="module")
def expected(translator: Translator) -> list[str]:
    return [one.text for one in translator.translate(TEXTS, split_sentences=True)]


def request(q: object, **more: object) -> dict[str, object]:
    return {"q": q, "source": "en", "target": "de", **more}


@pytest.mark.parametrize("kind", ["json", "form", "query"])
def test_a_text_comes_as_json_form_or_query(kind: str, served: Served, expected: list[str]) -> None:
    url, fields = f"{served.url}/translate", request(TEXTS[0])
    match kind:
        case "json":
            answer = call(url, fields)
        case "form":
            answer = call(url, form=fields)
        case _:
            answer = call(f"{url}?q=a+man+in%20a+blue+shirt&source=en&target=de", raw=b"")
    assert (answer.status, answer.content) == (200, {"translatedText": expected[0]})


def test_a_list_is_answered_by_a_list_in_its_order(served: Served, expected: list[str]) -> None:
    assert call(f"{served.url}/translate", request(TEXTS)).content == {"translatedText": expected}
    assert call(f"{served.url}/translate", request(TEXTS[:1])).content == {"translatedText": expected[:1]}
    assert call(f"{served.url}/translate", form=request(TEXTS)).content == {"translatedText": expected}


def test_a_thousand_texts_are_one_request(served: Served, expected: list[str]) -> None:
    answer = call(f"{served.url}/translate", request([TEXTS[1]] * 1000))
    assert answer.content == {"translatedText": [expected[1]] * 1000}


def test_a_text_of_several_sentences_is_translated_whole(served: Served, translator: Translator) -> None:
    answer = call(f"{served.url}/translate", request(PARAGRAPH, format="text"))
    assert answer.content == {"translatedText": translator.translate(PARAGRAPH, split_sentences=True).text}


def test_alternatives_are_further_hypotheses(served: Served, translator: Translator) -> None:
    best, *others = translator.translate(TEXTS[0], beam_size=5, num_hypotheses=3).hypotheses
    answer = call(f"{served.url}/translate", request(TEXTS[0], alternatives=2))
    assert answer.content == {"translatedText": best.text, "alternatives": [one.text for one in others]}
    several = call(f"{served.url}/translate", request(TEXTS, alternatives="1"))
    assert [len(one) for one in several.content["alternatives"]] == [1, 1, 1]


def test_languages_are_detected(served: Served, expected: list[str]) -> None:
    ranked = [rank_languages(text, ["en", "de"])[0] for text in TEXTS]
    detected = [{"confidence": round(100 * one.confidence), "language": "en"} for one in ranked]
    assert {one.language for one in ranked} == {"en"}
    one = call(f"{served.url}/translate", request(TEXTS[0], source="auto"))
    assert one.content == {"translatedText": expected[0], "detectedLanguage": detected[0]}
    several = call(f"{served.url}/translate", request(TEXTS, source="auto"))
    assert several.content == {"translatedText": expected, "detectedLanguage": detected}
    found = call(f"{served.url}/detect", form={"q": TEXTS[0]}).content
    assert found[0] == detected[0]
    for text, language in (("Der alte Mann und das Meer", "de"), ("Le vieil homme et la mer", "fr")):
        kept = call(f"{served.url}/translate", request(["a dog", text], source="auto")).content
        assert kept["translatedText"] == [expected[1], text]
        assert kept["detectedLanguage"][1]["language"] == language
        assert kept["detectedLanguage"][1]["confidence"] > 80
    refused = call(f"{served.url}/translate", request(text, source="auto", alternatives=1))
    assert (refused.status, refused.content["error"].partition(",")[0]) == (400, "q[0] is in French (fr)")
    german = call(f"{served.url}/detect", {"q": "Der alte Mann und das Meer"}).content
    assert german[0]["language"] == "de"
    assert call(f"{served.url}/detect", {"q": "***"}).content == []
    refused = call(f"{served.url}/detect", {"q": "a" * 100_001})
    assert (refused.status, "at most 100000 characters" in refused.content["error"]) == (400, True)


def test_alternatives_do_not_repeat_a_text(
    served: Served, translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    best, *others = translator.translate(TEXTS[0], beam_size=5, num_hypotheses=3).hypotheses
    hypotheses: Any = vars(Translation)["hypotheses"]
    with monkeypatch.context() as patched:
        repeated = property(lambda one: hypotheses.__get__(one) * 2, hypotheses.__set__)
        patched.setattr(Translation, "hypotheses", repeated)
        answer = call(f"{served.url}/translate", request(TEXTS[0], alternatives=2))
    assert answer.content == {"translatedText": best.text, "alternatives": [one.text for one in others]}


def test_the_server_describes_itself(served: Served) -> None:
    assert call(f"{served.url}/languages").content == [
        {"code": "de", "name": "German", "targets": []},
        {"code": "en", "name": "English", "targets": ["de"]},
    ]
    settings = call(f"{served.url}/frontend/settings").content
    assert settings["language"]["source"] == {"code": "en", "name": "English"}
    assert (settings["keyRequired"], settings["filesTranslation"]) == (False, True)
    assert call(f"{served.url}/health").content == {"status": "ok"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (request(None), "the field q is missing"),
        ({"source": "en", "target": "de"}, "the field q is missing"),
        (request(7), "q must be a string, got a number"),
        (request({"a": "b"}), "q must be a string, got an object"),
        (request([TEXTS[0], [TEXTS[1]]]), "q[1] must be a string, got a list"),
        (request(["a", None]), "q[1] must be a string, got null"),
        (request("\ud800"), "half of a surrogate pair"),
        (request([]), "q"),
        (request(["a"] * 1025), "at most 1024 texts"),
        (request("a" * 100_001), "at most 100000 characters"),
        (request("a", target=None), "the field target is missing"),
        (request("a", target="xx"), "the model has no target language 'xx'; it has de"),
        (request("a", source="xx"), "the model has no source language 'xx'"),
        (request("a", source="auto", target="xx"), "the model has no target language 'xx'; it has de"),
        (request("a", format="pdf"), "format must be"),
        (request("a", format=True), "format must be a string"),
        (request("a", alternatives=11), "alternatives must be a number from 0 to 10"),
        (request("a", alternatives="-1"), "alternatives must be a number"),
        (request("a", api_key=1), "api_key must be a string"),
    ],
)
def test_wrong_fields_are_named(served: Served, fields: dict[str, object], words: str) -> None:
    answer = call(f"{served.url}/translate", fields)
    assert answer.status == 400
    assert words in answer.content["error"]
    assert "contents" not in answer.content["error"]


def test_libretranslatepy(served: Served, expected: list[str]) -> None:
    client = LibreTranslateAPI(served.url)
    assert client.translate(TEXTS[0], "en", "de") == expected[0]
    assert client.translate(TEXTS[1], "auto", "de") == expected[1]
    assert [one["code"] for one in client.languages()] == ["de", "en"]
    assert client.detect(TEXTS[0])[0]["language"] == "en"
    with pytest.raises(urllib.error.HTTPError, match="400"):
        client.translate(TEXTS[0], "en", "xx")


def test_deep_translator(served: Served, expected: list[str]) -> None:
    client = LibreTranslator(source="en", target="de", custom_url=f"{served.url}/", api_key="any")
    assert client.translate(TEXTS[0]) == expected[0]
    assert client.translate_batch(TEXTS) == expected


class Keys(NamedTuple):
    """A server with keys: a good one, one without the scope, and a rate of calls."""

    url: str
    good: str
    other: str


@pytest.fixture
def keys(translator: Translator, tmp_path: Path) -> Iterator[Keys]:
    file, secrets = token_file(tmp_path, "mastodon", operator="admin")
    limits = ServiceLimits(requests_per_second=0.001, request_burst=3)
    with serving_http(translator, tokens=TokenFile(file), limits=limits) as served:
        yield Keys(served.url, *secrets)


def test_a_key_opens_the_server(keys: Keys, expected: list[str]) -> None:
    url = f"{keys.url}/translate"
    assert call(url, request(TEXTS[0], api_key=keys.good)).content == {"translatedText": expected[0]}
    assert call(url, request(TEXTS[0]), headers={"Authorization": f"Bearer {keys.good}"}).status == 200
    assert LibreTranslateAPI(keys.url, keys.good).translate(TEXTS[0], "en", "de") == expected[0]
    assert call(f"{keys.url}/languages").status == 200  # clients send no key here
    assert call(f"{keys.url}/frontend/settings").content["keyRequired"] is True


def test_a_wrong_key_is_refused(keys: Keys) -> None:
    for key, words in (("", "needs a token"), ("wrong", "does not know"), (keys.other, "has the scope admin")):
        answer = call(f"{keys.url}/translate", request(TEXTS[0], api_key=key))
        assert answer.status == 403
        assert words in answer.content["error"]
    with pytest.raises(AuthorizationException):
        LibreTranslator("en", "de", api_key="wrong", custom_url=f"{keys.url}/").translate(TEXTS[0])


def test_a_key_over_its_rate_waits(keys: Keys) -> None:
    answers = [call(f"{keys.url}/translate", request(TEXTS[1], api_key=keys.good)) for _ in range(4)]
    assert [one.status for one in answers] == [200, 200, 200, 429]
    assert 900 < int(answers[3].headers["Retry-After"]) <= 1000
    assert "calls per second" in answers[3].content["error"]
