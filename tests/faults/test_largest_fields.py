"""The largest requests with small limits: each answered or refused as documented, and nothing of them stays."""

import asyncio
from collections.abc import Iterator

import pytest

from jumok_serve import GlossaryStore
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.translator import Translator
from tests.faults.scenarios.fuzzing import SERVICES
from tests.faults.scenarios.largest_fields import Caller, send_all
from tests.faults.tools.largest import GrpcCall, Large, largest_requests
from tests.faults.tools.servers import is_healthy
from tests.support.hang import HANG_S
from tests.support.logs import own_records
from tests.support.servers.http_server import Served, serving_http
from tests.support.servers.in_process_server import check_idle

LIMITS = ServiceLimits(
    max_message_bytes=2**17, max_characters=300, max_texts=16, max_hypotheses=64, max_beam_hypotheses=64
)
EACH = 16
"""Step between two requests that are sent; each part of the tests begins with another one."""


@pytest.fixture(scope="module")
def served(translator: Translator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    store = GlossaryStore(tmp_path_factory.mktemp("glossaries"))
    with serving_http(translator, limits=LIMITS, glossaries=store) as opened:
        yield opened


@pytest.fixture(scope="module")
def requests() -> list[Large]:
    return list(largest_requests(SERVICES, LIMITS))


def test_each_field_of_the_contract_is_filled_over_grpc(requests: list[Large]) -> None:
    for method in (method for service in SERVICES for method in service.methods):
        found = [one for one in requests if one.method == f"{method.containing_service.name}.{method.name}"]
        filled = {one.field.split(".")[0] for one in found}
        assert filled >= {of.name for of in method.input_type.fields if of.message_type is None}
        for name in (of.name for of in method.input_type.fields if of.message_type is not None):
            assert any(one.field.startswith(f"{name}.") for one in found), name


def test_requests_are_as_large_as_they_may_be(requests: list[Large]) -> None:
    sizes = [len(part) for one in requests if isinstance(one.request, GrpcCall) for part in one.request.data]
    sizes += [len(one.request.body) for one in requests if not isinstance(one.request, GrpcCall)]
    allowed = [size for size in sizes if size <= LIMITS.max_message_bytes]
    assert len(allowed) > 0.99 * len(sizes)
    assert sum(size > 0.8 * LIMITS.max_message_bytes for size in allowed) > 1000


@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=[pytest.mark.slow] if part % 4 else []) for part in range(EACH)]
)
def test_all_are_answered_or_refused_as_documented(
    served: Served, translator: Translator, requests: list[Large], part: int, caplog: pytest.LogCaptureFixture
) -> None:
    budgets = (served.server.intake.budget, served.server.intake.stream_budget, served.server.intake.stranger_budget)
    before = [budget.free for budget in budgets]
    caller = Caller(served.grpc, served.url.removeprefix("http://"), HANG_S)
    try:
        sent = send_all(caller, requests[part::EACH])
    finally:
        caller.close()
    assert sent.undocumented == []
    assert not own_records(caplog)
    assert asyncio.run(is_healthy(served.grpc))
    check_idle(translator)
    assert [budget.free for budget in budgets] == before
