"""A server under full load for a long time: whether its memory grows, and whether anything fails by itself."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import jumok
from benchmarks.common.processes import Server
from benchmarks.common.progress import progress
from tests.faults.scenarios.swaps import VERSIONS, Swapper, model_name, model_root
from tests.faults.tools.findings import Findings, Plan
from tests.faults.tools.servers import expect_well, jumok_serve
from tests.faults.tools.slope import BLOCKS, slope

CALLERS, STREAMS, ITERATIONS = 32, 4, 2
BEAMS = (1, 2, 5)
GIVEN_UP, LATE = 0.2, 0.1
"""Shares of calls that are cancelled, and that have a deadline they cannot keep."""
SWAP_S, SAMPLE_S = 20.0, 1.0
SETTLES_S = 300.0
"""Before the slope is taken; a quarter of a soak that is shorter than four times that."""
GROWTH = 1.0
"""MiB per minute."""
IDLE_WITHIN_S = 30.0


class Callers:
    """Make calls of all kinds over and over, and cancel some.

    Args:
        client: that they share.
        plan: what they translate.
        model: that they ask.
    """

    def __init__(self, client: jumok.AsyncClient, plan: Plan, model: str) -> None:
        self._client = client
        self._texts = plan.texts
        self._random = random.Random(plan.seed)
        self._model = model
        self.ended: Counter[str] = Counter()
        self.errors: list[BaseException] = []

    async def run(self) -> None:
        """Go on until this is cancelled."""
        kinds = [self._call] * CALLERS + [self._stream] * STREAMS + [self._iterate] * ITERATIONS
        await asyncio.gather(*map(self._repeat, kinds))

    async def _repeat(self, call: Callable[[float], Awaitable[None]]) -> None:
        while True:
            late = self._random.random() < LATE
            task = asyncio.ensure_future(call(0.02 if late else 300.0))
            try:
                if self._random.random() < GIVEN_UP:
                    await asyncio.wait({task}, timeout=self._random.uniform(0, 1))
                    task.cancel()
                await asyncio.wait({task})
            finally:
                task.cancel()
            if task.cancelled():
                self.ended["cancelled"] += 1
            elif isinstance(error := task.exception(), jumok.DeadlineExceededError) and late:
                self.ended["late"] += 1
            elif error is not None:
                self.errors.append(error)
                await asyncio.sleep(0.1)  # so that a server that is gone does not fill memory with errors
            else:
                self.ended["answered"] += 1

    def _some(self, most: int) -> list[str]:
        return self._random.sample(self._texts, self._random.randint(1, most))

    async def _call(self, timeout_s: float) -> None:
        beam = self._random.choice(BEAMS)
        await self._client.translate(self._some(4), model=self._model, timeout_s=timeout_s, beam_size=beam)

    async def _stream(self, timeout_s: float) -> None:
        updates = self._client.translate_stream(self._some(1)[0], model=self._model, timeout_s=timeout_s)
        async with aclosing(updates):
            async for _ in updates:
                pass

    async def _iterate(self, timeout_s: float) -> None:
        results = self._client.translate_iter(self._some(300), model=self._model, timeout_s=timeout_s)
        async with aclosing(results):
            async for result in results:
                if result.error is not None:
                    raise result.error


async def soak(plan: Plan, findings: Findings) -> None:
    """All cores busy with calls of all kinds, some given up, and models replaced; memory is to stop growing."""
    settles_s = min(SETTLES_S, plan.soak_s / 4)
    times_s: list[float] = []
    rss_mib: list[float] = []
    with model_root(plan) as root:
        first = root / VERSIONS[0]
        async with jumok_serve(first, "--model-root", root) as server:
            swapper = Swapper(server)
            async with jumok.AsyncClient(server.address) as client:
                callers = Callers(client, plan, model_name(first))
                calling, swapping = (asyncio.create_task(work) for work in (callers.run(), _swap(swapper)))
                busy = _cores(server)
                try:
                    began = time.monotonic()
                    while (now := time.monotonic() - began) < plan.soak_s and not (calling.done() or swapping.done()):
                        times_s.append(now)
                        rss_mib.append(server.rss_mib())
                        if len(times_s) % 60 == 0:
                            progress(f"soak: {now:.0f} s, {rss_mib[-1]:.0f} MiB, {callers.ended.total()} calls")
                        await asyncio.sleep(SAMPLE_S)
                    cores = busy()
                finally:
                    for task in (calling, swapping):
                        task.cancel()
                    ends = await asyncio.gather(calling, swapping, return_exceptions=True)
            failures = [*callers.errors, *(end for end in ends if isinstance(end, Exception))]
            await expect_well(findings, server, IDLE_WITHIN_S)
    counted = [(at, mib) for at, mib in zip(times_s, rss_mib, strict=True) if at >= settles_s]
    found = slope([at for at, _ in counted], [mib for _, mib in counted])
    findings.tell("time, s", f"{plan.soak_s:g} ({settles_s:g} to settle)")
    findings.tell("processor cores that the server used", f"{cores:.2f}")
    findings.tell("calls", ", ".join(f"{number} {how}" for how, number in callers.ended.most_common()))
    findings.tell("models replaced", swapper.swaps)
    findings.expect_none("errors that the caller did not cause", failures)
    findings.tell("memory after settling, and at the end, MiB", f"{counted[0][1]:.0f}, {counted[-1][1]:.0f}")
    findings.expect(
        "growth of memory, MiB per minute (95 %)",
        f"{found.per_minute:+.2f} ({found.low:+.2f} to {found.high:+.2f})",
        f"0 within, or less than {GROWTH:g}",
        found.low <= 0 <= found.high or found.high < GROWTH,
    )
    findings.tell(f"correlation of neighbours among {BLOCKS} blocks", f"{found.correlation:+.2f}")


async def _swap(swapper: Swapper) -> None:
    while True:
        await asyncio.sleep(SWAP_S)
        await swapper.swap()


def _cores(server: Server) -> Callable[[], float]:
    """Gives how many cores the server has used on average since then."""
    cpu_s, wall_s = server.cpu_s(), time.monotonic()
    return lambda: (server.cpu_s() - cpu_s) / (time.monotonic() - wall_s)
