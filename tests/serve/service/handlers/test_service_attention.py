"""Requests for attention with a fake model: bounded, and no delay for other calls."""

import asyncio
import threading
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import grpc
import pytest

from jumok_proto.v1 import translation_pb2
from jumok_proto.v1.translation_pb2_grpc import TranslationServiceStub
from jumok_serve.service.auth.tokens import TokenFile, make_token
from tests.support.hang import HANG_S
from tests.support.servers.fake_model import Answer, FakeModel, failure, hold, serving

ATTENTION = translation_pb2.TranslateTextRequest(contents=["a"], attention=True)
PLAIN = translation_pb2.TranslateTextRequest(contents=["a"])


async def test_attention_holds_up_no_other_translation_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 40  # more than there are threads for answers without attention
    monkeypatch.setattr("jumok_serve.service.handlers.worker_pool.MAX_ATTENTION_REQUESTS", 2 * most)
    model = FakeModel()
    released = threading.Event()

    def attend(answer: Answer) -> None:
        answer.on_collect = lambda: _wait(released)
        answer.complete()

    model.on_submit = attend
    async with serving(model) as (_, channel):
        stub = TranslationServiceStub(channel)
        calls = [asyncio.ensure_future(_answer(stub.TranslateText(ATTENTION))) for _ in range(most)]
        for _ in calls:
            await model.submitted.get()
        refused = await failure(stub.TranslateText(ATTENTION))
        assert (refused.code, refused.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
        assert "40 requests for attention of this caller are open" in refused.message
        assert model.submitted.empty()
        model.on_submit = Answer.complete
        assert await stub.TranslateText(PLAIN, timeout=HANG_S)
        calls.pop().cancel()
        released.set()
        await asyncio.gather(*calls)
        assert await stub.TranslateText(ATTENTION)


async def test_one_caller_leaves_room_for_attention_of_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("jumok_serve.service.handlers.worker_pool.MAX_ATTENTION_REQUESTS", 4)
    made = {name: make_token(name, ["translate"]) for name in ("greedy", "other")}
    tokens = tmp_path / "tokens"
    tokens.write_text("\n".join(token.line() for _, token in made.values()), encoding="utf-8")
    model = FakeModel(on_submit=hold)
    async with serving(model, tokens=TokenFile(tokens)) as (_, channel):
        stub = TranslationServiceStub(channel)

        def call(name: str) -> Any:
            return stub.TranslateText(ATTENTION, metadata=(("authorization", f"Bearer {made[name][0]}"),))

        calls = [call("greedy"), call("greedy"), call("other")]
        open_answers = [await model.submitted.get() for _ in calls]
        refused = await failure(call("greedy"))
        assert "2 requests for attention of this caller are open" in refused.message
        for answer in open_answers:
            answer.complete()
        assert all([await one for one in calls])


def _wait(released: threading.Event) -> None:
    assert released.wait(HANG_S)


async def _answer(call: Awaitable[object]) -> object:
    return await call
