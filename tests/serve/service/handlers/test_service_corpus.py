"""TranslateCorpus with a fake model; callers that leave while the server writes."""

import asyncio
import logging
import threading
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import grpc
import pytest
from google.rpc import code_pb2

from jumok_proto import errors
from jumok_proto.v1 import translation_pb2 as pb
from jumok_proto.v1.decoding_pb2 import DecodingOptions as Options
from jumok_serve.errors import ModelFailedError
from jumok_serve.search.options import DecodingOptions
from jumok_serve.service.handlers import api, corpus, worker_pool
from jumok_serve.service.handlers.api import ENOUGH_WAITING
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.rpc.call import Call
from jumok_serve.service.rpc.interceptor import UnreadResponses, write_response
from tests.serve.service.handlers.test_service_streams import EOF, cancelled
from tests.support.hang import HANG_S, until
from tests.support.logs import own_records
from tests.support.servers.fake_model import Answer, Ended, FakeModel, failure, hold, received, serving, stub_of


def items(*texts: str, first: int = 0) -> list[pb.CorpusItem]:
    return [pb.CorpusItem(id=number, content=text) for number, text in enumerate(texts, start=first)]


def opening(*texts: str, **settings: Any) -> pb.TranslateCorpusRequest:
    return pb.TranslateCorpusRequest(settings=pb.CorpusSettings(**settings), items=items(*texts))


async def results(call: Any, count: int) -> list[tuple[int, str]]:
    """Next results: ids, and translations or errors."""
    found: list[tuple[int, str]] = []
    while len(found) < count:
        message = await call.read()
        assert message is not EOF
        found += [
            (
                result.id,
                result.translation.hypotheses[0].text if result.HasField("translation") else result.error.message,
            )
            for result in message.results
        ]
    assert len(found) == count
    return found


async def test_items_are_answered_in_their_order_or_as_they_are_done() -> None:
    model = FakeModel(on_submit=hold)
    async with serving(model) as (_, channel):
        stub = stub_of(channel)
        for order, done in ((pb.CORPUS_ORDER_INPUT, [0, 1, 2]), (pb.CORPUS_ORDER_COMPLETION, [2, 0, 1])):
            call = stub.TranslateCorpus()
            await call.write(opening("a", "b", "c", order=order, options=Options(beam_size=2), truncate=True))
            answers = [await model.submitted.get() for _ in range(3)]
            parameters = model.parameters
            assert (parameters.options, parameters.truncate) == (DecodingOptions(beam_size=2), True)
            found = []
            for number in (2, 0, 1):
                answers[number].complete()
                if order == pb.CORPUS_ORDER_COMPLETION:
                    found += await results(call, 1)
            await call.done_writing()
            found += await results(call, 3 - len(found))
            assert found == [(number, "ABC"[number]) for number in done]
            assert await call.read() is EOF


async def test_an_item_that_ends_while_it_is_noted_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    done: property = vars(corpus._Item)["done"]
    held, looked_at = list[Answer](), set[int]()
    model = FakeModel(on_submit=held.append)

    def ends_after_the_first_look(item: Any) -> bool:
        if item.id in looked_at:
            return bool(done.__get__(item))
        looked_at.add(item.id)
        held.pop().complete()
        return False

    monkeypatch.setattr(corpus._Item, "done", property(ends_after_the_first_look))
    async with serving(model) as (_, channel):
        call = stub_of(channel).TranslateCorpus()
        await call.write(opening("a", "b"))
        assert await results(call, 2) == [(0, "A"), (1, "B")]
        call.cancel()


@pytest.mark.parametrize(("window", "characters"), [(3, 2**20), (8, 3)])
async def test_no_more_is_read_than_the_window_holds(
    window: int, characters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "MAX_OPEN_CHARACTERS", characters)
    model = FakeModel(on_submit=hold)
    async with serving(model) as (_, channel):
        call = stub_of(channel).TranslateCorpus()
        await call.write(opening(*"abcde", window=window))
        await call.write(pb.TranslateCorpusRequest(items=items(*"fgh", first=5)))
        held = [await model.submitted.get() for _ in range(3)]
        for number in range(8):
            # A call that came after is answered: whatever was to be submitted before has been.
            model.on_submit = Answer.complete
            await stub_of(channel).TranslateText(pb.TranslateTextRequest(contents=["x"]))
            assert (await model.submitted.get()).texts == ["x"]
            assert model.submitted.empty()
            model.on_submit = hold
            held[number].complete()
            assert await results(call, 1) == [(number, "ABCDEFGH"[number])]
            if number < 5:
                held.append(await model.submitted.get())
        await call.done_writing()
        assert await call.read() is EOF


