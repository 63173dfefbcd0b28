"""The HTTP APIs in front of servers elsewhere."""

import base64
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner

import jumok
from jumok_proto.markup import MarkupRules
from jumok_proto.v1.translation_pb2 import Hypothesis, TranslateTextResponse, Translation
from jumok_serve.cli.gateway_command import gateway
from jumok_serve.http.stub_backend import translate_request
from jumok_serve.search.options import DecodingOptions
from jumok_serve.service.handlers.api import Settings
from jumok_serve.service.handlers.translation_service import parse_settings
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.tasks.model import TranslationParameters
from jumok_serve.text.terms.glossary import PLACEHOLDERS
from jumok_serve.text.terms.store import GlossaryStore
from jumok_serve.translator import Translator
from tests.serve.engine.test_engine import Gate
from tests.support.hang import HANG_S
from tests.support.servers.http_server import Served, call, events
from tests.support.servers.in_process_server import serving
from tests.support.servers.losing_proxy import losing_proxy

PROGRAM = "from jumok_serve.cli.gateway_command import gateway; gateway()"
TEXTS = ["a man in a blue shirt", "a dog"]
REQUEST = {"q": TEXTS, "source": "en", "target": "de"}


@contextmanager
def gateway_to(*servers: str, stop: bool = True) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a gateway; yields the process and its URL. Without ``stop`` the test stops it."""
    command = [sys.executable, "-c", PROGRAM, "--server", ",".join(servers), "--http-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield process, f"http://{line.removeprefix('serving HTTP on ').strip()}"
        finally:
            if stop:
                process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=HANG_S)
    assert (process.returncode, "Traceback" in errors) == (0, False), errors


@pytest.fixture(scope="module")
def url(served: Served) -> Iterator[str]:
    """A gateway to a server without tokens."""
    with gateway_to(served.grpc) as (_, url):
        yield url


def counted(url: str) -> int:
    """Characters that the gateway has had translated."""
    count: int = call(f"{url}/v2/usage").content["character_count"]
    return count


def test_all_apis_are_those_of_the_servers(url: str, translator: Translator) -> None:
    expected = [one.text for one in translator.translate(TEXTS, split_sentences=True)]
    before = counted(url)
    assert call(f"{url}/translate", REQUEST).content == {"translatedText": expected}
    assert [one["code"] for one in call(f"{url}/languages").content] == ["de", "en"]
    deepl = call(f"{url}/v2/translate", {"text": TEXTS, "target_lang": "DE"}).content
    assert [one["text"] for one in deepl["translations"]] == expected
    assert counted(url) - before == 2 * sum(map(len, TEXTS))
    assert call(f"{url}/v1/models").content["models"][0]["name"] == "tiny-en-de"
    *_, (_, last) = events(f"{url}/v1/text:streamTranslate", {"content": TEXTS[0]})
    assert last["stableText"] == translator.translate(TEXTS[0]).text


def test_all_parameters_of_translations_are_sent() -> None:
    """Those with their defaults here are the server's own."""
    parameters = TranslationParameters(
        source_language="en",
        target_language="de",
        truncate=True,
        options=DecodingOptions(beam_size=3, early_stopping="never", suppress_tokens=(1,)),
        attention=True,
        split_sentences=True,
        cut_long_sentences=False,
        copy_unreadable=True,
        markup="xml",
        markup_rules=MarkupRules(ignore_tags=("x",)),
        placeholders=PLACEHOLDERS,
    )
    default = TranslationParameters()
    own = {one.name for one in fields(default) if getattr(parameters, one.name) == getattr(default, one.name)}
    assert own == {"deadline", "caller", "source_confidence", "later_sentences", "terms"}
    settings = Settings(model="tiny", parameters=parameters, stored_glossary="pets")
    assert parse_settings(translate_request(settings, TEXTS)) == settings


def test_files_are_translated(url: str, translator: Translator) -> None:
    request = {"settings": {"name": "a.txt"}, "file": base64.b64encode(b"a dog\na man\n").decode()}
    found = [data for _, data in events(f"{url}/v1/files:translate", request)]
    assert found[-1]["translatedCount"] == found[-1]["textCount"] == 2
    expected = "".join(f"{one.text}\n" for one in translator.translate(["a dog", "a man"]))
    assert b"".join(base64.b64decode(data.get("file", "")) for data in found).decode() == expected


@pytest.mark.parametrize("data", [b"", b"a dog", b"\n\n"])
def test_files_without_texts_are_answered_as_by_the_server(data: bytes, url: str, served: Served) -> None:
    request = {"settings": {"name": "a.txt"}, "file": base64.b64encode(data).decode()}
    answer = events(f"{url}/v1/files:translate", request)
    assert answer == events(f"{served.url}/v1/files:translate", request) != []


def test_errors_are_those_of_the_servers(translator: Translator) -> None:
    limits = ServiceLimits(requests_per_second=0.001, request_burst=3)
    with serving(translator, limits=limits) as server, gateway_to(server) as (_, url):
        wrong = call(f"{url}/translate", {**REQUEST, "target": "xx"}, headers={"X-Request-Id": "mine"})
        assert (wrong.status, wrong.headers["X-Request-Id"]) == (400, "mine")
        assert wrong.content["error"] == "target: the model has no target language 'xx'; it has de"
        missing = call(f"{url}/v1/models/nothing")
        assert (missing.status, missing.content["error"]["status"]) == (404, "NOT_FOUND")
        reasons = {one.get("reason") for one in missing.content["error"]["details"]}
        assert "MODEL_NOT_FOUND" in reasons
        call(f"{url}/translate", REQUEST)
        often = call(f"{url}/translate", REQUEST)
        assert (often.status, int(often.headers["Retry-After"]) > 900) == (429, True)


