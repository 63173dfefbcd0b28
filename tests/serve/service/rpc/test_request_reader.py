"""Reading of requests: after the token, in time, and within the bytes that may be in flight."""

import asyncio
import gzip
import struct
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc.aio import EOF  # type: ignore[attr-defined]  # its types lack it
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from jumok_proto.v1.translation_pb2 import CorpusItem, CorpusSettings, TranslateCorpusRequest, TranslateTextRequest
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.rpc import request_reader
from jumok_serve.service.rpc.request_reader import MAX_NAME_BYTES
from jumok_serve.service.server import HEALTH_SERVICE
from tests.faults.tools.http2 import DATA, END_HEADERS, END_STREAM, HEADERS, headers
from tests.serve.service.test_connections import Connection
from tests.support.hang import HANG_S, until
from tests.support.logs import own_records
from tests.support.servers.fake_model import ONE, FakeModel, failure, hold, serving, stub_of
from tests.support.servers.tokens import WRONG, Metadata, tokens_of

TRANSLATE = "/jumok.v1.TranslationService/TranslateText"
METHODS = ("TranslateText", "StreamTranslateText", "TranslateCorpus", "ScoreText", "AlignText")
EMPTY_TEXTS = b"\x12\x00" * 400_000


def begun(channel: grpc.aio.Channel, method: str = TRANSLATE, **options: Any) -> Any:
    """Begin a call, and send no message."""
    raw: Any = channel  # without serializers, which its types want
    return raw.stream_unary(method)(**options)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("metadata", [(), WRONG])
async def test_a_stranger_is_refused_before_it_sends_a_message(method: str, metadata: Metadata, tmp_path: Path) -> None:
    async with serving(FakeModel(), tokens=tokens_of(tmp_path, caller="translate")[0]) as (_, channel):
        refused = await failure(begun(channel, f"/jumok.v1.TranslationService/{method}", metadata=metadata))
        assert refused.code is grpc.StatusCode.UNAUTHENTICATED


