"""Silent servers: the policy by a table worked by hand, and clients against a relay that drops bytes."""

import itertools
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import grpc
import pytest

import jumok
from jumok._concurrency import Alarm
from jumok._transport import aio, sync
from jumok._transport.retry import MAX_ATTEMPTS, Endpoints, Silence, Watched
from jumok._transport.servers import HEALTH_CHECK
from jumok.testing import FakeServer
from tests.clients.conftest import served
from tests.clients.test_streams import all_ways
from tests.support.clients import Call as ClientCall
from tests.support.clients import await_, wait
from tests.support.hang import HANG_S
from tests.support.servers.relay import Relay
from tests.support.servers.scripted import Scripted

TEXTS = [f"text {number}" for number in range(300)]


def watched(endpoint: int, since: float, patience_s: float = 2.0) -> Watched:
    return Watched(endpoint, f"server {endpoint}", patience_s, since, lambda: None)


def silence_of(*calls: Watched, endpoints: Endpoints | None = None) -> Silence:
    silence = Silence(endpoints or Endpoints(2, first=0), 2)
    silence.calls = set(calls)
    return silence


def test_a_silent_server_is_checked_once_and_then_left() -> None:
    first, second = watched(0, 0.0), watched(0, 1.0)
    silence = silence_of(first, second)
    assert silence.turn(1.0) == ([], [], 2.0)
    assert silence.turn(2.0) == ([0], [], 3.0)
    assert silence.turn(3.0) == ([], [], 4.0)
    checks, silent, _ = silence.turn(4.0)
    assert checks == []
    assert set(silent) == {first, second}
    assert first.silent
    assert str(first.error()) == "the server at server 0 does not answer"
    assert silence.turn(4.0) == ([], [], None)


def test_a_busy_server_is_checked_again_and_again_and_never_left() -> None:
    call = watched(1, 0.0)
    silence = silence_of(call)
    for now in (2.0, 4.5, 7.0):
        assert silence.turn(now) == ([1], [], now + 2.0)
        silence.checked(1, now + 0.5, answered=True)
        assert silence.turn(now + 2.0) == ([], [], now + 2.5)
    assert not call.silent
    assert call.error() is None


def test_a_call_with_less_time_is_less_patient() -> None:
    hasty, patient = watched(0, 0.0, 0.25), watched(0, 0.0)
    silence = silence_of(hasty, patient)
    assert silence.turn(0.25) == ([0], [], 0.5)
    assert silence.turn(0.5) == ([], [hasty], 2.0)
    assert silence.turn(2.0) == ([], [], 2.25)
    assert silence.turn(2.25) == ([], [patient], None)  # the check is unanswered for as long


