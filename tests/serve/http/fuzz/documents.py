"""OpenAPI documents, and random requests that are made from them by schemathesis."""

from collections.abc import Callable
from typing import Any

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

from jumok_serve.http.apis.own_json import describe_api
from tests.serve.http.fuzz.other_apis import describe_other_apis

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


SERVED = describe_api()
DOCUMENTS = {"any": SERVED, "likely": likely(SERVED), "others": describe_other_apis()}
OPERATIONS = [
    (name, path, verb)
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
"""Operations that take fields; any other has one request."""
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def each_random_request(
    name: str, path: str, verb: str, send: Callable[[Any], Any], *, count: int, number: int
) -> None:
    """Make requests to an operation up, send each, and check the response.

    Args:
        name: of the document.
        send: sends a case, and returns the response.
        count: of requests.
        number: seed; the same gives the same requests, with the same versions of Hypothesis and schemathesis.
    """
    operation = schemathesis.openapi.from_dict(DOCUMENTS[name])[path][verb.upper()]
    cases = st.one_of([operation.as_strategy(generation_mode=mode) for mode in GenerationMode])

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def each(case: Any) -> None:
        case.validate_response(send(case), checks=CHECKS if name == "any" else CHECKS[:-1])

    each()