async def test_a_request_that_does_not_arrive_is_not_waited_for() -> None:
    async with serving(FakeModel(), limits=ServiceLimits(upload_s=0.05)) as (server, channel):
        refused = await failure(begun(channel))
        assert (refused.code, refused.info.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED")
        assert "0.05 s" in refused.message
        await until(lambda: server.open_calls == 0)


async def test_a_call_without_a_request_is_refused() -> None:
    async with serving(FakeModel()) as (_, channel):
        call = begun(channel)
        await call.done_writing()
        assert (await failure(call)).field == "request"


async def test_a_silent_corpus_is_ended_once_nothing_of_it_is_left_to_do() -> None:
    model = FakeModel(on_submit=hold)
    async with serving(model, limits=ServiceLimits(silence_s=1.0)) as (_, channel):
        stub = stub_of(channel)
        call = stub.TranslateCorpus()
        await call.write(TranslateCorpusRequest(settings=CorpusSettings(), items=[CorpusItem(id=1, content="a")]))
        answer = await model.submitted.get()
        await asyncio.sleep(1.5)  # longer than the silence that is allowed
        assert not call.done()
        answer.complete()
        assert [result.id for result in (await call.read()).results] == [1]
        refused = await failure(call.read())
        assert (refused.code, refused.info.reason) == (grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE")


async def test_uploads_of_a_caller_use_up_its_share_of_bytes_and_no_more() -> None:
    """Of eight thousand bytes a caller has half: four requests whose size is not known yet."""
    limits = ServiceLimits(max_message_bytes=1000, max_open_bytes=8000)
    async with serving(FakeModel(), limits=limits) as (server, channel):
        budget = server.intake.budget
        uploads = [begun(channel) for _ in range(4)]
        await until(lambda: budget.free == 4000)
        waiting = asyncio.ensure_future(stub_of(channel).TranslateText(ONE))
        await until(lambda: server.open_calls == 5)
        assert await stub_of(channel).Check(HealthCheckRequest())
        assert not waiting.done()
        assert budget.free == 4000
        uploads.pop().cancel()
        assert (await waiting).translations
        for call in uploads:
            call.cancel()
        await until(lambda: budget.free == 8000)


async def test_a_stream_holds_no_bytes_after_its_end() -> None:
    """Its texts may take long, and must not delay other streams."""
    model = FakeModel(on_submit=hold)
    async with serving(model) as (server, channel):
        free = server.intake.stream_budget.free
        item = TranslateCorpusRequest(settings=CorpusSettings(), items=[CorpusItem(id=1, content="a")])
        call = stub_of(channel).TranslateCorpus(iter([item]))
        answer = await model.submitted.get()
        await until(lambda: server.intake.stream_budget.free == free)
        assert not call.done()
        answer.complete()
        assert len([response async for response in call]) >= 1


async def test_every_end_of_a_call_gives_its_bytes_back() -> None:
    model = FakeModel(on_submit=hold)
    async with serving(model, limits=ServiceLimits(max_message_bytes=2**20)) as (server, channel):
        budgets = server.intake.budget, server.intake.stream_budget, server.intake_of(HEALTH_SERVICE).budget
        before = [budget.free for budget in budgets]
        raw: Any = channel
        translate = stub_of(channel).TranslateText
        held = translate(ONE)
        answer = await model.submitted.get()
        assert budgets[0].free == before[0] - ONE.ByteSize()
        stub = stub_of(channel)
        corpus = stub.TranslateCorpus()
        await corpus.write(TranslateCorpusRequest(settings=CorpusSettings()))
        await until(lambda: budgets[1].free == before[1] - 2**20)
        for sent, compression in (
            (b"\xff", None),
            (b"\x0a\xff", None),
            (EMPTY_TEXTS, None),
            (EMPTY_TEXTS, grpc.Compression.Gzip),
            (EMPTY_TEXTS * 2, None),
            (EMPTY_TEXTS * 2, grpc.Compression.Gzip),
        ):
            with pytest.raises(grpc.aio.AioRpcError):
                await raw.unary_unary(TRANSLATE)(sent, compression=compression)
        held.cancel()
        corpus.cancel()
        answer.complete()
        await until(lambda: server.open_calls == 0)
        assert [budget.free for budget in budgets] == before


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "sent", [EMPTY_TEXTS, b"\xf8\x7f\x01" * 300_000, b"\xfa\x7f\x00" * 300_000, b"\xfb\x7f\xfc\x7f" * 200_000]
)
async def test_a_message_of_many_fields_is_refused_before_objects_are_made(method: str, sent: bytes) -> None:
    """Compressed it takes a few kilobytes."""
    assert len(gzip.compress(sent)) < 5000
    async with serving(FakeModel()) as (_, channel):
        raw: Any = channel
        call = raw.unary_unary(f"/jumok.v1.TranslationService/{method}")
        refused = await failure(call(sent, compression=grpc.Compression.Gzip))
        assert (refused.code, refused.field) == (grpc.StatusCode.INVALID_ARGUMENT, "request")
        assert "fields" in refused.message


@pytest.mark.parametrize("compression", [None, grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_a_message_that_is_too_large_is_refused_inflated_or_not(
    compression: grpc.Compression | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with serving(FakeModel(), limits=ServiceLimits(max_message_bytes=2000)) as (server, channel):
            translate = stub_of(channel).TranslateText
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await translate(TranslateTextRequest(contents=["a" * 2000]), compression=compression)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert await translate(TranslateTextRequest(contents=["a" * 1900]), compression=compression)
            await until(lambda: server.open_calls == 0)

    asyncio.run(scenario())
    assert not own_records(caplog)


async def test_the_largest_documented_requests_are_admitted() -> None:
    async with serving(FakeModel()) as (_, channel):
        stub = stub_of(channel)
        for texts in (["word " * 200] * 1024, ["é" * 100_000] * 4):
            answer = await stub.TranslateText(TranslateTextRequest(contents=texts, target_prefixes=["a"] * len(texts)))
            assert len(answer.translations) == len(texts)
        items = [CorpusItem(id=number, content="word " * 200, target_prefix="a") for number in range(1024)]
        sent = TranslateCorpusRequest(settings=CorpusSettings(window=1024), items=items)
        results = [one.id async for response in stub.TranslateCorpus(iter([sent])) for one in response.results]
        assert results == list(range(1024))


HEALTH = "/grpc.health.v1.Health"
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


@pytest.mark.parametrize("method", [f"{HEALTH}/Check", f"{HEALTH}/Watch", REFLECTION])
async def test_names_that_are_too_long_are_unknown_and_hold_no_room(method: str) -> None:
    async with serving(FakeModel()) as (server, channel):
        budgets = server.intake.stream_budget, server.intake_of(HEALTH_SERVICE).budget
        before = [budget.free for budget in budgets]
        raw: Any = channel
        for size in (MAX_NAME_BYTES, 2**22 - 100):
            name = b"\x0a" + len_prefix(size) + b"a" * size
            call = raw.stream_stream(method)(iter([name]))
            refused = await failure(call.read())
            assert (refused.code, refused.field) == (grpc.StatusCode.NOT_FOUND, "request")
            assert "more than 4096 bytes, got" in refused.message
            assert len(refused.message) < 100
        await until(lambda: server.open_calls == 0)
        assert [budget.free for budget in budgets] == before


def len_prefix(size: int) -> bytes:
    """Encode a length as protobuf does."""
    return b"" if not size else bytes([size & 127 | (128 if size > 127 else 0)]) + len_prefix(size >> 7)


async def test_calls_that_stay_open_hold_nothing_of_their_requests() -> None:
    """Each has the largest name; together they have more than the bytes of health checks."""
    limits = ServiceLimits(max_message_bytes=MAX_NAME_BYTES)
    async with serving(FakeModel(), limits=limits) as (server, channel):
        budget = server.intake_of(HEALTH_SERVICE).budget
        free, name = budget.free, "a" * (MAX_NAME_BYTES - 3)
        watches = [stub_of(channel).Watch(HealthCheckRequest(service=name)) for _ in range(20)]
        for watch in watches:
            assert (await watch.read()).status == HealthCheckResponse.SERVICE_UNKNOWN
        assert budget.free == free
        assert (await stub_of(channel).Check(HealthCheckRequest())).status == HealthCheckResponse.SERVING
        reflections: list[Any] = []
        raw: Any = channel
        for _ in range(20):
            reflections.append(raw.stream_stream(REFLECTION)())
            await reflections[-1].write(b"\x22" + len_prefix(len(name)) + name.encode())
            assert await reflections[-1].read()
            await reflections[-1].done_writing()
            assert await reflections[-1].read() is EOF
        assert server.open_calls == 20


SMALL = ServiceLimits(max_message_bytes=10_000, max_open_bytes=40_000)
"""A caller may have two requests whose size is not known yet."""


async def upload(connection: Connection, pieces: int, pause_s: float) -> bool:
    """Send a request in pieces with pauses; returns true if it succeeded."""
    message = TranslateTextRequest(contents=["a" * 8000]).SerializeToString()
    data = b"\0" + struct.pack(">I", len(message)) + message
    size = -(-len(data) // pieces)
    connection.send(HEADERS, END_HEADERS, 1, headers())
    for start in range(0, len(data), size):
        last = start + size >= len(data)
        connection.send(DATA, END_STREAM if last else 0, 1, data[start : start + size])
        await asyncio.sleep(0 if last else pause_s)  # as slow clients do
    answer = await connection.receive(lambda kind, flags: kind == DATA or (kind == HEADERS and flags & END_STREAM != 0))
    return answer is not None and answer[0] == DATA


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the bytes of a connection")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_parallel_uploads_of_a_caller_end_none_of_each_other(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes several times as long as requests wait before slow ones are given up for them."""
    monkeypatch.setattr(request_reader, "PATIENCE_S", 0.2)
    monkeypatch.setattr(request_reader, "MIN_RATE", 256)
    async with serving(FakeModel(), host=host, limits=SMALL) as (server, _), AsyncExitStack() as opened:
        connections = [await opened.enter_async_context(Connection.to(server.address)) for _ in range(6)]
        assert all(await asyncio.gather(*(upload(each, 50, 0.02) for each in connections)))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the bytes of a connection")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_slow_uploads_make_room_for_others_of_their_address(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_reader, "PATIENCE_S", 0.05)
    async with serving(FakeModel(), host=host, limits=SMALL) as (server, channel), AsyncExitStack() as opened:
        slow = []
        for _ in range(4):
            connection = await opened.enter_async_context(Connection.to(server.address))
            slow.append(asyncio.ensure_future(upload(connection, 8000, HANG_S)))
        await until(lambda: server.open_calls == 4)
        for _ in range(2):
            assert await stub_of(channel).TranslateText(ONE)
        await until(lambda: server.open_calls < 4)
        for each in slow:
            each.cancel()


async def test_an_upload_is_ended_in_time_if_its_bytes_are_not_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As those over a Unix socket."""
    monkeypatch.setattr(request_reader, "PATIENCE_S", 0.001)
    limits = replace(SMALL, upload_s=0.5)
    async with serving(FakeModel(), host=f"unix:{tmp_path / 'socket'}", limits=limits) as (server, channel):
        slow = [begun(channel) for _ in range(2)]
        await until(lambda: server.open_calls == 2)
        assert await stub_of(channel).TranslateText(ONE)
        for call in slow:
            refused = await failure(call)
            assert (refused.code, refused.info.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED")
