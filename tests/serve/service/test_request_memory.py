"""Memory of requests: one budget over kinds, held until the response is sent."""

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from jumok_proto.v1 import translation_pb2 as pb
from jumok_proto.v1.translation_pb2_grpc import TranslationServiceStub
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.request_memory import (
    SMALL,
    TAG_BYTES,
    TERM_BYTES,
    TERM_CHARACTER_BYTES,
    TEXT_BYTES,
    RequestMemory,
    count_tags,
    memory_of_terms,
    memory_of_texts,
)
from tests.support.servers.fake_model import FakeModel, hold, serving

LIMITS = ServiceLimits(max_request_memory=2**20, max_file_bytes=2**10)


def test_estimates() -> None:
    texts = ["a<b>&amp;</b>", ""]
    assert count_tags(texts) == 3
    assert memory_of_texts(texts, tags=3, character_bytes=2) == 2 * TEXT_BYTES + 2 * 13 + 3 * TAG_BYTES
    entry = pb.GlossaryEntry(source="a dog", targets=["ein Hund"])
    assert memory_of_terms(pb.Glossary(entries=[entry])) == TERM_BYTES + 5 * TERM_CHARACTER_BYTES
    assert memory_of_terms(pb.Glossary(stored="pets")) == 0


def test_memory_is_held_until_the_task_ends() -> None:
    async def scenario() -> None:
        memory = RequestMemory(LIMITS)
        free, share = memory.working.free, memory.working.share
        ended = asyncio.Event()

        async def call(size: int) -> None:
            await memory.hold(size)
            await ended.wait()

        first = asyncio.create_task(call(10 * share))  # more than a share counts as a share
        small = asyncio.create_task(call(SMALL))
        await asyncio.sleep(0)
        second = asyncio.create_task(call(SMALL + 1))
        await asyncio.sleep(0)
        assert memory.working.free == free - share
        ended.set()
        await asyncio.gather(first, small)
        await second
        await asyncio.sleep(0)
        assert memory.working.free == free

    asyncio.run(scenario())


def large() -> Iterator[pb.TranslateTextRequest]:
    """Requests of different kinds, of which a caller's share holds one."""
    texts = ["a" * 20_000]
    yield pb.TranslateTextRequest(contents=texts * 2)
    yield pb.TranslateTextRequest(contents=["a" + "<b>" * 1200], markup=pb.MARKUP_HTML)
    terms = [pb.GlossaryEntry(source=f"{number:0250}", targets=["a"]) for number in range(12)]
    yield pb.TranslateTextRequest(contents=["a"], glossary=pb.Glossary(entries=terms))


@pytest.mark.parametrize("request_", list(large()))
@pytest.mark.parametrize("kind", ["a request", "items"])
def test_large_requests_wait_for_each_other_and_small_ones_do_not(request_: pb.TranslateTextRequest, kind: str) -> None:
    async def scenario() -> None:
        model = FakeModel(on_submit=hold)
        async with serving(model, limits=LIMITS) as (server, channel):
            stub = TranslationServiceStub(channel)
            before = server.memory.working.free, server.memory.waiting.free
            first = stub.TranslateText(request_)
            answer = await model.submitted.get()
            if kind == "items":
                requests = [pb.TranslateCorpusRequest(settings=pb.CorpusSettings())]
                requests += [pb.TranslateCorpusRequest(items=[pb.CorpusItem(id=0, content="b" * 40_000)])]
                second: Any = stub.TranslateCorpus(iter(requests))
            else:
                second = stub.TranslateText(pb.TranslateTextRequest(contents=["b" * 40_000]))
            small = stub.TranslateText(pb.TranslateTextRequest(contents=["x"]))
            submitted = await model.submitted.get()
            assert submitted.texts == ["x"]
            submitted.complete()
            await small
            assert model.submitted.empty()
            answer.complete()
            await first
            (await model.submitted.get()).complete()
            if isinstance(second, grpc.aio.UnaryUnaryCall):
                await second
            else:
                assert [response.results[0].id async for response in second] == [0]
            while (server.memory.working.free, server.memory.waiting.free) != before:
                await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_caller_that_leaves_gives_its_memory_back() -> None:
    async def scenario() -> None:
        model = FakeModel(on_submit=hold)
        async with serving(model, limits=LIMITS) as (server, channel):
            before = server.memory.working.free
            requests = [pb.TranslateCorpusRequest(settings=pb.CorpusSettings())]
            items = [pb.CorpusItem(id=number, content="b" * 20_000) for number in range(4)]  # two fit
            call = TranslationServiceStub(channel).TranslateCorpus(
                iter([*requests, pb.TranslateCorpusRequest(items=items)])
            )
            for _ in range(2):
                await model.submitted.get()
            assert server.memory.working.free < before
            call.cancel()
            while server.memory.working.free != before:
                await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(scenario(), 60))
