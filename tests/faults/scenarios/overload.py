"""Five times as many calls as a server can answer, and what becomes of those that it does answer."""

import asyncio
import itertools
import math
import os
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc

import jumok
from benchmarks.common.processes import Server, serving
from benchmarks.common.progress import progress
from jumok_proto.v1.translation_pb2 import TranslateTextRequest
from tests.faults.tools.findings import Findings, Plan
from tests.faults.tools.light_calls import DEADLINE_EXCEEDED, OK, RESOURCE_EXHAUSTED, LightCalls
from tests.faults.tools.servers import Metrics, is_healthy, jumok_serve, metrics

OUTSTANDING = 256
"""Sentences at a time that a server is loaded with to find the most that it can do, in `LEAST_CALLS` at least."""
LEAST_CALLS = 4
BEST_S, WARM_S, FLOOR_S = 10.0, 5.0, 5.0
PAUSE_S = 0.1
TIMES = 5
DEADLINE_S, PATIENCE_S = 5.0, 600.0
REFUSED_WITHIN_S, PERCENT = 0.02, 99
USEFUL = 0.9
NOTICED = 0.1
"""Share of the cores for refusals alone; more is taken off the goal."""
GROWTH_MIB = 128
NORMAL_WITHIN_S = 2.0
SLOWER = 3.0
"""Slowdown of a single call up to which the server counts as recovered."""
CORES = len(os.sched_getaffinity(0))
_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}


@dataclass
class Offered:
    """Outcomes of open-loop calls, as the caller saw them.

    Attributes:
        answered_at: when translations came, in seconds from the first call.
        refused_s: how long it took to be refused.
        late: calls whose deadline passed.
        others: statuses of any other kind.
    """

    answered_at: list[float] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)
    late: int = 0
    others: Counter[str] = field(default_factory=Counter)

    @property
    def calls(self) -> int:
        """All that have ended."""
        return len(self.answered_at) + len(self.refused_s) + self.late + self.others.total()


@dataclass(frozen=True)
class Floor:
    """Least core seconds of a refusal: a bare server's share and the clients' share."""

    server_s: float
    client_s: float

    def left(self, refusals_per_s: float) -> float:
        """Share of this machine that a number of refusals leaves."""
        return max(0.0, 1 - refusals_per_s * (self.server_s + self.client_s) / CORES)


async def overload(plan: Plan, findings: Findings) -> None:
    """Five times as much as it can translate, with a deadline for each call; its queue holds a second's work."""
    for sentences in plan.sentences_a_call:
        await _overload(plan, plan.overloaded or plan.bundle, findings, sentences)


