"""The gRPC service against an engine whose futures the test holds: statuses, details, cancellation, health, the end."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub

from jumok_proto.results import FinishReason, Hypothesis, Timings, Translation
from jumok_proto.v1 import decoding_pb2, model_pb2, translation_pb2
from jumok_proto.v1.decoding_pb2 import DecodingOptions as Options
from jumok_proto.v1.model_pb2_grpc import ModelServiceStub
from jumok_proto.v1.translation_pb2_grpc import TranslationServiceStub
from jumok_serve.errors import (
    DeadlineExceeded,
    DuplicateModel,
    InvalidRequest,
    JumokError,
    ListenError,
    Overloaded,
    Unavailable,
)
from jumok_serve.manifest import (
    REQUIRED_GRAPHS,
    Architecture,
    FileEntry,
    GenerationDefaults,
    GraphSpec,
    Languages,
    Limits,
    Manifest,
    PrecisionVariant,
    Provenance,
    SentencePieceDescription,
    SpecialTokens,
)
from jumok_serve.options import DecodingOptions
from jumok_serve.service import Server
from jumok_serve.service.translation_service import MAX_CONTENTS

FILES = ("graph.onnx", "weights.bin", "spm.model")


def manifest(name: str) -> Manifest:
    """Describe a model that has no files."""
    return Manifest(
        name=name,
        version="1",
        architecture=Architecture(family="transformer"),
        languages=Languages(source="en", target="de"),
        special_tokens=SpecialTokens(pad=0, start=2, eos=(3,)),
        limits=Limits(max_source_length=16, max_target_length=32),
        generation=GenerationDefaults(beam_size=5, max_length=24, early_stopping="never"),
        tokenizer=SentencePieceDescription(
            source_model="spm.model", source_vocab_size=8, target_vocab_size=8, source_suffix=(3,)
        ),
        precisions={
            "fp32": PrecisionVariant(
                graphs={name: GraphSpec(file="graph.onnx", inputs=(), outputs=()) for name in REQUIRED_GRAPHS},
                weights="weights.bin",
            )
        },
        provenance=Provenance(created=datetime(2025, 1, 1, tzinfo=UTC), command="none"),
        files={file: FileEntry(size=0, sha256="0" * 64) for file in FILES},
    )


class Answer:
    """Texts whose futures the test completes; their translations are the texts in capitals."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts
        self.futures: tuple[Future[None], ...] = tuple(Future() for _ in texts)

    def complete(self) -> None:
        for future in self.futures:
            if future.set_running_or_notify_cancel():
                future.set_result(None)

    def collect(self) -> list[Translation]:
        return [
            Translation(
                hypotheses=(
                    Hypothesis(
                        text=text.upper(),
                        score=-0.5,
                        tokens=(text.upper(), "</s>"),
                        token_ids=(7, 3),
                        token_scores=(-0.75, -0.25),
                        finish_reason=FinishReason.EOS,
                    ),
                ),
                source_token_count=2,
                source_truncated=False,
                model="held",
                model_version="1",
            )
            for text in self.texts
        ]

    def timings(self) -> Timings:
        return Timings(queue_s=0.125, encode_s=0.25, decode_s=0.5, total_s=1.0)


class HeldModel:
    """An engine that answers when, and as, the test says."""

    precision = "fp32"
    device = "cpu"

    def __init__(self, name: str = "held", on_submit: Callable[[Answer], None] = Answer.complete) -> None:
        self.manifest = manifest(name)
        self.on_submit = on_submit
        self.submitted: asyncio.Queue[Answer] = asyncio.Queue()
        self.options = DecodingOptions()
        self.truncate = False
        self.deadline: float | None = None
        self._loop = asyncio.get_running_loop()

    def submit(
        self, texts: Sequence[str], options: DecodingOptions, *, truncate: bool = False, deadline: float | None = None
    ) -> Answer:
        self.options, self.truncate, self.deadline = options, truncate, deadline
        answer = Answer(texts)
        self.on_submit(answer)
        self._loop.call_soon_threadsafe(self.submitted.put_nowait, answer)
        return answer

    def close(self, *, drain: bool = True) -> None:
        raise AssertionError("the models are the caller's to close")


