"""Two servers under constant load: restarted, replaced by others of their name, killed, and gone silent."""

import asyncio
import os
import random
import signal
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Self

import jumok
from benchmarks.common.processes import Server
from benchmarks.common.progress import progress
from tests.faults.tools.findings import Findings, Plan
from tests.faults.tools.name_server import NameServer
from tests.faults.tools.servers import Restarted, is_healthy, jumok_serve, metrics
from tests.support.servers.relay import Relay

ITERATIONS, WINDOW, CALLERS, STREAMS = 2, 64, 4, 2
BETWEEN = 150
"""Sentences that are translated between two faults, at least."""
FOUND_S = 60.0
"""Seconds within which callers must find a restarted server."""


class Load:
    """Iterations and calls that go on until they are told to stop, and what they saw.

    Args:
        client: of all servers.
        expected: the translation of each text.
        seed: of their order.
        model: that is asked.
        streams: number of callers that stream; a stream that has begun does not survive the death of its server.
    """

    def __init__(
        self, client: jumok.AsyncClient, expected: Mapping[str, str], seed: int, model: str = "", *, streams: int = 0
    ) -> None:
        self._client = client
        self._model = model
        self._expected = expected
        self._seed = seed
        self._streams = streams
        self._stopping = False
        self._running: asyncio.Task[None]
        self.read = 0
        self.given = 0
        self.ended: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.out_of_order: list[str] = []
        self.errors: list[BaseException] = []
        self.longest_pause_s = 0.0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Begin, and see the first results; the end of the context cancels what `finish` has not ended."""
        self._running = asyncio.create_task(self._run())
        try:
            await self.goes_on()
            yield self
        finally:
            self._running.cancel()

    async def _run(self) -> None:
        await asyncio.gather(
            *(self._iterate(number) for number in range(ITERATIONS)),
            *(self._repeat("call", number, self._call) for number in range(CALLERS)),
            *(self._repeat("stream", number, self._stream) for number in range(self._streams)),
        )

    @property
    def failed(self) -> bool:
        """True if nothing goes on."""
        return self._running.done()

    async def goes_on(self) -> None:
        """Wait until more is translated, or the load has failed."""
        enough = self.given + BETWEEN
        while self.given < enough and not self.failed:
            await asyncio.sleep(0.05)

    async def finish(self) -> None:
        """See more results, then read no more texts; what was read is translated."""
        await self.goes_on()
        self._stopping = True
        await self._running

    def judge(self, findings: Findings) -> None:
        """Tell what was seen, and hold it against what had to be."""
        findings.tell("sentences that were iterated over", self.read)
        findings.expect_equal("of these lost or given twice", abs(self.read - self.given), 0)
        findings.expect_none("of these out of order", self.out_of_order)
        findings.expect_more("calls of one sentence beside them", self.ended["call"], 0)
        if self._streams:
            findings.expect_more("streams beside them", self.ended["stream"], 0)
        findings.expect_none("translations that differ from those before", self.wrong)
        findings.expect_none("errors that the caller saw", self.errors)
        findings.tell("longest time without a result, s", f"{self.longest_pause_s:.2f}")

    def _texts(self, number: int, sent: list[str]) -> Iterator[str]:
        """Texts in an order of their own; each is read once, and noted."""
        random_ = random.Random(f"{self._seed}.{number}")
        texts = list(self._expected)
        while not self._stopping:
            self.read += 1
            sent.append(random_.choice(texts))
            yield sent[-1]

    async def _iterate(self, number: int) -> None:
        last = time.monotonic()
        sent: list[str] = []
        given = 0
        try:
            async for result in self._client.translate_iter(
                self._texts(number, sent), window=WINDOW, model=self._model
            ):
                now = time.monotonic()
                self.longest_pause_s = max(self.longest_pause_s, now - last)
                last = now
                if result.index != given or result.text != sent[given]:
                    self.out_of_order.append(f"result {result.index} of {result.text!r} came as number {given}")
                elif result.error is not None:
                    self.errors.append(result.error)
                else:
                    self._compare(result.text, result.translation.text)
                given += 1
                self.given += 1
        except jumok.JumokError as error:
            self.errors.append(error)

    async def _repeat(self, kind: str, number: int, translate: Callable[[str], Awaitable[str]]) -> None:
        random_ = random.Random(f"{self._seed}.{kind}.{number}")
        texts = list(self._expected)
        while not self._stopping:
            text = random_.choice(texts)
            try:
                found = await translate(text)
            except jumok.JumokError as error:
                self.errors.append(error)
                continue
            self.ended[kind] += 1
            self._compare(text, found)

    async def _call(self, text: str) -> str:
        return (await self._client.translate(text, model=self._model)).text

    async def _stream(self, text: str) -> str:
        updates = [update async for update in self._client.translate_stream(text, model=self._model)]
        last = updates[-1].translation
        return "" if last is None else last.text

    def _compare(self, text: str, found: str) -> None:
        if found != self._expected[text]:
            self.wrong.append(f"{text!r} became {found!r}, alone {self._expected[text]!r}")


async def translations(address: str, texts: Sequence[str]) -> dict[str, str]:
    """Translations by text."""
    async with jumok.AsyncClient(address, timeout_s=600) as client:
        found = await client.translate(list(texts))
    return {text: translation.text for text, translation in zip(texts, found, strict=True)}


async def rolling_restarts(plan: Plan, findings: Findings) -> None:
    """SIGTERM to each server in turn, which is started again where it was."""
    await _under_load(plan, findings, signal.SIGTERM)


async def kills(plan: Plan, findings: Findings) -> None:
    """SIGKILL to the server that has more to do, which is started again where it was."""
    await _under_load(plan, findings, signal.SIGKILL)


async def _under_load(plan: Plan, findings: Findings, number: signal.Signals) -> None:
    statuses: list[int] = []
    found_s: list[float] = []
    async with Restarted(plan.bundle) as first, Restarted(plan.bundle) as second:
        places = (first, second)
        expected = await translations(first.server.address, plan.texts)
        async with jumok.AsyncClient([place.server.address for place in places]) as client:
            load = Load(client, expected, plan.seed, streams=STREAMS if number is signal.SIGTERM else 0)
            async with load.running():
                async for place in _in_turn(places, plan.restarts, number):
                    statuses.append(await place.restart(number))
                    found_s.append(await _found(place.server))
                    progress(f"{findings.scenario}: {len(statuses)} restarts, {load.given} sentences")
                    await load.goes_on()
                await load.finish()
    wanted = 0 if number is signal.SIGTERM else -number
    what = f"exit statuses of servers that {number.name} ended under load"
    findings.expect_equal(what, statuses, [wanted] * 2 * plan.restarts)
    load.judge(findings)
    findings.expect_below("longest until one that is back is called, s", max(found_s), FOUND_S)


async def _in_turn(places: Sequence[Restarted], times: int, number: signal.Signals) -> AsyncIterator[Restarted]:
    """Choose the next server: in turn, or to kill, the one that decodes more."""
    for count in range(len(places) * times):
        if number is signal.SIGTERM:
            yield places[count % len(places)]
        else:
            rows = [(await metrics(place.server)).sum("jumok_rows") for place in places]
            yield places[rows.index(max(rows))]


async def _found(server: Server) -> float:
    """Seconds until a server has translated something."""
    began = time.monotonic()
    while time.monotonic() - began < FOUND_S:
        if (await metrics(server)).sum("jumok_translated_texts_total"):
            break
        await asyncio.sleep(0.1)
    return time.monotonic() - began


# A rolling update

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
    what = "exit statuses of servers replaced by others at new addresses, under load"
    findings.expect_equal(what, statuses, [0] * SERVERS * plan.restarts)
    load.judge(findings)


# Silence

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