async def _overload(plan: Plan, bundle: Path, findings: Findings, sentences: int) -> None:
    """The same in calls of one size."""
    async with jumok_serve(bundle) as server:
        best = await most(server, plan, sentences)
    found = replace(findings, label=f"calls of {sentences}: ")
    found.expect_more("most that it can do, sentences per second", round(best, 1), 0)
    if not best:  # no call was answered within `BEST_S`
        return
    queue = max(sentences, math.ceil(best))
    async with jumok_serve(bundle, "--max-queue-requests", str(queue)) as server:
        await most(server, plan, sentences, measured_s=1.0)  # which warms it up
        before_mib, alone_s = server.peak_rss_mib(), await _alone_s(server, plan, sentences)
        progress(f"overload in calls of {sentences}: {best:.1f} sentences per second at best; now {TIMES * best:.0f}")
        before = await metrics(server)
        offered = await _offer(server, plan, sentences, TIMES * best, plan.overload_s)
        back_s = await _seconds_until_normal(server, plan, sentences, alone_s)
        after = await metrics(server)
        peak_mib, healthy = server.peak_rss_mib(), await is_healthy(server.address)
    refused_per_s = len(offered.refused_s) / plan.overload_s
    floor = await _floor(plan, sentences, refused_per_s)
    left = floor.left(refused_per_s)
    goal = USEFUL if left >= 1 - NOTICED else USEFUL * left
    warm_s = min(WARM_S, plan.overload_s / 2)
    useful = sentences * len([at for at in offered.answered_at if at >= warm_s]) / (plan.overload_s - warm_s)
    refusals = _difference(before, after, reason="OVERLOADED")
    share = refusals.get(REFUSED_WITHIN_S, 0.0) / max(1.0, refusals.get(math.inf, 0.0))
    slowest = sorted(offered.refused_s)[PERCENT * len(offered.refused_s) // 100] if offered.refused_s else math.nan
    found.tell(f"calls in {plan.overload_s:g} s of overload", offered.calls)
    found.expect_more("of these refused", len(offered.refused_s), offered.calls / 2)
    found.tell("of these past their deadline", offered.late)
    found.expect_none("of these that failed otherwise", list(offered.others.elements()))
    told = f"{1e3 * floor.server_s:.2f} + {1e3 * floor.client_s:.2f}"
    found.tell("a refusal at the least, ms of a core, in a bare server and in clients here", told)
    found.tell("what such refusals leave of the machine", f"{left:.2f}")
    found.tell("translations a second, in parts of the most that is left so", f"{useful / best / max(left, 1e-9):.2f}")
    found.expect_at_least("translations a second, in parts of the most", useful / best, goal)
    found.expect_at_least(f"refusals within {1e3 * REFUSED_WITHIN_S:g} ms, by the server, %", 100 * share, PERCENT)
    found.tell(f"{PERCENT} % of refusals within, by the client, ms", f"{1e3 * slowest:.1f}")
    found.expect_below("memory at its peak above that before, MiB", peak_mib - before_mib, GROWTH_MIB, ".0f")
    found.expect_below("normal service after, s", back_s if healthy else None, NORMAL_WITHIN_S)


async def most(server: Server, plan: Plan, sentences: int, measured_s: float = BEST_S) -> float:
    """Sentences per second with a number of calls outstanding, after a while."""
    requests, random_ = _requests(plan, sentences), random.Random(plan.seed)
    answered: list[float] = []

    async def ask(calls: LightCalls) -> None:
        while True:
            status = await calls.ask(random_.choice(requests))
            if status == OK:
                answered.append(time.monotonic())
            elif status == RESOURCE_EXHAUSTED:  # a small queue is full
                await asyncio.sleep(PAUSE_S)
            else:
                raise RuntimeError(f"a call ended with {_NAMES[status]} although no call has a deadline")

    async with await LightCalls.connect(server.address, timeout_s=PATIENCE_S) as calls:
        asking = [asyncio.create_task(ask(calls)) for _ in range(max(LEAST_CALLS, OUTSTANDING // sentences))]
        try:
            await asyncio.sleep(WARM_S)
            since = time.monotonic()
            await asyncio.sleep(measured_s)
            until = time.monotonic()
        finally:
            for task in asking:
                task.cancel()
            for outcome in await asyncio.gather(*asking, return_exceptions=True):
                if isinstance(outcome, Exception):
                    raise outcome
    return sentences * sum(since <= at < until for at in answered) / (until - since)


async def _floor(plan: Plan, sentences: int, per_s: float) -> Floor:
    """Have a server that does nothing else refuse as many of the same calls."""
    async with serving("tests.faults.tools.refusing") as server:
        await _offer(server, plan, sentences, per_s * sentences, 1.0)
        server_s, client_s = server.cpu_s(), time.process_time()
        offered = await _offer(server, plan, sentences, per_s * sentences, FLOOR_S)
        server_s, client_s = server.cpu_s() - server_s, time.process_time() - client_s
    calls = max(1, len(offered.refused_s))
    return Floor(server_s=server_s / calls, client_s=client_s / calls)


def _paragraphs(plan: Plan, sentences: int) -> list[list[str]]:
    """The texts in different company."""
    return [plan.texts[first : first + sentences] for first in range(len(plan.texts) - sentences)]


def _requests(plan: Plan, sentences: int) -> Sequence[bytes]:
    return [TranslateTextRequest(contents=texts).SerializeToString() for texts in _paragraphs(plan, sentences)]


async def _offer(server: Server, plan: Plan, sentences: int, per_s: float, seconds: float) -> Offered:
    """Make calls at random moments at a mean rate, regardless of earlier answers."""
    found = Offered()
    random_, requests = random.Random(plan.seed), _requests(plan, sentences)
    began = time.monotonic()

    def ended(status: int, took_s: float) -> None:
        if status == OK:
            found.answered_at.append(time.monotonic() - began)
        elif status == RESOURCE_EXHAUSTED:
            found.refused_s.append(took_s)
        elif status == DEADLINE_EXCEEDED:
            found.late += 1
        else:
            found.others[_NAMES[status]] += 1

    async with await LightCalls.connect(server.address, timeout_s=DEADLINE_S) as calls:
        due = began
        while due < began + seconds:
            due += random_.expovariate(per_s / sentences)
            if (early_s := due - time.monotonic()) > 0:
                await asyncio.sleep(early_s)
            calls.call(random_.choice(requests), ended)
    return found


async def _alone_s(server: Server, plan: Plan, sentences: int) -> float:
    """Measure a call without others: the longest of several, in seconds."""
    async with jumok.AsyncClient(server.address, timeout_s=600) as client:
        return max([await _seconds(client, paragraph) for paragraph in _paragraphs(plan, sentences)[:20]])


async def _seconds(client: jumok.AsyncClient, paragraph: list[str]) -> float:
    began = time.monotonic()
    await client.translate(paragraph)
    return time.monotonic() - began


async def _seconds_until_normal(server: Server, plan: Plan, sentences: int, alone_s: float) -> float:
    """When the first call is made that is answered as fast as before; the next ones are too."""
    began = time.monotonic()
    async with jumok.AsyncClient(server.address, timeout_s=600) as client:
        for paragraph in itertools.cycle(_paragraphs(plan, sentences)):
            at = time.monotonic()
            took = [await _seconds(client, paragraph) for _ in range(3)]
            if max(took) <= SLOWER * alone_s:
                return at - began
    raise AssertionError("the texts never end")


def _difference(before: Metrics, after: Metrics, **labels: str) -> Mapping[float, float]:
    """Subtract two samples of the refusal histogram."""
    name = "jumok_rejection_duration_seconds"
    earlier = before.buckets(name, **labels)
    return {bound: number - earlier.get(bound, 0.0) for bound, number in after.buckets(name, **labels).items()}
