"""Prometheus metrics: values, and queries of the dashboard."""

import asyncio
import json
import re
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import jumok
from jumok_proto.errors import OverloadedError
from jumok_serve.engine.request_queue import EngineLimits, Occupancy
from jumok_serve.engine.scheduler import Scheduler
from jumok_serve.engine.sentence import Sentence
from jumok_serve.engine.statistics import Histogram
from jumok_serve.errors import ListenError
from jumok_serve.http.port import make_http_front
from jumok_serve.search.options import DecodingOptions
from jumok_serve.search.plan import SearchPlan
from jumok_serve.service import Server
from jumok_serve.service.telemetry.metrics import MetricsPort, make_registry
from jumok_serve.tasks.model import TranslationParameters
from jumok_serve.translator import Translator
from tests.serve.engine.test_engine import Gate, wait_until_idle
from tests.support.hang import HANG_S, until
from tests.support.search_cases import make_options
from tests.support.servers.fake_model import FakeModel, fail, hold, serving

DASHBOARD = Path(__file__).parents[4] / "deploy/grafana/jumok.json"
ALERTS = Path(__file__).parents[4] / "deploy/alerts.yml"
SCALED_OBJECT = Path(__file__).parents[4] / "deploy/kubernetes/operators/scaled-object.yaml"
DOCUMENT = Path(__file__).parents[4] / "docs/operations/observe.md"
TRANSLATE = "/jumok.v1.TranslationService/TranslateText"
SAMPLES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",), "info": ("_info",)}

Scraped = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scrape(port: MetricsPort) -> Scraped:
    """All samples by name and labels, as Prometheus parses them."""

    def get() -> str:
        with urllib.request.urlopen(f"http://{port.address}/metrics", timeout=HANG_S) as answer:
            text: bytes = answer.read()
        return text.decode()

    families = text_string_to_metric_families(await asyncio.to_thread(get))
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(scraped: Scraped, name: str, **labels: str) -> float:
    return scraped[name, frozenset(labels.items())]


def timings(answer: jumok.Translation) -> jumok.Timings:
    assert answer.timings is not None
    return answer.timings


@asynccontextmanager
async def measured(*models: FakeModel) -> AsyncIterator[tuple[MetricsPort, jumok.AsyncClient, grpc.aio.Channel]]:
    async with (
        serving(*models) as (server, channel),
        jumok.AsyncClient(server.address, timeout_s=HANG_S, max_attempts=1) as client,
    ):
        with MetricsPort(server, host="127.0.0.1", port=0) as port:
            yield port, client, channel


