"""Callers that leave while the server writes: their calls are cancelled, and nothing has failed."""

import asyncio
import logging
import threading
from concurrent.futures import CancelledError
from types import SimpleNamespace
from unittest.mock import AsyncMock

import grpc
import pytest

from jumok_proto.v1 import translation_pb2 as pb
from jumok_serve.service.rpc.call import Call
from jumok_serve.service.rpc.interceptor import write_response
from tests.serve.service.handlers.test_service_corpus import opening
from tests.support.hang import HANG_S, until
from tests.support.servers.fake_model import Ended, FakeModel, hold, serving, stub_of

LONG = "a" * 10_000
"""A long result: few fit the window of a stream that is not read."""


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("read", [0, 1])
def test_a_caller_that_leaves_a_corpus_is_no_fault(closes: bool, read: int, caplog: pytest.LogCaptureFixture) -> None:
    observer = Ended()

    async def once(number: int) -> None:
        model = FakeModel(on_submit=hold)
        async with serving(model, observers=[observer]) as (_, channel):
            call = stub_of(channel).TranslateCorpus()
            await call.write(opening(*[LONG] * 100, window=128))
            answers = [await model.submitted.get() for _ in range(100)]
            for answer in answers[:-1]:  # without the last the corpus cannot end before the server hears of it
                answer.complete()
            for _ in range(read):
                await call.read()
            if closes:
                await channel.close(0)
            else:
                call.cancel()
            await until(lambda: len(observer.calls) == number)

    for number in range(1, 6):
        asyncio.run(once(number))
    assert [call.code for call in observer.calls] == ["CANCELLED"] * 5
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_caller_that_leaves_while_a_result_is_made_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    making, left = threading.Event(), threading.Event()

    def make() -> None:
        making.set()
        assert left.wait(HANG_S)
        raise CancelledError  # as attention that is computed for a cancelled text

    async def scenario() -> None:
        model, observer = FakeModel(on_submit=hold), Ended()
        async with serving(model, observers=[observer]) as (_, channel):
            call = stub_of(channel).TranslateCorpus()
            await call.write(opening("a"))
            answer = await model.submitted.get()
            answer.on_collect = make
            answer.complete()
            await until(making.is_set)
            call.cancel()
            await until(lambda: bool(observer.calls))
            assert observer.calls[0].code == "CANCELLED"
            left.set()
            await asyncio.get_running_loop().shutdown_default_executor()  # waits for the thread

    asyncio.run(scenario())
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize(
    ("error", "done", "raised"),
    [
        (grpc.aio.InternalError('Failed "execute_batch"'), False, asyncio.CancelledError),
        (grpc.aio.UsageError("RPC already finished."), True, asyncio.CancelledError),
        (grpc.aio.UsageError("a misuse"), False, grpc.aio.UsageError),
    ],
)
async def test_a_write_to_a_caller_that_has_left_is_a_cancellation(
    error: Exception, done: bool, raised: type[BaseException]
) -> None:
    """The write fails as that of gRPC does when the connection is lost first."""
    context = SimpleNamespace(write=AsyncMock(side_effect=error), done=lambda: done)
    with pytest.raises(raised):
        await write_response(Call(method="/a/B", request_id="a"), context, pb.TranslateCorpusResponse())  # type: ignore[arg-type]
