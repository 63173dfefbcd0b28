"""Spans of calls and their stages: single calls, streams and corpora."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from jumok_proto.errors import InvalidArgumentError, OverloadedError
from jumok_proto.results import Timings
from jumok_proto.v1 import translation_pb2 as pb
from jumok_serve.service.rpc.call import SLOWEST_ITEMS
from jumok_serve.service.telemetry.tracing import CallTracer
from tests.serve.service.handlers.test_service_streams import EOF
from tests.support.hang import until
from tests.support.servers.fake_model import Answer, FakeModel, fail, failure, hold, serving, stub_of

REQUEST = pb.TranslateTextRequest(contents=["a secret text", "b"])

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@asynccontextmanager
async def traced(exporter: InMemorySpanExporter, spans: int, model: FakeModel) -> AsyncIterator[grpc.aio.Channel]:
    """Serve until this number of spans has ended, as those of a call do after its response."""
    with CallTracer(SimpleSpanProcessor(exporter)) as tracer:
        async with serving(model, observers=[tracer]) as (_, channel):
            yield channel
            await until(lambda: len(exporter.get_finished_spans()) >= spans)


async def test_a_translation_has_a_span_and_its_stages_in_the_callers_trace(exporter: InMemorySpanExporter) -> None:
    async with traced(exporter, 4, FakeModel()) as channel:
        await stub_of(channel).Check(HealthCheckRequest())
        metadata = (("traceparent", f"00-{TRACE}-{SPAN}-01"), ("x-request-id", "mine"))
        await stub_of(channel).TranslateText(REQUEST, metadata=metadata)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    call = spans.pop("jumok.v1.TranslationService/TranslateText")
    assert call.context is not None
    assert call.parent is not None
    assert (f"{call.context.trace_id:032x}", f"{call.parent.span_id:016x}") == (TRACE, SPAN)
    assert call.attributes == {
        "rpc.system.name": "grpc",
        "rpc.method": "jumok.v1.TranslationService/TranslateText",
        "rpc.response.status_code": "OK",
        "jumok.request_id": "mine",
        "jumok.texts": 2,
        "jumok.model": "held",
        "jumok.input_tokens": 4,
        "jumok.output_tokens": 4,
    }
    durations = {}
    for name, span in spans.items():
        assert span.parent is not None
        assert span.parent.span_id == call.context.span_id
        durations[name] = seconds(span)
    assert durations == {"queue": 0.125, "encode": 0.25, "decode": 0.5}
    assert "secret" not in "".join(span.to_json() for span in exporter.get_finished_spans())


@pytest.mark.parametrize(
    ("error", "is_fault"), [(OverloadedError("full", retry_after_s=1), False), (ValueError(), True)]
)
async def test_only_faults_of_the_server_are_errors_in_a_trace(
    error: Exception, is_fault: bool, exporter: InMemorySpanExporter
) -> None:
    async with traced(exporter, 1, FakeModel(on_submit=fail(error))) as channel:
        await failure(stub_of(channel).TranslateText(REQUEST))
    (span,) = exporter.get_finished_spans()
    assert (not span.status.is_ok and not span.status.is_unset) is is_fault


def children(exporter: InMemorySpanExporter, parent: ReadableSpan) -> list[ReadableSpan]:
    """Spans of a parent in the order of their ends."""
    assert parent.context is not None
    identity = parent.context.span_id
    return [span for span in exporter.get_finished_spans() if span.parent and span.parent.span_id == identity]


def seconds(span: ReadableSpan) -> float:
    return ((span.end_time or 0) - (span.start_time or 0)) / 1e9


def call_span(exporter: InMemorySpanExporter, method: str) -> ReadableSpan:
    return next(span for span in exporter.get_finished_spans() if span.name.endswith(f"/{method}"))


async def test_a_stream_has_its_stages_as_single_calls_have(exporter: InMemorySpanExporter) -> None:
    model = FakeModel(on_submit=hold)
    async with traced(exporter, 4, model) as channel:
        call = stub_of(channel).StreamTranslateText(pb.StreamTranslateTextRequest(content="a secret text"))
        answer = await model.submitted.get()
        answer.write("A")
        await call.read()
        answer.complete()
        assert (await call.read()).HasField("translation")
        assert await call.read() is EOF
    call = call_span(exporter, "StreamTranslateText")
    assert {span.name: seconds(span) for span in children(exporter, call)} == {
        "queue": 0.125,
        "encode": 0.25,
        "decode": 0.5,
    }
    attributes = dict(call.attributes or {})
    named = ("jumok.texts", "jumok.model", "jumok.input_tokens", "jumok.output_tokens")
    assert [attributes[name] for name in named] == [1, "held", 2, 2]
    assert "secret" not in "".join(span.to_json() for span in exporter.get_finished_spans())


async def test_a_stream_that_is_left_early_has_no_stages(exporter: InMemorySpanExporter) -> None:
    model = FakeModel(on_submit=hold)
    async with traced(exporter, 1, model) as channel:
        call = stub_of(channel).StreamTranslateText(pb.StreamTranslateTextRequest(content="a"))
        (await model.submitted.get()).write("A")
        await call.read()
        call.cancel()
    (span,) = exporter.get_finished_spans()
    assert (span.attributes or {})["rpc.response.status_code"] == "CANCELLED"
    assert "jumok.model" not in (span.attributes or {})


async def test_a_corpus_has_the_stages_of_its_slowest_items(exporter: InMemorySpanExporter) -> None:
    totals = [float((7 * number) % 50) for number in range(50)]  # all different

    def answer(pending: Answer) -> None:
        (text,) = pending.texts
        if text == "refused":
            raise InvalidArgumentError("not this one", field="content")
        total = totals[int(text)]

        def timings() -> Timings:
            return Timings(queue_s=total / 2, encode_s=total / 4, decode_s=total / 8, total_s=total)

        pending.timings = timings  # type: ignore[method-assign]
        pending.complete()

    async with traced(exporter, 1 + 4 * SLOWEST_ITEMS, FakeModel(on_submit=answer)) as channel:
        call = stub_of(channel).TranslateCorpus()
        texts = [*map(str, range(50)), "refused"]
        items = [pb.CorpusItem(id=100 + number, content=text) for number, text in enumerate(texts)]
        await call.write(pb.TranslateCorpusRequest(settings=pb.CorpusSettings(), items=items))
        await call.done_writing()
        left = len(texts)
        while (message := await call.read()) is not EOF:
            left -= len(message.results)
        assert left == 0
    call = call_span(exporter, "TranslateCorpus")
    attributes = dict(call.attributes or {})
    named = ("jumok.texts", "jumok.model", "jumok.input_tokens", "jumok.output_tokens")
    assert [attributes[name] for name in named] == [50, "held", 100, 100]
    spans = children(exporter, call)
    found = {int((span.attributes or {})["jumok.item_id"]): seconds(span) for span in spans}  # type: ignore[arg-type]
    slowest = sorted(range(50), key=totals.__getitem__)[-SLOWEST_ITEMS:]
    assert found == {100 + number: pytest.approx(totals[number]) for number in sorted(slowest)}
    assert {span.name for span in spans} == {"item"}
    for item in spans:
        stages = children(exporter, item)
        assert [span.name for span in stages] == ["queue", "encode", "decode"]
        assert [seconds(span) for span in stages] == pytest.approx([seconds(item) / part for part in (2, 4, 8)])
        assert stages[0].start_time == item.start_time