def test_an_alarm_that_failed_rings_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no thread can be started, say."""
    rung = threading.Semaphore(0)
    failing = [True]

    def ring() -> None:
        if failing.pop():
            raise RuntimeError("can't start new thread")
        rung.release()

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    alarm = Alarm(ring)
    with monkeypatch.context() as patched:
        patched.setattr("jumok._concurrency.threading.Timer.start", refuse)
        with pytest.raises(RuntimeError):
            alarm.set(0.0)
    hooked = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _: hooked.set())
    alarm.set(0.0)
    assert hooked.wait(HANG_S)
    failing.append(False)
    alarm.set(0.0)
    assert rung.acquire(timeout=HANG_S)


def test_no_server_is_left_while_the_others_rest() -> None:
    endpoints = Endpoints(2, first=0)
    call = watched(0, 0.0)
    silence = silence_of(call, endpoints=endpoints)
    endpoints.failed(1, 3.5)
    assert silence.turn(2.0)[0] == [0]
    assert silence.turn(4.0) == ([], [], 6.0)
    silence.checked(0, 6.0, answered=False)
    assert silence.turn(6.0) == ([0], [], 8.0)
    assert silence.turn(8.0) == ([], [call], None)


def test_one_call_tries_a_server_that_rested() -> None:
    endpoints = Endpoints(2, first=0)
    endpoints.failed(0, 100.0)
    picked = [endpoints.pick(101.0) for _ in range(6)]
    assert picked.count(0) == 1
    assert not endpoints.other_ready(1, 101.0)
    endpoints.failed(0, 104.0)
    assert 0 not in [endpoints.pick(105.9) for _ in range(4)]
    assert [endpoints.pick(106.0) for _ in range(6)].count(0) == 1
    endpoints.succeeded(0)
    assert [endpoints.pick(106.0) for _ in range(6)].count(0) == 3


def test_any_answer_of_a_server_that_rested_ends_its_trial() -> None:
    refused = jumok.InvalidArgumentError("texts[0]: too long", details=jumok.Details(reason="INVALID_REQUEST"))
    late = jumok.DeadlineExceededError("no answer", details=jumok.Details())
    for error, calls in ((refused, 3), (late, 0)):
        endpoints = Endpoints(2, first=0)
        endpoints.failed(0, 100.0)
        assert endpoints.pick(101.0) == 0
        assert not endpoints.ended(0, error, 101.5)
        assert [endpoints.pick(101.5) for _ in range(6)].count(0) == calls


# --- clients ---


def text_of(call: ClientCall, method: str, server: list[str], text: str, timeout_s: float) -> str:
    found = call(method, server, text, timeout_s=timeout_s, max_attempts=MAX_ATTEMPTS)
    return str(found[-1].text if isinstance(found, list) else found.text)


Translate = Callable[[list[str], str, float], str]
translate, translate_async = (partial(text_of, call, "translate") for call in (wait, await_))
stream, stream_async = (partial(text_of, call, "translate_stream") for call in (wait, await_))
each_call = pytest.mark.parametrize("call", [translate, translate_async, stream, stream_async])


@contextmanager
def stopped_server() -> Iterator[str]:
    """A server whose process is stopped by SIGSTOP, as by a debugger or a frozen machine."""
    program = (
        "import sys; from jumok.testing import FakeServer\n"
        "with FakeServer() as server: print(server.address, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        process.send_signal(signal.SIGSTOP)
        try:
            yield address
        finally:
            process.kill()


@each_call
def test_calls_leave_a_server_whose_process_is_stopped(call: Translate) -> None:
    """Each of several calls, so that one of them goes to the stopped server first."""
    with stopped_server() as stopped, FakeServer() as server:
        for text in ("a", "b", "c", "d"):
            assert call([stopped, server.address], text, HANG_S) == text.upper()


@each_call
def test_calls_leave_a_silent_server_within_their_own_timeout(call: Translate) -> None:
    with FakeServer() as lost, FakeServer() as server, Relay(lost.address) as relay:
        relay.silence()
        for text in ("a", "b", "c", "d"):
            assert call([relay.address, server.address], text, 20.0) == text.upper()
        assert lost.requests == []


@all_ways
def test_a_corpus_goes_on_elsewhere_if_the_server_becomes_silent(translate: Any) -> None:
    with FakeServer() as first, FakeServer() as second, Relay(first.address) as one, Relay(second.address) as other:

        def texts() -> Iterator[str]:
            yield from TEXTS[:200]
            (one if first.requests else other).silence()
            yield from TEXTS[200:]

        results = translate([one.address, other.address], texts(), window=64, timeout_s=HANG_S)
        assert first.requests
        assert second.requests
    assert [(result.index, result.translation.text) for result in results] == [
        (index, text.upper()) for index, text in enumerate(TEXTS)
    ]


def health_service(calls: int, enough: threading.Event) -> grpc.GenericRpcHandler:  # type: ignore[type-arg]
    """A health service, with an event that is set after a number of calls."""
    checks = itertools.count(1)

    def check(request: bytes, context: grpc.ServicerContext) -> bytes:
        if next(checks) >= calls:
            enough.set()
        return b""

    service, method = HEALTH_CHECK.strip("/").split("/")
    return grpc.method_handlers_generic_handler(service, {method: grpc.unary_unary_rpc_method_handler(check)})


@pytest.mark.parametrize("call", [translate, translate_async])
def test_the_work_of_a_busy_server_is_not_done_twice(call: Translate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both servers hold their answers until one has answered two health checks."""
    for watch in (sync, aio):
        monkeypatch.setattr(watch, "PATIENCE_S", 6.0)  # for a check, on a busy machine too
    enough = threading.Event()
    health = health_service(2, enough)
    services = [Scripted(hold=enough), Scripted(hold=enough)]
    with ExitStack() as servers:
        addresses = [servers.enter_context(served(service, health)) for service in services]
        assert call(addresses, "a", HANG_S) == "A"
    assert sum(len(service.requests) for service in services) == 1


@pytest.mark.parametrize("call", [translate, translate_async])
def test_one_silent_server_is_named_at_the_deadline_without_a_second_attempt(call: Translate) -> None:
    with FakeServer() as lost, Relay(lost.address) as relay:
        relay.silence()
        with pytest.raises(jumok.DeadlineExceededError, match=f"server at {relay.address} did not answer"):
            call([relay.address], "a", 1.0)
