"""Unary calls with a fake model: statuses, details, cancellation."""

import asyncio
import threading
import time

import grpc
import pytest

from jumok_proto.errors import (
    AttentionUnavailableError,
    DeadlineExceededError,
    EngineFailedError,
    InvalidArgumentError,
    JumokError,
    LanguageNotFoundError,
    OverloadedError,
    SamplingUnavailableError,
    UnavailableError,
)
from jumok_proto.v1 import decoding_pb2, model_pb2, translation_pb2
from jumok_proto.v1.decoding_pb2 import DecodingOptions as Options
from jumok_proto.v1.decoding_pb2 import TokenIds
from jumok_proto.v1.model_pb2_grpc import ModelServiceStub
from jumok_proto.v1.translation_pb2_grpc import TranslationServiceStub
from jumok_serve.search.options import DecodingOptions
from jumok_serve.service.handlers.requests import MAX_LISTED_TOKENS
from jumok_serve.service.handlers.worker_pool import MAX_INLINE_CHARACTERS
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.tasks.model import TranslationParameters
from tests.support.hang import HANG_S, until
from tests.support.servers.fake_model import HERE, Answer, FakeModel, fail, failure, hold, serving


def request(*texts: str, model: str = "", options: Options | None = None) -> translation_pb2.TranslateTextRequest:
    return translation_pb2.TranslateTextRequest(contents=texts, model=model, options=options)


async def test_texts_are_answered_in_order_with_timings() -> None:
    model = FakeModel()
    async with serving(model) as (_, channel):
        sent = request("a", "b", options=Options(beam_size=4))
        sent.truncate = True
        before = time.monotonic()
        response = await TranslationServiceStub(channel).TranslateText(sent, timeout=HANG_S)
        assert [translation.hypotheses[0].text for translation in response.translations] == ["A", "B"]
        assert response.translations[0].output_token_count == 2
        assert response.timings.decode_duration.ToMilliseconds() == 500
        assert model.parameters.options == DecodingOptions(beam_size=4)
        assert model.parameters.truncate is True
        deadline = model.parameters.deadline
        assert isinstance(deadline, float)
        assert 0.8 * HANG_S < deadline - before < 1.2 * HANG_S  # gRPC rounds the remaining time


async def test_all_that_a_request_asks_for_reaches_the_model() -> None:
    model = FakeModel()
    async with serving(model) as (_, channel):
        sent = request(
            "a",
            options=Options(
                suppress_tokens=TokenIds(ids=[4, 5]), end_tokens=TokenIds(ids=[3]), sample=True, top_p=0.5, seed=0
            ),
        )
        sent.source_language_code, sent.target_language_code = "EN", "de"
        sent.target_prefixes.append("Ein")
        sent.attention = True
        await TranslationServiceStub(channel).TranslateText(sent)
        assert model.parameters == TranslationParameters(
            options=DecodingOptions(suppress_tokens=(4, 5), end_tokens=(3,), sample=True, top_p=0.5, seed=0),
            source_language="EN",
            target_language="de",
            attention=True,
            caller=HERE,
        )
        assert model.target_prefixes == ["Ein"]


async def test_what_is_not_asked_for_is_none() -> None:
    model = FakeModel()
    async with serving(model) as (_, channel):
        await TranslationServiceStub(channel).TranslateText(request("a"))
        assert model.parameters == TranslationParameters(source_language="", target_language="", caller=HERE)
        assert model.target_prefixes is None


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OverloadedError("full", retry_after_s=0.5), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (UnavailableError("draining", retry_after_s=2), grpc.StatusCode.UNAVAILABLE),
        (EngineFailedError("the engine failed", retry_after_s=0.5), grpc.StatusCode.UNAVAILABLE),
        (DeadlineExceededError("late"), grpc.StatusCode.DEADLINE_EXCEEDED),
        (InvalidArgumentError("contents[3]: bad", field="contents[3]"), grpc.StatusCode.INVALID_ARGUMENT),
        (LanguageNotFoundError("no language 'x'; it has en", field="source_language_code"), grpc.StatusCode.NOT_FOUND),
        (AttentionUnavailableError.of("held"), grpc.StatusCode.FAILED_PRECONDITION),
        (SamplingUnavailableError.of("held"), grpc.StatusCode.FAILED_PRECONDITION),
    ],
)
async def test_errors_become_statuses(error: JumokError, code: grpc.StatusCode) -> None:
    model = FakeModel(on_submit=fail(error))
    async with serving(model) as (_, channel):
        failed = await failure(TranslationServiceStub(channel).TranslateText(request("a")))
        assert (failed.code, failed.info.reason) == (code, error.reason)
        assert failed.message.endswith(str(error))
        assert failed.retry.retry_delay.ToNanoseconds() / 1e9 == (error.retry_after_s or 0)
        fields = [violation.field for violation in failed.bad_request.field_violations]
        assert fields == ([error.field] if error.field else [])
        model.on_submit = Answer.complete
        assert await TranslationServiceStub(channel).TranslateText(request("a"))


