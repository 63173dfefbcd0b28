"""Retries, choice of servers and addresses, by tables worked by hand."""

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import grpc
import pytest

import jumok
from jumok._errors import UnreadCallError, call_error
from jumok._transport.retry import LONGEST_DELAY_S, Attempts, Endpoints
from jumok._transport.servers import addresses
from jumok_proto.v1.translation_pb2 import TranslateTextRequest
from jumok_proto.v1.translation_pb2_grpc import TranslationServiceStub
from tests.support.clients import Call, await_, wait
from tests.support.servers.scripted import Scripted, capitals

UNAVAILABLE = jumok.UnavailableError("gone")
UNREAD = UnreadCallError("too many calls")


def full(retry_after_s: float | None) -> jumok.ResourceExhaustedError:
    return jumok.ResourceExhaustedError("full", details=jumok.Details(retry_after_s=retry_after_s))


def test_servers_take_turns() -> None:
    endpoints = Endpoints(3, first=2)
    assert [endpoints.pick(0.0) for _ in range(5)] == [2, 0, 1, 2, 0]
    assert {Endpoints(3).pick(0.0) for _ in range(100)} == {0, 1, 2}


def test_a_failed_server_rests_longer_each_time() -> None:
    endpoints = Endpoints(2, first=0)
    now = 100.0
    for rest_s in (1, 2, 4, 8, 16, 30, 30):
        endpoints.failed(0, now)
        assert [endpoints.pick(now + rest_s - 0.01) for _ in range(3)] == [1, 1, 1]
        assert 0 in [endpoints.pick(now + rest_s) for _ in range(2)]
        now += rest_s
    endpoints.succeeded(0)
    endpoints.failed(0, now)
    assert endpoints.any_ready(now)
    endpoints.failed(1, now + 0.5)
    assert not endpoints.any_ready(now + 0.9)
    assert endpoints.any_ready(now + 1)
    assert endpoints.pick(now + 0.9) == 0  # both rest, and it will be ready first


def test_calls_lost_together_count_as_one_failure() -> None:
    endpoints = Endpoints(2, first=0)
    for number in range(100):
        endpoints.failed(0, 100.0 + number / 1000)
    assert endpoints.pick(100.99) == 1
    assert 0 in [endpoints.pick(101.0) for _ in range(2)]
    endpoints.failed(0, 101.0)
    assert not any(endpoints.pick(102.99) == 0 for _ in range(2))
    assert 0 in [endpoints.pick(103.0) for _ in range(2)]


@pytest.mark.parametrize(("chance", "share"), [(0.0, 0.5), (0.5, 0.75), (1.0, 1.0)])
def test_backoff_doubles_up_to_a_bound(chance: float, share: float) -> None:
    attempts = Attempts(Endpoints(1), 60.0, 9, 0.0, lambda: chance)
    delays = [attempts.failed(UNAVAILABLE, 0.0) for _ in range(8)]
    assert delays == pytest.approx([share * delay for delay in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0)])
    attempts.succeeded()
    assert attempts.failed(UNAVAILABLE, 0.0) == pytest.approx(share * 0.1)
    assert attempts.failed(full(2.0), 0.0) == pytest.approx(2.0 * (1 + 0.25 * chance))


def test_attempts_end_by_count_or_timeout() -> None:
    attempts = Attempts(Endpoints(1), 10.0, 3, now=0.0)
    assert attempts.begin(0.0) == 10.0
    assert 0.05 <= (attempts.failed(UNAVAILABLE, 1.0) or 0.0) <= 0.1
    assert attempts.begin(2.0) == 8.0
    assert 6.0 <= (attempts.failed(full(6.0), 2.0) or 0.0) <= 6.0 * 1.25
    attempts.begin(9.0)
    assert attempts.failed(UNAVAILABLE, 9.0) is None
    late = Attempts(Endpoints(1), 10.0, 3, now=0.0)
    late.begin(0.0)
    assert late.failed(full(9.0), 2.0) is None


@pytest.mark.parametrize("error", [full(None), jumok.InternalError("bug"), jumok.DeadlineExceededError("late")])
def test_errors_that_are_not_retryable_end_the_attempts(error: jumok.JumokError) -> None:
    attempts = Attempts(Endpoints(2), 10.0, 5, now=0.0)
    attempts.begin(0.0)
    assert attempts.failed(error, 0.0) is None


def test_a_call_that_the_server_cancels_is_repeated_unless_the_client_was_closed() -> None:
    attempts = Attempts(Endpoints(1), 10.0, 5, now=0.0)
    attempts.begin(0.0)
    assert attempts.failed(jumok.CallCancelledError("busy"), 0.0)
    attempts.begin(1.0)
    assert attempts.failed(jumok.CallCancelledError("closed"), 1.0, closed=True) is None


def test_calls_that_a_server_does_not_read_are_repeated_until_the_time_is_over() -> None:
    attempts = Attempts(Endpoints(1), 60.0, 1, now=0.0)
    now = 0.0
    attempts.begin(now)
    while delay_s := attempts.failed(UNREAD, now):
        now += delay_s
        attempts.begin(now)
    assert 60.0 - LONGEST_DELAY_S <= now < 60.0
    attempts = Attempts(Endpoints(1), 60.0, 2, now=0.0)
    attempts.begin(0.0)
    attempts.failed(UNREAD, 0.0)
    attempts.begin(1.0)
    attempts.failed(UNAVAILABLE, 1.0)
    attempts.begin(2.0)
    assert attempts.failed(UNAVAILABLE, 2.0) is None


