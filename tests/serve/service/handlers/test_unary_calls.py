"""Unary calls with a fake model: statuses, details, cancellation."""

import asyncio
import threading
import time
from typing import Any

import grpc
import pytest

from jumok_proto import errors
from jumok_proto.v1 import model_pb2
from jumok_proto.v1 import translation_pb2 as pb
from jumok_proto.v1.alignment_pb2 import AlignTextRequest
from jumok_proto.v1.decoding_pb2 import DecodingOptions as Options
from jumok_proto.v1.decoding_pb2 import EarlyStopping, TokenIds
from jumok_serve.search.options import DecodingOptions
from jumok_serve.service.handlers.translation_service import MAX_LISTED_TOKENS
from jumok_serve.service.handlers.worker_pool import MAX_INLINE_CHARACTERS
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.tasks.model import TranslationParameters
from tests.support.hang import HANG_S, until
from tests.support.servers.fake_model import HERE, Answer, FakeModel, fail, failure, hold, serving, stub_of

Refusals = list[tuple[str, Any, str, str]]
"""Methods, messages or bytes, fields, and words of the error."""


def request(*texts: str, model: str = "", options: Options | None = None) -> pb.TranslateTextRequest:
    return pb.TranslateTextRequest(contents=texts, model=model, options=options)


async def test_texts_are_answered_in_order_with_timings() -> None:
    model = FakeModel()
    async with serving(model) as (_, channel):
        sent = request("a", "b", options=Options(beam_size=4))
        sent.truncate = True
        before = time.monotonic()
        response = await stub_of(channel).TranslateText(sent, timeout=HANG_S)
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
        await stub_of(channel).TranslateText(sent)
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
        await stub_of(channel).TranslateText(request("a"))
        assert model.parameters == TranslationParameters(source_language="", target_language="", caller=HERE)
        assert model.target_prefixes is None


@pytest.mark.parametrize(
    "error",
    [
        errors.OverloadedError("full", retry_after_s=0.5),
        errors.UnavailableError("draining", retry_after_s=2),
        errors.DeadlineExceededError("late"),
        errors.InvalidArgumentError("contents[3]: bad", field="contents[3]"),
    ],
)
async def test_errors_become_statuses(error: errors.JumokError) -> None:
    """With their words and times; `test_error_table` has the codes and fields of all."""
    model = FakeModel(on_submit=fail(error))
    async with serving(model) as (_, channel):
        failed = await failure(stub_of(channel).TranslateText(request("a")))
        assert (failed.message, failed.info.reason) == (str(error), error.reason)
        assert failed.retry.retry_delay.ToNanoseconds() / 1e9 == (error.retry_after_s or 0)
        fields = [violation.field for violation in failed.bad_request.field_violations]
        assert fields == ([error.field] if error.field else [])
        model.on_submit = Answer.complete
        assert await stub_of(channel).TranslateText(request("a"))


async def test_a_fault_of_the_server_keeps_its_words_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(FakeModel(on_submit=fail(RuntimeError("secret of /srv")))) as (_, channel):
        failed = await failure(stub_of(channel).TranslateText(request("a")))
        assert failed.code is grpc.StatusCode.INTERNAL
        assert "secret" not in str(failed)
        assert failed.info.metadata["request_id"] in failed.message
        assert failed.info.metadata["request_id"] in caplog.text
        assert "secret of /srv" in caplog.text


async def test_a_failed_text_frees_the_others_and_a_cancelled_call_all() -> None:
    model = FakeModel(on_submit=hold)
    async with serving(model) as (_, channel):
        call = stub_of(channel).TranslateText(request("a", "b"))
        answer = await model.submitted.get()
        answer.futures[0].set_exception(errors.DeadlineExceededError("late"))
        assert (await failure(call)).code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert answer.futures[1].cancelled()
        call = stub_of(channel).TranslateText(request("a", "b"))
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
        call = stub_of(channel).TranslateText(request("a" * MAX_INLINE_CHARACTERS))
        await until(entered.is_set)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        # The server has seen the cancellation once it answers what was sent after it on the same connection.
        await stub_of(channel).ListModels(model_pb2.ListModelsRequest())
        released.set()
        await until((await model.submitted.get()).futures[0].cancelled)


def option(**options: Any) -> pb.TranslateTextRequest:
    return request("a", options=Options(**options))


