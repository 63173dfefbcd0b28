"""Requests that web pages elsewhere can make a browser send: foreign origins, hosts and content types."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jumok_serve.service.auth.tokens import TokenFile
from jumok_serve.translator import Translator
from tests.support.servers.http_server import Served, call, head, serving_http
from tests.support.servers.tokens import token_file

PAGE = "https://page.example"
TEXT = {"q": "a dog", "source": "en", "target": "de"}
ORIGINS = (PAGE, "moz-extension://*", "https://*.shops.example")
KNOWN = (PAGE, "moz-extension://7c0ff2e5-1d3a-4c61-9d6f-1f6a5b3c2d1e", "https://a.shops.example")
FOREIGN = (
    "https://evil.example",
    "null",
    "http://page.example",
    "https://page.example.evil.example",
    "https://page.example:8443",
    "https://pageXexample",
    "moz-extension://a/b",
    "https://evil.example/.shops.example",
    "chrome-extension://abc",
    "",
)


@pytest.fixture(scope="module")
def named(translator: Translator) -> Iterator[Served]:
    """A server that some pages may call."""
    with serving_http(translator, front={"origins": ORIGINS}) as served:
        yield served


def ask(served: Served, host: str | None, *lines: str, method: str = "GET", path: str = "/languages") -> int:
    """Return the status of a request without a body, with a host of its own."""
    fields = [*([] if host is None else [f"Host: {host}"]), "Connection: close", *lines]
    version = "1.0" if host is None else "1.1"
    with served.connect() as connection:
        connection.sendall("\r\n".join((f"{method} {path} HTTP/{version}", *fields, "", "")).encode())
        return int(connection.recv(65536).split()[1])


@pytest.mark.parametrize("origin", FOREIGN)
def test_pages_elsewhere_may_not_translate(served: Served, named: Served, origin: str) -> None:
    """A form and plain text are sent without a question to the server; without a key it would answer."""
    for server in (served, named):
        for path in ("/translate", "/detect", "/v2/translate", "/v1/text:translate", "/v2/glossaries", "/nothing"):
            for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json"):
                answer = call(
                    f"{server.url}{path}",
                    raw=json.dumps(TEXT).encode(),
                    headers={"Origin": origin, "Content-Type": kind},
                )
                assert answer.status == 403
                assert "name the origin in http_origins" in str(answer.content)
        for verb in ("DELETE", "PATCH", "PUT"):
            assert call(f"{server.url}/v3/glossaries/a", method=verb, headers={"Origin": origin}).status == 403
        seen = call(f"{server.url}/languages", headers={"Origin": origin})
        assert (seen.status, seen.headers["Access-Control-Allow-Origin"]) == (200, None)


@pytest.mark.parametrize("origin", KNOWN)
def test_named_pages_and_extensions_may_translate(named: Served, origin: str) -> None:
    answer = call(f"{named.url}/translate", TEXT, headers={"Origin": origin})
    assert answer.status == 200
    assert answer.headers["Access-Control-Allow-Origin"] == origin
    asked = ("Access-Control-Request-Method: POST", "Access-Control-Request-Headers: content-type")
    with named.connect() as connection:
        connection.sendall(head("OPTIONS", "/translate", None, f"Origin: {origin}", *asked))
        assert b"POST" in connection.recv(65536)


def test_the_own_page_may_translate(served: Served) -> None:
    assert call(f"{served.url}/translate", TEXT, headers={"Origin": served.url}).status == 200


def test_all_pages_may_translate_if_all_are_named(translator: Translator) -> None:
    with serving_http(translator, front={"origins": ["*"]}) as served:
        for origin in FOREIGN:
            assert call(f"{served.url}/translate", TEXT, headers={"Origin": origin}).status == 200


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:80", "a.localhost:8080", "127.0.0.1", "127.1.2.3:1", "[::1]", "[::1]:8080", None]
)
def test_hosts_of_this_machine_are_served(served: Served, host: str | None) -> None:
    assert ask(served, host) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "notlocalhost",
        "128.0.0.1",
        "0.0.0.0",
        "[::2]:80",
        "127.0.0.1.evil.example",
        "",
        "localhost:80:80",
        "2130706433",
        "localhost@evil.example",
    ],
)
def test_other_hosts_are_refused_without_tokens_on_loopback(served: Served, host: str) -> None:
    """A page elsewhere can give its own name this server's address, and is then no foreign page."""
    for method, path in (("GET", "/languages"), ("POST", "/translate"), ("GET", "/"), ("GET", "/nothing")):
        assert ask(served, host, f"Origin: http://{host}", "Content-Length: 0", method=method, path=path) == 421


def test_named_hosts_are_served_alone(translator: Translator) -> None:
    with serving_http(translator, front={"hosts": ["translate.example", "localhost"]}) as served:
        assert [ask(served, host) for host in ("Translate.example:443", "localhost", "other.example")] == [
            200,
            200,
            421,
        ]
    with serving_http(translator, front={"hosts": ["*"]}) as served:
        assert ask(served, "other.example") == 200


def test_a_server_with_tokens_serves_all_hosts(translator: Translator, tmp_path: Path) -> None:
    tokens, _ = token_file(tmp_path, "reports")
    with serving_http(translator, tokens=TokenFile(tokens)) as served:
        assert ask(served, "translate.example") == 200


@pytest.mark.parametrize(
    "bound",
    ["127.1", "LocalHost", "::1", "[::1]", "2130706433", "0x7f.0.0.1", "[::ffff:127.0.0.1]", "127.0.0.2", "own"],
)
def test_hosts_follow_the_address_that_is_bound(
    translator: Translator, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    look_up: Any = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *rest, **kinds: look_up("::1" if host == "own" else host, *rest, **kinds)
    )
    with serving_http(translator, front={"host": bound}) as served:
        assert [ask(served, host) for host in ("evil.example", "localhost:1", f"{bound.upper()}:80")] == [421, 200, 200]
    with serving_http(translator, front={"host": bound, "hosts": ["a.example"]}) as served:
        assert [ask(served, host) for host in ("a.example", bound, "localhost")] == [200, 421, 421]


@pytest.mark.parametrize("bound", ["0.0.0.0", "0", "::"])
def test_a_server_that_others_reach_serves_all_hosts(translator: Translator, bound: str) -> None:
    with serving_http(translator, front={"host": bound}) as served:
        assert ask(served, "translate.example") == 200


def test_no_path_leads_to_another_host(named: Served) -> None:
    for path in ("/health/", "/translate/", "/v2/usage/", "//evil.example/health"):
        answer = call(f"{named.url}{path}")
        assert (answer.status, answer.headers["Location"]) == (404, None)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "application/jsonp"])
def test_our_json_wants_its_content_type(served: Served, kind: str) -> None:
    raw = json.dumps({"contents": ["a dog"]}).encode()
    answer = call(f"{served.url}/v1/text:translate", raw=raw, headers={"Content-Type": kind})
    assert answer.status == 400
    assert "send application/json" in answer.content["error"]["message"]
    charset = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert call(f"{served.url}/v1/text:translate", raw=raw, headers=charset).status == 200


@pytest.mark.parametrize("kind", ["text/plain", "", "multipart/form-data; boundary=a"])
def test_deepl_wants_a_content_type(served: Served, kind: str) -> None:
    raw = json.dumps({"text": ["a dog"], "target_lang": "DE"}).encode()
    answer = call(f"{served.url}/v2/translate", raw=raw, headers={"Content-Type": kind})
    assert answer.status == 400
    assert "content type" in answer.content["message"]
