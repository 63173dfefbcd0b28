"""Random HTTP requests with a few requests each, and that a wrong answer is noticed."""

from pathlib import Path

import pytest

from jumok_serve.service.auth.tokens import TokenFile
from jumok_serve.translator import Translator
from tests.faults.scenarios.http_fuzzing import Answered
from tests.faults.tools.servers import token_file
from tests.serve.http.fuzz.documents import OPERATIONS
from tests.support.logs import own_records
from tests.support.servers.http_server import serving_http
from tests.support.servers.in_process_server import check_idle


def test_each_operation_is_answered_with_and_without_a_token(
    translator: Translator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens, (secret,) = token_file(tmp_path, "caller")
    with serving_http(translator, tokens=TokenFile(tokens)) as served:
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
