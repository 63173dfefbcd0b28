"""Five times as many calls as a server can answer, and what becomes of those that it does answer."""

import asyncio
import itertools
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import grpc

import jumok
from fault_scenarios.findings import Findings, Plan
from fault_scenarios.servers import Metrics, is_healthy, jumok_serve, metrics
from jumok_proto.v1.translation_pb2 import TranslateTextRequest, TranslateTextResponse
from jumok_proto.v1.translation_pb2_grpc import TranslationServiceStub
from serving.process import Server
from tell import progress

Translate = Callable[..., Awaitable[TranslateTextResponse]]

SENTENCES = 64
"""Of a call, as a page has. Refusing costs as much whatever a call has, and clients share the cores here: with small
calls, what is refused costs more than what is translated."""
OUTSTANDING = 4
"""Calls at a time that a server is loaded with to find the most that it can do."""
BEST_S, WARM_S = 15.0, 5.0
TIMES = 5
DEADLINE_S = 5.0
REFUSED_WITHIN_S, PERCENT = 0.02, 99
USEFUL = 0.9
GROWTH_MIB = 128
NORMAL_WITHIN_S = 2.0
SLOWER = 3.0
"""A call alone that takes so many times as long as before is not yet answered as normal."""


@dataclass
class Offered:
    """What became of calls that were made regardless of answers, as the caller saw it.

    Attributes:
        answered_at: when translations came, in seconds from the first call.
        refused_s: how long it took to be refused.
        late: calls whose deadline passed.
        others: errors of any other kind.
    """

    answered_at: list[float] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)
    late: int = 0
    others: list[grpc.RpcError] = field(default_factory=list)


