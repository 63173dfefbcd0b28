"""A rolling update under load: each server is replaced by one at another address of their common name."""

import asyncio
import signal
from collections import deque
from collections.abc import Iterator
from contextlib import AsyncExitStack

import jumok
from benchmarks.common.processes import Server
from benchmarks.common.progress import progress
from tests.faults.scenarios.restarts import STREAMS, Load, translations
from tests.faults.tools.findings import Findings, Plan
from tests.faults.tools.name_server import NameServer
from tests.faults.tools.servers import is_healthy, jumok_serve

NAME = "jumok.default.svc.cluster.local"
SERVERS = 2
PAUSE_S = 0.5
"""Time between the end of an address and SIGTERM: the preStop pause of a pod, but shorter."""


class Fleet(AsyncExitStack):
    """Servers at one port of different addresses, which share a name: the pods of a Deployment.

    Args:
        plan: plan with the bundle.
        names: the name server.
    """

    def __init__(self, plan: Plan, names: NameServer) -> None:
        super().__init__()
        self._plan = plan
        self._names = names
        self._hosts: Iterator[str] = (f"127.0.0.{number}" for number in range(2, 255))
        self._pods: deque[tuple[Server, AsyncExitStack]] = deque()
        self.port = "0"

    async def add(self) -> Server:
        """Start a server at a new address; it has the name as soon as it is ready."""
        running = await self.enter_async_context(AsyncExitStack())
        host = next(self._hosts)
        server = await running.enter_async_context(jumok_serve(self._plan.bundle, "--host", host, "--port", self.port))
        self.port = server.address.rpartition(":")[2]
        assert await is_healthy(server.address), server.logged()
        self._pods.append((server, running))
        self._name_all()
        return server

    async def retire(self) -> int:
        """End the oldest server: it loses the name, then gets SIGTERM; returns its exit status."""
        server, running = self._pods.popleft()
        self._name_all()
        await asyncio.sleep(PAUSE_S)
        status = await server.end(signal.SIGTERM)
        await running.aclose()
        return status

    def _name_all(self) -> None:
        self._names.addresses = [server.address.rpartition(":")[0] for server, _ in self._pods]


async def rolling_update(plan: Plan, findings: Findings) -> None:
    """Replace all servers of a name, each by one at another address, as Kubernetes does."""
    statuses: list[int] = []
    async with NameServer.opened(NAME) as (names, resolver), Fleet(plan, names) as fleet:
        expected = await translations((await fleet.add()).address, plan.texts)
        for _ in range(SERVERS - 1):
            await fleet.add()
        async with jumok.AsyncClient(f"dns://{resolver}/{NAME}:{fleet.port}") as client:
            load = Load(client, expected, plan.seed, streams=STREAMS)
            async with load.running():
                while len(statuses) < SERVERS * plan.restarts and not load.failed:
                    await fleet.add()
                    statuses.append(await fleet.retire())
                    progress(f"{findings.scenario}: {len(statuses)} servers replaced, {load.given} sentences")
                await load.finish()
        findings.tell("look-ups of the name", names.questions)
    findings.expect(
        "servers replaced by others at new addresses, under load",
        len(statuses),
        "each with exit status 0",
        statuses == [0] * SERVERS * plan.restarts,
    )
    load.judge(findings)
