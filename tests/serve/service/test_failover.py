"""Failover of ``translate_iter`` between two server processes that are killed and restarted."""

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import jumok
from jumok._transport.retry import Endpoints
from jumok_serve.translator import Translator
from tests.serve.engine.test_invariance import sentences
from tests.support.command import serve
from tests.support.hang import HANG_S
from tests.support.ports import free_port

REPEATED = 3
TEXTS = sentences() * REPEATED
OPTIONS: dict[str, Any] = {"beam_size": 1, "max_length": 12, "truncate": True}


@pytest.fixture(scope="module")
def expected(tiny_bundle: Path) -> list[str]:
    with Translator(tiny_bundle, threads=1) as translator:
        alone = [answer.text for answer in translator.translate(sentences(), **OPTIONS)]
    return alone * REPEATED


Serve = Callable[..., tuple[subprocess.Popen[str], str]]


@pytest.fixture
def start(tiny_bundle: Path) -> Any:
    with ExitStack() as running:
        yield lambda *arguments: running.enter_context(serve(tiny_bundle, *arguments))


def end(process: subprocess.Popen[str], number: signal.Signals) -> None:
    process.send_signal(number)
    process.wait(HANG_S)


def test_a_server_that_is_killed_is_not_missed(start: Serve, expected: list[str]) -> None:
    (killed, first), (_, second) = start(), start()
    with jumok.Client([first, second]) as client:
        client._connection.servers.endpoints = Endpoints(2, first=0)
        found: list[str] = []
        for result in client.translate_iter(TEXTS, window=50, **OPTIONS):
            assert result.index == len(found)
            found.append(result.translation.text)
            if len(found) == 150:
                end(killed, signal.SIGKILL)
        assert client._connection.servers.endpoints.pick(0.0) == 1  # the other rests
    assert found == expected


def restart(start: Serve, process: subprocess.Popen[str], address: str) -> tuple[subprocess.Popen[str], str]:
    """Stop a server gracefully, and restart it on its port."""
    end(process, signal.SIGTERM)
    assert process.returncode == 0
    return start("--port", address.rpartition(":")[2])


async def test_servers_that_restart_one_after_the_other_are_not_missed(start: Serve, expected: list[str]) -> None:
    async def each() -> AsyncIterator[str]:
        for text in TEXTS:
            yield text

    servers = [start("--port", str(free_port())) for _ in range(2)]
    found: list[str] = []
    async with jumok.AsyncClient(",".join(address for _, address in servers)) as client:
        async for result in client.translate_iter(each(), window=50, **OPTIONS):
            assert result.index == len(found)
            found.append(result.translation.text)
            if len(found) % 200 == 0 and len(found) < len(TEXTS):
                which = len(found) // 200 % 2
                servers[which] = await asyncio.to_thread(restart, start, *servers[which])
    assert found == expected
