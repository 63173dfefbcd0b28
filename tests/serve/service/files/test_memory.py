"""Memory of files over gRPC: files wait for it unread, and what they take is bounded."""

import asyncio
import sys
from typing import Any

import grpc
import pytest

from jumok_proto.errors import DeadlineExceededError, InvalidArgumentError
from jumok_proto.v1.file_pb2 import FileSettings, TranslateFileRequest
from jumok_serve.service.handlers import file_service
from jumok_serve.service.handlers.api import Api, Settings
from jumok_serve.service.handlers.corpus import Result, Stream
from jumok_serve.service.handlers.file_service import CHARACTERS_PER_MESSAGE, MAX_UPLOADS, FileService, take_pieces
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.rpc import request_reader
from jumok_serve.service.rpc.call import Call
from jumok_serve.text.files.document import TAGS, known_formats, needed_memory
from tests.support.calls import noted_calls
from tests.support.hang import HANG_S, until
from tests.support.memory import memory_of
from tests.support.servers.fake_model import FakeModel, failure, hold, received, stub_of
from tests.support.servers.fake_model import serving as serving_fake

MEGABYTE = 2**20


async def test_files_wait_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller's second file waits until its first one is translated; one of too many tags is refused."""
    page = b"<p>A dog.</p>" + b"<br>" * 1000
    most = 2 * needed_memory(page, "", "html")
    monkeypatch.setattr("jumok_serve.service.handlers.file_service.MAX_FILES_MEMORY", most)
    request = TranslateFileRequest(settings=FileSettings(format="html"), file=page)
    dense = TranslateFileRequest(settings=FileSettings(format="html"), file=b"<b>" * (TAGS.most + 1))
    model = FakeModel(on_submit=hold)
    async with serving_fake(model) as (_, channel):
        stub = stub_of(channel)
        first = stub.TranslateFile(iter([request]))
        await model.submitted.get()
        second = stub.TranslateFile(iter([request]))
        for _ in range(4):  # the jobs of a caller run in order
            refused = await failure(received(stub.TranslateFile(iter([dense]))))
            assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
            assert refused.field == "file"
        assert model.submitted.empty()
        first.cancel()
        answer = await model.submitted.get()
        answer.complete()
        assert b"".join(response.file for response in await received(second)).endswith(page[-4000:])


async def test_files_wait_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a caller's files, two of the largest size are in memory before there is memory to read them."""
    size = 40_000  # more than a call may send before it is read
    monkeypatch.setattr("jumok_serve.service.handlers.file_service.MAX_FILES_MEMORY", 2)  # one file of a caller
    measured = noted_calls(monkeypatch, file_service, "needed_memory")
    request = TranslateFileRequest(settings=FileSettings(format="text"), file=b"A dog.\n" + b"\n" * (size - 7))
    model = FakeModel(on_submit=hold)
    async with serving_fake(model, limits=ServiceLimits(max_file_bytes=size)) as (server, channel):
        stub = stub_of(channel)
        calls = [stub.TranslateFile(iter([request])) for _ in range(6)]
        for number in range(len(calls)):
            answer = await model.submitted.get()
            wanted = min(number + 1 + MAX_UPLOADS, len(calls))
            while len(measured) < wanted:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.05)  # others could be received now
            assert len(measured) == wanted
            answer.complete()
        for call in calls:
            assert sum(len(response.file) for response in await received(call)) >= size - 7
        await until(lambda: server.open_calls == 0)


class Requests:
    """Requests of a call with a file of text; each is made when it is read."""

    def __init__(self, file: bytes, size: int = MEGABYTE) -> None:
        self._file = file
        self._size = size
        self._sent = 0

    async def next(self) -> TranslateFileRequest | None:
        await asyncio.sleep(0)
        start, self._sent = self._sent, self._sent + self._size
        if start >= len(self._file):
            return None
        settings = None if start else FileSettings(format="text")
        return TranslateFileRequest(settings=settings, file=self._file[start : self._sent])


async def test_files_that_do_not_arrive_make_room() -> None:
    limits = ServiceLimits(upload_s=0.1, max_message_bytes=50_000, max_file_bytes=100_001)
    settings = TranslateFileRequest(settings=FileSettings(format="text"))
    async with serving_fake(FakeModel(), limits=limits) as (server, channel):
        stub = stub_of(channel)
        budget = server.intake.stream_budget.free
        uploads = [stub.TranslateFile() for _ in range(MAX_UPLOADS)]
        for upload in uploads:
            await upload.write(settings)
        request = TranslateFileRequest(settings=settings.settings, file=b"A dog.\n")
        responses = None
        while responses is None:
            try:
                responses = await received(stub.TranslateFile(iter([request])))
            except grpc.aio.AioRpcError as error:  # this file took longer than ``upload_s``
                if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise
        assert responses[-1].translated_count == 1
        for upload in uploads:
            refused = await failure(received(upload))
            assert refused.code is grpc.StatusCode.DEADLINE_EXCEEDED
            assert "the file did not arrive within 0.3 s" in refused.message
        await until(lambda: server.open_calls == 0 and server.intake.stream_budget.free == budget)