TOO_MANY = [1] * (MAX_LISTED_TOKENS + 1)
REFUSED: Refusals = [
    ("TranslateText", option(beam_size=0), "options.beam_size", ""),
    ("TranslateText", option(beam_size=65), "options.beam_size", ""),
    ("TranslateText", option(num_hypotheses=3, beam_size=2), "options.num_hypotheses", ""),
    ("TranslateText", option(min_length=5, max_length=4), "options.min_length", ""),
    ("TranslateText", option(early_stopping=EarlyStopping.ValueType(77)), "options.early_stopping", ""),
    ("TranslateText", option(top_p=1.5), "options.top_p", ""),
    ("TranslateText", option(seed=-1), "options.seed", ""),
    ("TranslateText", option(end_tokens=TokenIds()), "options.end_tokens", ""),
    ("TranslateText", option(suppress_tokens=TokenIds(ids=[-1])), "options.suppress_tokens", ""),
    ("TranslateText", option(suppress_tokens=TokenIds(ids=TOO_MANY)), "options.suppress_tokens", ""),
    ("TranslateText", request(*["a"] * (ServiceLimits.max_texts + 1)), "contents", ""),
    ("TranslateText", request(*["a"] * 65, options=Options(num_hypotheses=64, beam_size=64)), "contents", ""),
    ("TranslateText", b"\x12\x03\xed\xa0\x80", "request", ""),  # contents: [U+D800], which is no UTF-8
    ("TranslateText", b"\xff\xff\xff", "request", ""),
    # beam_size: "many", by its wire type another field
    ("TranslateText", b"\x12\x01a\x1a\x06\x0a\x04many", "options", ""),
    ("TranslateText", b"\x12\x01a\x1a\x03\xf0\x07\x01", "options", ""),  # option number 126 of a later version
    # the same within its list
    ("TranslateText", b"\x12\x01a\x1a\x05\x4a\x03\xf0\x07\x01", "options.suppress_tokens", ""),
    ("TranslateText", b"\x12\x01a\xf0\x07\x01", "request", ""),
    ("AlignText", b"\x12\x01a\xf8\x06\x01", "request", "field number 111"),
    ("AlignText", AlignTextRequest(contents=["a"], kinds=[0]), "kinds", "unknown value 0"),  # type: ignore[list-item]
    ("AlignText", AlignTextRequest(contents=["a"], head=-2), "head", "head must be a number from 0, got -2"),
    ("AlignText", AlignTextRequest(contents=["a"] * 1025), "contents", "at most 1024 texts, got 1025"),
]
LIMITS = ServiceLimits(max_texts=3, max_characters=5, max_hypotheses=8, max_beam_hypotheses=16)
TOO_MUCH: Refusals = [
    ("TranslateText", request(*["a"] * 4), "contents", ""),
    ("TranslateText", request("abcde", "abcdef"), "contents[1]", ""),
    ("TranslateText", pb.TranslateTextRequest(contents=["abcde", "abcdef"], truncate=True), "contents[1]", ""),
    ("TranslateText", pb.TranslateTextRequest(contents=["a"], target_prefixes=["abcdef"]), "target_prefixes[0]", ""),
    ("TranslateText", request(*["a"] * 3, options=Options(num_hypotheses=3)), "contents", ""),
    ("TranslateText", option(num_hypotheses=4, beam_size=5), "options.beam_size", ""),
    ("TranslateText", option(num_hypotheses=4), "options.beam_size", ""),  # the model's beam is 5
    ("ScoreText", pb.ScoreTextRequest(contents=["a"] * 4, targets=["a"] * 4), "contents", ""),
    ("ScoreText", pb.ScoreTextRequest(contents=["a"], targets=["abcdef"]), "targets[0]", ""),
]


@pytest.mark.parametrize(("limits", "refusals"), [(ServiceLimits(), REFUSED), (LIMITS, TOO_MUCH)])
async def test_requests_are_refused_by_field(limits: ServiceLimits, refusals: Refusals) -> None:
    model = FakeModel()
    async with serving(model, limits=limits) as (_, channel):
        for method, sent, field, words in refusals:
            call: Any = channel.unary_unary(f"/jumok.v1.TranslationService/{method}", bytes, bytes)
            failed = await failure(call(sent if isinstance(sent, bytes) else sent.SerializeToString()))
            assert (failed.code, failed.field) == (grpc.StatusCode.INVALID_ARGUMENT, field), sent
            assert words in failed.message
        assert model.submitted.empty()
        assert model.aligned.empty()
        assert await stub_of(channel).TranslateText(
            request(*["abcde"] * 3, options=Options(num_hypotheses=2, beam_size=8))
        )


async def test_an_unknown_model_is_not_found_and_the_known_are_named() -> None:
    async with serving(FakeModel("b"), FakeModel("a")) as (_, channel):
        for name in ("c", "c" * 100_000):
            failed = await failure(stub_of(channel).TranslateText(request("x", model=name)))
            assert (failed.code, failed.info.reason) == (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")
            assert failed.resource.resource_type == "jumok.v1.Model"
            assert failed.resource.resource_name[:100] == name[:100]
            assert failed.resource.description == "available: b, a"
        failed = await failure(stub_of(channel).GetModel(model_pb2.GetModelRequest(name="c")))
        assert failed.code is grpc.StatusCode.NOT_FOUND
        unnamed = await failure(stub_of(channel).TranslateText(request("x")))
        assert (unnamed.code, unnamed.field) == (grpc.StatusCode.INVALID_ARGUMENT, "model")
        assert await stub_of(channel).TranslateText(request("x", model="b"))
