"""The scenarios of ``make faults``, as far as seconds go: what they send, what they notice, and what they say."""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

import jumok
from benchmarks.common.processes import Server
from benchmarks.common.processes import serving as serving_process
from jumok.testing import FakeServer
from jumok_proto.v1.decoding_pb2 import DecodingOptions
from jumok_proto.v1.translation_pb2 import TranslateTextRequest
from jumok_serve.service.auth.tokens import TokenFile
from jumok_serve.translator import Translator
from tests.faults import __main__ as faults
from tests.faults.scenarios.availability import SERVERS, Load, rolling_update
from tests.faults.scenarios.fuzzing import call_at_random, likely_values
from tests.faults.scenarios.http_attack import attack_http
from tests.faults.scenarios.http_fuzzing import Answered
from tests.faults.scenarios.network import broken_connections, send
from tests.faults.scenarios.overload import Floor
from tests.faults.scenarios.sharing import ALONE, sharing
from tests.faults.scenarios.unanswered import BUNDLES, ENDLESS, unanswered
from tests.faults.tools.findings import Findings, Plan
from tests.faults.tools.light_calls import OK, RESOURCE_EXHAUSTED, LightCalls
from tests.faults.tools.servers import is_healthy
from tests.faults.tools.slope import slope
from tests.faults.tools.texts import scenes
from tests.serve.http.fuzz.documents import OPERATIONS
from tests.support.hang import HANG_S
from tests.support.logs import own_records
from tests.support.servers.http_server import serving_http
from tests.support.servers.in_process_server import check_idle, serving
from tests.support.servers.tokens import token_file

CODES = grpc.StatusCode
RANDOM_CALLS = 200
SETTINGS = b"\x04\x00\x00\x00\x00\x00"
"""Rest of a SETTINGS frame after its length: type, flags, stream (RFC 9113, 4.1)."""


def findings_of(scenario: Callable[[Plan, Findings], Coroutine[Any, Any, None]], **plan: Any) -> Findings:
    """Run a scenario with what it needs of a plan."""
    findings = Findings(scenario="short")
    asyncio.run(scenario(cast("Plan", SimpleNamespace(**plan)), findings))
    return findings


@pytest.fixture(scope="module")
def address(translator: Translator) -> Iterator[str]:
    with serving(translator) as served:
        yield served