def test_a_server_that_stops_is_passed_over(translator: Translator) -> None:
    with ExitStack() as stopping, serving(translator) as second:
        first = stopping.enter_context(serving(translator))
        with gateway_to(first, second) as (_, url):
            assert [call(f"{url}/translate", REQUEST).status for _ in range(4)] == [200] * 4
            stopping.close()
            assert [call(f"{url}/translate", REQUEST).status for _ in range(4)] == [200] * 4
            assert call(f"{url}/health").status == 200


@pytest.mark.parametrize("method", ["UpdateGlossary", "DeleteGlossary"])
def test_a_change_whose_answer_is_lost_is_made_once(method: str, translator: Translator, tmp_path: Path) -> None:
    with (
        serving(translator, glossaries=GlossaryStore(tmp_path)) as server,
        jumok.Client(server) as client,
        losing_proxy(server, method) as (proxy, lost),
        gateway_to(proxy, server) as (_, url),
    ):

        def change(verb: str, glossary: str, /, **fields: str) -> str:
            return str(call(f"{url}/v1/glossaries/{glossary}", fields, method=verb).content["glossary"]["id"])

        for _ in range(2):
            made = client.glossaries.create("old", {"dog": "Hund"})
            assert change("PATCH", "old", name="new") == made.id
            assert change("DELETE", "new") == made.id
            assert client.glossaries.list() == []
            call(f"{url}/v1/glossaries")  # the servers take turns, so the other one gets the next first call
        assert lost


@contextmanager
def answering(*data: bytes) -> Iterator[str]:
    """Serve these bytes as the responses of every method; yields the address."""

    def respond(_requests: Iterator[bytes], _context: grpc.ServicerContext) -> Iterator[bytes]:
        yield from data

    class Handler(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic only for type checkers
        def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
            return grpc.stream_stream_rpc_method_handler(respond)

    with ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads, handlers=[Handler()])
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield address
        finally:
            server.stop(None).wait()


CALLS: list[tuple[str, Any]] = [
    ("/translate", REQUEST),
    ("/v2/translate", {"text": TEXTS, "target_lang": "DE"}),
    ("/v1/text:translate", {"contents": TEXTS}),
    ("/detect", {"q": TEXTS[0]}),
]


def of_two(translation: Translation) -> bytes:
    return TranslateTextResponse(translations=[translation] * 2).SerializeToString()


@pytest.mark.parametrize(
    ("data", "calls"),
    [
        pytest.param(b"\xff\xff\xff", CALLS, id="no message"),
        pytest.param(b"", CALLS, id="no results"),
        pytest.param(of_two(Translation()), CALLS[:3], id="empty results"),  # also two languages of something else
        pytest.param(  # JSON of the contract passes a number on
            of_two(Translation(hypotheses=[Hypothesis(finish_reason=99)])),  # type: ignore[arg-type]
            CALLS[:2],
            id="unknown finish reason",
        ),
    ],
)
def test_foreign_responses_are_passed_over(data: bytes, calls: list[tuple[str, Any]], translator: Translator) -> None:
    with answering(data) as foreign:
        with gateway_to(foreign) as (_, url):
            for path, fields in calls:
                refused = call(f"{url}{path}", fields)
                assert (refused.status, "name servers of this version" in str(refused.content)) == (503, True)
        with serving(translator) as server, gateway_to(foreign, server) as (_, url):
            assert {call(f"{url}{path}", fields).status for path, fields in calls * 2} == {200}


@pytest.mark.parametrize("data", [(b"\xff\xff\xff",), ()], ids=["no message", "nothing"])
def test_a_foreign_stream_ends_with_an_error(data: tuple[bytes, ...]) -> None:
    with answering(*data) as foreign, gateway_to(foreign) as (_, url):
        refused = call(f"{url}/v1/text:streamTranslate", {"content": TEXTS[0]})
        assert (refused.status, "name servers of this version" in str(refused.content)) == (503, True)


@pytest.mark.parametrize("key", ["a\tb", "\xe9\xff", "a\x01", "a" * 5000])
def test_keys_that_no_call_can_carry_are_no_tokens(key: str, url: str) -> None:
    request = {"text": TEXTS, "target_lang": "DE"}
    before = counted(url)
    answered = call(f"{url}/v2/translate", request, headers={"Authorization": f"DeepL-Auth-Key {key}"})
    assert answered.status == 200
    assert call(f"{url}/translate", {**REQUEST, "api_key": f"{key}\n"}).status == 200
    assert counted(url) - before == 2 * sum(map(len, TEXTS))


def test_without_servers_clients_are_told_to_wait() -> None:
    with gateway_to("localhost:1") as (_, url):
        answer = call(f"{url}/translate", REQUEST)
        assert answer.status == 503
        assert answer.content["error"]


def test_sigterm_finishes_running_requests(own: Translator) -> None:
    statuses: list[int] = []
    with serving(own) as server:
        gate = Gate(own)
        with gateway_to(server, stop=False) as (process, url):
            asking = threading.Thread(target=lambda: statuses.append(call(f"{url}/translate", REQUEST).status))
            asking.start()
            gate.arrive()
            process.send_signal(signal.SIGTERM)
            assert process.stderr is not None
            assert "finishing open calls" in process.stderr.readline()
            gate.open()
            asking.join(HANG_S)
    assert statuses == [200]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Missing option '--server'"),
        (["--server", "a:1", "--tls-key", __file__], "need each other"),
        (["--server", "a:1", "--token", "secret"], "add --tls-ca"),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(gateway, arguments, env={"JUMOK_SERVER": "", "JUMOK_TOKEN": ""})
    assert done.exit_code == 2
    assert words in done.stderr
