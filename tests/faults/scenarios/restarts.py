"""Two servers under constant load: restarted one after the other, and killed."""

import asyncio
import itertools
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence

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
        self.read = 0
        self.given = 0
        self.calls = 0
        self.streams = 0
        self.wrong: list[str] = []
        self.out_of_order: list[str] = []
        self.errors: list[BaseException] = []
        self.longest_pause_s = 0.0

    def stop(self) -> None:
        """Read no more texts; what was read is translated."""
        self._stopping = True

    async def run(self) -> None:
        """Go on until ``stop``."""
        await asyncio.gather(
            *(self._watch(self._iterate(number)) for number in range(ITERATIONS)),
            *(self._watch(self._call(number)) for number in range(CALLERS)),
            *(self._watch(self._stream(number)) for number in range(self._streams)),
        )

    async def goes_on(self, running: "asyncio.Task[None]") -> None:
        """Wait until more is translated, or the load has failed."""
        enough = self.given + BETWEEN
        while self.given < enough and not running.done():
            await asyncio.sleep(0.05)

    def judge(self, findings: Findings) -> None:
        """Tell what was seen, and hold it against what had to be."""
        findings.tell("sentences that were iterated over", self.read)
        findings.expect("of these lost or given twice", abs(self.read - self.given), "0", self.read == self.given)
        findings.expect_none("of these out of order", self.out_of_order)
        findings.expect("calls of one sentence beside them", self.calls, "more than 0", self.calls > 0)
        if self._streams:
            findings.expect("streams beside them", self.streams, "more than 0", self.streams > 0)
        findings.expect_none("translations that differ from those before", self.wrong)
        findings.expect_none("errors that the caller saw", self.errors)
        findings.tell("longest time without a result, s", f"{self.longest_pause_s:.2f}")

    async def _watch(self, work: Awaitable[None]) -> None:
        try:
            await work
        except jumok.JumokError as error:
            self.errors.append(error)

    def _texts(self, number: int) -> Iterator[str]:
        """Texts in an order of their own; each is read once."""
        random_ = random.Random(f"{self._seed}.{number}")
        texts = list(self._expected)
        while not self._stopping:
            self.read += 1
            yield random_.choice(texts)

    async def _iterate(self, number: int) -> None:
        last = time.monotonic()
        sent: list[str] = []

        def noted() -> Iterator[str]:
            for text in self._texts(number):
                sent.append(text)
                yield text

        counted = itertools.count()
        async for result in self._client.translate_iter(noted(), window=WINDOW, model=self._model):
            now = time.monotonic()
            self.longest_pause_s = max(self.longest_pause_s, now - last)
            last = now
            index = next(counted)
            self.given += 1
            if result.index != index or result.text != sent[index]:
                self.out_of_order.append(f"result {result.index} of {result.text!r} came as number {index}")
            elif result.error is not None:
                self.errors.append(result.error)
            else:
                self._compare(result.text, result.translation.text)

    async def _call(self, number: int) -> None:
        random_ = random.Random(f"{self._seed}.call.{number}")
        texts = list(self._expected)
        while not self._stopping:
            text = random_.choice(texts)
            try:
                translation = await self._client.translate(text, model=self._model)
            except jumok.JumokError as error:
                self.errors.append(error)
                continue
            self.calls += 1
            self._compare(text, translation.text)

    async def _stream(self, number: int) -> None:
        random_ = random.Random(f"{self._seed}.stream.{number}")
        texts = list(self._expected)
        while not self._stopping:
            text = random_.choice(texts)
            try:
                updates = [update async for update in self._client.translate_stream(text, model=self._model)]
            except jumok.JumokError as error:
                self.errors.append(error)
                continue
            self.streams += 1
            last = updates[-1].translation
            self._compare(text, "" if last is None else last.text)

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
            running = asyncio.create_task(load.run())
            try:
                await load.goes_on(running)
                async for place in _in_turn(places, plan.restarts, number):
                    statuses.append(await place.restart(number))
                    found_s.append(await _found(place.server))
                    progress(f"{findings.scenario}: {len(statuses)} restarts, {load.given} sentences")
                    await load.goes_on(running)
                load.stop()
                await running
            finally:
                running.cancel()
    wanted = 0 if number is signal.SIGTERM else -number
    findings.expect(
        f"servers ended with {number.name} under load",
        len(statuses),
        f"each with exit status {wanted}",
        statuses == [wanted] * 2 * plan.restarts,
    )
    load.judge(findings)
    findings.expect(
        "longest until one that is back is called, s", f"{max(found_s):.1f}", f"< {FOUND_S:g}", max(found_s) < FOUND_S
    )


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