def test_random_messages_are_answered_as_documented(
    translator: Translator, address: str, sentences: tuple[list[str], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    answers = call_at_random(address, likely_values("tiny-en-de", sentences[0][:10]), count=RANDOM_CALLS, seed=1)
    assert answers.undocumented == []
    assert answers.without_details == []
    assert answers.codes.total() == RANDOM_CALLS
    assert answers.codes["OK"] > RANDOM_CALLS / 10  # or they would say little
    assert len(answers.methods) >= 10
    assert not own_records(caplog)
    check_idle(translator)
    assert asyncio.run(is_healthy(address))


async def test_broken_connections_harm_nobody(address: str, caplog: pytest.LogCaptureFixture) -> None:
    server = Server(address=address, pid=0)
    broken = broken_connections()
    await asyncio.gather(*(send(server, data) for data in broken.values()))
    for name, awaited in (
        ("the preface alone", SETTINGS),  # so what follows it in others is read as HTTP/2
        ("a method that is not there", b"grpc-status"),
    ):
        assert awaited in await send(server, broken[name], whole_s=HANG_S, awaited=awaited), name
    async with jumok.AsyncClient(address, timeout_s=HANG_S) as client:
        assert (await client.translate("a man", max_length=3)).hypotheses
    ends = "jumok_serve.service.rpc.interceptor"  # logs that it has ended one with too much metadata
    assert not [record for record in own_records(caplog) if record.name != ends]


async def test_light_calls_learn_what_other_clients_do(translator: Translator, address: str) -> None:
    """Texts, no texts, bytes that are no request, and more at once than a connection takes."""
    text = TranslateTextRequest(contents=["a man"], options=DecodingOptions(max_length=2)).SerializeToString()
    async with await LightCalls.connect(address, timeout_s=HANG_S) as calls:
        before = translator.counters().finished
        statuses = await asyncio.gather(*map(calls.ask, [text, b"", b"\xff", text]))
        assert statuses == [code.value[0] for code in (CODES.OK, *[CODES.INVALID_ARGUMENT] * 2, CODES.OK)]
        assert translator.counters().finished == before + 2
        many = await asyncio.gather(*(calls.ask(b"\xff" * 100) for _ in range(2000)))
        assert set(many) == {CODES.INVALID_ARGUMENT.value[0]}
        ended = asyncio.get_running_loop().create_future()
        calls.call(text, lambda *told: ended.set_result(told))
        status, took_s = await ended
        assert status == OK
        assert took_s > 0


def test_callers_of_all_kinds_share_a_server(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its figures are of no use here, as they depend on the machine."""
    for name, small in (("SETTLE_S", 0.1), ("GONE_S", 0.1), ("ROUNDS", 1)):
        monkeypatch.setattr(f"tests.faults.scenarios.sharing.{name}", small)
    texts = ["a man", "a dog runs", "two women talk"]
    findings = findings_of(sharing, bundle=tiny_bundle, texts=texts, sharing_s=0.3)
    assert {check.found for check in findings.checks if check.goal == "0"} == {"0"}  # no errors and no faults
    found = {check.what: check.found for check in findings.checks}
    names = "the costliest request", "a corpus", "8 corpora of as many callers", "64 requests to score"
    for name in (ALONE, *names, "the file letter.docx"):
        assert float(found[f"beside {name}, 99 % within, ms"]) > 0
    assert not found["a corpus beside an interactive caller, in parts of its share"].endswith("to 0.00)")


def test_strangers_and_callers_attack_over_http(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, small in (
        ("ONE_BY_ONE", 1),
        ("TOGETHER", 2),
        ("UNFINISHED", 20),
        ("OPENED_TOGETHER", 10),
        ("HELD_S", 0.1),
    ):
        monkeypatch.setattr(f"tests.faults.scenarios.http_attack.{name}", small)
    # The server gives memory back every two seconds.
    findings = findings_of(attack_http, bundle=tiny_bundle, attack_rest_s=5)
    assert [check for check in findings.checks if not check.passed] == []
    assert sum(check.what == "answers to large requests" for check in findings.checks) == 2


def test_a_rolling_update_loses_nothing(tiny_bundle: Path) -> None:
    findings = findings_of(rolling_update, bundle=tiny_bundle, texts=scenes(40, 1), seed=1, restarts=1)
    assert [check.what for check in findings.checks if not check.passed] == []
    found = {check.what: check.found for check in findings.checks}
    assert found["exit statuses of servers replaced by others at new addresses, under load"] == str([0] * SERVERS)
    assert int(found["sentences that were iterated over"]) > 0


def test_every_call_is_answered_and_every_server_ends(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a small model, and without the bundle that a trial computes a minute for."""
    for limit in ("TEXT_S", "HEALTH_S", "IDLE_WITHIN_S", "ENDS_WITHIN_S"):  # the machine may be busy
        monkeypatch.setattr(f"tests.faults.scenarios.unanswered.{limit}", 300.0)
    loaded = [name for name in BUNDLES if name != ENDLESS]
    findings = findings_of(partial(unanswered, loaded=loaded), bundle=tiny_bundle)
    assert [check for check in findings.checks if not check.passed] == []
    assert len(findings.checks) == 13


def test_each_http_operation_is_answered_with_and_without_a_token(
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


def test_a_wrong_http_answer_is_noticed(monkeypatch: pytest.MonkeyPatch, translator: Translator) -> None:
    monkeypatch.setattr("jumok_serve.http.site.HTTP_STATUSES", {})  # 500 for all
    with serving_http(translator) as served:
        answered = Answered(served.url)
        answered.send_each(1, seed=1)
        answered.close()
    assert answered.wrong


async def test_the_floor_refuses_everything() -> None:
    async with serving_process("tests.faults.tools.refusing") as server:
        async with await LightCalls.connect(server.address, timeout_s=HANG_S) as calls:
            assert await asyncio.gather(*(calls.ask(b"") for _ in range(3))) == [RESOURCE_EXHAUSTED] * 3
        with pytest.raises(jumok.ResourceExhaustedError) as refused:
            async with jumok.AsyncClient(server.address, timeout_s=HANG_S, max_attempts=1) as client:
                await client.translate("a man")
        assert (refused.value.reason, refused.value.retry_after_s) == ("OVERLOADED", 1.0)


def test_what_refusals_leave_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.faults.scenarios.overload.CORES", 4)
    floor = Floor(server_s=0.0003, client_s=0.0001)
    assert floor.left(0) == 1
    assert floor.left(1000) == pytest.approx(0.9)
    assert floor.left(1e6) == 0


async def test_what_is_lost_or_wrong_is_noticed() -> None:
    findings = Findings(scenario="load")
    with FakeServer({"a": "right", "b": "wrong"}) as server:
        async with jumok.AsyncClient(server.address) as client:
            load = Load(client, {"a": "right", "b": "right"}, seed=1)
            async with load.running():
                await load.finish()
            load.read += 1
            load.judge(findings)
    missed = {check.what for check in findings.checks if not check.passed}
    assert missed == {"of these lost or given twice", "translations that differ from those before"}
    assert not findings.passed


def test_a_slope_is_that_of_the_line() -> None:
    times = [float(second) for second in range(203)]
    found = slope(times, [100 + 3 * second / 60 for second in times])
    assert found.per_minute == pytest.approx(3)
    assert found.start == pytest.approx(100)
    assert found.low <= found.per_minute <= found.high
    with pytest.raises(ValueError, match="19 samples are too few for 10 blocks"):
        slope(times[:19], times[:19])


def test_all_scenarios_are_run_and_a_goal_that_is_missed_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = SimpleNamespace(plan=None)

    async def good(plan: Plan, findings: Findings) -> None:
        """Passes."""
        asked.plan = plan
        findings.tell("calls", 7)
        findings.expect_none("errors", [])

    async def bad(plan: Plan, findings: Findings) -> None:
        """Misses."""
        findings.expect_none("errors", [ValueError("lost")])

    monkeypatch.setattr(faults, "SCENARIOS", {"good": good, "bad": bad})
    monkeypatch.setattr("tests.faults.__main__.signal.signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["faults", "--soak", "60", "--seed", "3"])
    assert faults.main() == 1
    printed = capsys.readouterr().out
    assert "1, the first: lost" in printed
    assert printed.count("MISSED") == 1
    assert (asked.plan.soak_s, asked.plan.seed) == (60, 3)
    monkeypatch.setattr(sys, "argv", ["faults", "good"])
    assert faults.main() == 0
    monkeypatch.setattr(sys, "argv", ["faults", "other"])
    with pytest.raises(SystemExit):
        faults.main()
    assert "there is no scenario 'other'; there are good, bad" in capsys.readouterr().err
