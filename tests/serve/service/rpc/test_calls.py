"""Observation of calls: request ids and logs."""

import asyncio
import json
import logging
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub

from jumok_proto.v1.translation_pb2 import TranslateTextRequest
from jumok_serve.service.telemetry.logs import CallLog, JsonFormatter, logging_to_stderr
from tests.support.hang import until
from tests.support.servers.fake_model import Ended, FakeModel, fail, failure, hold, serving, stub_of

REQUEST = TranslateTextRequest(contents=["a secret text", "b"])


def named(request_id: str) -> tuple[tuple[str, str], ...]:
    return (("x-request-id", request_id),)


async def request_id(call: Any) -> str:
    """Request id of an ended call."""
    return str(dict(await call.trailing_metadata())["x-request-id"])


async def test_a_call_keeps_the_name_that_its_caller_gave_it_or_gets_one() -> None:
    async with serving(FakeModel()) as (_, channel):
        translate = stub_of(channel).TranslateText
        names = set()
        for metadata in (named("mine-1"), None, named("x" * 129), named("")):
            call = translate(REQUEST, metadata=metadata)
            await call
            names.add(await request_id(call))
        assert "mine-1" in names
        assert len(names) == 4
        assert all(len(name) == 32 for name in names - {"mine-1"})


async def test_calls_that_run_at_the_same_time_keep_their_own_names(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(FakeModel(on_submit=fail(RuntimeError("a fault")))) as (_, channel):
        translate = stub_of(channel).TranslateText
        names = [f"call-{number}" for number in range(20)]
        refused = await asyncio.gather(*(failure(translate(REQUEST, metadata=named(name))) for name in names))
        assert [one.request.request_id for one in refused] == names
        for name in names:
            assert f"request {name}: " in caplog.text


async def test_streams_are_named_observed_and_ended() -> None:
    observer = Ended()
    async with serving(FakeModel(), observers=[observer]) as (server, channel):
        call = ServerReflectionStub(channel).ServerReflectionInfo(metadata=named("stream"))
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        assert (await call.read()).list_services_response.service
        assert server.open_calls == 1
        await call.done_writing()
        assert not await call.read()
        assert await request_id(call) == "stream"
        watch = stub_of(channel).Watch(HealthCheckRequest())
        assert await watch.read()
        watch.cancel()
        await until(lambda: len(observer.calls) == 2)
        assert server.open_calls == 0
    ended = [(call.method.rpartition("/")[2], call.code) for call in observer.calls]
    assert ended == [("ServerReflectionInfo", "OK"), ("Watch", "CANCELLED")]


async def test_a_call_whose_deadline_passes_ends_with_that() -> None:
    model, observer, deadline_s = FakeModel(on_submit=hold), Ended(), 0.1
    async with serving(model, observers=[observer]) as (_, channel):
        while model.submitted.empty():  # until a call arrives before its deadline
            deadline_s *= 2
            with pytest.raises(grpc.aio.AioRpcError):
                await stub_of(channel).TranslateText(REQUEST, timeout=deadline_s)
        await until(lambda: bool(observer.calls))
    assert observer.calls[-1].code == "DEADLINE_EXCEEDED"


@pytest.fixture
def logged(root_logger: logging.Logger) -> list[logging.LogRecord]:
    """Records of the server's log."""
    records: list[logging.LogRecord] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            record.written = JsonFormatter().format(record)
            records.append(record)

    handler = Handler()
    handler.addFilter(logging.Filter("jumok_serve"))
    root_logger.handlers = [handler]
    root_logger.setLevel(logging.INFO)
    return records


@pytest.mark.parametrize("texts", [False, True])
async def test_a_call_is_one_json_object_and_its_texts_only_where_asked_for(
    logged: list[logging.LogRecord], texts: bool
) -> None:
    async with serving(FakeModel(), observers=[CallLog(texts=texts)]) as (_, channel):
        await stub_of(channel).Check(HealthCheckRequest())
        await stub_of(channel).TranslateText(REQUEST, metadata=named("mine"))
    (record,) = logged
    written = json.loads(vars(record)["written"])
    assert (written["logger"], written["level"], written["request_id"]) == ("jumok_serve.calls", "info", "mine")
    assert (written["method"], written["code"]) == ("/jumok.v1.TranslationService/TranslateText", "OK")
    assert written["duration_s"] > 0
    assert written["peer"].startswith("ipv4:127.0.0.1:")
    assert written.get("contents") == (["a secret text", "b"] if texts else None)
    assert ("secret" in record.getMessage()) is texts
    assert "request_id=mine" in record.getMessage()


async def test_a_fault_has_its_traceback_and_its_request_in_json(logged: list[logging.LogRecord]) -> None:
    async with serving(FakeModel(on_submit=fail(RuntimeError("a\nfault")))) as (_, channel):
        await failure(stub_of(channel).TranslateText(REQUEST, metadata=named("mine")))
    written = json.loads(vars(logged[0])["written"])
    assert (written["level"], written["request_id"]) == ("error", "mine")
    assert "RuntimeError: a\nfault" in written["exception"]
    assert "secret" not in vars(logged[0])["written"]


def test_logging_is_as_configured(root_logger: logging.Logger, capfd: pytest.CaptureFixture[str]) -> None:
    with logging_to_stderr(log_format="json", level="warning"):
        logging.getLogger("jumok_serve.any").info("quiet")
        logging.getLogger("jumok_serve.any").warning('two\nlines and a "quote" → %s', 1)
    with logging_to_stderr(log_format="text", level="info"):
        logging.getLogger("jumok_serve.any").info("loud")
        core = logging.getLogger("grpc._cython.cygrpc")
        core.error("ExecuteBatchError raised in core by servicer method [%s]", "any")  # the caller has left
        core.error("anything else")
        assert len(root_logger.handlers) == 1
    first, second, third = capfd.readouterr().err.splitlines()
    written = json.loads(first)
    assert written["message"] == 'two\nlines and a "quote" → 1'
    assert written["time"].endswith("+00:00")
    assert "request_id" not in written
    assert second.endswith("INFO jumok_serve.any: loud")
    assert third.endswith("ERROR grpc._cython.cygrpc: anything else")
