"""Calls through a proxy as Ray's: the SDK sees answers, errors with details, streams, corpora and health."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

import jumok
from jumok_proto.v1.translation_pb2 import TranslateTextRequest
from jumok_proto.v1.translation_pb2_grpc import TranslationServiceStub
from jumok_serve.engine.sentence import Future
from jumok_serve.service import Services
from jumok_serve.service.limits import ServiceLimits
from tests.support.servers.fake_model import Answer, FakeModel, failure
from tests.support.servers.ray_proxy import behind_proxy

TRANSLATE = "/jumok.v1.TranslationService/TranslateText"
SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING


@asynccontextmanager
async def client_of(model: FakeModel, **settings: Any) -> AsyncIterator[jumok.AsyncClient]:
    """Serve a model through a proxy; yields a client."""
    async with behind_proxy(Services([model], **settings)) as address, jumok.AsyncClient(address) as client:
        yield client


async def each(*texts: str) -> AsyncIterator[str]:
    for text in texts:
        yield text


async def test_texts_streams_and_corpora_are_translated() -> None:
    def write(answer: Answer) -> None:
        answer.write(answer.texts[0][:2].upper())
        answer.complete()

    async with (
        behind_proxy(Services([FakeModel(on_submit=write)])) as address,
        jumok.AsyncClient(address) as client,
    ):
        assert [one.text for one in await client.translate(["a man", "a dog"])] == ["A MAN", "A DOG"]
        updates = [update async for update in client.translate_stream("a man")]
        assert updates[-1].text == "A MAN"
        assert updates[-1].translation is not None
        results = [result async for result in client.translate_iter(each("a", "b", "c"))]
        assert [result.translation.text for result in results] == ["A", "B", "C"]
        assert [model.name for model in await client.list_models()] == ["held"]


async def test_errors_keep_their_details() -> None:
    async with client_of(FakeModel(), limits=ServiceLimits(max_message_bytes=100)) as client:
        with pytest.raises(jumok.InvalidArgumentError) as wrong:
            await client.translate("a man", beam_size=0)
        with pytest.raises(jumok.InvalidArgumentError, match="at most 100 bytes here, got 2") as large:
            await client.translate("a" * 200)
        with pytest.raises(jumok.InvalidArgumentError) as stream:
            [update async for update in client.translate_stream("a man", beam_size=0)]
        with pytest.raises(jumok.ModelNotFoundError, match="available: held") as corpus:
            [result async for result in client.translate_iter(each("a"), model="other")]
    assert [each.value.field for each in (wrong, large, stream)] == [
        "options.beam_size",
        "request",
        "options.beam_size",
    ]
    assert all(each.value.request_id for each in (wrong, large, stream, corpus))
    assert corpus.value.details.resource is not None


@pytest.mark.parametrize("fault", [ZeroDivisionError, asyncio.CancelledError])
async def test_a_fault_is_logged_and_hidden(fault: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    """Also work that is cancelled from within: its caller has not left."""

    def failing(answer: Answer) -> None:
        raise fault

    async with client_of(FakeModel(on_submit=failing)) as client:
        with pytest.raises(jumok.InternalError, match="the server's log has it") as hidden:
            await client.translate("a man")
        assert f"request {hidden.value.request_id}: {TRANSLATE} failed" in caplog.text


@pytest.mark.parametrize("error", [jumok.UnavailableError("gone"), RuntimeError("a fault")])
async def test_a_failed_call_leaves_no_frames_that_hold_its_request(error: Exception) -> None:
    def fail_later(answer: Answer) -> None:
        for future in answer.futures:
            asyncio.get_running_loop().call_soon(future.set_exception, error)

    async with client_of(FakeModel(on_submit=fail_later)) as client:
        with pytest.raises((jumok.UnavailableError, jumok.InternalError)):
            await client.translate("a man")
    assert error.__traceback__ is None


async def test_the_trailing_metadata_are_those_of_a_server() -> None:
    async with behind_proxy(Services([FakeModel()])) as address, grpc.aio.insecure_channel(address) as channel:
        stub = TranslationServiceStub(channel)
        call = stub.TranslateText(TranslateTextRequest(contents=["a"]), metadata=[("x-request-id", "mine")])
        await call
        assert ("x-request-id", "mine") in list(await call.trailing_metadata())
        failed = await failure(stub.TranslateText(TranslateTextRequest(contents=["a"], model="other")))
        assert failed.info.reason == "MODEL_NOT_FOUND"


async def test_a_refused_stream_is_tried_again() -> None:
    """The message that carries the refusal is no update, so the client may try again."""

    model = FakeModel()
    full = iter([True, True])
    model.is_full = lambda caller="": next(full, False)  # type: ignore[method-assign]
    async with client_of(model) as client:
        updates = [update async for update in client.translate_stream("a man")]
    assert [update.text for update in updates] == ["A MAN"]
    assert next(full, None) is None


def end_of(future: Future[None]) -> asyncio.Event:
    """Return an event of the running loop that a future sets."""
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    future.add_done_callback(lambda _: loop.call_soon_threadsafe(ended.set))
    return ended


async def test_a_caller_that_leaves_frees_the_rows() -> None:
    model = FakeModel(on_submit=lambda answer: None)
    async with client_of(model) as client:
        calls = (
            client.translate("a"),
            anext(client.translate_stream("b")),
            anext(client.translate_iter(each("c"))),
        )
        for call in calls:
            task = asyncio.ensure_future(call)
            (future,) = (await model.submitted.get()).futures
            left = end_of(future)
            task.cancel()
            await left.wait()
            assert future.cancelled()


async def test_health_is_that_of_the_models() -> None:
    model = FakeModel()
    async with behind_proxy(Services([model])) as address, grpc.aio.insecure_channel(address) as channel:
        stub = HealthStub(channel)
        assert (await stub.Check(HealthCheckRequest(service="models/held"))).status == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await stub.Check(HealthCheckRequest(service="models/other"))
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
        model.become_ready(False)
        assert (await stub.Check(HealthCheckRequest(service="models/held"))).status == NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError) as endless:
            await anext(aiter(stub.Watch(HealthCheckRequest(service="models/held"))))
        assert endless.value.code() is grpc.StatusCode.UNIMPLEMENTED