class CancelsFirst(Scripted):
    """Cancels the first call of each method, by default as gRPC does if too many calls wait to be read."""

    def __init__(self) -> None:
        super().__init__()
        self.message = "CANCELLED"
        self.calls: Counter[str] = Counter()

    def _count(self, method: str, context: grpc.ServicerContext) -> None:
        self.calls[method] += 1
        if self.calls[method] == 1:
            context.abort(grpc.StatusCode.CANCELLED, self.message)

    def TranslateText(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._count("translate", context)
        return super().TranslateText(request, context)

    def TranslateCorpus(self, request_iterator: Any, context: grpc.ServicerContext) -> Any:
        self._count("translate_iter", context)
        return super().TranslateCorpus(request_iterator, context)

    def StreamTranslateText(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._count("translate_stream", context)
        return super().StreamTranslateText(request, context)


@pytest.fixture
def service() -> CancelsFirst:
    return CancelsFirst()


@pytest.mark.parametrize("call", [wait, await_])
def test_calls_that_a_server_did_not_read_are_no_attempts(call: Call, service: CancelsFirst, address: str) -> None:
    assert call("translate", address, "a") == capitals("a")
    attempts = 1 if call is wait else 2  # grpc.aio may lose the status of a call that ends while it sends a request
    assert len(call("translate_iter", address, ["a", "b"], max_attempts=attempts)) == 2
    assert [update.text for update in call("translate_stream", address, "a")] == ["A"]
    assert service.calls == {"translate": 2, "translate_iter": 2, "translate_stream": 2}


@pytest.mark.parametrize("max_attempts", [1, 2])
def test_calls_that_a_proxy_cancels_are_attempts(service: CancelsFirst, address: str, max_attempts: int) -> None:
    service.message = "upstream request timeout"
    ended = pytest.raises(jumok.CallCancelledError, match=service.message) if max_attempts == 1 else nullcontext()
    with jumok.Client(address, max_attempts=max_attempts) as client:
        with ended:
            assert client.translate("a") == capitals("a")
        with ended:
            assert len(list(client.translate_iter(["a", "b"]))) == 2
    assert service.calls == {"translate": max_attempts, "translate_iter": max_attempts}


def test_a_call_that_was_not_read_says_so(service: CancelsFirst, address: str) -> None:
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as failed:
        TranslationServiceStub(channel).TranslateText(TranslateTextRequest())
    error = call_error(failed.value, "a:1")
    assert isinstance(error, UnreadCallError)
    assert str(error).startswith("the server at a:1 has too many calls, and did not read this one: call again later")


def test_another_server_is_tried_at_once() -> None:
    attempts = Attempts(Endpoints(2, first=1), 10.0, 5, now=0.0)
    attempts.begin(0.0)
    assert attempts.endpoint == 1
    assert attempts.failed(UNAVAILABLE, 0.0) == 0.0
    attempts.begin(0.0)
    assert attempts.endpoint == 0
    assert attempts.failed(UNAVAILABLE, 0.0)


@pytest.mark.parametrize(
    ("server", "found"),
    [
        ("a:1", ("a:1",)),
        ("a:1, b:2,[::1]:3", ("a:1", "b:2", "[::1]:3")),
        (["a:1", "dns:///b:2", "a:1"], ("a:1", "dns:///b:2")),
        ("ipv4:127.0.0.1:1,127.0.0.2:1", ("ipv4:127.0.0.1:1,127.0.0.2:1",)),
        ("localhost", ("localhost:50051",)),
        ("a, a:50051,::1", ("a:50051", "[::1]:50051")),
        (
            ["[fe80::1]", "dns://8.8.8.8/b", "unix:/run/jumok"],
            ("[fe80::1]:50051", "dns://8.8.8.8/b:50051", "unix:/run/jumok"),
        ),
    ],
)
def test_addresses(server: str | Sequence[str], found: tuple[str, ...]) -> None:
    assert addresses(server) == found


@pytest.mark.parametrize("server", ["", [], "a:1,", [""], [3], "a b:1", ":50051", "a:1:2", "a/b:1", "me@a:1"])
def test_bad_addresses_are_refused(server: Sequence[str]) -> None:
    with pytest.raises(jumok.InvalidArgumentError, match="must be an address"):
        jumok.Client(server)


@pytest.mark.parametrize(
    ("server", "problem"),
    [
        ("http://localhost:50051", "got the URL 'http://localhost:50051'; write 'localhost:50051'$"),
        (["a:1", "https://mt.example.org/v1"], "write 'mt.example.org', with TLS \\(tls, --tls\\)$"),
        ("localhost:99999", "port must be from 1 to 65535, got '99999' in 'localhost:99999'$"),
        ("localhost:0", "got '0'"),
        ("[::1]:x", "got 'x'"),
        (f"localhost:{'9' * 5000}", "got '9{80}' in 'localhost:9{70}'$"),
        ("dns:///a:", "got ''"),
    ],
)
def test_the_message_says_how_to_write_an_address(server: Sequence[str], problem: str) -> None:
    with pytest.raises(jumok.InvalidArgumentError, match=f"^server: .*{problem}"):
        jumok.Client(server)


def test_an_admin_client_has_one_server() -> None:
    with pytest.raises(jumok.InvalidArgumentError, match=r"^server: must be one server.*: choose a:1 or b:2$"):
        jumok.AdminClient("a:1,b:2")


def test_bad_max_attempts_is_refused() -> None:
    for number in (0, 1.5, True):
        with pytest.raises(jumok.InvalidArgumentError) as refused:
            jumok.Client("a:1", max_attempts=number)  # type: ignore[arg-type]
        assert refused.value.field == "max_attempts"
