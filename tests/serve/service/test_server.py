"""The server with a fake model: address, stop, and standard services."""

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from jumok_serve.errors import DuplicateModelError, ListenError
from jumok_serve.service import Server
from tests.serve.service.handlers.test_unary_calls import request
from tests.support.logs import own_records
from tests.support.servers.fake_model import FakeModel, failure, hold, serving, stub_of

SERVING = HealthCheckResponse.SERVING


async def test_models_of_the_same_name_are_refused() -> None:
    with pytest.raises(DuplicateModelError, match="'twin'"):
        Server([FakeModel("twin"), FakeModel("twin")])


async def test_a_port_in_use_is_refused() -> None:
    async with serving(FakeModel()) as (first, channel):
        with pytest.raises(ListenError, match=f"127.0.0.1:{first.port}.*in use"):
            await Server([FakeModel()], port=first.port).start()
        assert await stub_of(channel).TranslateText(request("a"))


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example", "no-such-host.invalid"])
async def test_a_host_that_is_none_is_refused(host: str) -> None:
    with pytest.raises(ListenError, match="cannot listen on"):
        await Server([FakeModel()], host=host, port=0).start()


async def test_a_stop_finishes_what_runs_and_tells_the_watchers() -> None:
    model = FakeModel(on_submit=hold)
    async with serving(model) as (server, channel):
        health = stub_of(channel)
        for service in ("", "jumok.v1.TranslationService", "jumok.v1.ModelService"):
            checked = await health.Check(HealthCheckRequest(service=service))
            assert checked.status == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await health.Check(HealthCheckRequest(service="other"))
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
        watches = [
            aiter(health.Watch(HealthCheckRequest(service=name))) for name in ("", "models/held", "models/other")
        ]
        states = [(await anext(watch)).status for watch in watches]
        assert states == [SERVING, SERVING, HealthCheckResponse.SERVICE_UNKNOWN]
        call = stub_of(channel).TranslateText(request("a"))
        answer = await model.submitted.get()
        stop = asyncio.ensure_future(server.stop(grace_s=3600))
        ends = [[state.status async for state in watch] for watch in watches]
        assert ends == [[HealthCheckResponse.NOT_SERVING]] * 2 + [[]]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub_of(channel).TranslateText(request("b"))
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert not stop.done()
        answer.complete()
        assert (await call).translations[0].hypotheses[0].text == "A"
        await stop


async def test_a_stop_cancels_what_outlasts_its_grace() -> None:
    model = FakeModel(on_submit=hold)
    async with serving(model) as (server, channel):
        call = stub_of(channel).TranslateText(request("a"))
        answer = await model.submitted.get()
        await server.stop(grace_s=0.01)
        with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
            await call
        assert answer.futures[0].cancelled()


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("grpc.health.v1.Health/Check", "unary_unary"),
        ("grpc.health.v1.Health/Watch", "unary_stream"),
        ("grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "stream_stream"),
        ("grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "stream_stream"),
    ],
)
async def test_bytes_that_are_no_request_are_refused_by_the_standard_services_too(
    method: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(FakeModel()) as (_, channel):
        sent: Any = b"\x0a\xff"  # a field of 255 bytes that are not there
        call = getattr(channel, kind)(f"/{method}")(iter([sent]) if kind == "stream_stream" else sent)
        refused = await failure(call if kind == "unary_unary" else call.read())
        assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
        assert refused.info.reason == "INVALID_REQUEST"
    assert not own_records(caplog)
