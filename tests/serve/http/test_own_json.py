"""The contract as JSON: results and errors of gRPC, streams of events, stated paths, and the OpenAPI document."""

import asyncio
import base64
import json
import random
import re
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format

from jumok_proto.errors import EngineFailedError
from jumok_proto.v1 import model_pb2, model_pb2_grpc, translation_pb2, translation_pb2_grpc
from jumok_serve import GlossaryStore
from jumok_serve.http.apis.own_json import METHODS
from jumok_serve.http.port import make_http_front
from jumok_serve.service import Server
from jumok_serve.service.auth.tokens import TokenFile
from jumok_serve.translator import Translator
from tests.support.hang import HANG_S, until
from tests.support.servers.fake_model import FakeModel, hold
from tests.support.servers.fake_model import serving as fake_serving
from tests.support.servers.http_server import Served, call, events, serving_http
from tests.support.servers.tokens import token_file

REQUEST = {"contents": ["a dog", "a man in a blue shirt"], "options": {"beamSize": 3, "numHypotheses": 2}}
JSON_CONTENT = {"Content-Type": "application/json"}
STREAM = {"content": "a man in a blue shirt"}


def without_times(response: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in response.items() if name != "timings"}


def test_responses_are_those_of_grpc(served: Served) -> None:
    with grpc.insecure_channel(served.grpc) as channel:
        texts = translation_pb2_grpc.TranslationServiceStub(channel)
        models = model_pb2_grpc.ModelServiceStub(channel)
        translated = texts.TranslateText(json_format.ParseDict(REQUEST, translation_pb2.TranslateTextRequest()))
        scored = texts.ScoreText(translation_pb2.ScoreTextRequest(contents=["a dog"], targets=["ein Hund"]))
        listed = models.ListModels(model_pb2.ListModelsRequest())
        described = models.GetModel(model_pb2.GetModelRequest(name="tiny-en-de"))
    found = call(f"{served.url}/v1/text:translate", REQUEST).content
    assert without_times(found) == without_times(json_format.MessageToDict(translated))
    score = {"contents": ["a dog"], "targets": ["ein Hund"]}
    assert call(f"{served.url}/v1/text:score", score).content == json_format.MessageToDict(scored)
    assert call(f"{served.url}/v1/models").content == json_format.MessageToDict(listed)
    assert call(f"{served.url}/v1/models/tiny-en-de").content == json_format.MessageToDict(described)
    aligned = call(f"{served.url}/v1/text:align", {"contents": ["a dog"]})
    assert len(aligned.content["alignments"]) == 1


@asynccontextmanager
async def begun(model: FakeModel, path: str, content: object) -> AsyncIterator[tuple[Server, "asyncio.Task[Any]"]]:
    """Serve a model and send a request; yields the server, and the task that opens the response."""
    async with fake_serving(model, make_front=partial(make_http_front, port=0)) as (server, _):
        assert server.front is not None
        request = urllib.request.Request(
            f"http://{server.front.address}{path}", json.dumps(content).encode(), JSON_CONTENT
        )
        yield server, asyncio.create_task(asyncio.to_thread(urllib.request.urlopen, request, None, HANG_S))


def test_a_stream_is_a_growing_text_of_events(served: Served, translator: Translator) -> None:
    found = [data for _, data in events(f"{served.url}/v1/text:streamTranslate", STREAM)]
    stable = [data["stableText"] for data in found]
    assert all(after.startswith(before) for before, after in pairwise(stable))
    expected = translator.translate(STREAM["content"]).text
    assert stable[-1] == found[-1]["translation"]["hypotheses"][0]["text"] == expected


def test_an_error_before_the_first_event_is_an_ordinary_one(served: Served) -> None:
    answer = call(f"{served.url}/v1/text:streamTranslate", {**STREAM, "options": {"beamSize": 1000}})
    assert (answer.status, answer.content["error"]["status"]) == (400, "INVALID_ARGUMENT")


def fail_late() -> None:
    raise EngineFailedError("the engine failed", retry_after_s=1)


