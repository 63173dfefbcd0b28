"""Limits, counts and logs that HTTP and gRPC share, and responses that are not read."""

import logging
import socket
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

import jumok
from jumok_proto.glossaries import GlossaryEntries
from jumok_serve import GlossaryStore
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.telemetry.logs import CallLog
from jumok_serve.service.telemetry.metrics import make_registry
from jumok_serve.translator import Translator
from tests.serve.engine.test_engine import Gate
from tests.support.hang import HANG_S
from tests.support.servers.http_server import HEALTH, Answer, call, head, serving_http

TRANSLATE = "/jumok.v1.TranslationService/TranslateText"
REQUEST = {"q": "a dog", "source": "en", "target": "de"}


def test_a_caller_has_one_rate(translator: Translator) -> None:
    limits = ServiceLimits(requests_per_second=0.001, request_burst=2)
    with serving_http(translator, limits=limits) as served:
        with jumok.Client(served.grpc) as client:
            client.translate("a dog")
        assert call(f"{served.url}/translate", REQUEST).status == 200
        assert call(f"{served.url}/translate", REQUEST).status == 429
        with jumok.Client(served.grpc, max_attempts=1) as client, pytest.raises(jumok.RateLimitedError):
            client.translate("a dog")
    counts = served.server.counts
    assert counts.ended_with[TRANSLATE, "OK"] == 2
    assert counts.ended_with[TRANSLATE, "RESOURCE_EXHAUSTED"] == 2
    assert sum(counts.refused_s["RATE_LIMITED"].counts) == 2


def test_a_caller_has_one_number_of_open_calls(own: Translator) -> None:
    answers: list[Answer] = []
    with serving_http(own, limits=ServiceLimits(max_calls_of_caller=1)) as served:
        gate = Gate(own)
        asking = threading.Thread(target=lambda: answers.append(call(f"{served.url}/translate", REQUEST)))
        asking.start()
        gate.arrive()
        refused = call(f"{served.url}/v1/text:translate", {"contents": ["a dog"]})
        assert (refused.status, refused.headers["Retry-After"]) == (429, "1")
        assert refused.content["error"]["details"][0]["reason"] == "OVERLOADED"
        gate.open()
        asking.join(HANG_S)
    assert [one.status for one in answers] == [200]


def test_calls_are_logged_with_their_id(translator: Translator, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, "jumok_serve.calls"),
        serving_http(translator, observers=[CallLog(texts=True)]) as served,
    ):
        call(f"{served.url}/translate", REQUEST, headers={"X-Request-Id": "page-7"})
        call(f"{served.url}/translate", {**REQUEST, "target": "xx"})
    good, bad = [record.message for record in caplog.records if record.name == "jumok_serve.calls"]
    assert good.startswith(f"{TRANSLATE} OK ")
    assert "request_id=page-7" in good
    assert "peer=ipv4:127.0.0.1:" in good
    assert 'contents=["a dog"]' in good
    assert bad.startswith(f"{TRANSLATE} NOT_FOUND ")
    assert "reason=LANGUAGE_NOT_FOUND" in bad
    assert 'contents=["a dog"]' in bad


def test_responses_are_counted_by_status(translator: Translator) -> None:
    with serving_http(translator) as served:
        for path, status in (("/health", 200), ("/languages", 200), ("/nothing", 404), ("/translate", 405)):
            assert call(served.url + path).status == status
        assert call(f"{served.url}/translate", {"q": "a"}).status == 400
        registry = make_registry(served.server)
        counted = {
            sample.labels["status"]: sample.value
            for family in registry.collect()
            for sample in family.samples
            if sample.name == "jumok_http_responses_total"
        }
        assert counted == {"200": 2, "404": 1, "405": 1, "400": 1}
        with served.connect() as connection:
            connection.sendall(HEALTH)
            assert connection.recv(65536)
            assert (registry.get_sample_value("jumok_http_connections") or 0) >= 1


def test_unread_answers_over_http_are_refused(translator: Translator, tmp_path: Path) -> None:
    """A glossary is a large answer to a small request."""
    entries = "".join(f"{number:06}{'a' * 93}\tb\n" for number in range(40_000))
    limits = ServiceLimits(max_open_bytes=0, max_watches=8, max_calls=64)
    store = GlossaryStore(tmp_path)
    name = store.create("", "large", [GlossaryEntries(tsv=entries)]).id
    request = head("GET", f"/v2/glossaries/{name}/entries", None, "Authorization: DeepL-Auth-Key any")
    with serving_http(translator, glossaries=store, limits=limits) as served:
        statuses = []
        with ExitStack() as opened:
            connections = [opened.enter_context(socket.socket()) for _ in range(6)]
            for connection in connections:
                if connection is not connections[0]:  # the system takes little of these responses
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                connection.settimeout(HANG_S)
                connection.connect(served.address)
                connection.sendall(request)
                statuses.append(connection.recv(12)[9:])
            assert statuses[0] == b"200"
            assert statuses[-1] == b"429"
            with connections[0].makefile("rb") as rest:  # all of it arrives, in pieces
                while rest.readline().strip():
                    pass
                assert len(rest.read(len(entries))) == len(entries)
        assert call(f"{served.url}/v2/usage", headers={"Authorization": "DeepL-Auth-Key any"}).status == 200
