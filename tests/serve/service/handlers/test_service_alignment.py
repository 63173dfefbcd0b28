"""ScoreText, AlignText and attention with a fake model: order, arguments, cancellation, bounds, delay of others."""

import asyncio
import threading
from collections.abc import Awaitable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest

from jumok_proto.v1 import alignment_pb2, translation_pb2
from jumok_proto.v1.translation_pb2 import TranslateTextRequest
from jumok_serve.tasks.alignment import AttentionQuery
from jumok_serve.tasks.model import ScoringParameters, TextParameters
from tests.support.hang import HANG_S, until
from tests.support.servers.fake_model import (
    HERE,
    ONE,
    Answer,
    FakeAligning,
    FakeModel,
    FakeScoring,
    failure,
    hold,
    serving,
    stub_of,
)
from tests.support.servers.tokens import bearer, tokens_of

ATTENTION = TranslateTextRequest(contents=["a"], attention=True)
REQUEST = alignment_pb2.AlignTextRequest(contents=["a"])


def complete(aligning: FakeAligning) -> None:
    for future in aligning.futures:
        future.set_result(None)


async def aligned(call: Awaitable[alignment_pb2.AlignTextResponse], model: FakeModel) -> str:
    """Alignment of the first text, after completing its translation."""
    answer = asyncio.ensure_future(call)
    complete(await model.aligned.get())
    return (await answer).alignments[0].target


async def test_what_is_asked_for_reaches_the_model() -> None:
    model = FakeModel()
    async with serving(model) as (_, channel):
        stub = stub_of(channel)
        assert await aligned(stub.AlignText(REQUEST), model) == "A"
        common = {"parameters": TextParameters(source_language="", target_language="", caller=HERE)}
        assert model.aligning_arguments == {"targets": None, "query": AttentionQuery(), **common}
        kinds = [alignment_pb2.ATTENTION_KIND_DECODER, alignment_pb2.ATTENTION_KIND_ENCODER]
        full = alignment_pb2.AlignTextRequest(
            contents=["a" * 3000, "b"],  # more than is read on the event loop
            targets=["", "c"],
            kinds=kinds,
            layer=0,
            head=0,
            each_head=True,
        )
        assert await aligned(stub.AlignText(full), model) == "A" * 3000
        query = AttentionQuery(kinds=("decoder", "encoder"), layer=0, head=0, each_head=True)
        assert model.aligning_arguments == {"targets": ["", "c"], "query": query, **common}


async def test_aligning_is_given_up_with_its_call() -> None:
    model, entered, given_up = FakeModel(), threading.Event(), threading.Event()

    def wait(aligning: FakeAligning) -> None:
        entered.set()
        assert aligning.cancelled.wait(HANG_S)
        given_up.set()

    async with serving(model) as (_, channel):
        stub = stub_of(channel)
        translating = stub.AlignText(REQUEST)
        aligning = await model.aligned.get()
        translating.cancel()
        await until(aligning.cancelled.is_set)  # before there is a translation
        model.on_align = wait
        call = stub.AlignText(REQUEST)
        complete(await model.aligned.get())
        await until(entered.is_set)
        call.cancel()
        await until(given_up.is_set)
        model.on_align = lambda _: None
        assert await aligned(stub.AlignText(REQUEST), model) == "A"


