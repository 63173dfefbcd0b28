"""Clients in forked processes and in several event loops."""

import asyncio
import subprocess
import sys

import pytest

import jumok
from jumok.testing import FakeServer
from tests.support.hang import HANG_S

PROGRAM = """
import asyncio, os, sys, threading
from jumok import AdminClient, AsyncClient, Client, JumokError

way, address, other = sys.argv[1:]
client = Client([address, other])
admin = AdminClient(address)
asynchronous = AsyncClient(address)
print(client.translate("parent").text, flush=True)

async def call():
    return (await asynchronous.translate("loop")).text

def child():
    print(client.translate("a").text)
    print(client.translate("b").text)
    print(len(list(client.translate_iter(map(str, range(100))))))
    print(list(client.translate_stream("stream"))[-1].text)
    try:
        admin.list_bundles()
    except JumokError as error:
        print(type(error).__name__)
    try:
        print(asyncio.run(call()))
    except JumokError as error:
        print(error)
    client.close()
    sys.stdout.flush()

if way == "loop":
    asyncio.run(call())  # and stays open
try:
    admin.list_bundles()
except JumokError:
    pass
process = os.fork()
if process == 0:
    child()
    sys.exit()
status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
print(client.translate("parent again").text, status)
"""


@pytest.mark.parametrize("way", ["idle", "loop"])
def test_a_client_works_in_a_forked_process_and_still_in_its_own(way: str) -> None:
    """Forked while nothing runs, and with an open client of asyncio."""
    with FakeServer() as server, FakeServer() as other:
        ran = subprocess.run(
            [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM, way, server.address, other.address],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=HANG_S,
        )
    refused = (
        "a client of asyncio was open when this process was forked, and gRPC has only one thread for all of them, in "
        "the parent: close such clients before the fork, or use Client here"
    )
    child = ["A", "B", "100", "STREAM", "UnimplementedError", refused if way == "loop" else "LOOP"]
    assert ran.stdout.splitlines() == ["PARENT", *child, "PARENT AGAIN 0"]


def test_a_client_works_in_one_event_loop_after_another(caplog: pytest.LogCaptureFixture) -> None:
    """No call that was read to its end tells it to a loop that is closed, which the next loop would log."""
    with FakeServer() as server:
        client = jumok.AsyncClient(server.address)  # made without a loop

        async def scenario() -> list[str]:
            translation = await client.translate("a")
            updates = [update async for update in client.translate_stream("b")]
            results = [result.translation.text async for result in client.translate_iter(["b", "c"])]
            return [translation.text, updates[-1].text, *results]

        for _ in range(10):
            assert asyncio.run(scenario()) == ["A", "B", "B", "C"]
        assert not caplog.records
        asyncio.run(client.close())
        with pytest.raises(ValueError, match="the client is closed"):
            asyncio.run(scenario())


def test_a_client_works_in_several_event_loops_at_once() -> None:
    with FakeServer() as server:
        client = jumok.AsyncClient([server.address])

        async def each(text: str) -> list[str]:
            return [(await client.translate(f"{text} {number}")).text for number in range(20)]

        async def scenario() -> list[list[str]]:
            others = [asyncio.to_thread(asyncio.run, each(text)) for text in ("b", "c")]
            return await asyncio.gather(each("a"), *others)

        found = asyncio.run(scenario())
    assert found == [[f"{letter} {number}" for number in range(20)] for letter in "ABC"]