async def test_what_was_decoded_is_counted_as_it_happened(tiny_bundle: Path) -> None:
    """Greedy texts, one at a time, take a step of one row for every token."""
    texts = ["a man", "two dogs run in the park", "a girl reads a book"]
    with Translator(tiny_bundle, threads=1) as translator:
        server = Server([translator], port=0)
        await server.start()
        async with jumok.AsyncClient(server.address, timeout_s=HANG_S) as client:
            with MetricsPort(server, host="127.0.0.1", port=0) as port:
                answers = [await client.translate(text, beam_size=1) for text in texts]
                await asyncio.to_thread(wait_until_idle, translator)
                scraped = await scrape(port)
        await server.stop(0)
    model = {"model": "tiny-en-de"}
    tokens = sum(answer.output_token_count for answer in answers)
    sources = [answer.source_token_count for answer in answers]
    assert value(scraped, "jumok_input_tokens_total", **model) == sum(sources)
    assert value(scraped, "jumok_output_tokens_total", **model) == tokens
    assert value(scraped, "jumok_translated_texts_total", **model) == 3
    assert value(scraped, "jumok_failed_texts_total", **model) == 0
    for name in ("queue_wait", "time_to_first_token", "time_per_output_token"):
        assert value(scraped, f"jumok_{name}_seconds_count", **model) == 3
    assert value(scraped, "jumok_step_rows_count", **model) == tokens
    assert value(scraped, "jumok_step_rows_sum", **model) == tokens
    assert value(scraped, "jumok_step_rows_bucket", le="1.0", **model) == tokens
    padding = sum(
        answer.output_token_count * (1 - source / (-(-source // 8) * 8))
        for answer, source in zip(answers, sources, strict=True)
    )
    assert value(scraped, "jumok_step_padding_ratio_sum", **model) == pytest.approx(padding)
    per_token = sum(timings(answer).decode_s / answer.output_token_count for answer in answers)
    assert value(scraped, "jumok_time_per_output_token_seconds_sum", **model) == pytest.approx(per_token, rel=1e-3)
    waited = sum(timings(answer).queue_s for answer in answers)
    assert value(scraped, "jumok_queue_wait_seconds_sum", **model) == pytest.approx(waited, abs=1e-6)
    assert value(scraped, "jumok_requests_total", method=TRANSLATE, code="OK") == 3
    assert value(scraped, "jumok_rows", **model) == 0
    assert value(scraped, "jumok_model_serving", **model) == 1
    assert value(scraped, "jumok_model_info", version="1", precision="int8", device="cpu", **model) == 1
    total = sum(timings(answer).total_s for answer in answers)
    assert value(scraped, "jumok_request_duration_seconds_sum", method=TRANSLATE) >= total


async def test_calls_are_counted_by_how_they_end() -> None:
    model = FakeModel()
    async with measured(model) as (port, client, _):
        await client.translate("a")
        model.on_submit = fail(OverloadedError("full", retry_after_s=1.0))
        with pytest.raises(jumok.ResourceExhaustedError):
            await client.translate("a")
        with pytest.raises(jumok.InvalidArgumentError):
            await client.translate("a", beam_size=0)
        with pytest.raises(jumok.NotFoundError):
            await client.get_model("other")
        await client.list_models()  # is answered after the end of all calls before it was seen
        scraped = await scrape(port)
        assert {labels: number for (name, labels), number in scraped.items() if name == "jumok_rejections_total"} == {
            frozenset({("reason", reason)}): 1.0 for reason in ("OVERLOADED", "INVALID_REQUEST", "MODEL_NOT_FOUND")
        }
        for reason in ("OVERLOADED", "INVALID_REQUEST", "MODEL_NOT_FOUND"):
            assert value(scraped, "jumok_rejection_duration_seconds_count", reason=reason) == 1
            assert value(scraped, "jumok_rejection_duration_seconds_bucket", reason=reason, le="+Inf") == 1
            assert 0 < value(scraped, "jumok_rejection_duration_seconds_sum", reason=reason) < 60
        for code in ("OK", "RESOURCE_EXHAUSTED", "INVALID_ARGUMENT"):
            assert value(scraped, "jumok_requests_total", method=TRANSLATE, code=code) == 1
        assert value(scraped, "jumok_request_duration_seconds_count", method=TRANSLATE) == 3


async def test_a_call_that_is_given_up_is_counted_and_one_that_runs_is_open() -> None:
    model = FakeModel(on_submit=hold)
    async with measured(model) as (port, client, _):
        call = asyncio.create_task(client.translate("a"))
        answer = await model.submitted.get()
        assert value(await scrape(port), "jumok_open_requests") == 1
        call.cancel()
        await until(answer.futures[0].cancelled)
        await client.list_models()  # is answered after the call's end was seen
        scraped = await scrape(port)
        assert value(scraped, "jumok_requests_total", method=TRANSLATE, code="CANCELLED") == 1
        assert value(scraped, "jumok_open_requests") == 0
        assert not any(name == "jumok_rejections_total" for name, _ in scraped)


async def test_labels_say_nothing_of_callers_or_contents() -> None:
    async with measured(FakeModel()) as (port, client, channel):
        await client.translate("confidential")
        unknown = channel.unary_unary("/jumok.v1.TranslationService/confidential", bytes, bytes)
        with pytest.raises(grpc.aio.AioRpcError):
            await unknown(b"", metadata=(("x-request-id", "confidential"),))
        assert "confidential" not in str(await scrape(port))


def test_texts_given_up_in_the_queue_are_counted_by_cause() -> None:
    queue = Scheduler(EngineLimits(), 1)
    left, waiting = (Sentence(source_ids=[5] * 8, plan=SearchPlan(make_options(), 2, ())) for _ in range(2))
    queue.submit([left, waiting])
    left.future.cancel()
    work = queue.next_work(0, Occupancy())
    assert work is not None
    assert work.taken == [waiting]
    assert dict(queue.queue_counters.given_up) == {("queue", "cancelled"): 1}


def test_a_text_given_up_while_it_is_decoded_is_counted(tiny_bundle: Path) -> None:
    with Translator(tiny_bundle, precision="fp32", replicas=1, threads=1) as translator:
        gate = Gate(translator)
        options = DecodingOptions(beam_size=2, min_length=5, max_length=5)
        leaving, last = translator.submit(["a man", "two dogs"], TranslationParameters(options=options)).futures
        gate.arrive()
        gate.step()
        assert leaving.cancel()
        gate.open()
        last.result()
        counters = translator.counters()
        assert dict(counters.given_up) == {("decode", "cancelled"): 1}
        assert (counters.finished, sum(counters.step_rows.counts)) == (1, 5)
        assert sum(counters.first_token_s.counts) == 2


def test_histograms_count_values_up_to_their_bounds() -> None:
    histogram = Histogram((1.0, 2.0))
    for number in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.observe(number)
    other = Histogram((1.0, 2.0))
    other.observe(9.0)
    histogram.add(other)
    assert (histogram.counts, histogram.total) == ([2, 2, 2], 16.5)


async def test_a_port_in_use_is_refused() -> None:
    async with serving(FakeModel()) as (server, _):
        with pytest.raises(ListenError, match="metrics"):
            MetricsPort(server, host="127.0.0.1", port=server.port)


def queries(panels: list[dict[str, Any]]) -> Iterator[str]:
    for panel in panels:
        yield from (target["expr"] for target in panel.get("targets", ()))
        yield from queries(panel.get("panels", []))


async def metric_names() -> set[str]:
    """Names of the metrics of a server with an HTTP port."""
    registry = make_registry(Server([FakeModel()], port=0, make_front=partial(make_http_front, port=0)))
    return {f"{family.name}{end}" for family in registry.collect() for end in SAMPLES[family.type]}


def metrics_of(query: str) -> set[str]:
    """Names of the metrics of a query."""
    found = set[str]()

    def note(part: object) -> bool:
        if isinstance(part, promql_parser.VectorSelector):
            found.add(str(part.name))
        return True

    promql_parser.walk(promql_parser.parse(query.replace("$__rate_interval", "5m")), note)
    return found


async def test_alerts_ask_only_for_what_there_is() -> None:
    known = await metric_names()
    (group,) = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"]) >= 5
    for rule in group["rules"]:
        assert metrics_of(rule["expr"]) - {"up"} <= known
        assert rule["labels"]["severity"] in {"critical", "warning"}
        # A label of the message survives the query.
        for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
            kept = re.findall(r"by \(([^)]*)\)", rule["expr"])
            assert all(label in each.replace(" ", "").split(",") for each in kept)


async def test_the_autoscaler_asks_for_the_queues_of_servers() -> None:
    (_, trigger) = yaml.safe_load(SCALED_OBJECT.read_text(encoding="utf-8"))["spec"]["triggers"]
    asked = metrics_of(trigger["metadata"]["query"])
    assert asked == {"jumok_queue_requests"}
    assert asked <= await metric_names()


async def test_the_dashboard_asks_only_for_what_there_is() -> None:
    known = await metric_names()
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    asked = {name for query in queries(dashboard["panels"]) for name in metrics_of(query)}
    for variable in dashboard["templating"]["list"]:
        asked |= set(re.findall(r"label_values\((\w+),", variable["query"]))
    assert asked <= known
    # And it shows all of ours, which the document lists.
    ours = {re.sub("_(bucket|sum|count)$", "", name) for name in known if name.startswith("jumok_")}
    assert ours <= {re.sub("_(bucket|sum|count)$", "", name) for name in asked}
    assert ours == set(re.findall(r"`(jumok_\w+)`", DOCUMENT.read_text(encoding="utf-8")))
