"""StreamTranslateText with a fake model."""

import asyncio
from typing import Any
from unittest.mock import Mock

import grpc
import pytest

from jumok_proto.errors import DeadlineExceededError, InvalidArgumentError, OverloadedError
from jumok_proto.v1 import translation_pb2 as pb
from jumok_proto.v1.decoding_pb2 import DecodingOptions as Options
from jumok_serve.search.options import DecodingOptions
from tests.support.hang import until
from tests.support.servers.fake_model import Answer, FakeModel, fail, failure, hold, received, serving, stub_of

EOF: Any = vars(grpc.aio)["EOF"]


async def cancelled(answer: Answer) -> None:
    """Wait until the server has cancelled a text."""
    await until(answer.futures[0].cancelled)


async def test_what_is_sure_comes_as_it_grows_and_then_the_translation() -> None:
    model = FakeModel(on_submit=hold)
    async with serving(model) as (_, channel):
        call = stub_of(channel).StreamTranslateText(
            pb.StreamTranslateTextRequest(content="abc", target_prefix="A", options=Options(beam_size=3))
        )
        answer = await model.submitted.get()
        assert (model.parameters.options, model.target_prefixes) == (DecodingOptions(beam_size=3), ["A"])
        for sure in ("A", "AB"):
            answer.write(sure)
            assert await call.read() == pb.StreamTranslateTextResponse(stable_text=sure)
        answer.write("AB")  # nothing new
        answer.complete()
        last = await call.read()
        assert last.stable_text == last.translation.hypotheses[0].text == "ABC"
        assert last.timings.decode_duration.ToMilliseconds() == 500
        assert await call.read() is EOF


async def test_a_slow_reader_gets_the_newest_text_and_delays_no_other_call() -> None:
    model = FakeModel(on_submit=hold)
    async with serving(model) as (_, channel):
        call = stub_of(channel).StreamTranslateText(pb.StreamTranslateTextRequest(content="a"))
        answer = await model.submitted.get()
        for kilobytes in range(1, 301):
            answer.write("x" * 1024 * kilobytes)  # returns, read or not
            await asyncio.sleep(0)
        answer.complete()
        texts = [message.stable_text for message in await received(call)]
        assert len(texts) < 100
        assert [len(text) for text in texts[:-1]] == sorted({len(text) for text in texts[:-1]})
        assert texts[-1] == "A"


async def test_a_stream_that_is_cancelled_gives_its_text_up() -> None:
    model = FakeModel(on_submit=hold)
    async with serving(model) as (_, channel):
        call = stub_of(channel).StreamTranslateText(pb.StreamTranslateTextRequest(content="a"))
        answer = await model.submitted.get()
        answer.write("A")
        await call.read()
        call.cancel()
        await cancelled(answer)


@pytest.mark.parametrize(
    ("error", "code", "field"),
    [
        (InvalidArgumentError("contents[0]: bad", field="contents[0]"), grpc.StatusCode.INVALID_ARGUMENT, "content"),
        (InvalidArgumentError("bad", field="target_prefixes[0]"), grpc.StatusCode.INVALID_ARGUMENT, "target_prefix"),
        (OverloadedError("full", retry_after_s=1), grpc.StatusCode.RESOURCE_EXHAUSTED, None),
    ],
)
async def test_a_stream_is_refused_as_a_request_is(error: Exception, code: grpc.StatusCode, field: str | None) -> None:
    async with serving(FakeModel(on_submit=fail(error))) as (_, channel):
        call = stub_of(channel).StreamTranslateText(pb.StreamTranslateTextRequest(content="a"))
        failed = await failure(call.read())
        assert failed.code is code
        if field is not None:
            assert failed.field == field
            assert failed.message == f"{field}: bad"


async def test_a_stream_fails_as_its_text_does() -> None:
    model = FakeModel(on_submit=hold)
    async with serving(model) as (_, channel):
        call = stub_of(channel).StreamTranslateText(pb.StreamTranslateTextRequest(content="a"))
        answer = await model.submitted.get()
        answer.on_collect = Mock(side_effect=DeadlineExceededError("late"))
        answer.complete()
        assert (await failure(call.read())).code is grpc.StatusCode.DEADLINE_EXCEEDED