async def overload(plan: Plan, findings: Findings) -> None:
    """Five times as much as it can translate, with a deadline for each call; its queue holds a second's work."""
    async with jumok_serve(plan.bundle) as server:
        best = await most(server, plan)
    queue = max(1, math.ceil(best))
    async with jumok_serve(plan.bundle, "--max-queue-requests", str(queue)) as server:
        await most(server, plan)  # which warms it up
        before_mib, alone_s = server.peak_rss_mib(), await _alone_s(server, plan)
        progress(f"overload: {best:.1f} sentences a second at best; now {TIMES * best:.0f}")
        before = await metrics(server)
        offered = await _offer(server, plan, TIMES * best)
        back_s = await _seconds_until_normal(server, plan, alone_s)
        after = await metrics(server)
        peak_mib, healthy = server.peak_rss_mib(), await is_healthy(server.address)
    useful = SENTENCES * len([at for at in offered.answered_at if at >= WARM_S]) / (plan.overload_s - WARM_S)
    refusals = _difference(before, after, reason="OVERLOADED")
    calls = len(offered.answered_at) + len(offered.refused_s) + offered.late + len(offered.others)
    findings.tell("most that it can do, sentences a second", f"{best:.1f}")
    findings.tell(f"calls of {SENTENCES} sentences in {plan.overload_s:g} s of overload", calls)
    findings.expect("of these refused", len(offered.refused_s), "more than half", 2 * len(offered.refused_s) > calls)
    findings.tell("of these past their deadline", offered.late)
    findings.expect_none("of these that failed otherwise", offered.others)
    findings.expect(
        "translations a second, in parts of the most",
        f"{useful / best:.2f}",
        f">= {USEFUL:g}",
        useful >= USEFUL * best,
    )
    share = refusals.get(REFUSED_WITHIN_S, 0.0) / max(1.0, refusals.get(math.inf, 0.0))
    findings.expect(
        f"refusals within {1e3 * REFUSED_WITHIN_S:g} ms, by the server, %",
        f"{100 * share:.2f}",
        f">= {PERCENT}",
        100 * share >= PERCENT,
    )
    slowest = sorted(offered.refused_s)[PERCENT * len(offered.refused_s) // 100] if offered.refused_s else math.nan
    findings.tell(f"{PERCENT} % of refusals within, by the client, ms", f"{1e3 * slowest:.1f}")
    findings.expect(
        "memory at its peak above that before, MiB",
        f"{peak_mib - before_mib:.0f}",
        f"< {GROWTH_MIB}",
        peak_mib - before_mib < GROWTH_MIB,
    )
    findings.expect(
        "normal service after, s", f"{back_s:.2f}", f"< {NORMAL_WITHIN_S:g}", back_s < NORMAL_WITHIN_S and healthy
    )
    findings.data |= {
        "best_per_s": best,
        "useful_per_s": useful,
        "sentences_a_call": SENTENCES,
        "calls": calls,
        "refused": len(offered.refused_s),
        "late": offered.late,
        "refusals_up_to_s": {str(bound): number for bound, number in refusals.items()},
        "refusals_client_p99_s": slowest,
        "peak_growth_mib": peak_mib - before_mib,
        "normal_after_s": back_s,
    }


async def most(server: Server, plan: Plan) -> float:
    """Sentences a second with a number of calls outstanding, after a while."""
    paragraphs, random_ = _paragraphs(plan), random.Random(plan.seed)  # texts as long as those of the overload
    answered: list[float] = []

    async def ask(client: jumok.AsyncClient) -> None:
        while True:
            await client.translate(random_.choice(paragraphs))
            answered.append(time.monotonic())

    async with jumok.AsyncClient(server.address, timeout_s=600) as client:
        asking = [asyncio.create_task(ask(client)) for _ in range(OUTSTANDING)]
        try:
            await asyncio.sleep(WARM_S)
            since = time.monotonic()
            await asyncio.sleep(BEST_S)
            until = time.monotonic()
        finally:
            for task in asking:
                task.cancel()
            for outcome in await asyncio.gather(*asking, return_exceptions=True):
                if isinstance(outcome, Exception):
                    raise outcome
    return SENTENCES * sum(since <= at < until for at in answered) / (until - since)


def _paragraphs(plan: Plan) -> list[list[str]]:
    """The texts in different company."""
    return [plan.texts[first : first + SENTENCES] for first in range(len(plan.texts) - SENTENCES)]


async def _offer(server: Server, plan: Plan, per_s: float) -> Offered:
    """Make calls at random moments, so many sentences a second, whatever becomes of those before."""
    found = Offered()
    random_ = random.Random(plan.seed)
    began = time.monotonic()
    calls: set[asyncio.Task[None]] = set()
    requests = [TranslateTextRequest(contents=paragraph) for paragraph in _paragraphs(plan)]

    async def call(translate: Translate, request: TranslateTextRequest) -> None:
        started = time.monotonic()
        try:
            await translate(request, timeout=DEADLINE_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                found.refused_s.append(time.monotonic() - started)
            elif error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                found.late += 1
            else:
                found.others.append(error)
        else:
            found.answered_at.append(time.monotonic() - began)

    # Without the SDK: clients share the cores, and what they take of them is no matter of the server's.
    async with grpc.aio.insecure_channel(server.address) as channel:
        translate = TranslationServiceStub(channel).TranslateText
        due = began
        while due < began + plan.overload_s:
            due += random_.expovariate(per_s / SENTENCES)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            task = asyncio.create_task(call(translate, random_.choice(requests)))
            calls.add(task)
            task.add_done_callback(calls.discard)
        for task in calls:  # nobody waits for these any more
            task.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    return found


async def _alone_s(server: Server, plan: Plan) -> float:
    """How long a call takes when there is no other: the longest of several."""
    async with jumok.AsyncClient(server.address, timeout_s=600) as client:
        return max([await _seconds(client, paragraph) for paragraph in _paragraphs(plan)[:20]])


async def _seconds(client: jumok.AsyncClient, paragraph: list[str]) -> float:
    began = time.monotonic()
    await client.translate(paragraph)
    return time.monotonic() - began


async def _seconds_until_normal(server: Server, plan: Plan, alone_s: float) -> float:
    """When the first call is made that is answered as fast as before; the next ones are too."""
    began = time.monotonic()
    async with jumok.AsyncClient(server.address, timeout_s=600) as client:
        for paragraph in itertools.cycle(_paragraphs(plan)):
            at = time.monotonic()
            took = [await _seconds(client, paragraph) for _ in range(3)]
            if max(took) <= SLOWER * alone_s:
                return at - began
    raise AssertionError("the texts never end")


def _difference(before: Metrics, after: Metrics, **labels: str) -> Mapping[float, float]:
    """What has come to the buckets of the refusals meanwhile."""
    name = "jumok_rejection_duration_seconds"
    earlier = before.buckets(name, **labels)
    return {bound: number - earlier.get(bound, 0.0) for bound, number in after.buckets(name, **labels).items()}
