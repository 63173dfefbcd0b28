"""Calls over a pivot language with fake models: deadlines, full queues, replaced models and cancellation."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from jumok_proto.errors import DeadlineExceededError, InvalidArgumentError, OverloadedError
from jumok_proto.v1 import translation_pb2 as pb
from jumok_proto.v1.decoding_pb2 import DecodingOptions as Options
from jumok_serve.manifest.languages import Languages
from jumok_serve.search.options import DecodingOptions
from tests.serve.service.handlers.test_service_corpus import opening
from tests.serve.service.handlers.test_service_streams import cancelled
from tests.support.hang import HANG_S
from tests.support.servers.fake_model import Answer, FakeModel, failure, hold, serving, stub_of

PAIR: dict[str, Any] = {"source_language_code": "de", "target_language_code": "fr"}


def model(source: str, target: str, on_submit: Callable[[Answer], None] = Answer.complete) -> FakeModel:
    made = FakeModel(f"{source}-{target}", on_submit)
    languages = Languages.of_pair(source, target, suffix=(3,))
    made.manifest = made.manifest.model_copy(update={"languages": languages})
    return made


def request(*texts: str, **fields: Any) -> pb.TranslateTextRequest:
    return pb.TranslateTextRequest(contents=texts, **PAIR, **fields)


async def submitted(model: FakeModel) -> Answer:
    """Wait for texts with content: those without only check the parameters."""
    while not any((answer := await model.submitted.get()).texts):
        pass
    return answer


def with_content(act: Callable[[Answer], None]) -> Callable[[Answer], None]:
    """Act on texts with content only."""
    return lambda answer: act(answer) if any(answer.texts) else None


async def test_each_text_goes_on_alone_with_the_parameters_of_its_model() -> None:
    first, second = model("de", "en", hold), model("en", "fr", hold)
    async with serving(first, second) as (_, channel):
        options = Options(beam_size=3, num_hypotheses=2, max_length=9)
        call = stub_of(channel).TranslateText(
            request("a", "b", options=options, target_prefixes=["", "P"], truncate=True), timeout=HANG_S
        )
        both = await submitted(first)
        assert both.texts == ["a", "b"]
        assert first.parameters.options == DecodingOptions(beam_size=3, num_hypotheses=1)
        assert (first.parameters.source_language, first.parameters.target_language) == ("de", "en")
        both.futures[1].set_result(None)  # the first text is still in work
        answer = await submitted(second)
        assert (answer.texts, second.target_prefixes) == (["B"], ["P"])
        assert (second.parameters.source_language, second.parameters.target_language) == ("en", "fr")
        assert second.parameters.options == DecodingOptions(beam_size=3, num_hypotheses=2, max_length=9)
        assert second.parameters.truncate
        assert first.parameters.deadline == second.parameters.deadline is not None
        both.futures[0].set_result(None)
        answer.complete()
        (await submitted(second)).complete()
        response = await call
        assert [one.pivot.text for one in response.translations] == ["A", "B"]
        assert response.timings.decode_duration.ToMilliseconds() == 1000


async def test_a_stream_writes_what_the_second_model_has_stable() -> None:
    first, second = model("de", "en", hold), model("en", "fr", hold)
    async with serving(first, second) as (_, channel):
        call = stub_of(channel).StreamTranslateText(pb.StreamTranslateTextRequest(content="abc", **PAIR))
        answer = await submitted(first)
        answer.write("A")
        answer.complete()
        answer = await submitted(second)
        answer.write("AB")
        assert await call.read() == pb.StreamTranslateTextResponse(stable_text="AB")
        answer.complete()
        last = await call.read()
        assert (last.stable_text, last.translation.pivot.text) == ("ABC", "ABC")


@pytest.mark.parametrize("stage", [0, 1])
async def test_a_cancelled_call_cancels_both_models(stage: int) -> None:
    models = model("de", "en", hold), model("en", "fr", hold)
    async with serving(*models) as (_, channel):
        call = stub_of(channel).TranslateText(request("a", "b"))
        answers = [await submitted(models[0])]
        if stage:
            answers[0].futures[0].set_result(None)
            answers.append(await submitted(models[1]))
        call.cancel()
        await asyncio.gather(*(cancelled(answer) for answer in answers[stage:]))
        assert all(future.done() for answer in answers for future in answer.futures)


async def test_a_deadline_of_the_second_model_ends_the_call() -> None:
    def late(answer: Answer) -> None:
        answer.futures[0].set_exception(DeadlineExceededError("the deadline passed while decoding"))

    async with serving(model("de", "en"), model("en", "fr", with_content(late))) as (_, channel):
        failed = await failure(stub_of(channel).TranslateText(request("a")))
        assert (failed.code, failed.info.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED")


async def test_a_text_waits_for_the_second_model_while_its_queue_is_full() -> None:
    left = 2

    def full(answer: Answer) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise OverloadedError("full", retry_after_s=1.0)
        answer.complete()

    second = model("en", "fr", with_content(full))
    async with serving(model("de", "en"), second) as (_, channel):
        response = await stub_of(channel).TranslateText(request("a"))
        assert response.translations[0].hypotheses[0].text == "A"
        assert left == -1
        second.full = True
        failed = await failure(stub_of(channel).TranslateText(request("a")))
        assert failed.code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_text_that_the_second_model_refuses_is_named() -> None:
    def refuse(answer: Answer) -> None:
        if answer.texts == ["B"]:
            raise InvalidArgumentError("contents[0] is too long", field="contents[0]")
        answer.complete()

    async with serving(model("de", "en"), model("en", "fr", refuse)) as (_, channel):
        failed = await failure(stub_of(channel).TranslateText(request("a", "b")))
        assert failed.code is grpc.StatusCode.INVALID_ARGUMENT
        assert (failed.field, failed.message) == ("contents[1]", "after translation into en: contents[1] is too long")
        call = stub_of(channel).TranslateCorpus()
        await call.write(opening("b", "a", **PAIR))
        await call.done_writing()
        results = [result async for message in call for result in message.results]
        assert results[0].error.message == "after translation into en: content is too long"
        assert results[1].translation.hypotheses[0].text == "A"


async def test_a_direct_model_wins_and_an_unloaded_one_ends_the_pair() -> None:
    direct, first, second = model("de", "fr"), model("de", "en", hold), model("en", "fr")
    async with serving(direct, first, second) as (server, channel):
        response = await stub_of(channel).TranslateText(request("a"))
        assert not response.translations[0].HasField("pivot")
        assert first.submitted.empty()
        server.models.unregister("de-fr")
        call = stub_of(channel).TranslateCorpus()
        await call.write(opening("a", **PAIR))
        answer = await submitted(first)
        entries = [server.models.unregister(name) for name in ("de-en", "en-fr")]
        for named in ("", "de-en"):
            failed = await failure(stub_of(channel).TranslateText(request("a", model=named)))
            assert failed.code is grpc.StatusCode.NOT_FOUND
        unused = [asyncio.ensure_future(entry.wait_until_unused()) for entry in entries]
        await asyncio.sleep(0)
        assert not any(one.done() for one in unused)  # the text has yet to go through both
        answer.complete()
        await call.done_writing()
        (result,) = [result async for message in call for result in message.results]
        assert result.translation.pivot.text == "A"
        await asyncio.gather(*unused)
