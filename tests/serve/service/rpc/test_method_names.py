"""Calls whose names and metadata are bytes of any kind: each is answered, and the server goes on."""

import asyncio
import codecs
from collections.abc import Iterable
from contextlib import nullcontext

import pytest

from jumok_proto.errors import InternalError
from jumok_serve.service.rpc.call import REQUEST_ID
from jumok_serve.service.server import Server, run_server
from jumok_serve.service.telemetry.logs import CallLog, logging_to_stderr
from tests.faults.tools.flood import message
from tests.faults.tools.http2 import DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, frame, headers
from tests.support.logs import own_records
from tests.support.servers.fake_model import ONE, FakeModel, serving, stub_of

SERVICE = b"/jumok.v1.TranslationService/"
OK, UNIMPLEMENTED = b"0", b"12"


async def status_of(port: int, fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Send a call, and return its status; later fields replace those of an ordinary call."""
    block = headers(**{":path": "/PATH"})
    for name, value in fields:
        literal = b"\x00%c%s%c%s" % (len(name), name, len(value), value)
        block = block.replace(b"\x00\x05:path\x05/PATH", literal) if name == b":path" else block + literal
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(PREFACE + frame(SETTINGS, 0, 0, b"") + frame(HEADERS, END_HEADERS, 1, block))
        writer.write(frame(DATA, END_STREAM, 1, message(ONE.SerializeToString())))
        while True:
            head = await reader.readexactly(9)
            payload = await reader.readexactly(int.from_bytes(head[:3]))
            if head[3] == HEADERS and head[4] & END_STREAM:
                value = payload.partition(b"grpc-status")[2]
                return value[1 : 1 + value[0]]
    finally:
        writer.close()


@pytest.mark.parametrize(
    "path",
    [b"/\xff\xfe", b"\xff", SERVICE + b"\xc3", SERVICE + b"Any", b"/", b"/a\x00b", b"/\xed\xa0\x80/a", b"/a" * 60],
)
def test_a_method_of_any_name_is_answered(path: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving(FakeModel()) as (server, channel):
            for _ in range(3):
                assert await status_of(server.port, [(b":path", path)]) == UNIMPLEMENTED
            assert await stub_of(channel).TranslateText(ONE)

    asyncio.run(scenario())
    assert not own_records(caplog)


async def test_other_code_fails_at_such_bytes_as_before() -> None:
    async with serving(FakeModel()) as (server, _):
        await status_of(server.port, [(b":path", b"/\xff")])
        with pytest.raises(UnicodeDecodeError, match="0xff"):
            b"\xff".decode()
        with pytest.raises(UnicodeDecodeError, match="0xff"):
            await asyncio.to_thread(b"\xff".decode)
        with pytest.raises(UnicodeEncodeError):
            "\ud800".encode()


def test_a_server_that_no_longer_accepts_ends_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jumok_serve.service.server.accept_any_name", lambda: None)
    codecs.register_error("strict", codecs.strict_errors)
    calls = []

    def on_start(server: Server) -> nullcontext[None]:
        calls.append(asyncio.ensure_future(status_of(server.port, [(b":path", b"/\xff")])))
        return nullcontext()

    with pytest.raises(InternalError, match="start the server again, and report UnicodeDecodeError"):
        run_server(lambda: Server([], port=0), grace_s=1, on_start=on_start)
    assert calls[0].done()


@pytest.mark.usefixtures("root_logger")
@pytest.mark.parametrize("name", [REQUEST_ID, "authorization", "user-agent", "traceparent", "x-any"])
def test_metadata_of_any_bytes_is_no_error(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        async with serving(FakeModel(), observers=[CallLog(texts=False)]) as (server, _):
            fields = [(b":path", SERVICE + b"TranslateText"), (name.encode(), b"\xff\xfe")]
            assert await status_of(server.port, fields) == OK

    with logging_to_stderr(log_format="text", level="info"):
        asyncio.run(scenario())
    (line,) = [line for line in capfd.readouterr().err.splitlines() if " jumok_serve" in line]
    assert " INFO jumok_serve.calls: " in line
