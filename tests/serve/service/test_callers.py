"""Limits of one caller, which leave room for the others."""

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
from jumok_proto.v1.translation_pb2 import CorpusItem, CorpusSettings, TranslateCorpusRequest, TranslateTextRequest
from jumok_serve.service import Server
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.rpc.call import Call
from jumok_serve.share import OpenCalls
from tests.support.hang import until
from tests.support.servers.fake_model import ONE, FakeModel, failure, hold, serving, stub_of
from tests.support.servers.tokens import WRONG, Metadata, bearer, tokens_of


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
            items = [CorpusItem(id=1, content="a")]
            await corpus.write(TranslateCorpusRequest(settings=CorpusSettings(), items=items))
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
            call = translate(TranslateTextRequest(model="other"), metadata=metadata)
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
