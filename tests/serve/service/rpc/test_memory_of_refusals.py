"""Memory of refused, failed and cancelled calls: free without the garbage collector."""

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest

import jumok_serve
from jumok_proto.errors import InvalidArgumentError, JumokError, OverloadedError
from jumok_proto.v1 import translation_pb2 as pb
from jumok_proto.v1.alignment_pb2 import AlignTextRequest
from jumok_proto.v1.decoding_pb2 import DecodingOptions
from jumok_serve.service import Server
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.rpc.call import Call
from jumok_serve.translator import Translator
from tests.serve.service.models.test_pivot_calls import model as pivot_model
from tests.support.hang import until
from tests.support.servers.fake_model import ONE, Answer, FakeModel, fail, hold, received, serving, stub_of
from tests.support.servers.tokens import WRONG, Metadata, tokens_of

TIMES = 4
"""Calls of each kind, after as many that fill caches."""
SERVER = str(Path(jumok_serve.__file__).parent)
CALLS = (JumokError, grpc.aio.AbortError, grpc._cython.cygrpc._ServicerContext)  # type: ignore[attr-defined]
"""Types whose objects a call makes in the server, and never in a client with stubs; calls with texts are others.

A call without texts is small, and cancelled timers keep some.
"""
LOOKS = 1000
"""Looks at what is left, a moment apart, until the calls have ended; only a failing test takes them all."""
LONG = "a man " * 4000
"""A text that is tokenized in a thread."""

Ask = Callable[[grpc.aio.Channel], Awaitable[object]]


def of_calls() -> Counter[str]:
    """Count objects that calls made, by type; frames by function."""
    found: Counter[str] = Counter()
    for thing in gc.get_objects():
        kind = type(thing)  # isinstance would ask proxies for their class
        if kind is FrameType and thing.f_code.co_filename.startswith(SERVER):
            found[thing.f_code.co_qualname] += 1
        elif issubclass(kind, CALLS) or (kind is Call and thing.record.contents is not None):
            found[kind.__name__] += 1
    return found


@pytest.fixture
def undisturbed() -> Iterator[None]:
    """No garbage collection, and no log of faults, whose tracebacks pytest would keep."""
    logging.disable(logging.ERROR)
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    logging.disable(logging.NOTSET)


async def stays(server: Server, channel: grpc.aio.Channel, ask: Ask, *models: FakeModel) -> Counter[str]:
    """Call over and over, and count what stays for longer than the ends of the calls take."""

    async def ask_often() -> None:
        for _ in range(TIMES):
            await ask(channel)
            for model in models:
                while not model.submitted.empty():
                    model.submitted.get_nowait()

    await ask_often()  # gRPC keeps its last calls
    await until(lambda: server.open_calls == 0)
    gc.collect()
    before = of_calls()
    await ask_often()
    for _ in range(LOOKS):
        left = of_calls() - before
        if not left:
            break
        await asyncio.sleep(0.01)
    return left


async def refused(call: Awaitable[object]) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await call


def unary(method: str, request: Any, **options: Any) -> Ask:
    return lambda channel: refused(getattr(stub_of(channel), method)(request, **options))


def streamed(method: str, request: Any) -> Ask:
    return lambda channel: refused(received(getattr(stub_of(channel), method)(request)))


def corpus(*messages: pb.TranslateCorpusRequest) -> Ask:
    async def ask(channel: grpc.aio.Channel) -> None:
        with suppress(grpc.aio.AioRpcError):
            await received(stub_of(channel).TranslateCorpus(iter(messages)))

    return ask


def raw(method: str, kind: str = "unary_unary") -> Ask:
    """Send bytes that are no message."""

    def ask(channel: grpc.aio.Channel) -> Awaitable[None]:
        call = getattr(channel, kind)(method)(b"\x0a\xff" * 100)
        return refused(call if kind == "unary_unary" else call.read())

    return ask


