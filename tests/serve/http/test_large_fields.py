"""Large values of HTTP requests: read and written outside of the event loop, or refused with a short reason."""

import asyncio
import http.client
import json
import socket
from collections.abc import Iterator
from select import select
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.message import Message
from starlette.responses import JSONResponse

from jumok_proto.v1 import glossary_pb2, translation_pb2
from jumok_serve import GlossaryStore
from jumok_serve.http import port as http_port
from jumok_serve.http import site
from jumok_serve.http.apis import deepl, libretranslate
from jumok_serve.http.port import MAX_HEAD_BYTES, MAX_HEADERS, MAX_RECEIVE
from jumok_serve.http.site import EngineBackend, Sender
from jumok_serve.service.handlers import model_service
from jumok_serve.service.rpc.request_reader import MAX_NAME_CHARACTERS, check_request
from jumok_serve.translator import Translator
from tests.serve.http.conftest import ThreadsOf
from tests.support.hang import HANG_S
from tests.support.logs import own_records
from tests.support.servers.http_server import Served, call, serving_http

LONG = site.MAX_INLINE_BYTES + 1


@pytest.fixture(scope="module")
def served(translator: Translator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    store = GlossaryStore(tmp_path_factory.mktemp("glossaries"))
    with serving_http(translator, glossaries=store) as opened:
        yield opened


def send(served: Served, path: str, body: str) -> Any:
    return call(f"{served.url}{path}", raw=body.encode(), headers={"content-type": "application/json"})


def test_long_texts_of_own_json_arrive_whole_and_at_their_places(served: Served) -> None:
    long = "".join(f"word{number}\tWört\n" for number in range(LONG // 10))
    tsvs = {"en": "a\tb\n", "fr": long, "it": long.upper()}
    dictionaries = [{"sourceLanguageCode": source, "tsv": tsv} for source, tsv in tsvs.items()]
    assert send(served, "/v1/glossaries", json.dumps({"name": "long", "dictionaries": dictionaries})).status == 200
    for source, tsv in tsvs.items():
        found = call(f"{served.url}/v1/glossaries/long/entries?source_language_code={source}")
        assert found.content["entries"]["tsv"] == tsv


def test_long_texts_in_lists_of_own_json_are_named_with_their_index(served: Served) -> None:
    contents = json.dumps({"contents": ["a", "b" * 100_001]})
    refused = send(served, "/v1/text:translate", contents)
    assert refused.status == 400
    assert "100001" in refused.content["error"]["message"]
    assert "contents[1]" in json.dumps(refused.content)


@pytest.mark.parametrize("value", ['"{}"', "[]", "[1]", '{"a": 1}', "1", "null"])
def test_other_json_in_place_of_texts_is_refused_or_left_out(served: Served, value: str) -> None:
    value = value.replace("{}", "a" * LONG)
    for field in ("model", "contents", "options", "glossary", "truncate"):
        answer = send(served, "/v1/text:translate", f'{{"contents": ["a man"], "{field}": {value}}}')
        assert answer.status in {200, 400, 404}
        assert len(json.dumps(answer.content)) < 4096 or answer.status == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/text:translate", r'{"contents": ["a man"], "options": {"\ud800": 1}}'),
        ("/v1/text:translate", r'{"contents": ["a man"], "options": "\udc00"}'),
        ("/v1/text:translate", r'{"\uD800": 1}'),
        ("/v1/text:translate", r'{"contents": ["a \uDBFF man"]}'),
        ("/translate", r'{"q": "a", "source": "en", "target": "de", "other": ["\ud800"]}'),
        ("/v2/translate", r'{"text": ["a"], "target_lang": "de", "\udfff": 1}'),
    ],
)
def test_halves_of_surrogate_pairs_are_refused_at_any_place(
    served: Served, path: str, body: str, caplog: pytest.LogCaptureFixture
) -> None:
    refused = send(served, path, body)
    assert refused.status == 400
    assert "half of a surrogate pair" in json.dumps(refused.content)
    assert not own_records(caplog)


def test_pairs_of_surrogates_and_hangul_are_read(served: Served) -> None:
    content = r'{"q": "\ud83d\ude00 \ud55c", "source": "en", "target": "de"}'
    assert send(served, "/translate", content).content == {"translatedText": "\U0001f600 한"}


@pytest.mark.parametrize("many", [MAX_HEADERS - 20, MAX_HEADERS + 1, 5000])
def test_the_header_fields_of_a_request_are_bounded(served: Served, many: int) -> None:
    connection = http.client.HTTPConnection(*served.address)
    for _ in range(2):  # also those of the second request of a connection
        connection.request("GET", "/health", headers={f"x-{number}": "a" for number in range(many)})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == (200 if many < MAX_HEADERS else 400)
    connection.close()


@pytest.mark.parametrize("place", ["query string", "header field"])
def test_the_head_of_a_request_is_bounded_and_its_refusal_says_how(served: Served, place: str) -> None:
    long = "a" * (2 * MAX_HEAD_BYTES)
    connection = http.client.HTTPConnection(*served.address)
    if place == "query string":
        connection.request("POST", f"/translate?q={long}")
    else:
        connection.request("GET", "/health", headers={"x-long": long})
    answer = connection.getresponse()
    assert answer.status == 431
    assert str(MAX_HEAD_BYTES) in answer.read().decode()
    connection.close()


def test_heads_that_do_not_end_take_little_memory_together(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_port, "MAX_ARRIVING_HEADS_BYTES", 5 * MAX_RECEIVE)

    def begin(size: int) -> socket.socket:
        opened = served.connect()
        opened.sendall(b"GET /health?q=" + b"a" * size)
        return opened

    def status(opened: socket.socket) -> int:
        response = http.client.HTTPResponse(opened)
        response.begin()
        return response.status

    waiting = [begin(2 * MAX_RECEIVE) for _ in range(2)]
    refused = begin(3 * MAX_RECEIVE)  # there are more than five parts of memory, whichever arrives last
    answered = [one for one in (*waiting, refused) if one in select([*waiting, refused], [], [], HANG_S)[0]]
    assert answered
    assert {status(one) for one in answered} == {503}
    assert call(f"{served.url}/translate", raw=b"q=a+man&source=en&target=de").status == 200
    for one in (*waiting, refused):
        one.close()
    found = 503
    while found == 503:  # until the server has seen that they are closed
        with begin(3 * MAX_RECEIVE) as again:
            again.sendall(b" HTTP/1.1\r\nhost: localhost\r\n\r\n")
            found = status(again)
    assert found == 200


def test_a_head_that_is_refused_for_its_fields_is_refused_once(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_port, "MAX_ARRIVING_HEADS_BYTES", 0)
    connection = http.client.HTTPConnection(*served.address)
    fields = {f"x-{number}": "a" * MAX_RECEIVE for number in range(2)}
    fields = {f"y-{number}": "a" for number in range(2 * MAX_HEADERS)} | fields
    connection.request("GET", "/health", headers=fields)
    answer = connection.getresponse()
    assert answer.status == 400
    assert str(MAX_HEADERS) in answer.read().decode()
    connection.close()
    assert call(f"{served.url}/health").status == 200
    assert not own_records(caplog)


@pytest.mark.parametrize("field", ["model", "source_language_code", "glossary.stored"])
def test_names_are_bounded_before_they_are_compared(served: Served, field: str) -> None:
    request = translation_pb2.TranslateTextRequest(contents=["a man"])
    holder, _, name = field.rpartition(".")
    target = getattr(request, holder) if holder else request
    setattr(target, name, "é" * MAX_NAME_CHARACTERS)
    check_request(request)
    setattr(target, name, "é" * (MAX_NAME_CHARACTERS + 1))
    with pytest.raises(ValueError, match=f"{field} takes at most {MAX_NAME_CHARACTERS} characters"):
        check_request(request)


@pytest.mark.parametrize(
    ("path", "fields", "field"),
    [
        ("/translate", {"q": "a", "target": "de"}, "source"),
        ("/translate", {"q": "a", "source": "auto"}, "target"),
        ("/v2/translate", {"text": ["a"], "target_lang": "DE"}, "source_lang"),
        ("/v2/translate", {"text": ["a"]}, "target_lang"),
        ("/v2/translate", {"text": ["a"], "source_lang": "EN", "target_lang": "DE"}, "glossary_id"),
    ],
)
def test_names_of_other_apis_are_bounded_too(served: Served, path: str, fields: dict[str, Any], field: str) -> None:
    answer = call(f"{served.url}{path}", {**fields, field: "é" * (MAX_NAME_CHARACTERS + 1)})
    assert answer.status == 400
    assert f"{field} takes at most {MAX_NAME_CHARACTERS} characters" in str(answer.content)


@pytest.mark.parametrize(
    ("holder", "path"),
    [
        (glossary_pb2.CreateGlossaryRequest(), "dictionaries"),
        (translation_pb2.TranslateTextRequest(), "glossary.entries"),
        (translation_pb2.TranslateCorpusRequest(), "items"),
    ],
)
def test_messages_in_lists_are_checked_too(holder: Message, path: str) -> None:
    parts: Any = holder
    for name in path.split("."):
        parts = getattr(parts, name)
    parts.add()
    check_request(holder)
    parts.add().MergeFromString(b"\xf8\x3f\x01")  # the field 1023
    with pytest.raises(ValueError, match=rf"{path}\[1\] holds the field number 1023 .*: leave it out"):
        check_request(holder)


def test_names_in_lists_are_bounded_too() -> None:
    request = glossary_pb2.CreateGlossaryRequest(name="a")
    request.dictionaries.add(source_language_code="a" * (MAX_NAME_CHARACTERS + 1))
    with pytest.raises(ValueError, match=r"dictionaries\[0\].source_language_code takes at most .*: shorten it"):
        check_request(request)


@pytest.mark.parametrize(
    ("api", "path", "texts"), [(libretranslate, "/translate", "q"), (deepl, "/v2/translate", "text")]
)
def test_large_requests_and_responses_of_others_are_made_in_threads(
    served: Served, api: Any, path: str, texts: str, threads_of: ThreadsOf
) -> None:
    threads = threads_of(api, "_request", "_response")
    others = {"source": "en", "target": "de"} if path == "/translate" else {"source_lang": "EN", "target_lang": "DE"}
    content = ["\U0001f600" * 1000] * 32
    answer = call(f"{served.url}{path}", {texts: content, **others})
    assert answer.status == 200
    assert len(threads) == 2
    assert [name.partition("_")[0] for name in threads] == ["parsed", "asyncio"]


def test_large_responses_of_own_json_are_made_in_threads(served: Served, threads_of: ThreadsOf) -> None:
    threads = threads_of(JSONResponse, "render")
    request = {"contents": ["a man in a blue shirt"] * 200, "sourceLanguageCode": "en"}
    for path in ("/v1/text:align", "/v1/text:translate"):
        assert call(f"{served.url}{path}", request).status == 200
    assert len(threads) == 2
    assert all(name.startswith("parsed") for name in threads)


def test_languages_are_described_once_for_a_set_of_models(served: Served, threads_of: ThreadsOf) -> None:
    first = [call(f"{served.url}{path}").content for path in ("/languages", "/v1/models")]
    described = threads_of(libretranslate, "language_name"), threads_of(model_service, "describe")
    assert [call(f"{served.url}{path}").content for path in ("/languages", "/v1/models")] == first
    assert described == ([], [])


async def test_directions_are_new_after_a_change_of_the_models_alone() -> None:
    known: tuple[tuple[str, str], ...] = (("en", "de"), ("EN", "fr"), ("fr", "en_GB"), ("fr", "en-gb"))
    models, gate = SimpleNamespace(pairs=lambda: known), SimpleNamespace(needs_token=False)
    services: Any = SimpleNamespace(services={}, models=models, gate=gate)
    backend = EngineBackend(services)
    sender = Sender(peer="", request_id="", token="", timeout_s=1)
    found = await backend.directions(sender)
    assert {source: list(targets) for source, targets in found.targets.items()} == {"en": ["de", "fr"], "fr": ["en_GB"]}
    assert found.all_targets == ["de", "en_GB", "fr"]
    assert await backend.directions(sender) is found
    known = known[:1]
    assert (await backend.directions(sender)).pairs == known


def test_responses_of_many_texts_that_no_model_translates_are_made_in_threads(
    served: Served, threads_of: ThreadsOf
) -> None:
    calls = threads_of(asyncio, "to_thread")
    answer = call(f"{served.url}/v1/text:translate", {"contents": [""] * 1000})
    assert len(answer.content["translations"]) == 1000
    assert len(calls) == 1
