"""Limits of requests, callers and connections, and deadlines that are refused at once."""

from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from jumok_proto.v1.decoding_pb2 import DecodingOptions
from jumok_proto.v1.model_pb2 import ListModelsRequest
from jumok_proto.v1.model_pb2_grpc import ModelServiceStub
from jumok_proto.v1.translation_pb2 import MARKUP_HTML, ScoreTextRequest, TranslateTextRequest
from jumok_proto.v1.translation_pb2_grpc import TranslationServiceStub
from jumok_serve.service.auth.tokens import TokenFile, make_token
from jumok_serve.service.handlers.api import MAX_TAGS
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.rpc.call import Call
from tests.support.servers.fake_model import FakeModel, failure, hold, serving

NO_MESSAGE = b"\xff\xff\xff"
LIMITS = ServiceLimits(max_texts=3, max_characters=5, max_hypotheses=8, max_beam_hypotheses=16)


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        (TranslateTextRequest(contents=["a"] * 4), "contents"),
        (TranslateTextRequest(contents=["abcde", "abcdef"]), "contents[1]"),
        (TranslateTextRequest(contents=["abcde", "abcdef"], truncate=True), "contents[1]"),
        (TranslateTextRequest(contents=["a"], target_prefixes=["abcdef"]), "target_prefixes[0]"),
        (TranslateTextRequest(contents=["a"] * 3, options=DecodingOptions(num_hypotheses=3)), "contents"),
        (
            TranslateTextRequest(contents=["a"], options=DecodingOptions(num_hypotheses=4, beam_size=5)),
            "options.beam_size",
        ),
        (
            TranslateTextRequest(contents=["a"], options=DecodingOptions(num_hypotheses=4)),  # the model's beam is 5
            "options.beam_size",
        ),
    ],
)
async def test_a_translation_that_asks_for_too_much_is_refused(sent: TranslateTextRequest, field: str) -> None:
    async with serving(FakeModel(), limits=LIMITS) as (_, channel):
        refused = await failure(TranslationServiceStub(channel).TranslateText(sent))
        assert (refused.code, refused.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)
        most = TranslateTextRequest(contents=["abcde"] * 3, options=DecodingOptions(num_hypotheses=2, beam_size=8))
        assert await TranslationServiceStub(channel).TranslateText(most)


@pytest.mark.parametrize("mark", ["<", "&"])
async def test_texts_with_too_many_tags_are_refused(mark: str) -> None:
    most = [f"a{mark * (MAX_TAGS // 4)}"] * 4
    async with serving(FakeModel()) as (_, channel):
        stub = TranslationServiceStub(channel)
        dense = TranslateTextRequest(contents=[*most, mark], markup=MARKUP_HTML)
        refused = await failure(stub.TranslateText(dense))
        assert (refused.code, refused.field) == (grpc.StatusCode.INVALID_ARGUMENT, "contents")
        dense.ClearField("markup")  # the characters are no tags
        assert await stub.TranslateText(dense)
        assert await stub.TranslateText(TranslateTextRequest(contents=most, markup=MARKUP_HTML))


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        (ScoreTextRequest(contents=["a"] * 4, targets=["a"] * 4), "contents"),
        (ScoreTextRequest(contents=["a"], targets=["abcdef"]), "targets[0]"),
    ],
)
async def test_scores_that_ask_for_too_much_are_refused(sent: ScoreTextRequest, field: str) -> None:
    async with serving(FakeModel(), limits=LIMITS) as (_, channel):
        refused = await failure(TranslationServiceStub(channel).ScoreText(sent))
        assert (refused.code, refused.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)


async def test_a_message_that_is_too_large_is_refused() -> None:
    async with serving(FakeModel(), limits=ServiceLimits(max_message_bytes=1000)) as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await TranslationServiceStub(channel).TranslateText(TranslateTextRequest(contents=["a" * 1000]))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await TranslationServiceStub(channel).TranslateText(TranslateTextRequest(contents=["a" * 900]))