@asynccontextmanager
async def serving(*models: HeldModel) -> AsyncIterator[tuple[Server, grpc.aio.Channel]]:
    """Serve models on a free port, with a channel to it."""
    server = Server(models, port=0)
    await server.start()
    async with grpc.aio.insecure_channel(server.address) as channel:
        yield server, channel
        await server.stop(0)


def hold(answer: Answer) -> None:
    """Leave the futures to the test."""


def fail(error: Exception) -> Callable[[Answer], None]:
    """Refuse whatever is submitted."""

    def refuse(answer: Answer) -> None:
        raise error

    return refuse


@dataclass
class Failure:
    """What a failed call said."""

    code: grpc.StatusCode
    message: str
    info: error_details_pb2.ErrorInfo
    bad_request: error_details_pb2.BadRequest
    resource: error_details_pb2.ResourceInfo
    retry: error_details_pb2.RetryInfo

    @property
    def field(self) -> str:
        (violation,) = self.bad_request.field_violations
        return str(violation.field)


async def failure(call: Awaitable[object]) -> Failure:
    """Await a call that must fail."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    error = caught.value
    trailing = cast("Iterable[tuple[str, bytes]]", error.trailing_metadata())
    status = status_pb2.Status.FromString(dict(trailing)["grpc-status-details-bin"])
    assert status.code == error.code().value[0]
    assert status.message == error.details()
    kinds = ("ErrorInfo", "BadRequest", "ResourceInfo", "RetryInfo")
    messages = [getattr(error_details_pb2, kind)() for kind in kinds]
    for detail in status.details:
        assert sum(detail.Unpack(message) for message in messages) == 1
    assert messages[0].domain == "jumok"
    assert messages[0].metadata["request_id"]
    return Failure(error.code(), status.message, *messages)


def request(*texts: str, model: str = "", options: Options | None = None) -> translation_pb2.TranslateTextRequest:
    return translation_pb2.TranslateTextRequest(contents=texts, model=model, options=options)


def test_texts_are_answered_in_order_with_timings() -> None:
    async def scenario() -> None:
        model = HeldModel()
        async with serving(model) as (_, channel):
            sent = request("a", "b", options=Options(beam_size=4))
            sent.truncate = True
            before = time.monotonic()
            response = await TranslationServiceStub(channel).TranslateText(sent, timeout=60)
            assert [translation.hypotheses[0].text for translation in response.translations] == ["A", "B"]
            assert response.translations[0].output_token_count == 2
            assert response.timings.decode_duration.ToMilliseconds() == 500
            assert model.options == DecodingOptions(beam_size=4)
            assert model.truncate
            assert model.deadline is not None
            assert before + 50 < model.deadline < time.monotonic() + 60

    asyncio.run(scenario())


def test_a_call_without_deadline_waits_without() -> None:
    async def scenario() -> None:
        model = HeldModel()
        async with serving(model) as (_, channel):
            await TranslationServiceStub(channel).TranslateText(request("a"))
            assert model.deadline is None

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (Overloaded("full", retry_after_s=0.5), grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED"),
        (Unavailable("draining", retry_after_s=2), grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE"),
        (DeadlineExceeded("late"), grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED"),
        (InvalidRequest("contents[3]: bad", field="contents[3]"), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
    ],
)
def test_the_engines_errors_become_statuses(error: JumokError, code: grpc.StatusCode, reason: str) -> None:
    async def scenario() -> None:
        model = HeldModel(on_submit=fail(error))
        async with serving(model) as (_, channel):
            failed = await failure(TranslationServiceStub(channel).TranslateText(request("a")))
            assert (failed.code, failed.message, failed.info.reason) == (code, str(error), reason)
            assert failed.retry.retry_delay.ToNanoseconds() / 1e9 == (error.retry_after_s or 0)
            assert [violation.field for violation in failed.bad_request.field_violations] == [error.field][
                : bool(error.field)
            ]
            model.on_submit = Answer.complete
            assert await TranslationServiceStub(channel).TranslateText(request("a"))

    asyncio.run(scenario())


def test_a_fault_of_the_server_keeps_its_words_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving(HeldModel(on_submit=fail(RuntimeError("secret of /srv")))) as (_, channel):
            failed = await failure(TranslationServiceStub(channel).TranslateText(request("a")))
            assert failed.code is grpc.StatusCode.INTERNAL
            assert "secret" not in str(failed)
            assert failed.info.metadata["request_id"] in failed.message
            assert failed.info.metadata["request_id"] in caplog.text
            assert "secret of /srv" in caplog.text

    asyncio.run(scenario())


def test_one_failed_text_fails_the_request_and_frees_the_others() -> None:
    async def scenario() -> None:
        model = HeldModel(on_submit=hold)
        async with serving(model) as (_, channel):
            call = TranslationServiceStub(channel).TranslateText(request("a", "b"))
            answer = await model.submitted.get()
            answer.futures[0].set_exception(DeadlineExceeded("late"))
            assert (await failure(call)).code is grpc.StatusCode.DEADLINE_EXCEEDED
            assert answer.futures[1].cancelled()

    asyncio.run(scenario())


def test_a_cancelled_call_cancels_its_texts() -> None:
    async def scenario() -> None:
        model = HeldModel(on_submit=hold)
        async with serving(model) as (_, channel):
            call = TranslationServiceStub(channel).TranslateText(request("a", "b"))
            answer = await model.submitted.get()
            cancelled = asyncio.Event()
            loop = asyncio.get_running_loop()
            answer.futures[1].add_done_callback(lambda _: loop.call_soon_threadsafe(cancelled.set))
            call.cancel()
            await asyncio.wait_for(cancelled.wait(), 30)
            assert all(future.cancelled() for future in answer.futures)

    asyncio.run(scenario())


def test_a_call_cancelled_while_it_is_tokenized_is_not_decoded() -> None:
    async def scenario() -> None:
        entered, released = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def tokenize(_: Answer) -> None:
            loop.call_soon_threadsafe(entered.set)
            assert released.wait(30)

        model = HeldModel(on_submit=tokenize)
        async with serving(model) as (_, channel):
            call = TranslationServiceStub(channel).TranslateText(request("a"))
            await entered.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            # The server has seen the cancellation once it answers what was sent after it on the same connection.
            await ModelServiceStub(channel).ListModels(model_pb2.ListModelsRequest())
            released.set()
            answer = await model.submitted.get()
            cancelled = asyncio.Event()
            answer.futures[0].add_done_callback(lambda _: loop.call_soon_threadsafe(cancelled.set))
            await asyncio.wait_for(cancelled.wait(), 30)
            assert answer.futures[0].cancelled()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        (request("a", options=Options(beam_size=0)), "options.beam_size"),
        (request("a", options=Options(beam_size=65)), "options.beam_size"),
        (request("a", options=Options(num_hypotheses=3, beam_size=2)), "options.num_hypotheses"),
        (request("a", options=Options(min_length=5, max_length=4)), "options.min_length"),
        (
            request("a", options=Options(early_stopping=decoding_pb2.EarlyStopping.ValueType(77))),
            "options.early_stopping",
        ),
        (request(*["a"] * (MAX_CONTENTS + 1)), "contents"),
    ],
)
def test_bad_options_are_refused_by_field(sent: translation_pb2.TranslateTextRequest, field: str) -> None:
    async def scenario() -> None:
        async with serving(HeldModel()) as (_, channel):
            failed = await failure(TranslationServiceStub(channel).TranslateText(sent))
            assert (failed.code, failed.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)
            assert await TranslationServiceStub(channel).TranslateText(request("a"))

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        (b"\x12\x03\xed\xa0\x80", "request"),  # contents: [U+D800], which is no UTF-8
        (b"\xff\xff\xff", "request"),
        (b"\x12\x01a\x1a\x06\x0a\x04many", "options"),  # beam_size: "many", by its wire type another field
        (b"\x12\x01a\x1a\x03\xf0\x07\x01", "options"),  # option number 126 of a later version
    ],
)
def test_bytes_that_are_no_request_are_refused(sent: bytes, field: str) -> None:
    async def scenario() -> None:
        async with serving(HeldModel()) as (_, channel):
            call = channel.unary_unary("/jumok.v1.TranslationService/TranslateText", bytes, bytes)
            failed = await failure(call(sent))
            assert (failed.code, failed.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)
            assert await TranslationServiceStub(channel).TranslateText(request("a"))

    asyncio.run(scenario())


def test_an_unknown_model_is_not_found_and_the_known_are_named() -> None:
    async def scenario() -> None:
        async with serving(HeldModel("b"), HeldModel("a")) as (_, channel):
            for name in ("c", "c" * 100_000):
                failed = await failure(TranslationServiceStub(channel).TranslateText(request("x", model=name)))
                assert (failed.code, failed.info.reason) == (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")
                assert failed.resource.resource_type == "jumok.v1.Model"
                assert failed.resource.resource_name[:100] == name[:100]
                assert failed.resource.description == "available: a, b"
            failed = await failure(ModelServiceStub(channel).GetModel(model_pb2.GetModelRequest(name="c")))
            assert failed.code is grpc.StatusCode.NOT_FOUND
            unnamed = await failure(TranslationServiceStub(channel).TranslateText(request("x")))
            assert (unnamed.code, unnamed.field) == (grpc.StatusCode.INVALID_ARGUMENT, "model")
            assert await TranslationServiceStub(channel).TranslateText(request("x", model="b"))

    asyncio.run(scenario())


def test_models_are_described() -> None:
    async def scenario() -> None:
        async with serving(HeldModel("b"), HeldModel("a")) as (_, channel):
            listed = await ModelServiceStub(channel).ListModels(model_pb2.ListModelsRequest())
            assert [model.name for model in listed.models] == ["a", "b"]
            got = await ModelServiceStub(channel).GetModel(model_pb2.GetModelRequest(name="a"))
            assert got.model == listed.models[0]
            assert got.model.default_options.beam_size == 5
            assert got.model.default_options.early_stopping == decoding_pb2.EARLY_STOPPING_NEVER
            assert got.model.language_pairs[0].target_language_code == "de"
            assert (got.model.precision, got.model.max_source_length) == ("fp32", 16)

    asyncio.run(scenario())


def test_models_of_the_same_name_are_refused() -> None:
    async def scenario() -> None:
        with pytest.raises(DuplicateModel, match="'twin'"):
            Server([HeldModel("twin"), HeldModel("twin")])

    asyncio.run(scenario())


def test_a_port_in_use_is_refused() -> None:
    async def scenario() -> None:
        async with serving(HeldModel()) as (first, channel):
            with pytest.raises(ListenError, match=f"127.0.0.1:{first.port}.*in use"):
                await Server([HeldModel()], port=first.port).start()
            assert await TranslationServiceStub(channel).TranslateText(request("a"))

    asyncio.run(scenario())


def test_a_stop_finishes_what_runs_and_tells_the_watchers() -> None:
    async def scenario() -> None:
        model = HeldModel(on_submit=hold)
        async with serving(model) as (server, channel):
            health = HealthStub(channel)
            for service in ("", "jumok.v1.TranslationService", "jumok.v1.ModelService"):
                checked = await health.Check(HealthCheckRequest(service=service))
                assert checked.status == HealthCheckResponse.SERVING
            with pytest.raises(grpc.aio.AioRpcError) as unknown:
                await health.Check(HealthCheckRequest(service="other"))
            assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
            watch = aiter(health.Watch(HealthCheckRequest()))
            assert (await anext(watch)).status == HealthCheckResponse.SERVING
            call = TranslationServiceStub(channel).TranslateText(request("a"))
            answer = await model.submitted.get()
            stop = asyncio.ensure_future(server.stop(grace_s=3600))
            assert (await anext(watch)).status == HealthCheckResponse.NOT_SERVING
            assert [state async for state in watch] == []
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await TranslationServiceStub(channel).TranslateText(request("b"))
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            assert not stop.done()
            answer.complete()
            assert (await call).translations[0].hypotheses[0].text == "A"
            await asyncio.wait_for(stop, 30)

    asyncio.run(scenario())


def test_a_stop_cancels_what_outlasts_its_grace() -> None:
    async def scenario() -> None:
        model = HeldModel(on_submit=hold)
        async with serving(model) as (server, channel):
            call = TranslationServiceStub(channel).TranslateText(request("a"))
            answer = await model.submitted.get()
            await asyncio.wait_for(server.stop(grace_s=0.01), 30)
            with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
                await call
            assert answer.futures[0].cancelled()

    asyncio.run(scenario())


def test_the_services_can_be_reflected() -> None:
    async def scenario() -> None:
        async with serving(HeldModel()) as (_, channel):
            call = ServerReflectionStub(channel).ServerReflectionInfo()
            await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
            names = {service.name for service in (await call.read()).list_services_response.service}
            assert {"jumok.v1.TranslationService", "jumok.v1.ModelService", "grpc.health.v1.Health"} <= names
            await call.done_writing()

    asyncio.run(scenario())