async def test_a_fault_of_the_server_keeps_its_words_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(FakeModel(on_submit=fail(RuntimeError("secret of /srv")))) as (_, channel):
        failed = await failure(TranslationServiceStub(channel).TranslateText(request("a")))
        assert failed.code is grpc.StatusCode.INTERNAL
        assert "secret" not in str(failed)
        assert failed.info.metadata["request_id"] in failed.message
        assert failed.info.metadata["request_id"] in caplog.text
        assert "secret of /srv" in caplog.text


async def test_a_failed_text_frees_the_others_and_a_cancelled_call_all() -> None:
    model = FakeModel(on_submit=hold)
    async with serving(model) as (_, channel):
        call = TranslationServiceStub(channel).TranslateText(request("a", "b"))
        answer = await model.submitted.get()
        answer.futures[0].set_exception(DeadlineExceededError("late"))
        assert (await failure(call)).code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert answer.futures[1].cancelled()
        call = TranslationServiceStub(channel).TranslateText(request("a", "b"))
        answer = await model.submitted.get()
        call.cancel()
        await until(lambda: all(future.cancelled() for future in answer.futures))


async def test_a_call_cancelled_while_it_is_tokenized_is_not_decoded() -> None:
    entered, released = threading.Event(), threading.Event()

    def tokenize(_: Answer) -> None:
        entered.set()
        assert released.wait(HANG_S)

    model = FakeModel(on_submit=tokenize)
    async with serving(model) as (_, channel):
        call = TranslationServiceStub(channel).TranslateText(request("a" * MAX_INLINE_CHARACTERS))
        await until(entered.is_set)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        # The server has seen the cancellation once it answers what was sent after it on the same connection.
        await ModelServiceStub(channel).ListModels(model_pb2.ListModelsRequest())
        released.set()
        await until((await model.submitted.get()).futures[0].cancelled)


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
        (request("a", options=Options(top_p=1.5)), "options.top_p"),
        (request("a", options=Options(seed=-1)), "options.seed"),
        (request("a", options=Options(end_tokens=TokenIds())), "options.end_tokens"),
        (request("a", options=Options(suppress_tokens=TokenIds(ids=[-1]))), "options.suppress_tokens"),
        (
            request("a", options=Options(suppress_tokens=TokenIds(ids=[1] * (MAX_LISTED_TOKENS + 1)))),
            "options.suppress_tokens",
        ),
        (request(*["a"] * (ServiceLimits.max_texts + 1)), "contents"),
        (request(*["a"] * 65, options=Options(num_hypotheses=64, beam_size=64)), "contents"),
    ],
)
async def test_bad_options_are_refused_by_field(sent: translation_pb2.TranslateTextRequest, field: str) -> None:
    async with serving(FakeModel()) as (_, channel):
        failed = await failure(TranslationServiceStub(channel).TranslateText(sent))
        assert (failed.code, failed.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)
        assert await TranslationServiceStub(channel).TranslateText(request("a"))


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        (b"\x12\x03\xed\xa0\x80", "request"),  # contents: [U+D800], which is no UTF-8
        (b"\xff\xff\xff", "request"),
        (b"\x12\x01a\x1a\x06\x0a\x04many", "options"),  # beam_size: "many", by its wire type another field
        (b"\x12\x01a\x1a\x03\xf0\x07\x01", "options"),  # option number 126 of a later version
        (b"\x12\x01a\x1a\x05\x4a\x03\xf0\x07\x01", "options.suppress_tokens"),  # the same within its list
        (b"\x12\x01a\xf0\x07\x01", "request"),
    ],
)
async def test_bytes_that_are_no_request_are_refused(sent: bytes, field: str) -> None:
    async with serving(FakeModel()) as (_, channel):
        call = channel.unary_unary("/jumok.v1.TranslationService/TranslateText", bytes, bytes)
        failed = await failure(call(sent))
        assert (failed.code, failed.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)
        assert await TranslationServiceStub(channel).TranslateText(request("a"))


async def test_an_unknown_model_is_not_found_and_the_known_are_named() -> None:
    async with serving(FakeModel("b"), FakeModel("a")) as (_, channel):
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