async def test_calls_beyond_the_most_are_told_to_come_back() -> None:
    model = FakeModel(on_submit=hold)
    async with serving(model, limits=ServiceLimits(max_calls=1)) as (server, channel):
        translate = TranslationServiceStub(channel).TranslateText
        first = translate(TranslateTextRequest(contents=["a"]))
        answer = await model.submitted.get()
        assert server.open_calls == 1
        refused = await failure(translate(TranslateTextRequest(contents=["a"])))
        assert (refused.code, refused.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
        assert refused.retry.retry_delay.ToNanoseconds() > 0
        assert await HealthStub(channel).Check(HealthCheckRequest())
        answer.complete()
        assert await first


async def test_where_no_queue_has_room_calls_are_refused_unread_and_counted() -> None:
    """Refused before the request is read: its bytes are invalid."""
    models = [FakeModel("one"), FakeModel("two")]
    ended = []

    class Observer:
        def ended(self, call: Call) -> None:
            ended.append((call.method.rpartition("/")[2], call.code, call.reason, call.record.contents))

    async with serving(*models, observers=[Observer()]) as (server, channel):
        raw: Any = channel  # without serializers, which its types want
        translate = raw.unary_unary("/jumok.v1.TranslationService/TranslateText")
        stream = raw.unary_stream("/jumok.v1.TranslationService/StreamTranslateText")
        models[0].full = True
        refused = await failure(translate(NO_MESSAGE))
        assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
        models[1].full = True
        for call in (translate(NO_MESSAGE, metadata=(("x-request-id", "mine"),)), stream(NO_MESSAGE).read()):
            refused = await failure(call)
            assert (refused.code, refused.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
            assert refused.retry.retry_delay.ToNanoseconds() > 0
            assert refused.info.metadata["request_id"] == refused.request.request_id
        assert await ModelServiceStub(channel).ListModels(ListModelsRequest())
        score = ScoreTextRequest(model="one", contents=["a"], targets=["b"])
        assert await TranslationServiceStub(channel).ScoreText(score)
        assert server.counts.ended_with["/jumok.v1.TranslationService/TranslateText", "RESOURCE_EXHAUSTED"] == 1
        assert sum(server.counts.refused_s["OVERLOADED"].counts) == 2
        models[0].full = False
        assert await TranslationServiceStub(channel).TranslateText(TranslateTextRequest(model="one", contents=["a"]))
    overloaded = [one for one in ended if one[1] == "RESOURCE_EXHAUSTED"]
    assert overloaded == [
        (method, "RESOURCE_EXHAUSTED", "OVERLOADED", None) for method in ("TranslateText", "StreamTranslateText")
    ]


async def test_a_full_queue_still_checks_tokens(tmp_path: Path) -> None:
    model = FakeModel()
    model.full = True
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{make_token('caller', ('admin',))[1].line()}\n", encoding="utf-8")
    async with serving(model, tokens=TokenFile(tokens)) as (_, channel):
        refused = await failure(TranslationServiceStub(channel).TranslateText(TranslateTextRequest(contents=["a"])))
        assert refused.info.reason == "UNAUTHENTICATED"


async def test_a_connection_has_so_many_calls_open_and_its_others_wait() -> None:
    model = FakeModel(on_submit=hold)
    async with serving(model, limits=ServiceLimits(max_streams=1)) as (server, channel):
        translate = TranslationServiceStub(channel).TranslateText
        first = translate(TranslateTextRequest(contents=["a"]))
        answer = await model.submitted.get()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await translate(TranslateTextRequest(contents=["b"]), timeout=0.2)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert model.submitted.empty()
        async with grpc.aio.insecure_channel(server.address, options=(("grpc.use_local_subchannel_pool", 1),)) as other:
            second = TranslationServiceStub(other).TranslateText(TranslateTextRequest(contents=["c"]))
            (await model.submitted.get()).complete()
            assert await second
        answer.complete()
        assert await first


async def test_a_caller_who_calls_too_often_is_told_when_to_come_back() -> None:
    limits = ServiceLimits(requests_per_second=0.001, request_burst=2)
    async with serving(FakeModel(), limits=limits) as (server, channel):
        translate = TranslationServiceStub(channel).TranslateText
        for _ in range(2):
            assert await translate(TranslateTextRequest(contents=["a"]))
        refused = await failure(translate(TranslateTextRequest(contents=["a"])))
        assert (refused.code, refused.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED")
        assert 900 < refused.retry.retry_delay.ToNanoseconds() / 1e9 <= 1000
        async with grpc.aio.insecure_channel(server.address) as other:  # another port, the same caller
            again = await failure(TranslationServiceStub(other).TranslateText(TranslateTextRequest(contents=["a"])))
            assert again.info.reason == "RATE_LIMITED"
        assert await HealthStub(channel).Check(HealthCheckRequest())
