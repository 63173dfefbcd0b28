"""Tracebacks of failed calls: those of the client alone, not of gRPC."""

import asyncio
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import jumok
from jumok.testing import FakeServer
from tests.support.clients import Call as ClientCall
from tests.support.clients import await_, wait
from tests.support.hang import HANG_S

Call = Callable[[str], object]


def made(call: ClientCall, method: str, *arguments: Any) -> Call:
    return lambda server: call(method, server, *arguments, max_attempts=2)


def list_bundles(server: str) -> None:
    with jumok.AdminClient(server) as client:
        client.list_bundles()


def list_bundles_async(server: str) -> None:
    async def run() -> None:
        async with jumok.AsyncAdminClient(server) as client:
            await client.list_bundles()

    asyncio.run(run())


METHODS: dict[str, tuple[Any, ...]] = {
    "translate": ("translate", "ab"),
    "list_models": ("list_models",),
    "stream": ("translate_stream", "ab"),
    "iter": ("translate_iter", ["ab"]),
}
CALLS: dict[str, Call] = {
    **{f"{call.__name__} {name}": made(call, *METHODS[name]) for call in (wait, await_) for name in METHODS},
    "admin": list_bundles,
    "async admin": list_bundles_async,
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@pytest.fixture
def nowhere() -> Iterator[str]:
    """An address without a server."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def check_short(error: BaseException) -> None:
    shown = "".join(traceback.format_exception(error))
    assert shown.count("Traceback") == 1, shown
    files = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    assert not [file for file in files if file.is_relative_to(Path(grpc.__file__).parent)]
    assert len([file for file in files if file.is_relative_to(Path(jumok.__file__).parent)]) <= 5


@every_call
def test_a_server_that_is_down_gives_one_traceback(call: Call, nowhere: str) -> None:
    with pytest.raises(jumok.UnavailableError, match="no server listens there: start it") as raised:
        call(nowhere)
    check_short(raised.value)
    assert raised.value.code is grpc.StatusCode.UNAVAILABLE
    assert raised.value.retryable
    assert isinstance(raised.value, ConnectionError)


@pytest.mark.parametrize("name", [name for name in CALLS if "translate" in name or "stream" in name])
def test_an_error_of_a_server_keeps_its_details(name: str) -> None:
    refused = jumok.InvalidArgumentError("too long", field="contents[0]")
    with FakeServer() as server:
        server.fail(refused)
        with pytest.raises(jumok.InvalidArgumentError, match="too long") as raised:
            CALLS[name](server.address)
    check_short(raised.value)
    assert raised.value.field == refused.field
    assert raised.value.reason == refused.reason
    assert isinstance(raised.value.__context__, grpc.RpcError)  # for debuggers


def test_a_call_that_its_closed_client_ends_does_not_show_its_cancellation() -> None:
    arrived, released = threading.Event(), threading.Event()

    def wait(text: str) -> str:
        arrived.set()
        released.wait(HANG_S)
        return text

    async def close_during_a_call(server: str) -> None:
        client = jumok.AsyncClient(server)
        call = asyncio.ensure_future(client.translate("ab"))
        await asyncio.to_thread(arrived.wait, HANG_S)
        await client.close()
        await call

    with FakeServer(wait) as server:
        with pytest.raises(jumok.CallCancelledError, match="the client was closed") as raised:
            asyncio.run(close_during_a_call(server.address))
        released.set()
    check_short(raised.value)
