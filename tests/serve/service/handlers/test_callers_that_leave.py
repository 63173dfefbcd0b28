"""Callers that leave while the server writes: their calls are cancelled, and nothing has failed."""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import grpc
import pytest

from jumok_proto.v1 import translation_pb2 as pb
from jumok_serve.service.rpc.call import Call
from jumok_serve.service.rpc.interceptor import write_response
from tests.serve.service.handlers.test_service_corpus import opening
from tests.serve.service.handlers.test_service_streams import stub_of
from tests.support.hang import HANG_S
from tests.support.servers.fake_model import FakeModel, hold, serving

LONG = "a" * 10_000
"""A long result: few fit the window of a stream that is not read."""
Leave = Callable[[Any, grpc.aio.Channel], Any]


async def cancel(call: Any, channel: grpc.aio.Channel) -> None:
    call.cancel()


async def close(call: Any, channel: grpc.aio.Channel) -> None:
    await channel.close(0)


@pytest.mark.parametrize("leave", [cancel, close])
@pytest.mark.parametrize("read", [0, 1])
def test_a_caller_that_leaves_a_corpus_is_no_fault(leave: Leave, read: int, caplog: pytest.LogCaptureFixture) -> None:
    codes: list[str] = []

    async def once() -> None:
        ended = asyncio.Event()

        class Observer:
            def ended(self, call: Call) -> None:
                codes.append(call.code)
                ended.set()

        model = FakeModel(on_submit=hold)
        async with serving(model, observers=[Observer()]) as (_, channel):
            call = stub_of(channel).TranslateCorpus()
            await call.write(opening(*[LONG] * 100, window=128))
            answers = [await model.submitted.get() for _ in range(100)]
            for answer in answers[:-1]:  # without the last the corpus cannot end before the server hears of it
                answer.complete()
            for _ in range(read):
                await call.read()
            await leave(call, channel)
            await ended.wait()

    for _ in range(5):
        asyncio.run(once())
    assert codes == ["CANCELLED"] * 5
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_caller_that_leaves_while_a_result_is_made_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    making, left = threading.Event(), threading.Event()

    def make() -> None:
        making.set()
        assert left.wait(HANG_S)
        raise CancelledError  # as attention that is computed for a cancelled text

    async def scenario() -> None:
        ended = asyncio.Event()

        class Observer:
            def ended(self, call: Call) -> None:
                assert call.code == "CANCELLED"
                ended.set()

        model = FakeModel(on_submit=hold)
        async with serving(model, observers=[Observer()]) as (_, channel):
            call = stub_of(channel).TranslateCorpus()
            await call.write(opening("a"))
            answer = await model.submitted.get()
            answer.on_collect = make
            answer.complete()
            assert await asyncio.to_thread(making.wait, HANG_S)
            call.cancel()
            await ended.wait()
            left.set()
            await asyncio.get_running_loop().shutdown_default_executor()  # waits for the thread

    asyncio.run(scenario())
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_write_to_a_caller_that_has_left_is_a_cancellation() -> None:
    class Context:
        """Context whose write fails as that of gRPC does when the connection is lost first."""

        def __init__(self, error: Exception, done: bool) -> None:
            self._error = error
            self._done = done

        async def write(self, message: Any) -> None:
            raise self._error

        def done(self) -> bool:
            return self._done

    def written(error: Exception, done: bool) -> None:
        context: Any = Context(error, done)
        call = Call(method="/a/B", request_id="a")
        asyncio.run(write_response(call, context, pb.TranslateCorpusResponse()))

    with pytest.raises(asyncio.CancelledError):
        written(grpc.aio.InternalError('Failed "execute_batch"'), False)
    with pytest.raises(asyncio.CancelledError):
        written(grpc.aio.UsageError("RPC already finished."), True)
    with pytest.raises(grpc.aio.UsageError):
        written(grpc.aio.UsageError("a misuse"), False)
