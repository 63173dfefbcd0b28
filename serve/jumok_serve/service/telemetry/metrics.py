"""Prometheus metrics: what server and engines count, read when somebody scrapes.

No label says who called or what was asked: labels are methods, statuses, reasons, and names of models.
"""

from collections.abc import Iterable, Iterator, Sequence
from threading import Thread
from types import TracebackType
from typing import Self
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from jumok_proto.results import ModelState
from jumok_serve.engine.counters import EngineCounters, Histogram
from jumok_serve.errors import ListenError
from jumok_serve.service.models.registry import HeldModel
from jumok_serve.service.server import Server


class ServerCollector(Collector):
    """The metrics of a server and its models.

    Args:
        server: may not have started yet.
    """

    def __init__(self, server: Server) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        """Read all counters."""
        yield from self._calls()
        yield from self._states([held for held in self._server.models.held() if not held.draining])
        yield from _engines(list(self._server.models.counters().items()))

    def _calls(self) -> Iterator[Metric]:
        counts = self._server.counts
        ended = CounterMetricFamily(
            "jumok_requests", "Calls that have ended, by method and status.", labels=["method", "code"]
        )
        for (method, code), number in counts.ended_with.copy().items():
            ended.add_metric([method, code], number)
        yield ended
        yield _histogram(
            "jumok_request_duration_seconds", "Seconds that calls took.", "method", counts.duration_s.copy().items()
        )
        yield _gauge("jumok_open_requests", "Calls that are open.", [([], self._server.open_calls)])
        refused = CounterMetricFamily(
            "jumok_rejections",
            "Calls that were refused or failed, by the reason the caller was told.",
            labels=["reason"],
        )
        refused_s = counts.refused_s.copy()
        for reason, histogram in refused_s.items():
            refused.add_metric([reason], sum(histogram.counts))
        yield refused
        yield _histogram(
            "jumok_rejection_duration_seconds",
            "Seconds from the arrival of calls until they were refused or failed.",
            "reason",
            refused_s.items(),
        )

    def _states(self, models: Sequence[HeldModel]) -> Iterator[Metric]:
        info = GaugeMetricFamily(
            "jumok_model_info",
            "1 for every model that takes requests.",
            labels=["model", "version", "precision", "device"],
        )
        for model in (held.model for held in models):
            info.add_metric([model.manifest.name, model.manifest.version, model.precision, model.device], 1)
        yield info
        yield _gauge(
            "jumok_model_serving",
            "Whether a model is served: 1, or 0.",
            [([held.name], float(self._server.serving and held.state is ModelState.SERVING)) for held in models],
        )
        loads = [([name], load) for name, load in self._server.models.loads().items()]
        for metric, description, attribute in (
            ("jumok_queue_requests", "Texts that wait.", "queued_requests"),
            ("jumok_queue_tokens", "Source tokens of the texts that wait.", "queued_tokens"),
            ("jumok_running_sentences", "Texts that are decoded.", "running_sentences"),
            ("jumok_rows", "Rows, which are hypotheses, that are decoded.", "rows"),
        ):
            yield _gauge(metric, description, [(name, getattr(load, attribute)) for name, load in loads])


def _engines(counted: Sequence[tuple[str, EngineCounters]]) -> Iterator[Metric]:
    for metric, description, attribute in (
        ("jumok_queue_wait_seconds", "Seconds that texts waited.", "queue_s"),
        ("jumok_time_to_first_token_seconds", "Seconds from a text's arrival to its first token.", "first_token_s"),
        ("jumok_time_per_output_token_seconds", "Seconds of decoding a token of a translation takes.", "token_s"),
        ("jumok_step_rows", "Rows of each decoder step that sentences have: the batch size.", "step_rows"),
        ("jumok_step_padding_ratio", "Share of padding in each decoder step's sources.", "step_padding"),
    ):
        yield _histogram(metric, description, "model", [(name, getattr(one, attribute)) for name, one in counted])
    for metric, description, attribute in (
        ("jumok_input_tokens", "Source tokens of the texts that were admitted.", "source_tokens"),
        ("jumok_output_tokens", "Tokens of the best translations.", "output_tokens"),
        ("jumok_translated_texts", "Texts that were translated.", "finished"),
        ("jumok_failed_texts", "Texts that were lost because the model failed.", "failed"),
    ):
        family = CounterMetricFamily(metric, description, labels=["model"])
        for name, one in counted:
            family.add_metric([name], getattr(one, attribute))
        yield family
    given_up = CounterMetricFamily(
        "jumok_cancellations", "Texts that nobody waited for any more.", labels=["model", "stage", "cause"]
    )
    for name, one in counted:
        for (stage, cause), number in one.given_up.items():
            given_up.add_metric([name, stage, cause], number)
    yield given_up


def _gauge(name: str, description: str, values: Sequence[tuple[list[str], float]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, description, labels=["model"] if values and values[0][0] else [])
    for labels, value in values:
        family.add_metric(labels, value)
    return family


def _histogram(name: str, description: str, label: str, values: Iterable[tuple[str, Histogram]]) -> Metric:
    family = HistogramMetricFamily(name, description, labels=[label])
    for of, histogram in values:
        below, buckets = 0, []
        for bound, count in zip((*map(float, histogram.bounds), "+Inf"), list(histogram.counts), strict=True):
            below += count
            buckets.append((str(bound), float(below)))
        family.add_metric([of], buckets, histogram.total)
    return family


def make_registry(server: Server) -> CollectorRegistry:
    """The metrics of a server, and those of its process."""
    registry = CollectorRegistry()
    registry.register(ServerCollector(server))
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    return registry


class MetricsPort:
    """Serves metrics over HTTP, in a thread of its own, until it is closed.

    Args:
        server: whose metrics.
        host: address to listen on.
        port: 0: any free.

    Raises:
        ListenError: the address cannot be had.
    """

    def __init__(self, server: Server, *, host: str, port: int) -> None:
        self._http: WSGIServer
        self._thread: Thread
        try:
            self._http, self._thread = start_http_server(port, addr=host, registry=make_registry(server))
        except (OSError, OverflowError) as error:
            raise ListenError(
                f"cannot listen on {host}:{port} for metrics: {error}; choose another --metrics-port"
            ) from error
        self.address = f"{host}:{self._http.server_port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