@pytest.mark.parametrize("waiting", [0, ENOUGH_WAITING + 1])
async def test_a_corpus_pauses_if_many_texts_wait(waiting: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "UNHURRIED_S", HANG_S)
    model = FakeModel(on_submit=hold)
    load = replace(model.load(), queued_requests=waiting)
    monkeypatch.setattr(model, "load", lambda: load)
    async with serving(model) as (_, channel):
        call = stub_of(channel).TranslateCorpus()
        await call.write(opening("a", "b"))
        alone = asyncio.ensure_future(stub_of(channel).TranslateText(pb.TranslateTextRequest(contents=["alone"])))
        texts = list[str]()
        while "alone" not in texts or len(texts) < (1 if waiting else 3):
            answer = await model.submitted.get()
            texts += answer.texts
            answer.complete()
        assert sorted(texts) == (["alone"] if waiting else ["a", "alone", "b"])
        await alone
        call.cancel()


async def test_an_item_that_is_longer_than_the_window_has_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "MAX_OPEN_CHARACTERS", 2)
    async with serving(FakeModel()) as (_, channel):
        call = stub_of(channel).TranslateCorpus()
        await call.write(opening("a", "bcd", "e", order=pb.CORPUS_ORDER_INPUT))
        await call.done_writing()
        assert await results(call, 3) == [(0, "A"), (1, "BCD"), (2, "E")]


async def test_unread_results_stop_the_reading_of_items() -> None:
    model = FakeModel()
    async with serving(model) as (_, channel):
        call = stub_of(channel).TranslateCorpus()
        text = "x" * 10_000
        sent = 0
        writing = asyncio.ensure_future(call.write(opening(window=8)))
        # Until the server, and what lies between, takes nothing more; it would take all of 20 MB otherwise.
        while (await asyncio.wait({writing}, timeout=0.5 if sent else None))[0]:
            writing.result()
            sent += 1
            writing = asyncio.ensure_future(call.write(pb.TranslateCorpusRequest(items=items(text, first=sent))))
            assert sent < 2000
        assert await results(call, 1) == [(1, text.upper())]
        call.cancel()
        with suppress(asyncio.CancelledError, asyncio.InvalidStateError, grpc.aio.UsageError):
            await writing


async def test_one_bad_item_leaves_the_others() -> None:
    def refuse(answer: Answer) -> None:
        if answer.texts == ["bad"]:
            raise errors.InvalidArgumentError("contents[0]: bad", field="contents[0]")
        if answer.texts == ["nan"]:
            answer.on_collect = Mock(side_effect=ModelFailedError("the model computed NaN for this text"))
        answer.complete()

    async with serving(FakeModel(on_submit=refuse)) as (_, channel):
        call = stub_of(channel).TranslateCorpus()
        await call.write(opening("a", "bad", "nan", "b"))
        await call.done_writing()
        found = [result for message in await received(call) for result in message.results]
        assert [result.id for result in found] == [0, 1, 2, 3]
        assert [result.translation.hypotheses[0].text for result in (found[0], found[3])] == ["A", "B"]
        assert found[1].error.code == code_pb2.INVALID_ARGUMENT
        assert found[1].error.message == "content: bad"
        assert found[2].error.code == code_pb2.INTERNAL
        assert "NaN" not in found[2].error.message


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "settings"),
        ([pb.TranslateCorpusRequest(items=items("a"))], "settings"),
        ([opening("a"), opening("b")], "settings"),
        ([opening("a", window=-1)], "window"),
        ([opening("a", window=1025)], "window"),
        ([opening("a", order=pb.CorpusOrder.ValueType(9))], "order"),
        ([opening("a", options=Options(beam_size=0))], "options.beam_size"),
        ([opening(*["a"] * 1025)], "items"),
        ([opening("a"), b"\xff\xff\xff"], "request"),
    ],
)
async def test_messages_that_are_refused_end_the_call(
    messages: list[pb.TranslateCorpusRequest | bytes], field: str
) -> None:
    model = FakeModel(on_submit=hold)
    async with serving(model) as (_, channel):
        method: Any = channel.stream_stream("/jumok.v1.TranslationService/TranslateCorpus", bytes, bytes)
        call = method()
        for message in messages:
            await call.write(message if isinstance(message, bytes) else message.SerializeToString())
        if not messages:
            await call.done_writing()
        failed = await failure(call.read())
        assert (failed.code, failed.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)
        if len(messages) > 1:
            await cancelled(await model.submitted.get())


