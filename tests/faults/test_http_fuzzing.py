"""Random HTTP requests with a few requests each, and that a wrong answer is noticed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from jumok_serve.service.auth.tokens import TokenFile, make_token
from jumok_serve.translator import Translator
from tests.faults.scenarios.http_fuzzing import Answered
from tests.serve.http.fuzz.documents import OPERATIONS
from tests.support.logs import own_records
from tests.support.servers.http_server import serving_http
from tests.support.servers.in_process_server import check_idle


@pytest.fixture(scope="module")
def translator(tiny_bundle: Path) -> Iterator[Translator]:
    with Translator(tiny_bundle, threads=1) as opened:
        yield opened


def test_each_operation_is_answered_with_and_without_a_token(
    translator: Translator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret, token = make_token("caller", ("translate",))
    (tmp_path / "tokens").write_text(f"{token.line()}\n", encoding="utf-8")
    with serving_http(translator, tokens=TokenFile(tmp_path / "tokens")) as served:
        answered = Answered(served.url, secret)
        answered.send_each(1, seed=1)
        answered.close()
    assert answered.wrong == []
    assert answered.statuses.total() >= len(OPERATIONS)
    assert {200, 401} <= set(answered.statuses)
    assert not own_records(caplog)
    check_idle(translator)


def test_a_wrong_answer_is_noticed(monkeypatch: pytest.MonkeyPatch, translator: Translator) -> None:
    monkeypatch.setattr("jumok_serve.http.apis.own_json.http_status", lambda _: 500)
    with serving_http(translator) as served:
        answered = Answered(served.url)
        answered.send_each(1, seed=1)
        answered.close()
    assert answered.wrong
