"""Limits of callers without a right key: no body is read, no memory stays, and no other caller waits for them."""

import gc
import json
import logging
import socket
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from jumok_proto.errors import JumokError
from jumok_serve import GlossaryStore
from jumok_serve.http.apis.own_json import METHODS
from jumok_serve.http.requests import Body
from jumok_serve.http.site import Incoming
from jumok_serve.service.auth.tokens import TokenFile
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.rpc.call import Call
from jumok_serve.service.rpc.request_reader import STRANGERS
from jumok_serve.translator import Translator
from tests.support.servers.http_server import Served, call, head, serving_http
from tests.support.servers.tokens import token_file

LARGEST = 2**20
LIMITS = ServiceLimits(max_message_bytes=LARGEST, wrong_tokens_per_second=10_000)
TEXT = {"q": "a dog", "source": "en", "target": "de"}
OWN = [(method.verb, method.path.replace("{", "").replace("}", "")) for method in METHODS]
DEEPL = [
    ("POST", "/v2/translate"),
    ("POST", "/v2/languages"),
    ("GET", "/v2/languages"),
    ("POST", "/v2/usage"),
    ("GET", "/v2/glossary-language-pairs"),
    ("POST", "/v2/glossaries"),
    ("DELETE", "/v2/glossaries/any"),
    ("POST", "/v3/glossaries"),
    ("PATCH", "/v3/glossaries/any"),
    ("PUT", "/v3/glossaries/any/dictionaries"),
]
PUBLIC = [("GET", path) for path in ("/health", "/languages", "/frontend/settings", "/openapi.json", "/")]


class Guarded(NamedTuple):
    """A server that needs tokens, and one of them."""

    served: Served
    token: str


