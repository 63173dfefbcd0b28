"""ScoreText with a fake model: order, cancellation, bounds."""

import asyncio
import threading

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest

from jumok_proto.v1 import translation_pb2
from jumok_serve.tasks.model import ScoringParameters
from tests.support.hang import HANG_S, until
from tests.support.servers.fake_model import HERE, ONE, FakeModel, FakeScoring, failure, serving, stub_of


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