async def test_a_later_error_is_the_last_event() -> None:
    model = FakeModel(on_submit=hold)
    async with begun(model, "/v1/text:streamTranslate", STREAM) as (_, opening):
        answer = await model.submitted.get()
        answer.write("Ein")
        with await opening as response:
            first = await asyncio.to_thread(response.readline)
            answer.on_collect = fail_late
            answer.complete()
            rest = await asyncio.to_thread(response.read)
    assert json.loads(first.removeprefix(b"data: ")) == {"stableText": "Ein"}
    check_unavailable(rest)


def check_unavailable(rest: bytes) -> None:
    """Assert that the rest of a stream is this error."""
    name, data = rest.decode().strip().split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"]["status"] == "UNAVAILABLE"


FILE = {
    "settings": {"format": "text"},
    "file": base64.b64encode(b"A dog.\nA man.\n").decode(),
}


async def stopped_file(grace_s: float, *, complete: bool) -> tuple[list[bytes], bytes]:
    """Stop a server after the first event of a file; returns that event and the rest."""
    model = FakeModel(on_submit=hold)
    async with begun(model, "/v1/files:translate", FILE) as (server, opening):
        answers = [await model.submitted.get() for _ in range(2)]
        answers[0].complete()
        with await opening as response:
            first = [await asyncio.to_thread(response.readline) for _ in range(2)]
            stopping = asyncio.ensure_future(server.stop(grace_s))
            await until(server.stopping.is_set)
            if complete:
                answers[1].complete()
            rest = await asyncio.to_thread(response.read)
        await stopping
        return first, rest


async def test_a_server_that_stops_finishes_a_file() -> None:
    first, rest = await stopped_file(HANG_S, complete=True)
    events = [json.loads(line.removeprefix(b"data: ")) for line in (first[0], *rest.split(b"\n\n")) if line]
    assert b"".join(base64.b64decode(event.get("file", "")) for event in events) == b"A DOG.\nA MAN.\n"
    assert events[-1]["translatedCount"] == 2


async def test_the_last_event_of_a_file_that_outlasts_the_grace_is_an_error() -> None:
    _, rest = await stopped_file(0.1, complete=False)
    check_unavailable(rest)


def test_errors_have_status_reason_and_field(served: Served) -> None:
    answer = call(
        f"{served.url}/v1/text:translate", {**REQUEST, "options": {"beamSize": 1000}}, headers={"X-Request-Id": "it"}
    )
    assert answer.status == answer.content["error"]["code"] == 400
    assert answer.content["error"]["status"] == "INVALID_ARGUMENT"
    details = {one["@type"].rpartition(".")[2]: one for one in answer.content["error"]["details"]}
    assert details["ErrorInfo"]["reason"] == "INVALID_REQUEST"
    assert details["BadRequest"]["fieldViolations"][0]["field"] == "options.beam_size"
    assert details["RequestInfo"]["requestId"] == answer.headers["X-Request-Id"] == "it"
    assert call(f"{served.url}/v1/models/nothing").status == 404
    assert call(f"{served.url}/v1/nothing").status == 404


@pytest.mark.parametrize(
    "content",
    [
        {"content": "a"},
        {"contents": "a"},
        {"contents": [1]},
        {"contents": [None]},
        {"contents": ["\ud800"]},
        {"contents": ["a"], "options": [1]},
        {"contents": ["a"], "options": {"beamSize": "many"}},
        {"contents": ["a"], "options": {"beamSize": 1e99}},
        {"contents": ["a"], "truncate": "yes"},
        [],
        7,
    ],
)
def test_wrong_json_is_refused(served: Served, content: object) -> None:
    answer = call(f"{served.url}/v1/text:translate", content)
    assert (answer.status, answer.content["error"]["status"]) == (400, "INVALID_ARGUMENT")