SMALL = DecodingOptions(beam_size=1, max_length=2)
SETTINGS = pb.TranslateCorpusRequest(settings=pb.CorpusSettings(options=SMALL))
REFUSED: dict[str, Ask] = {
    "too many texts": unary("TranslateText", pb.TranslateTextRequest(contents=["a"] * 1025)),
    "a long text, tokenized in a thread": unary("TranslateText", pb.TranslateTextRequest(contents=[LONG])),
    "an unknown model": unary("TranslateText", pb.TranslateTextRequest(model="other", contents=["a"])),
    "an unknown language": unary("TranslateText", pb.TranslateTextRequest(contents=["a"], target_language_code="xx")),
    "bytes": raw("/jumok.v1.TranslationService/TranslateText"),
    "bytes of a stream": raw("/jumok.v1.TranslationService/StreamTranslateText", "unary_stream"),
    "an unknown method": raw("/jumok.v1.TranslationService/Sing"),
    "an option": streamed(
        "StreamTranslateText", pb.StreamTranslateTextRequest(options=DecodingOptions(beam_size=1000))
    ),
    "targets": unary("ScoreText", pb.ScoreTextRequest(contents=["a"], targets=[LONG])),
    "too few targets": unary("ScoreText", pb.ScoreTextRequest(contents=["a"])),
    "a head": unary("AlignText", AlignTextRequest(contents=["a"], layer=99)),
    "a corpus without settings": corpus(pb.TranslateCorpusRequest()),
    "settings twice": corpus(SETTINGS, SETTINGS),
    "items that fail alone": corpus(SETTINGS, pb.TranslateCorpusRequest(items=[pb.CorpusItem(content=LONG)] * 3)),
    "a corpus of bytes": raw("/jumok.v1.TranslationService/TranslateCorpus", "unary_stream"),
    "an unknown service's health": unary("Check", HealthCheckRequest(service="other")),
}


@pytest.mark.usefixtures("undisturbed")
@pytest.mark.parametrize("kind", REFUSED)
async def test_a_refused_request_leaves_nothing(kind: str, translator: Translator) -> None:
    model: Any = translator
    async with serving(model) as (server, channel):
        assert await stays(server, channel, REFUSED[kind]) == {}


ASK = unary("TranslateText", ONE)


def late(answer: Answer) -> None:
    """Fail after the request was submitted."""
    for future in answer.futures:
        future.set_exception(OverloadedError("late", retry_after_s=1))
    answer.on_collect = answer.futures[0].result


@pytest.mark.usefixtures("undisturbed")
@pytest.mark.parametrize("on_submit", [fail(OverloadedError("full", retry_after_s=1)), fail(RuntimeError("x")), late])
@pytest.mark.parametrize("ask", [ASK, streamed("StreamTranslateText", pb.StreamTranslateTextRequest(content="a"))])
async def test_a_failed_request_leaves_nothing(ask: Ask, on_submit: Callable[[Answer], None]) -> None:
    model = FakeModel(on_submit=on_submit)

    async with serving(model) as (server, channel):
        assert await stays(server, channel, ask, model) == {}


def unreadable(answer: Answer) -> None:
    """Refuse some of what the first model wrote, and leave the rest in work."""
    if answer.texts in (["A"], ["B"]):
        raise InvalidArgumentError("the text cannot be read", field="contents[0]")


@pytest.mark.usefixtures("undisturbed")
async def test_texts_that_fail_at_the_second_model_leave_nothing() -> None:
    first, second = pivot_model("de", "en"), pivot_model("en", "fr", unreadable)
    request = pb.TranslateTextRequest(
        contents=["c", "d", "a", "b"], source_language_code="de", target_language_code="fr"
    )
    ask = unary("TranslateText", request)

    async with serving(first, second) as (server, channel):
        assert await stays(server, channel, ask, first, second) == {}


@pytest.mark.usefixtures("undisturbed")
@pytest.mark.parametrize("metadata", [(), WRONG])
async def test_a_stranger_leaves_nothing(metadata: Metadata, tmp_path: Path) -> None:
    async with serving(FakeModel(), tokens=tokens_of(tmp_path, caller="translate")[0]) as (server, channel):
        ask = unary("TranslateText", ONE, metadata=metadata)
        assert await stays(server, channel, ask) == {}


@pytest.mark.usefixtures("undisturbed")
async def test_calls_that_limits_refuse_leave_nothing() -> None:
    model = FakeModel(on_submit=hold)
    async with serving(model, limits=ServiceLimits(requests_per_second=1e-6)) as (server, channel):
        first = stub_of(channel).TranslateText(ONE)
        (await model.submitted.get()).complete()
        await first
        assert await stays(server, channel, ASK) == {}
        model.full = True
        assert await stays(server, channel, ASK) == {}


@pytest.mark.usefixtures("undisturbed")
async def test_a_cancelled_call_leaves_nothing() -> None:
    model = FakeModel(on_submit=hold)

    async def cancelled(channel: grpc.aio.Channel) -> None:
        stub = stub_of(channel)
        calls = [
            stub.TranslateText(ONE),
            stub.StreamTranslateText(pb.StreamTranslateTextRequest(content="a")),
            stub.TranslateCorpus(),
        ]
        await calls[2].write(SETTINGS)
        await calls[2].write(pb.TranslateCorpusRequest(items=[pb.CorpusItem(content="a")]))
        for _ in calls:
            await model.submitted.get()
        for call in calls:
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await (call if call is calls[0] else call.read())

    async with serving(model) as (server, channel):
        assert await stays(server, channel, cancelled) == {}
