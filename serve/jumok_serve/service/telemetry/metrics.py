"""Metrics, and the port that shows them.

Labels are methods, statuses, reasons and models' names; no label holds a caller or a text.
"""

import errno
import logging
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from socketserver import ThreadingMixIn
from threading import Thread
from typing import Any, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from jumok_proto.results import ModelState
from jumok_serve.engine.statistics import EngineCounters, Histogram
from jumok_serve.errors import ListenError
from jumok_serve.service.connections import bare_host, format_address
from jumok_serve.service.models.registry import ModelEntry
from jumok_serve.service.server import Front, Server
from jumok_serve.service.telemetry.logs import dropped_lines


class ServerCollector(Collector):
    """Collects the metrics of a server and its models."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        """Collect all metrics."""
        yield from self._call_metrics()
        if self._server.front is not None:
            yield from _front_metrics(self._server.front)
        yield from self._model_metrics([entry for entry in self._server.models.entries() if not entry.draining])
        yield from _engine_metrics(list(self._server.models.counters().items()))
        dropped = "Lines of the log that were dropped, as standard error was not read in time."
        yield _counter("jumok_dropped_log_lines", dropped, [], [([], dropped_lines())])

    def _call_metrics(self) -> Iterator[Metric]:
        counts = self._server.counts
        ended = counts.ended_with.copy().items()
        yield _counter("jumok_requests", "Calls that have ended, by method and status.", ["method", "code"], ended)
        durations = counts.duration_s.copy().items()
        yield _histogram("jumok_request_duration_seconds", "Duration of calls in seconds.", "method", durations)
        yield _gauge("jumok_open_requests", "Open calls.", [], [([], self._server.open_calls)])
        refused_s = counts.refused_s.copy().items()
        refused = [([reason], sum(histogram.counts)) for reason, histogram in refused_s]
        yield _counter(
            "jumok_rejections", "Refused and failed calls, by the reason in their error.", ["reason"], refused
        )
        yield _histogram(
            "jumok_rejection_duration_seconds", "Seconds that refused and failed calls took.", "reason", refused_s
        )

    def _model_metrics(self, models: Sequence[ModelEntry]) -> Iterator[Metric]:
        info = [
            ([model.manifest.name, model.manifest.version, model.precision, model.device], 1)
            for model in (entry.model for entry in models)
        ]
        labels = ["model", "version", "precision", "device"]
        yield _gauge("jumok_model_info", "1 for every model that takes requests.", labels, info)
        serving = [([entry.name], self._server.serving and entry.state is ModelState.SERVING) for entry in models]
        yield _gauge("jumok_model_serving", "1 if the model is served, else 0.", ["model"], serving)
        loads = [([name], load) for name, load in self._server.models.loads().items()]
        for metric, description, attribute in (
            ("jumok_queue_requests", "Sentences in the queue.", "queued_requests"),
            ("jumok_queue_tokens", "Source tokens of the sentences in the queue.", "queued_tokens"),
            ("jumok_running_sentences", "Sentences in the batch.", "running_sentences"),
            ("jumok_rows", "Rows (hypotheses) in the batch.", "rows"),
        ):
            yield _gauge(metric, description, ["model"], [(name, getattr(load, attribute)) for name, load in loads])


def _front_metrics(front: Front) -> Iterator[Metric]:
    yield _gauge("jumok_http_connections", "Open connections of the HTTP port.", [], [([], front.open_connections)])
    responses = [([str(status)], number) for status, number in dict(front.responses).items()]
    yield _counter("jumok_http_responses", "Responses of the HTTP port, by status.", ["status"], responses)


def _engine_metrics(counted: Sequence[tuple[str, EngineCounters]]) -> Iterator[Metric]:
    for metric, description, attribute in (
        ("jumok_queue_wait_seconds", "Seconds of sentences in the queue.", "queue_s"),
        ("jumok_time_to_first_token_seconds", "Seconds from a sentence's arrival to its first token.", "first_token_s"),
        ("jumok_time_per_output_token_seconds", "Seconds of decoding for each token of a translation.", "token_s"),
        ("jumok_step_rows", "Rows in use at each decoder step: the batch size.", "step_rows"),
        ("jumok_step_padding_ratio", "Share of padding in the sources of each decoder step.", "step_padding"),
    ):
        yield _histogram(
            metric, description, "model", [(name, getattr(counters, attribute)) for name, counters in counted]
        )
    for metric, description, attribute in (
        ("jumok_input_tokens", "Source tokens of admitted sentences.", "source_tokens"),
        ("jumok_output_tokens", "Tokens of the best translations.", "output_tokens"),
        ("jumok_translated_texts", "Translated texts.", "texts"),
        ("jumok_translated_sentences", "Translated sentences; a text that is split has several.", "finished"),
        ("jumok_failed_texts", "Sentences lost to a failure of the model.", "failed"),
    ):
        values = [([name], getattr(counters, attribute)) for name, counters in counted]
        yield _counter(metric, description, ["model"], values)
    cancelled = [([name, *cause], number) for name, counters in counted for cause, number in counters.given_up.items()]
    yield _counter("jumok_cancellations", "Cancelled and expired sentences.", ["model", "stage", "cause"], cancelled)


def _metric(
    kind: type[CounterMetricFamily | GaugeMetricFamily],
    name: str,
    description: str,
    labels: Sequence[str],
    values: Iterable[tuple[Sequence[str], float]],
) -> Metric:
    family = kind(name, description, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


_counter, _gauge = partial(_metric, CounterMetricFamily), partial(_metric, GaugeMetricFamily)


def _histogram(name: str, description: str, label: str, values: Iterable[tuple[str, Histogram]]) -> Metric:
    family = HistogramMetricFamily(name, description, labels=[label])
    for label_value, histogram in values:
        cumulative, buckets = 0, []
        for bound, count in zip((*map(float, histogram.bounds), "+Inf"), list(histogram.counts), strict=True):
            cumulative += count
            buckets.append((str(bound), float(cumulative)))
        family.add_metric([label_value], buckets, histogram.total)
    return family


def make_registry(server: Server) -> CollectorRegistry:
    """Make a registry with the metrics of a server and its process."""
    registry = CollectorRegistry()
    registry.register(ServerCollector(server))
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    return registry


logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 16
"""Open connections; another one is closed at once."""
CONNECTION_S = 10.0
"""Seconds after which a connection is closed, in the middle of a request or of a response."""
FULL_S = 0.5
"""Wait for a file when the process may open no more; a connection that waits would be tried again at once."""


class MetricsPort:
    """Serves metrics over HTTP in its own threads until it is closed.

    Raises:
        ListenError: the address cannot be bound.
    """

    def __init__(self, server: Server, *, host: str, port: int, connection_s: float = CONNECTION_S) -> None:
        try:
            self._http = _make_http_server(host, port, connection_s)
        except (OSError, OverflowError) as error:
            raise ListenError(
                f"cannot listen on {format_address(host, port)} for metrics: {error}; choose another --metrics-port"
            ) from error
        self._http.set_app(make_wsgi_app(make_registry(server)))
        self._thread = Thread(target=self._http.serve_forever, name="metrics", daemon=True)
        self._thread.start()
        self.address = format_address(host, self._http.server_port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _QuietHandler(WSGIRequestHandler):
    """Handler of one request; its base class logs every request to standard error."""

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug(format, *args)


class _HttpServer(ThreadingMixIn, WSGIServer):
    """Server with a thread for each connection, of at most `MAX_CONNECTIONS`."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], family: socket.AddressFamily, connection_s: float) -> None:
        self.address_family = family
        self._connection_s = connection_s
        self._started: dict[socket.socket, float] = {}  # in the order of arrival
        super().__init__(address, _QuietHandler)

    def get_request(self) -> Any:
        """Accept a connection."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                time.sleep(FULL_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, or close it."""
        if len(self._started) >= MAX_CONNECTIONS:
            self.shutdown_request(request)
            return
        self._started[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self._started.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End connections that are open for too long; called at least twice a second."""
        now = time.monotonic()
        for request, started in list(self._started.items()):
            if now - started > self._connection_s:
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)  # which wakes its thread

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a connection that was cut; the base class prints a traceback."""
        logger.debug("a scrape of the metrics failed", exc_info=True)


def _make_http_server(host: str, port: int, connection_s: float) -> _HttpServer:
    family, _, _, _, address = socket.getaddrinfo(
        bare_host(host), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    return _HttpServer((str(address[0]), int(address[1])), family, connection_s)