@pytest.mark.parametrize(
    "error", [errors.OverloadedError("full", retry_after_s=1.0), errors.RateLimitedError("fast", retry_after_s=1e-3)]
)
async def test_an_item_waits_where_the_queue_is_full(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(worker_pool, "FIRST_RETRY_S", 0.001)
    left = 3

    def full(answer: Answer) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise error
        answer.complete()

    async with serving(FakeModel(on_submit=full)) as (_, channel):
        call = stub_of(channel).TranslateCorpus()
        await call.write(opening("a", "b"))
        assert await results(call, 2) == [(0, "A"), (1, "B")]


@pytest.mark.parametrize(
    "error", [errors.DeadlineExceededError("late"), errors.UnavailableError("stopped", retry_after_s=1)]
)
async def test_what_is_no_items_fault_ends_the_call(error: Exception) -> None:
    def submit(answer: Answer) -> None:
        if answer.texts == ["b"]:
            answer.on_collect = Mock(side_effect=error)
            answer.complete()

    model = FakeModel(on_submit=submit)
    async with serving(model) as (_, channel):
        call = stub_of(channel).TranslateCorpus()
        await call.write(opening("a", "b", "c", order=pb.CORPUS_ORDER_COMPLETION))
        assert (await failure(call.read())).message == str(error)
        first = await model.submitted.get()
        await cancelled(first)


async def test_a_corpus_that_is_cancelled_gives_all_up() -> None:
    model = FakeModel(on_submit=hold)
    async with serving(model) as (_, channel):
        call = stub_of(channel).TranslateCorpus()
        await call.write(opening(*"abc"))
        answers = [await model.submitted.get() for _ in range(3)]
        call.cancel()
        for answer in answers:
            await cancelled(answer)


async def test_a_server_that_stops_answers_what_it_has_read_and_sends_the_caller_on() -> None:
    model = FakeModel(on_submit=hold)
    async with serving(model) as (server, channel):
        stub = stub_of(channel)
        corpus_call, ended = stub.TranslateCorpus(), stub.TranslateCorpus()
        await corpus_call.write(opening(*"abc", window=2))
        held = [await model.submitted.get() for _ in range(2)]
        await ended.write(opening("z"))
        await ended.done_writing()
        held.append(await model.submitted.get())
        streamed = stub.StreamTranslateText(pb.StreamTranslateTextRequest(content="s"))
        held.append(await model.submitted.get())
        stop = asyncio.ensure_future(server.stop(grace_s=3600))
        await asyncio.sleep(0)
        held[0].complete()
        assert await results(corpus_call, 1) == [(0, "A")]
        held.append(await model.submitted.get())  # of the message that was read: it is translated too
        assert not stop.done()
        for answer in held[1:]:
            answer.complete()
        assert await results(corpus_call, 2) == [(1, "B"), (2, "C")]
        failed = await failure(corpus_call.read())
        assert (failed.code, failed.info.reason) == (grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE")
        assert failed.retry.retry_delay.ToNanoseconds() > 0
        assert await results(ended, 1) == [(0, "Z")]
        assert await ended.read() is EOF
        assert [message.stable_text for message in await received(streamed)] == ["S"]
        await stop


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
    assert [record for record in own_records(caplog) if record.levelno >= logging.ERROR] == []


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
    assert [record for record in own_records(caplog) if record.levelno >= logging.ERROR] == []


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
    call, bounds = Call(method="/a/B", request_id="a"), UnreadResponses(ServiceLimits())
    with pytest.raises(raised):
        await write_response(call, bounds, context, pb.TranslateCorpusResponse())  # type: ignore[arg-type]
