"""OpenTelemetry traces: a span per call and stage, without texts.

The stages queue, encode and decode come from the timings of the response, laid end to end.
"""

import time
from typing import Self

from google.protobuf.duration_pb2 import Duration
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import extract
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from jumok_proto import __version__
from jumok_serve.service.rpc.call import HEALTH_METHODS, Call

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
        ended = time.time_ns()
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
        timings = getattr(call.response, "timings", None)
        if timings is None:
            return
        parent = set_span_in_context(span)
        durations = [_nanoseconds(getattr(timings, f"{stage}_duration")) for stage in STAGES]
        stage_started = started
        for stage, duration in zip(STAGES, durations, strict=True):
            self._tracer.start_span(stage, context=parent, start_time=stage_started).end(stage_started + duration)
            stage_started += duration

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._provider.shutdown()


def _attributes(call: Call) -> dict[str, int | str]:
    attributes: dict[str, int | str] = {}
    contents = getattr(call.request, "contents", None)
    if contents is not None:
        attributes["jumok.texts"] = len(contents)
    translations = getattr(call.response, "translations", ())
    if translations:
        attributes["jumok.model"] = translations[0].model
        attributes["jumok.input_tokens"] = sum(one.source_token_count for one in translations)
        attributes["jumok.output_tokens"] = sum(one.output_token_count for one in translations)
    return attributes


def _nanoseconds(duration: Duration) -> int:
    return duration.ToNanoseconds()