HUGE = "1" + "0" * 400


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ('"markup": 1e400', "markup must be the name or number of a value, got inf"),
        ('"markup": HUGE', "markup must be the name or number of a value, got 1"),
        ('"markup": 1.5', "markup must be the name or number of a value, got 1.5"),
        ('"markup": true', "markup must be the name or number of a value, got True"),
        ('"markup": NaN', "markup must be the name or number of a value, got nan"),
        ('"options": {"lengthPenalty": HUGE}', "options.length_penalty must be a finite number, got 1"),
        ('"options": {"length_penalty": -1e400}', "options.length_penalty must be a finite number, got -inf"),
        ('"options": {"lengthPenalty": "1e400"}', "length_penalty must be a finite number"),
        ('"options": {"lengthPenalty": "NaN"}', "length_penalty must be a finite number"),
        ('"options": {"lengthPenalty": false}', "options.length_penalty must be a finite number, got False"),
        ('"options": {"beamSize": Infinity}', "options.beam_size must be a whole number of at most 64 bits, got inf"),
        ('"options": {"beamSize": -HUGE}', "options.beam_size must be a whole number of at most 64 bits, got -1"),
        ('"options": {"suppressTokens": {"ids": [1, 1e400]}}', "options.suppress_tokens.ids[1] must be a whole number"),
        ('"truncate": 1', "truncate must be true or false, got 1"),
        ('"glossary": {"entries": [{"source": HUGE}]}', "which /openapi.json describes"),
    ],
)
def test_numbers_that_a_field_cannot_have_are_refused_by_field(served: Served, fields: str, words: str) -> None:
    body = f'{{"contents": ["a"], {fields.replace("HUGE", HUGE)}}}'
    answer = call(f"{served.url}/v1/text:translate", raw=body.encode(), headers=JSON_CONTENT)
    assert (answer.status, answer.content["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert words in answer.content["error"]["message"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ('{"contents": ["a"], "text": 1}', "text"),
        ('{"contents": ["a"], "options": {"beams": 2}}', "options.beams"),
        ('{"contents": ["a"], "glossary": {"entries": [{}, {"src": 1}]}}', "glossary.entries[1].src"),
        (f'{{"{"x" * 500}": 1}}', "x" * 100),
    ],
)
def test_unknown_fields_are_named(served: Served, body: str, field: str) -> None:
    answer = call(f"{served.url}/v1/text:translate", raw=body.encode(), headers=JSON_CONTENT)
    assert (answer.status, answer.content["error"]["status"]) == (400, "INVALID_ARGUMENT")
    message = f"the field '{field}' is unknown: leave it out; /openapi.json lists the fields"
    assert answer.content["error"]["message"] == message
    assert field in str(answer.content["error"]["details"])


def test_random_numbers_are_no_faults_in_any_field_of_any_api(served: Served) -> None:
    generator = random.Random(2)
    numbers = ["1e400", "-1e400", "NaN", "-Infinity", HUGE, f"-{HUGE}", "1.5", "[1e400]", "1e39"]
    own = {
        method.path: [field.name for field in method.request.DESCRIPTOR.fields]
        for method in METHODS
        if method.path.count("{") == 0
    }
    own |= {
        "/translate": ["q", "source", "target", "format", "alternatives", "api_key"],
        "/detect": ["q"],
        "/v2/translate": ["text", "source_lang", "target_lang", "split_sentences", "tag_handling", "glossary_id"],
        "/v3/glossaries": ["name", "dictionaries"],
    }
    for path, names in own.items():
        for name in names:
            for number in generator.sample(numbers, 4):
                for value in (number, f"[{number}]", f'{{"beam_size": {number}}}', f'{{"translation": {number}}}'):
                    body = f'{{"{name}": {value}}}'
                    answer = call(served.url + path, raw=body.encode(), headers=JSON_CONTENT)
                    assert answer.status in {400, 404, 405}, (path, body, answer)


def test_tokens_are_bearer_tokens(translator: Translator, tmp_path: Path) -> None:
    file, (secret,) = token_file(tmp_path, "page")
    with serving_http(translator, tokens=TokenFile(file)) as served:
        url = f"{served.url}/v1/text:translate"
        assert call(url, REQUEST, headers={"Authorization": f"Bearer {secret}"}).status == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {secret}"}):
            answer = call(url, REQUEST, headers=headers)
            assert (answer.status, answer.content["error"]["status"]) == (401, "UNAUTHENTICATED")
        assert call(f"{served.url}/v1/models").status == 401


def test_the_document_describes_what_is_served(served: Served) -> None:
    document = call(f"{served.url}/openapi.json").content
    assert document["openapi"] == "3.1.0"
    schemas = document["components"]["schemas"]
    references = set(find_references(document))
    assert {f"#/components/schemas/{name}" for name in schemas} == references
    response = call(f"{served.url}/v1/text:translate", REQUEST).content
    check(response, document["paths"]["/v1/text:translate"]["post"]["responses"]["200"], schemas)
    error = call(f"{served.url}/v1/text:translate", {}).content
    check(error, document["paths"]["/v1/text:translate"]["post"]["responses"]["default"], schemas)