async def test_requests_under_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jumok_serve.service.handlers.worker_pool.MAX_ATTENTION_REQUESTS", 4)
    model, released = FakeModel(), threading.Event()
    model.on_align = lambda _: released.wait(HANG_S)
    async with serving(model) as (_, channel):
        stub = stub_of(channel)
        calls = [stub.AlignText(REQUEST) for _ in range(2)]
        for _ in calls:
            complete(await model.aligned.get())
        refused = await failure(stub.AlignText(REQUEST))
        assert (refused.code, refused.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
        released.set()
        await asyncio.gather(*calls)
        assert await aligned(stub.AlignText(REQUEST), model) == "A"


async def test_attention_holds_up_no_other_translation_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 40  # more than there are threads for answers without attention
    monkeypatch.setattr("jumok_serve.service.handlers.worker_pool.MAX_ATTENTION_REQUESTS", 2 * most)
    released = threading.Event()

    def attend(answer: Answer) -> None:
        answer.on_collect = lambda: released.wait(HANG_S)
        answer.complete()

    model = FakeModel(on_submit=attend)
    async with serving(model) as (_, channel):
        stub = stub_of(channel)
        calls = [asyncio.ensure_future(stub.TranslateText(ATTENTION)) for _ in range(most)]
        for _ in calls:
            await model.submitted.get()
        refused = await failure(stub.TranslateText(ATTENTION))
        assert (refused.code, refused.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
        assert "40 requests for attention of this caller are open" in refused.message
        assert model.submitted.empty()
        model.on_submit = Answer.complete
        assert await stub.TranslateText(ONE)
        calls.pop().cancel()
        released.set()
        await asyncio.gather(*calls)
        assert await stub.TranslateText(ATTENTION)


async def test_one_caller_leaves_room_for_attention_of_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("jumok_serve.service.handlers.worker_pool.MAX_ATTENTION_REQUESTS", 4)
    tokens, secrets = tokens_of(tmp_path, greedy="translate", other="translate")
    model = FakeModel(on_submit=hold)
    async with serving(model, tokens=tokens) as (_, channel):
        translate = stub_of(channel).TranslateText
        callers = ("greedy", "greedy", "other")
        calls = [translate(ATTENTION, metadata=bearer(secrets[name])) for name in callers]
        open_answers = [await model.submitted.get() for _ in calls]
        refused = await failure(translate(ATTENTION, metadata=bearer(secrets["greedy"])))
        assert "2 requests for attention of this caller are open" in refused.message
        for answer in open_answers:
            answer.complete()
        assert all([await one for one in calls])


def score_request(*pairs: tuple[str, str]) -> translation_pb2.ScoreTextRequest:
    return translation_pb2.ScoreTextRequest(contents=[pair[0] for pair in pairs], targets=[pair[1] for pair in pairs])


async def test_targets_are_scored_in_order() -> None:
    model = FakeModel()
    async with serving(model) as (_, channel):
        sent = score_request(("a", "bb"), ("c", "d"))
        response = await stub_of(channel).ScoreText(sent)
        assert [score.score for score in response.scores] == [-2.0, -1.0]
        assert model.scoring_parameters == ScoringParameters(source_language="", target_language="", caller=HERE)
        sent.length_penalty = 0.0
        await stub_of(channel).ScoreText(sent)
        assert model.scoring_parameters.length_penalty == 0.0


async def test_scoring_is_given_up_with_its_call() -> None:
    model, entered, given_up = FakeModel(), threading.Event(), threading.Event()

    def wait(scoring: FakeScoring) -> None:
        entered.set()
        assert scoring.cancelled.wait(HANG_S)
        given_up.set()

    model.on_score = wait
    async with serving(model) as (_, channel):
        call = stub_of(channel).ScoreText(score_request(("a", "b")))
        await until(entered.is_set)
        call.cancel()
        await until(given_up.is_set)
        model.on_score = lambda _: None
        assert await stub_of(channel).ScoreText(score_request(("a", "b")))


async def test_too_much_to_score_is_refused_and_health_still_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jumok_serve.service.handlers.worker_pool.MAX_SCORING", 2)
    model, released = FakeModel(), threading.Event()
    model.on_score = lambda _: released.wait(HANG_S)
    async with serving(model) as (_, channel):
        stub = stub_of(channel)
        calls = [asyncio.ensure_future(stub.ScoreText(score_request(("a", "b")))) for _ in range(3)]
        (refused,), _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        failed = await failure(refused)
        assert (failed.code, failed.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
        assert await stub_of(channel).Check(HealthCheckRequest())
        assert await stub.TranslateText(ONE)
        released.set()
        await asyncio.wait(calls)
        assert sum(call.exception() is None for call in calls) == 2
