"""Random requests to all HTTP endpoints, made from OpenAPI documents: no fault of the server, and no hang."""

import os
from collections.abc import Iterator

import pytest

from jumok_serve import GlossaryStore
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.translator import Translator
from tests.serve.http.fuzz.documents import OPERATIONS, SERVED, VARIED, each_random_request
from tests.support.hang import HANG_S
from tests.support.servers.http_server import Served, call, serving_http
from tests.support.servers.in_process_server import check_idle

CASES = (10_000 if os.environ.get("JUMOK_TEST_THOROUGH") else 400) // VARIED + 1
"""Requests to each endpoint; those that take no fields get one."""


@pytest.fixture(scope="module")
def fuzzed(translator: Translator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    limits = ServiceLimits(max_texts=8, max_characters=300, max_hypotheses=64, max_beam_hypotheses=64)
    store = GlossaryStore(tmp_path_factory.mktemp("glossaries"))
    with serving_http(translator, limits=limits, glossaries=store) as served:
        yield served


@pytest.mark.parametrize(
    ("name", "path", "verb"),
    [
        pytest.param(
            *one, id=f"{one[0]} {one[2].upper()} {one[1]}", marks=[pytest.mark.slow] if one[0] == "likely" else []
        )
        for one in OPERATIONS
    ],
)
def test_no_request_is_a_fault_or_hangs(
    fuzzed: Served, translator: Translator, name: str, path: str, verb: str
) -> None:
    for glossary in ("pets", "toys"):
        content = {"name": glossary, "source_lang": "en", "target_lang": "de", "entries": "a\tb"}
        call(f"{fuzzed.url}/v2/glossaries", content)
    each_random_request(
        name, path, verb, lambda case: case.call(base_url=fuzzed.url, timeout=HANG_S), count=CASES, number=1
    )
    assert call(f"{fuzzed.url}/health").content == {"status": "ok"}
    check_idle(translator)


def test_the_document_is_that_of_the_server(fuzzed: Served) -> None:
    assert call(f"{fuzzed.url}/openapi.json").content == SERVED