def find_references(value: Any) -> list[str]:
    if isinstance(value, list):
        return [one for item in value for one in find_references(item)]
    if not isinstance(value, dict):
        return []
    return [value["$ref"]] if "$ref" in value else find_references(list(value.values()))


def check(value: Any, response: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Check a value against the schema of a response."""
    (content,) = response["content"].values()
    check_schema(value, content["schema"], schemas)


def check_schema(value: Any, schema: dict[str, Any], schemas: dict[str, Any]) -> None:
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    kinds: dict[str, Any] = {
        "object": dict,
        "array": list,
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
    }
    assert isinstance(value, kinds[schema["type"]]), (value, schema)
    assert value in schema.get("enum", [value])
    for item in value if isinstance(value, list) else []:
        check_schema(item, schema["items"], schemas)
    for name, part in value.items() if isinstance(value, dict) and "properties" in schema else []:
        check_schema(part, schema["properties"][name], schemas)


ROOT = Path(__file__).parents[3]
_METHOD = re.compile(
    r"  rpc (\w+)\([^;{]*\) returns \((?:stream )?\w+\)(?: {\s*option \(google.api.http\) = {(.*?)};)?", re.DOTALL
)
_RULE = re.compile(r"(get|post|patch|delete): \"([^\"]+)\"")
IN_STREAMS = {"TranslateCorpus"}
"""Methods whose requests do not fit into one message."""


def stated() -> dict[str, tuple[str, str]]:
    """Read verb and path of each method from the .proto files."""
    found = {}
    for name in ("translation", "file", "glossary", "model"):
        text = (ROOT / f"proto/jumok_proto/v1/{name}.proto").read_text(encoding="utf-8")
        for method, rule in _METHOD.findall(text):
            if method not in IN_STREAMS:
                ((verb, path),) = _RULE.findall(rule)
                found[method] = (verb, path)
    return found


def test_the_description_has_the_stated_paths(served: Served) -> None:
    paths = call(f"{served.url}/openapi.json").content["paths"]
    described = {
        operation["operationId"]: (verb, path) for path, verbs in paths.items() for verb, operation in verbs.items()
    }
    assert described == stated()
    assert len(stated()) > 10


def test_the_document_has_the_stated_paths() -> None:
    text = (ROOT / "docs/http.md").read_text(encoding="utf-8").partition("## Our own JSON")[2]
    written = {(verb.lower(), path) for verb, path in re.findall(r"`([A-Z]+) (/v1/[^`]+)`", text)}
    assert written == set(stated().values())


@pytest.mark.parametrize("method", sorted(stated()))
def test_every_path_is_served(served: Served, method: str) -> None:
    verb, path = stated()[method]
    answer = call(served.url + path.format(name="other", glossary="other"), raw=b"[]", method=verb.upper())
    assert "error" not in answer.content or isinstance(answer.content["error"], dict)  # of no unknown path or verb


def test_glossaries_of_the_contract(translator: Translator, tmp_path: Path) -> None:
    entries = {"sourceLanguageCode": "en", "targetLanguageCode": "de", "tsv": "dog\tHund\n"}
    with serving_http(translator, glossaries=GlossaryStore(tmp_path)) as served:
        url = f"{served.url}/v1/glossaries"
        made = call(url, {"name": "pets", "dictionaries": [entries]}).content["glossary"]
        assert call(url).content["glossaries"] == [made]
        changed = call(f"{url}/{made['id']}", {"glossary": "other", "name": "toys"}, method="PATCH").content["glossary"]
        assert changed == {**made, "name": "toys"}
        assert call(f"{url}/toys").content == {"glossary": changed}
        found = call(f"{url}/toys/entries?sourceLanguageCode=en&target_language_code=de")
        assert found.content == {"entries": entries}
        wrong = call(f"{url}/toys/entries?sourceLanguageCode=fr")
        assert (wrong.status, "has no entries" in wrong.content["error"]["message"]) == (400, True)
        unknown = call(f"{url}/toys/entries?colour=red")
        assert (unknown.status, "colour" in unknown.content["error"]["message"]) == (400, True)
        assert call(f"{url}/toys", method="DELETE").content == {"glossary": changed}
        assert call(f"{url}/toys").status == 404
