"""Two servers, and one goes silent: its process is stopped, or its network drops all bytes."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import jumok
from benchmarks.common.progress import progress
from tests.faults.scenarios.restarts import Load, translations
from tests.faults.tools.findings import Findings, Plan
from tests.faults.tools.servers import jumok_serve
from tests.support.servers.relay import Relay

GOES_ON_WITHIN_S = 5.0
SHORT_TIMEOUT_S = 10.0
"""Shorter than the default, and enough for a call that waits its turn on the other server, which is busy."""
SHORT_CALLS = 10


async def stopped(plan: Plan, findings: Findings) -> None:
    """SIGSTOP to one of two servers under load."""
    await _silenced(plan, findings, stop=True)


async def dropped(plan: Plan, findings: Findings) -> None:
    """A relay in front of one of two servers drops all bytes under load."""
    await _silenced(plan, findings, stop=False)


async def _silenced(plan: Plan, findings: Findings, *, stop: bool) -> None:
    async with AsyncExitStack() as opened:
        lost = await opened.enter_async_context(jumok_serve(plan.bundle))
        other = await opened.enter_async_context(jumok_serve(plan.bundle))
        expected = await translations(other.address, plan.texts)
        relay = opened.enter_context(Relay(lost.address))
        client = await opened.enter_async_context(jumok.AsyncClient([relay.address, other.address]))
        load = Load(client, expected, plan.seed)
        async with load.running(), _silent(lost.pid, relay, stop=stop):
            progress(f"{findings.scenario}: one server is silent, {load.given} sentences")
            await load.goes_on()
            failed = await _short_calls([relay.address, other.address], plan.texts[0])
            await load.finish()
    load.judge(findings)
    findings.expect_none(f"of {SHORT_CALLS} calls with {SHORT_TIMEOUT_S:g} s each, in a new client: errors", failed)
    findings.expect_below("goes on after the silence, s", load.longest_pause_s, GOES_ON_WITHIN_S)


@asynccontextmanager
async def _silent(pid: int, relay: Relay, *, stop: bool) -> AsyncIterator[None]:
    if not stop:
        relay.silence()
        yield
        return
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def _short_calls(servers: list[str], text: str) -> list[jumok.JumokError]:
    """Call a client of its own with a short timeout; returns the errors."""
    errors = []
    async with jumok.AsyncClient(servers, timeout_s=SHORT_TIMEOUT_S) as client:
        for _ in range(SHORT_CALLS):
            try:
                await client.translate(text, max_length=40)
            except jumok.JumokError as error:
                errors.append(error)
    return errors
