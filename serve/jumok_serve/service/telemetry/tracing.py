"""OpenTelemetry traces: a span per call and stage, without texts.

The stages queue, encode and decode come from the times of the record, laid end to end. A corpus has them for its
slowest items, each in a span of its own: the spans of all items would be more than a collector takes.
"""

import time
from collections.abc import Sequence
from operator import attrgetter
from typing import Self

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import extract
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from jumok_proto import __version__
from jumok_proto.results import Timings
from jumok_serve.service.rpc.call import HEALTH_METHODS, Call, ItemTimes

SERVICE = "jumok"
STAGES = ("queue", "encode", "decode")
FAULTS = {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
"""Statuses that count as server errors in OpenTelemetry's conventions for gRPC."""


class CallTracer:
    """Makes spans of ended calls."""

    def __init__(self, processor: SpanProcessor) -> None:
        resource = Resource.create({"service.name": SERVICE, "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer: Tracer = self._provider.get_tracer(SERVICE, __version__)

    @classmethod
    def to_collector(cls, endpoint: str) -> Self:
        """Send spans to a collector in the background, configured by the SDK's OTEL_... variables."""
        return cls(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))

    def ended(self, call: Call) -> None:
        """Make the spans of a call, within the caller's W3C ``traceparent``."""
        if call.method.startswith(HEALTH_METHODS):
            return
        ended = time.time_ns()  # noqa: TID251 - a date; the duration is measured
        started = ended - round(call.duration_s * 1e9)
        service, _, method = call.method.removeprefix("/").partition("/")
        carrier = {key: value for key, value in call.metadata.items() if isinstance(value, str)}
        span = self._tracer.start_span(
            f"{service}/{method}",
            context=extract(carrier),
            kind=SpanKind.SERVER,
            start_time=started,
            attributes={
                "rpc.system.name": "grpc",
                "rpc.method": f"{service}/{method}",
                "rpc.response.status_code": call.code,
                "jumok.request_id": call.request_id,
                **_attributes(call),
            },
        )
        if call.code in FAULTS:
            span.set_status(Status(StatusCode.ERROR))
        self._add_stages(call, span, started)
        span.end(ended)

    def _add_stages(self, call: Call, span: Span, started: int) -> None:
        """Add the stages of a translation, or those of the slowest items of a corpus."""
        record = call.record
        if record.timings is not None:
            self._add_spans(span, started, _durations(record.timings))
        for item in sorted(record.slowest, key=attrgetter("id")):
            ended = started + _nanoseconds(item.ended - call.started)
            item_span = self._tracer.start_span(
                "item",
                context=set_span_in_context(span),
                start_time=ended - _nanoseconds(item.total_s),
                attributes={"jumok.item_id": item.id},
            )
            self._add_spans(item_span, ended - _nanoseconds(item.total_s), _durations(item))
            item_span.end(ended)

    def _add_spans(self, span: Span, started: int, durations: Sequence[int]) -> None:
        """Add a span for each stage, one after the other."""
        parent = set_span_in_context(span)
        for stage, duration in zip(STAGES, durations, strict=True):
            self._tracer.start_span(stage, context=parent, start_time=started).end(started + duration)
            started += duration

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._provider.shutdown()


def _attributes(call: Call) -> dict[str, int | str]:
    attributes: dict[str, int | str] = {}
    if call.record.texts is not None:
        attributes["jumok.texts"] = call.record.texts
    if call.record.model or call.record.is_corpus:
        attributes["jumok.model"] = call.record.model
        attributes["jumok.input_tokens"] = call.record.input_tokens
        attributes["jumok.output_tokens"] = call.record.output_tokens
    return attributes


def _durations(times: Timings | ItemTimes) -> list[int]:
    """Return the nanoseconds of the stages."""
    return [_nanoseconds(getattr(times, f"{stage}_s")) for stage in STAGES]


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