async def test_uploads_that_stand_still_make_room_long_before_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_reader, "PATIENCE_S", 0.001)
    monkeypatch.setattr(file_service, "STREAM_PATIENCE_S", 0.001)
    settings = FileSettings(format="text")
    async with serving_fake(FakeModel(), limits=ServiceLimits(upload_s=HANG_S)) as (_, channel):
        stub = stub_of(channel)
        uploads = [stub.TranslateFile() for _ in range(MAX_UPLOADS)]
        for upload in uploads:
            await upload.write(TranslateFileRequest(settings=settings, file=b"A dog.\n"))
        request = TranslateFileRequest(settings=settings, file=b"A dog.\n")
        responses = await received(stub.TranslateFile(iter([request])))
        assert responses[-1].translated_count == 1
        ends = [asyncio.create_task(failure(received(upload))) for upload in uploads]  # they arrive in any order
        ended, left = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for refused in (end.result() for end in ended):
            assert refused.code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "the file arrived too slowly while others waited" in refused.message
        for end in left:
            end.cancel()


async def test_a_file_that_arrives_byte_by_byte_is_not_waited_for() -> None:
    class Trickle(Requests):
        async def next(self) -> TranslateFileRequest | None:
            await asyncio.sleep(0.01)
            return await super().next()

    call: Any = FileService(RefusingApi(), ServiceLimits(upload_s=0.05)).TranslateFile
    with pytest.raises(DeadlineExceededError, match=r"the file did not arrive within 0\.1 s"):
        await call(Trickle(b"a" * 8 * MEGABYTE, size=1), counting_call()[0])


async def test_messages_are_freed_while_the_next_one_is_waited_for() -> None:
    """A part of a file counts once: neither its message nor the first one stays."""
    held: list[int] = []

    class Kept(Requests):
        def __init__(self, file: bytes) -> None:
            super().__init__(file)
            self.made = list[TranslateFileRequest | None]()

        async def next(self) -> TranslateFileRequest | None:
            held.extend(sys.getrefcount(self.made[index]) - 2 for index in range(len(self.made)))
            self.made.append(await super().next())
            return self.made[-1]

    call: Any = FileService(RefusingApi(), ServiceLimits()).TranslateFile
    await call(Kept(b"a" * 2 * MEGABYTE), counting_call()[0])
    assert held == [0, 0, 0]


def counting_call() -> tuple[Call, list[int]]:
    """Make a call, and the list of the bytes that are written to it."""
    written: list[int] = []

    async def write(response: Any, /, *, counted: bool = False) -> None:
        written.append(len(response.file))
        await asyncio.sleep(0)

    return Call(method="/jumok.v1.FileService/TranslateFile", request_id="a", write=write), written


class RefusingApi(Api):
    """Refuses all items of a corpus."""

    def __init__(self) -> None: ...

    def languages(self, settings: Settings) -> tuple[str, str]:
        return settings.source, settings.target

    async def translate_corpus(self, settings: Settings, stream: Stream[Any], **_: Any) -> None:
        while (items := await stream.read(lambda: False)) is not None:
            await stream.write(stream.make([Result(item.id, error=InvalidArgumentError("no")) for item in items]))


def peak_of_calls(limits: ServiceLimits, file: bytes) -> int:
    """Most bytes of memory while a caller sends a file eight times at once."""

    async def scenario() -> None:
        calls = [counting_call() for _ in range(8)]
        translate: Any = FileService(RefusingApi(), limits).TranslateFile
        await asyncio.gather(*(translate(Requests(file), call) for call, _ in calls))
        assert [sum(written) for _, written in calls] == 8 * [len(file)]

    return memory_of(lambda: asyncio.run(scenario()))[1]


WORDS = "word " * (2 * MEGABYTE // 5 - 1)


@pytest.mark.parametrize(
    "content",
    [WORDS, f" {WORDS}\n", f"\U0001f642{WORDS}", f" \U0001f642{WORDS}\n"],
    ids=["one text", "spaces around", "wide", "wide, spaces around"],
)
def test_memory_of_a_callers_files(content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files in work, files that wait, and messages stay within their bounds together."""
    limits = ServiceLimits(max_file_bytes=2 * MEGABYTE)
    monkeypatch.setattr("jumok_serve.service.handlers.file_service.MAX_FILES_MEMORY", 2 * 32 * MEGABYTE)
    waiting, messages = MAX_UPLOADS * limits.max_file_bytes, 4 * MEGABYTE
    assert peak_of_calls(limits, content.encode()) < 32 * MEGABYTE + waiting + messages


def test_what_is_between_two_texts_is_one_piece() -> None:
    """A file of line ends has millions of pieces."""
    content = "\n" * MEGABYTE
    assert take_pieces(known_formats()["text"].pieces(content)) == ["\n" * CHARACTERS_PER_MESSAGE]
    assert memory_of(lambda: take_pieces(known_formats()["text"].pieces(content)))[1] < 4 * MEGABYTE
    pieces = iter(["", "a", "", "b", ""])
    assert (take_pieces(pieces), take_pieces(pieces)) == (["ab"], [])
