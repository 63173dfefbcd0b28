"""Two servers under constant load: restarted one after the other, and killed."""

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Self

import jumok
from benchmarks.common.processes import Server
from benchmarks.common.progress import progress
from tests.faults.tools.findings import Findings, Plan
from tests.faults.tools.servers import Restarted, metrics

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
    findings.expect(
        f"servers ended with {number.name} under load",
        len(statuses),
        f"each with exit status {wanted}",
        statuses == [wanted] * 2 * plan.restarts,
    )
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
