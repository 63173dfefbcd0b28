"""Limits of requests, callers and connections, and deadlines that are refused at once."""

from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest

from jumok_proto.v1.model_pb2 import ListModelsRequest
from jumok_proto.v1.translation_pb2 import MARKUP_HTML, ScoreTextRequest, TranslateTextRequest
from jumok_serve.service.handlers.api import MAX_TAGS
from jumok_serve.service.limits import ServiceLimits
from tests.support.servers.fake_model import ONE, Ended, FakeModel, failure, hold, serving, stub_of
from tests.support.servers.tokens import tokens_of


@pytest.mark.parametrize("mark", ["<", "&"])
async def test_texts_with_too_many_tags_are_refused(mark: str) -> None:
    most = [f"a{mark * (MAX_TAGS // 4)}"] * 4
    async with serving(FakeModel()) as (_, channel):
        stub = stub_of(channel)
        dense = TranslateTextRequest(contents=[*most, mark], markup=MARKUP_HTML)
        refused = await failure(stub.TranslateText(dense))
        assert (refused.code, refused.field) == (grpc.StatusCode.INVALID_ARGUMENT, "contents")
        dense.ClearField("markup")  # the characters are no tags
        assert await stub.TranslateText(dense)
        assert await stub.TranslateText(TranslateTextRequest(contents=most, markup=MARKUP_HTML))


async def test_where_no_queue_has_room_calls_are_refused_unread_and_counted() -> None:
    """Refused before the request is read: its bytes are invalid."""
    models, observer, no_message = [FakeModel("one"), FakeModel("two")], Ended(), b"\xff\xff\xff"
    async with serving(*models, observers=[observer]) as (server, channel):
        raw: Any = channel  # without serializers, which its types want
        translate = raw.unary_unary("/jumok.v1.TranslationService/TranslateText")
        stream = raw.unary_stream("/jumok.v1.TranslationService/StreamTranslateText")
        models[0].full = True
        assert (await failure(translate(no_message))).code is grpc.StatusCode.INVALID_ARGUMENT
        models[1].full = True
        for call in (translate(no_message, metadata=(("x-request-id", "mine"),)), stream(no_message).read()):
            refused = await failure(call)
            assert (refused.code, refused.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
            assert refused.retry.retry_delay.ToNanoseconds() > 0
        assert await stub_of(channel).ListModels(ListModelsRequest())
        score = ScoreTextRequest(model="one", contents=["a"], targets=["b"])
        assert await stub_of(channel).ScoreText(score)
        assert server.counts.ended_with["/jumok.v1.TranslationService/TranslateText", "RESOURCE_EXHAUSTED"] == 1
        assert sum(server.counts.refused_s["OVERLOADED"].counts) == 2
        models[0].full = False
        assert await stub_of(channel).TranslateText(TranslateTextRequest(model="one", contents=["a"]))
    overloaded = [
        (call.method.rpartition("/")[2], call.reason, contents)
        for call, contents in zip(observer.calls, observer.contents, strict=True)
        if call.code == "RESOURCE_EXHAUSTED"
    ]
    assert overloaded == [("TranslateText", "OVERLOADED", None), ("StreamTranslateText", "OVERLOADED", None)]


async def test_a_full_queue_still_checks_tokens(tmp_path: Path) -> None:
    model = FakeModel()
    model.full = True
    async with serving(model, tokens=tokens_of(tmp_path, caller="admin")[0]) as (_, channel):
        assert (await failure(stub_of(channel).TranslateText(ONE))).info.reason == "UNAUTHENTICATED"


async def test_a_connection_has_so_many_calls_open_and_its_others_wait() -> None:
    model = FakeModel(on_submit=hold)
    async with serving(model, limits=ServiceLimits(max_streams=1)) as (server, channel):
        translate = stub_of(channel).TranslateText
        first = translate(ONE)
        answer = await model.submitted.get()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await translate(TranslateTextRequest(contents=["b"]), timeout=0.2)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert model.submitted.empty()
        async with grpc.aio.insecure_channel(server.address, options=(("grpc.use_local_subchannel_pool", 1),)) as other:
            second = stub_of(other).TranslateText(TranslateTextRequest(contents=["c"]))
            (await model.submitted.get()).complete()
            assert await second
        answer.complete()
        assert await first


async def test_a_caller_who_calls_too_often_is_told_when_to_come_back() -> None:
    limits = ServiceLimits(requests_per_second=0.001, request_burst=2)
    async with serving(FakeModel(), limits=limits) as (server, channel):
        translate = stub_of(channel).TranslateText
        for _ in range(2):
            assert await translate(ONE)
        refused = await failure(translate(ONE))
        assert (refused.code, refused.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED")
        assert 900 < refused.retry.retry_delay.ToNanoseconds() / 1e9 <= 1000
        async with grpc.aio.insecure_channel(server.address) as other:  # another port, the same caller
            again = await failure(stub_of(other).TranslateText(ONE))
            assert again.info.reason == "RATE_LIMITED"
        assert await stub_of(channel).Check(HealthCheckRequest())
