"""Limits of requests, callers and connections, which leave room for others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub

from jumok_proto.errors import OverloadedError
from jumok_proto.v1 import translation_pb2 as pb
from jumok_proto.v1.model_pb2 import ListModelsRequest
from jumok_serve.service import Server
from jumok_serve.service.handlers.api import MAX_TAGS
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.rpc.call import Call
from jumok_serve.share import OpenCalls
from tests.support.hang import until
from tests.support.servers.fake_model import ONE, Ended, FakeModel, failure, hold, serving, stub_of
from tests.support.servers.tokens import WRONG, Metadata, bearer, tokens_of


@pytest.mark.parametrize("mark", ["<", "&"])
async def test_texts_with_too_many_tags_are_refused(mark: str) -> None:
    most = [f"a{mark * (MAX_TAGS // 4)}"] * 4
    async with serving(FakeModel()) as (_, channel):
        stub = stub_of(channel)
        dense = pb.TranslateTextRequest(contents=[*most, mark], markup=pb.MARKUP_HTML)
        refused = await failure(stub.TranslateText(dense))
        assert (refused.code, refused.field) == (grpc.StatusCode.INVALID_ARGUMENT, "contents")
        dense.ClearField("markup")  # the characters are no tags
        assert await stub.TranslateText(dense)
        assert await stub.TranslateText(pb.TranslateTextRequest(contents=most, markup=pb.MARKUP_HTML))


async def test_where_no_queue_has_room_calls_are_refused_unread_and_counted() -> None:
    """Refused before the request is read: its bytes are invalid."""
    models, observer, no_message = [FakeModel("one"), FakeModel("two")], Ended(), b"\xff\xff\xff"
    names: list[str] = []
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
            names.append(refused.request.request_id)
            assert refused.info.metadata["request_id"] == refused.trailing["x-request-id"] == names[-1]
        assert names[0] == "mine"
        assert await stub_of(channel).ListModels(ListModelsRequest())
        score = pb.ScoreTextRequest(model="one", contents=["a"], targets=["b"])
        assert await stub_of(channel).ScoreText(score)
        assert server.counts.ended_with["/jumok.v1.TranslationService/TranslateText", "RESOURCE_EXHAUSTED"] == 1
        assert sum(server.counts.refused_s["OVERLOADED"].counts) == 2
        models[0].full = False
        assert await stub_of(channel).TranslateText(pb.TranslateTextRequest(model="one", contents=["a"]))
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
            await translate(pb.TranslateTextRequest(contents=["b"]), timeout=0.2)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert model.submitted.empty()
        async with grpc.aio.insecure_channel(server.address, options=(("grpc.use_local_subchannel_pool", 1),)) as other:
            second = stub_of(other).TranslateText(pb.TranslateTextRequest(contents=["c"]))
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


@asynccontextmanager
async def two_callers(
    model: FakeModel, tmp_path: Path, **limits: Any
) -> AsyncIterator[tuple[Server, grpc.aio.Channel, Metadata, Metadata]]:
    """Serve two tokens; yields metadata of each."""
    tokens, secrets = tokens_of(tmp_path, one="translate", two="translate")
    async with serving(model, tokens=tokens, limits=ServiceLimits(**limits)) as (server, channel):
        yield server, channel, bearer(secrets["one"]), bearer(secrets["two"])


async def test_a_caller_with_many_open_calls_leaves_room_for_others(tmp_path: Path) -> None:
    model = FakeModel(on_submit=hold)
    async with two_callers(model, tmp_path, max_calls=3, max_calls_of_caller=2) as (_, channel, one, two):
        translate = stub_of(channel).TranslateText
        calls = [translate(ONE, metadata=metadata) for metadata in (one, one)]
        answers = [await model.submitted.get() for _ in calls]
        refused = await failure(translate(ONE, metadata=one))
        assert (refused.info.reason, "of this caller" in refused.message) == ("OVERLOADED", True)
        calls.append(translate(ONE, metadata=two))
        answers.append(await model.submitted.get())
        refused = await failure(translate(ONE, metadata=two))
        assert (refused.info.reason, "of this caller" in refused.message) == ("OVERLOADED", False)
        assert refused.retry.retry_delay.ToNanoseconds() > 0
        assert await stub_of(channel).Check(HealthCheckRequest())
        for answer in answers:
            answer.complete()
        await asyncio.gather(*calls)
        model.on_submit = lambda answer: answer.complete()
        assert await translate(ONE, metadata=one)


async def test_a_caller_with_many_open_corpora_leaves_room_for_others(tmp_path: Path) -> None:
    async with two_callers(FakeModel(), tmp_path, max_corpora=3) as (_, channel, one, two):
        stub = stub_of(channel)

        async def opened(metadata: Metadata) -> Any:
            corpus = stub.TranslateCorpus(metadata=metadata)
            items = [pb.CorpusItem(id=1, content="a")]
            await corpus.write(pb.TranslateCorpusRequest(settings=pb.CorpusSettings(), items=items))
            assert await corpus.read()
            return corpus

        first = await opened(one)
        refused = await failure(opened(one))
        assert (refused.info.reason, "of this caller" in refused.message) == ("OVERLOADED", True)
        others = await opened(two)
        assert await stub.TranslateText(ONE, metadata=one)  # calls are counted apart
        await first.done_writing()
        assert not await first.read()
        while True:  # it is counted until the server has ended it
            with suppress(grpc.aio.AioRpcError):
                again = await opened(one)
                break
        for corpus in (others, again):
            corpus.cancel()


async def test_refused_calls_use_up_nothing(tmp_path: Path) -> None:
    async with two_callers(FakeModel(), tmp_path, max_calls=1) as (server, channel, one, _):
        translate = stub_of(channel).TranslateText
        for metadata in ((), WRONG, one):
            call = translate(pb.TranslateTextRequest(model="other"), metadata=metadata)
            assert (await failure(call)).info.reason in ("UNAUTHENTICATED", "MODEL_NOT_FOUND")
        await until(lambda: server.open_calls == 0)
        assert await translate(ONE, metadata=one)


async def test_watches_leave_room_for_checks_and_calls() -> None:
    limits = ServiceLimits(max_watches=4, max_calls=1)
    async with serving(FakeModel(), limits=limits) as (_, channel):
        health = stub_of(channel)
        watch = health.Watch(HealthCheckRequest())
        assert (await watch.read()).status == HealthCheckResponse.SERVING
        reflection = ServerReflectionStub(channel).ServerReflectionInfo()
        await reflection.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        assert await reflection.read()
        assert (await failure(health.Watch(HealthCheckRequest()).read())).info.reason == "OVERLOADED"
        assert (await health.Check(HealthCheckRequest())).status == HealthCheckResponse.SERVING
        assert await stub_of(channel).TranslateText(ONE)
        await reflection.done_writing()
        assert not await reflection.read()
        while True:  # it is counted until the server has ended it
            again = health.Watch(HealthCheckRequest())
            try:
                assert (await again.read()).status == HealthCheckResponse.SERVING
                break
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.001)


@pytest.mark.parametrize("metadata", [(), WRONG, (("authorization", "Basic eA=="),)])
async def test_wrong_tokens_are_told_to_wait_and_right_ones_never(metadata: Metadata, tmp_path: Path) -> None:
    async with two_callers(FakeModel(), tmp_path, wrong_tokens_per_second=0.001) as (_, channel, one, _two):
        translate = stub_of(channel).TranslateText
        assert (await failure(translate(ONE, metadata=metadata))).info.reason == "UNAUTHENTICATED"
        refused = await failure(translate(ONE, metadata=metadata))
        assert (refused.code, refused.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED")
        assert refused.retry.retry_delay.ToNanoseconds() > 0
        assert await translate(ONE, metadata=one)


@pytest.mark.parametrize(
    ("peer", "account"),
    [
        ("ipv4:10.0.0.7:4321", "ipv4:10.0.0.7"),
        ("ipv6:%5B2001:db8:1:2::7%5D:4321", "ipv6:20010db800010002"),
        ("ipv6:%5B2001:db8:1:2:ffff::1%5D:1", "ipv6:20010db800010002"),
        ("ipv6:%5Bfe80::1%25eth0%5D:1", "ipv6:fe80000000000000"),
        ("ipv6:nonsense:1", "ipv6:nonsense"),
        ("unix:", "unix"),
    ],
)
def test_without_a_token_a_caller_is_its_address(peer: str, account: str) -> None:
    assert Call(method="/a/b", request_id="x", peer=peer).account == account
    assert Call(method="/a/b", request_id="x", peer=peer, caller="reports").account == "reports"


def test_counts_of_callers_who_have_gone_are_dropped() -> None:
    calls = OpenCalls("calls", 3, 2)
    for caller in ("a", "a", "b"):
        calls.open(caller)
    with pytest.raises(OverloadedError):
        calls.open("c")
    for caller in ("a", "b", "a"):
        calls.close(caller)
    assert not calls._of_caller
    for caller in ("c", "c"):
        calls.open(caller)
    with pytest.raises(OverloadedError, match="of this caller"):
        calls.open("c")
