"""Responses that their callers do not read: bounded in bytes and time, over gRPC."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from jumok_proto.errors import OverloadedError
from jumok_proto.v1 import translation_pb2 as pb
from jumok_proto.v1.decoding_pb2 import DecodingOptions
from jumok_serve.service import Server
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.rpc.call import CALL
from jumok_serve.service.rpc.interceptor import COPIES, Floods, Interceptor, UnreadResponse, UnreadResponses
from jumok_serve.service.server import TRANSLATION_SERVICE
from tests.faults.tools.flood import Flood, message
from tests.support.hang import HANG_S, until
from tests.support.servers.fake_model import HERE, ONE, Answer, Ended, FakeModel, failure, serving, stub_of

TRANSLATE = "/jumok.v1.TranslationService/TranslateText"
STREAM = "/jumok.v1.TranslationService/StreamTranslateText"
CORPUS = "/jumok.v1.TranslationService/TranslateCorpus"
LIMITS = ServiceLimits(max_message_bytes=100_000, max_open_bytes=2_000_000, max_watches=8, max_calls=64)
"""A caller may leave a million bytes unread; those of a response count three times."""
ANSWER = message(pb.TranslateTextRequest(contents=["a" * 50_000]).SerializeToString())


def bounds(*, checks: bool = False, close: Callable[[str], None] = lambda _: None) -> UnreadResponses:
    limits = ServiceLimits(max_message_bytes=100_000, max_open_bytes=0, max_watches=8, max_calls=8)
    return UnreadResponses(limits, close, checks=checks)


def unread(bounds: UnreadResponses, caller: str, size: int = 0, peer: str = "") -> UnreadResponse:
    response = UnreadResponse(bounds, caller, peer)
    response.hold(size)
    return response


def test_a_caller_may_leave_its_share_unread_and_no_caller_that_of_others() -> None:
    one = bounds()
    free = one.budget.free
    held: list[UnreadResponse] = []
    with pytest.raises(OverloadedError, match="read them"):  # noqa: PT012 - one of many fails
        while True:
            held.append(unread(one, "a", 20_000))
    assert len(held) == free // 2 // (COPIES * 20_000)
    other = unread(one, "b", 20_000)
    other.hold(10)  # of the same response; the largest counts
    other.hold(30_000)
    assert free - one.budget.free == COPIES * (20_000 * len(held) + 30_000)
    for response in (*held, other, other):
        response.close()
    assert (one.budget.free, one.held) == (free, {})


def test_a_response_of_any_size_may_be_sent_alone_and_takes_a_share_at_most() -> None:
    one = bounds()
    response = unread(one, "a")
    response.hold(10**9)
    with pytest.raises(OverloadedError):
        unread(one, "a")
    others = [unread(one, "b") for _ in range(8)]
    response.close()
    for other in others:
        other.close()
    unread(one, "a", 10**9)


def test_a_client_that_reads_may_have_all_its_calls_end_at_once() -> None:
    limits = ServiceLimits()
    one = UnreadResponses(limits)
    for _ in range(limits.max_calls_of_caller):
        unread(one, "a", 2000)


def test_checks_close_the_connection_of_the_caller_that_holds_most() -> None:
    """Another caller for whom there is no room loses none."""
    closed: list[str] = []
    one = bounds(checks=True, close=closed.append)
    for caller in "xy":
        for number in range(4):
            unread(one, caller, peer=f"{caller}{number}")
    unread(one, "z", peer="z0")
    with pytest.raises(OverloadedError):
        unread(one, "z", peer="z1")
    assert closed == ["x0"]


@pytest.mark.parametrize("method", [TRANSLATE, STREAM])
async def test_unread_answers_are_refused_and_end_with_their_connection(method: str) -> None:
    streamed = message(pb.StreamTranslateTextRequest(content="a" * 50_000).SerializeToString())
    data = {TRANSLATE: ANSWER, STREAM: streamed}[method]
    async with serving(FakeModel(), limits=LIMITS) as (server, _):
        free = server.unread.budget.free
        flood = await Flood.connect(server.address, reads=False)
        for _ in range(8):
            flood.call(method, data)
        refused = server.counts.ended_with
        await until(lambda: 0 < flood.ended["call"] == refused[method, "RESOURCE_EXHAUSTED"])
        await until(lambda: flood.ended["call"] + len(server.unread.held) == 8)
        assert COPIES * 50_000 < free - server.unread.budget.free <= 1_000_000
        flood.close()
        await until(lambda: server.unread.budget.free == free)


async def test_a_caller_is_told_the_reason_and_answered_later() -> None:
    async with serving(FakeModel(), limits=LIMITS) as (server, channel):
        flood = await Flood.connect(server.address, reads=False)
        for _ in range(8):
            flood.call(TRANSLATE, ANSWER)
        await until(lambda: flood.ended["call"] + len(server.unread.held) == 8)
        stub = stub_of(channel)
        refused = await failure(stub.TranslateText(pb.TranslateTextRequest(contents=["a" * 50_000])))
        assert (refused.info.reason, refused.code) == ("OVERLOADED", grpc.StatusCode.RESOURCE_EXHAUSTED)
        assert "not read yet" in refused.message
        assert refused.retry.retry_delay.ToMilliseconds() > 0
        flood.close()
        await until(lambda: not server.unread.held)
        await stub.TranslateText(pb.TranslateTextRequest(contents=["a" * 50_000]))


@pytest.mark.parametrize("kind", ["one response", "stream", "corpus"])
async def test_the_connection_of_a_client_that_does_not_read_is_closed(kind: str) -> None:
    """After ``upload_s``; a corpus, which is read at its client's pace, after ``silence_s``."""
    limits = ServiceLimits(upload_s=HANG_S, silence_s=0.1) if kind == "corpus" else ServiceLimits(upload_s=0.1)
    settings = pb.CorpusSettings(options=DecodingOptions(beam_size=1, max_length=2))
    first = message(pb.TranslateCorpusRequest(settings=settings).SerializeToString())
    item = message(pb.TranslateCorpusRequest(items=[pb.CorpusItem(id=1, content="a")]).SerializeToString())
    path, data = {
        "one response": (TRANSLATE, message(ONE.SerializeToString())),
        "stream": (STREAM, message(pb.StreamTranslateTextRequest(content="a").SerializeToString())),
        "corpus": (CORPUS, first + item),
    }[kind]
    async with serving(FakeModel(), limits=limits) as (server, channel):
        flood = await Flood.connect(server.address, reads=False)
        flood.call(path, data, end=kind != "corpus")
        await until(lambda: flood.ended["connection"] == 1)
        await until(lambda: server.open_calls == 0 and not server.unread.held)
        answer = None
        while answer is None:
            try:
                answer = await stub_of(channel).TranslateText(ONE)
            except grpc.aio.AioRpcError as error:  # this request took longer than ``upload_s``
                if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise


