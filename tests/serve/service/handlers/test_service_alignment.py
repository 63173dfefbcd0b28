"""AlignText with a fake model: arguments, cancellation, bounds."""

import asyncio
import threading
from collections.abc import Awaitable
from typing import TypeVar

import grpc
import pytest

from jumok_proto.v1 import alignment_pb2
from jumok_proto.v1.translation_pb2_grpc import TranslationServiceStub
from jumok_serve.tasks.attention_query import AttentionQuery
from jumok_serve.tasks.model import TextParameters
from tests.support.hang import HANG_S
from tests.support.servers.fake_model import HERE, FakeAligning, FakeModel, failure, serving

Answer = TypeVar("Answer")
REQUEST = alignment_pb2.AlignTextRequest(contents=["a"])


def complete(aligning: FakeAligning) -> None:
    for future in aligning.futures:
        future.set_result(None)


async def aligned(call: Awaitable[alignment_pb2.AlignTextResponse], model: FakeModel) -> str:
    """Alignment of the first text, after completing its translation."""
    answer = asyncio.ensure_future(_answer(call))
    complete(await model.aligned.get())
    return (await answer).alignments[0].target


async def test_what_is_asked_for_reaches_the_model() -> None:
    model = FakeModel()
    async with serving(model) as (_, channel):
        stub = TranslationServiceStub(channel)
        assert await aligned(stub.AlignText(REQUEST), model) == "A"
        common = {"parameters": TextParameters(source_language="", target_language="", caller=HERE)}
        assert model.aligning_arguments == {"targets": None, "query": AttentionQuery(), **common}
        kinds = [alignment_pb2.ATTENTION_KIND_DECODER, alignment_pb2.ATTENTION_KIND_ENCODER]
        full = alignment_pb2.AlignTextRequest(
            contents=["a" * 3000, "b"],  # more than is read on the event loop
            targets=["", "c"],
            kinds=kinds,
            layer=0,
            head=0,
            each_head=True,
        )
        assert await aligned(stub.AlignText(full), model) == "A" * 3000
        query = AttentionQuery(kinds=("decoder", "encoder"), layer=0, head=0, each_head=True)
        assert model.aligning_arguments == {"targets": ["", "c"], "query": query, **common}


@pytest.mark.parametrize(
    ("request_", "field", "message"),
    [
        (alignment_pb2.AlignTextRequest(contents=["a"], kinds=[0]), "kinds", "unknown value 0"),  # type: ignore[list-item]
        (alignment_pb2.AlignTextRequest(contents=["a"], head=-2), "head", "head must be a number from 0, got -2"),
        (alignment_pb2.AlignTextRequest(contents=["a"] * 1025), "contents", "at most 1024 texts, got 1025"),
        (
            alignment_pb2.AlignTextRequest.FromString(REQUEST.SerializeToString() + b"\xf8\x06\x01"),
            "request",
            "field number 111",
        ),
    ],
)
async def test_a_bad_request_is_refused_by_field(
    request_: alignment_pb2.AlignTextRequest, field: str, message: str
) -> None:
    model = FakeModel()
    async with serving(model) as (_, channel):
        refused = await failure(TranslationServiceStub(channel).AlignText(request_))
        assert (refused.code, refused.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)
        assert message in refused.message
        assert model.aligned.empty()


async def test_aligning_is_given_up_with_its_call() -> None:
    model = FakeModel()
    entered = asyncio.Event()
    given_up = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait(aligning: FakeAligning) -> None:
        loop.call_soon_threadsafe(entered.set)
        assert aligning.cancelled.wait(HANG_S)
        loop.call_soon_threadsafe(given_up.set)

    async with serving(model) as (_, channel):
        stub = TranslationServiceStub(channel)
        translating = stub.AlignText(REQUEST)
        aligning = await model.aligned.get()
        translating.cancel()
        assert await asyncio.to_thread(aligning.cancelled.wait, 30)  # before there is a translation
        model.on_align = wait
        call = stub.AlignText(REQUEST)
        complete(await model.aligned.get())
        await entered.wait()
        call.cancel()
        await given_up.wait()
        model.on_align = lambda _: None
        assert await aligned(stub.AlignText(REQUEST), model) == "A"


async def test_requests_under_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jumok_serve.service.handlers.worker_pool.MAX_ATTENTION_REQUESTS", 4)
    model = FakeModel()
    released = threading.Event()
    model.on_align = lambda _: _wait(released)
    async with serving(model) as (_, channel):
        stub = TranslationServiceStub(channel)
        calls = [asyncio.ensure_future(_answer(stub.AlignText(REQUEST))) for _ in range(2)]
        for _ in calls:
            complete(await model.aligned.get())
        refused = await failure(stub.AlignText(REQUEST))
        assert (refused.code, refused.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
        released.set()
        await asyncio.gather(*calls)
        assert await aligned(stub.AlignText(REQUEST), model) == "A"


def _wait(released: threading.Event) -> None:
    assert released.wait(HANG_S)


async def _answer(call: Awaitable[Answer]) -> Answer:
    return await call
