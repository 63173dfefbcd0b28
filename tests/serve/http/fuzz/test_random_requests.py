"""Random requests to all HTTP endpoints, made from OpenAPI documents: no fault of the server, and no hang."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from jumok_serve import GlossaryStore
from jumok_serve.http.apis.openapi import describe_api
from jumok_serve.http.apis.own_json import METHODS
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.translator import Translator
from tests.serve.http.fuzz.other_apis import describe_other_apis
from tests.support.hang import HANG_S
from tests.support.servers.http_server import Served, call, serving_http
from tests.support.servers.in_process_server import check_idle

VALUES: dict[str, dict[str, Any]] = {
    "model": {"enum": ["", "tiny-en-de", "other"]},
    "sourceLanguageCode": {"enum": ["", "en", "auto"]},
    "targetLanguageCode": {"enum": ["", "de", "fr"]},
    "stored": {"enum": ["", "pets"]},
    "options": {"type": "object", "properties": {"beamSize": {"enum": [1, 2, 3]}, "numHypotheses": {"enum": [1, 2]}}},
    "targetPrefixes": {"enum": [[]]},
    "attention": {"enum": [False]},
    "contents": {"type": "array", "items": {"type": "string", "maxLength": 40}, "minItems": 1, "maxItems": 3},
}
"""Values of fields with which many requests are translated, in place of any."""


def likely(value: Any) -> Any:
    """Narrow a document to requests that servers often accept."""
    if isinstance(value, list):
        return [likely(one) for one in value]
    if not isinstance(value, dict):
        return value
    if value.get("in") == "path":
        return {**value, "schema": {"enum": ["tiny-en-de", "pets", "other"]}}
    if value.get("type") in {"integer", "number"}:
        return {**value, "minimum": -1, "maximum": 4}
    return {
        name: {field: VALUES.get(field) or likely(one) for field, one in part.items()}
        if name == "properties"
        else likely(part)
        for name, part in value.items()
    }


SERVED = describe_api(METHODS)
DOCUMENTS = {"any": SERVED, "likely": likely(SERVED), "others": describe_other_apis()}
OPERATIONS = [
    pytest.param(
        name, path, verb, id=f"{name} {verb.upper()} {path}", marks=[pytest.mark.slow] if name == "likely" else []
    )
    for name, document in DOCUMENTS.items()
    for path, verbs in document["paths"].items()
    for verb in verbs
]
VARIED = sum(
    "requestBody" in operation or "parameters" in operation
    for document in DOCUMENTS.values()
    for verbs in document["paths"].values()
    for operation in verbs.values()
)
CASES = (10_000 if os.environ.get("JUMOK_TEST_THOROUGH") else 400) // VARIED + 1
"""Requests to each endpoint; those that take no fields get one."""
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def fuzzed(translator: Translator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    limits = ServiceLimits(max_texts=8, max_characters=300, max_hypotheses=64, max_beam_hypotheses=64)
    store = GlossaryStore(tmp_path_factory.mktemp("glossaries"))
    with serving_http(translator, limits=limits, glossaries=store) as served:
        yield served


@pytest.mark.parametrize(("name", "path", "verb"), OPERATIONS)
def test_no_request_is_a_fault_or_hangs(
    fuzzed: Served, translator: Translator, name: str, path: str, verb: str
) -> None:
    operation = schemathesis.openapi.from_dict(DOCUMENTS[name])[path][verb.upper()]
    cases = st.one_of([operation.as_strategy(generation_mode=mode) for mode in GenerationMode])

    @seed(1)
    @settings(
        max_examples=CASES,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def send(case: Any) -> None:
        response = case.call(base_url=fuzzed.url, timeout=HANG_S)
        case.validate_response(response, checks=CHECKS if name == "any" else CHECKS[:-1])

    for glossary in ("pets", "toys"):
        content = {"name": glossary, "source_lang": "en", "target_lang": "de", "entries": "a\tb"}
        call(f"{fuzzed.url}/v2/glossaries", content)
    send()
    assert call(f"{fuzzed.url}/health").content == {"status": "ok"}
    check_idle(translator)


def test_the_document_is_that_of_the_server(fuzzed: Served) -> None:
    assert call(f"{fuzzed.url}/openapi.json").content == SERVED