@pytest.fixture(scope="module")
def guarded(translator: Translator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    tokens, (secret,) = token_file(folder, "reports")
    store = GlossaryStore(folder / "glossaries")
    with serving_http(translator, tokens=TokenFile(tokens), limits=LIMITS, glossaries=store) as served:
        yield Guarded(served, secret)


def status_of(connection: socket.socket) -> int:
    return int(connection.recv(65536).split()[1])


@pytest.mark.parametrize("key", ["", "Authorization: Bearer wrong", "Authorization: DeepL-Auth-Key wrong"])
def test_a_wrong_key_is_refused_before_the_body_is_sent(guarded: Guarded, key: str) -> None:
    for status, paths in ((401, OWN), (403, DEEPL)):
        for verb, path in paths:
            with guarded.served.connect() as connection:
                connection.sendall(head(verb, path, LARGEST, *([key] if key else [])))
                assert status_of(connection) == status, (verb, path)


@pytest.mark.parametrize("wrong", ["?api_key=wrong", "header"])
def test_a_wrong_key_of_libretranslate_is_refused_before_the_body_if_it_stands_before_it(
    guarded: Guarded, wrong: str
) -> None:
    for path in ("/translate", "/detect"):
        query, lines = (wrong, []) if wrong.startswith("?") else ("", ["Authorization: Bearer wrong"])
        with guarded.served.connect() as connection:
            connection.sendall(head("POST", path + query, LARGEST, *lines))
            assert status_of(connection) == 403


def test_paths_that_need_no_key_read_no_body(guarded: Guarded) -> None:
    for verb, path in PUBLIC:
        with guarded.served.connect() as connection:
            connection.sendall(head(verb, path, LARGEST))
            assert status_of(connection) == 200


def test_a_refusal_is_seen_by_a_client_that_sends_all_first(guarded: Guarded) -> None:
    """A socket that is closed with unread bytes would reset the connection."""
    for size in (LARGEST // 2, LARGEST):
        answer = call(f"{guarded.served.url}/v1/text:translate", {"contents": ["a" * (size - 100)]})
        assert answer.status == 401
    answer = call(f"{guarded.served.url}/translate", {**TEXT, "q": "a" * LARGEST, "api_key": guarded.token})
    assert (answer.status, answer.headers["Connection"]) == (413, "close")


def test_libretranslate_takes_the_key_from_everywhere(guarded: Guarded) -> None:
    url = f"{guarded.served.url}/translate"
    for status, key in ((200, guarded.token), (403, "wrong")):
        assert call(url, {**TEXT, "api_key": key}).status == status
        assert call(url, form={**TEXT, "api_key": key}).status == status
        assert call(f"{url}?api_key={key}", TEXT).status == status
        assert call(url, TEXT, headers={"Authorization": f"Bearer {key}"}).status == status
    proxy = {"Authorization": "Basic YTpi"}
    assert call(url, {**TEXT, "api_key": guarded.token}, headers=proxy).status == 200


def test_bodies_of_strangers_take_no_room_of_others(guarded: Guarded) -> None:
    """They hold bytes of their own, an address at most half of these, and give them back."""
    intake, limits = guarded.served.server.intake, guarded.served.server.limits
    free, own = limits.max_open_bytes, STRANGERS * limits.max_message_bytes
    held = [guarded.served.connect() for _ in range(4)]
    try:
        for connection in held:
            connection.sendall(head("POST", "/translate", LARGEST) + b'{"q": "' + b"a" * (LARGEST // 2))
        assert call(f"{guarded.served.url}/translate", {**TEXT, "api_key": guarded.token}).status == 200
        assert free - intake.budget.free < 1000  # the answered request may not have ended yet
        assert own - intake.stranger_budget.free <= own // 2
    finally:
        for connection in held:
            connection.close()
    for _ in range(1000):
        call(f"{guarded.served.url}/health")
        if (intake.budget.free, intake.stranger_budget.free) == (free, own):
            break
    assert (intake.budget.free, intake.stranger_budget.free) == (free, own)


@pytest.mark.parametrize("sent", [b"{", b'{"contents": ["' + b"a" * (LARGEST - 100)], ids=["nothing", "nearly all"])
def test_slow_bodies_keep_out_no_other_of_their_caller(translator: Translator, sent: bytes) -> None:
    """Eight of them could hold all that an address may have, for the whole time of an upload."""
    limits = ServiceLimits(max_message_bytes=LARGEST, max_open_bytes=8 * LARGEST)
    with serving_http(translator, limits=limits) as served:
        slow = [served.connect() for _ in range(8)]
        try:
            for connection in slow:
                connection.sendall(head("POST", "/v1/text:translate", LARGEST) + sent)
            large = call(f"{served.url}/v1/text:translate", {"contents": ["a" * (LARGEST - 100)]})
            assert "a text takes at most" in large.content["error"]["message"]
            assert call(f"{served.url}/translate", TEXT).status == 200
        finally:
            for connection in slow:
                connection.close()


GERMAN = {"text": ["a"], "target_lang": "DE"}
REFUSALS: dict[str, tuple[str, dict[str, Any]]] = {
    "no key": ("/v1/text:translate", {"contents": ["a" * 200_000]}),
    "wrong key": ("/translate", {**TEXT, "q": "a" * 200_000, "api_key": "wrong"}),
    "long text": ("/translate", {**TEXT, "q": "a" * 200_000, "api_key": "TOKEN"}),
    "long texts of DeepL": ("/v2/translate", {"text": ["a" * 200_000], "target_lang": "DE"}),
    "long text of ours": ("/v1/text:translate", {"contents": ["a" * 200_000]}),
    "long text to detect": ("/detect", {"q": "a" * 200_000, "api_key": "TOKEN"}),
    "language": ("/translate", {"q": "a" * 90_000, "source": "xx", "target": "de", "api_key": "TOKEN"}),
    "language of DeepL": ("/v2/translate", {"text": ["a" * 90_000], "target_lang": "XX"}),
    "model": ("/v1/text:translate", {"contents": ["a" * 90_000], "model": "none"}),
    "field": ("/v1/text:translate", {"contents": ["a" * 90_000], "none": 1}),
    "type": ("/v2/translate", {"text": ["a" * 90_000, 1], "target_lang": "DE"}),
    "tags": ("/v2/translate", {**GERMAN, "tag_handling": "xml", "ignore_tags": "," * 200_000}),
    "markup": ("/v1/text:translate", {"contents": ["<a>" * 20_000], "markup": "MARKUP_XML"}),
    "glossary": ("/v2/translate", {**GERMAN, "source_lang": "EN", "glossary_id": "a" * 90_000}),
    "entries": ("/v2/glossaries", {"name": "a", "source_lang": "en", "target_lang": "de", "entries": "a" * 200_000}),
    "size": ("/v1/text:translate", {"contents": ["a" * (LARGEST + 1)]}),
    "none": ("/translate", {**TEXT, "api_key": "TOKEN"}),
}
"""Requests by the reason for which they are refused."""
TIMES = 6


def left_over() -> Counter[str]:
    """Count objects that requests make, by type."""
    kinds = (Incoming, Body, Call, JumokError)
    return Counter(type(one).__name__ for one in gc.get_objects() if issubclass(type(one), kinds))


@pytest.mark.parametrize("reason", REFUSALS)
def test_a_request_is_freed_without_the_garbage_collector(guarded: Guarded, reason: str) -> None:
    path, fields = REFUSALS[reason]
    headers = {} if reason.endswith("key") else {"Authorization": f"Bearer {guarded.token}"}
    if fields.get("api_key") == "TOKEN":
        fields, headers = {**fields, "api_key": guarded.token}, {}
    body = json.dumps(fields).encode()

    def ask() -> int:
        sent = {"Content-Type": "application/json", **headers}
        return call(f"{guarded.served.url}{path}", raw=body, headers=sent).status

    logging.disable(logging.ERROR)
    assert ask() == 200 if reason == "none" else 400 <= ask() < 500
    gc.collect()
    gc.disable()
    before = left_over()  # other tests keep errors
    tracemalloc.start()
    try:
        kept = tracemalloc.get_traced_memory()[0]
        for _ in range(TIMES):
            ask()
        for _ in range(100):  # until the last one has ended, which its client does not see
            if left_over() <= before:
                break
            call(f"{guarded.served.url}/health")
        assert left_over() - before == Counter()
        assert tracemalloc.get_traced_memory()[0] - kept < TIMES * len(body) / 2 + 2**20
    finally:
        tracemalloc.stop()
        gc.enable()
        logging.disable(logging.NOTSET)
