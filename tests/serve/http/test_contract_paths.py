"""Paths of the JSON API: the contract states them, and documents, description and server have the same."""

import re
from pathlib import Path

import pytest

from jumok_serve import GlossaryStore
from jumok_serve.translator import Translator
from tests.support.servers.http_server import Served, call, serving_http

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