async def test_health_is_answered_beside_checks_that_are_not_read() -> None:
    """The connection of the oldest is closed as soon as there is no room."""
    async with serving(FakeModel(), limits=LIMITS) as (server, channel):
        floods = [await Flood.connect(server.address, reads=False) for _ in range(3)]
        for flood in floods:
            for _ in range(4):
                flood.call("/grpc.health.v1.Health/Check", message(b""))
        await until(lambda: sum(flood.ended["connection"] for flood in floods) > 0)
        status = None
        while status != HealthCheckResponse.SERVING:
            with suppress(grpc.aio.AioRpcError):  # until the connection is closed
                status = (await stub_of(channel).Check(HealthCheckRequest())).status


async def test_a_call_that_is_refused_has_no_effect() -> None:
    model = FakeModel()
    async with serving(model, limits=LIMITS) as (server, channel):
        held = unread(server.unread, HERE, 10**9)
        stub = stub_of(channel)
        refused = await failure(stub.TranslateText(ONE))
        assert refused.info.reason == "OVERLOADED"
        assert model.submitted.empty()
        held.close()
        await stub.TranslateText(ONE)


async def test_no_text_stays_with_its_call() -> None:
    """A call is kept until its status is sent: observers see its texts, and nothing later does."""
    observer = Ended()
    async with serving(FakeModel(), observers=[observer]) as (_, channel):
        await stub_of(channel).TranslateText(ONE)
        await failure(stub_of(channel).TranslateText(pb.TranslateTextRequest(contents=["a"] * 1025)))
    assert [contents is not None for contents in observer.contents] == [True, True]
    assert all(call.record.contents is None for call in observer.calls)


async def test_a_request_is_dropped_before_its_status_is_sent() -> None:
    class Context:
        """Part of gRPC's context; the peer takes no status."""

        aborted = 0

        def invocation_metadata(self) -> None: ...

        def peer(self) -> str:
            return "ipv4:127.0.0.1:1"

        def set_trailing_metadata(self, _: object) -> None: ...

        def time_remaining(self) -> None: ...

        async def read(self) -> bytes:
            return pb.TranslateTextRequest(contents=["a"] * 1025).SerializeToString()

        async def abort(self, code: grpc.StatusCode, *_: object) -> NoReturn:
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert CALL.get().record.contents is None
            self.aborted += 1
            raise grpc.aio.AbortError

    server = Server([FakeModel()])
    (services, *_) = server.handlers({TRANSLATION_SERVICE: server.services[TRANSLATION_SERVICE]})

    async def found(details: Any) -> Any:
        return services.service(details)

    class Details:
        method, invocation_metadata = TRANSLATE, ()

    interceptor = Interceptor(server.gate, Floods(), server.unread, server.unread_checks)
    handler = await interceptor.intercept_service(found, Details())  # type: ignore[arg-type]
    context = Context()
    assert await handler.stream_unary(None, context) is None
    assert context.aborted == 1


async def test_work_that_is_cancelled_from_within_is_a_fault(caplog: pytest.LogCaptureFixture) -> None:
    """The caller has not left, and must not wait for ever."""

    def cancelled(answer: Answer) -> None:
        raise asyncio.CancelledError

    async with serving(FakeModel(on_submit=cancelled)) as (_, channel):
        stub = stub_of(channel)
        failed = await failure(stub.TranslateText(ONE))
        assert failed.code is grpc.StatusCode.INTERNAL
        assert "was cancelled from within" in caplog.text
