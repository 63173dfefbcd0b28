"""Callers who vanish, and callers who do not read what they are sent."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator

import grpc

from benchmarks.common.processes import Server
from benchmarks.common.progress import progress
from jumok_proto.v1.decoding_pb2 import DecodingOptions
from jumok_proto.v1.translation_pb2 import CorpusItem, CorpusSettings, TranslateCorpusRequest
from jumok_proto.v1.translation_pb2_grpc import TranslationServiceStub
from tests.faults.scenarios.network import Bystander
from tests.faults.tools.findings import Findings, Plan
from tests.faults.tools.servers import expect_well, jumok_serve, metrics, seconds_until_idle

CALLERS = {
    "translate": "while True: client.translate(texts * 4, beam_size=8)",
    "translate_stream": "while True: [None for _ in client.translate_stream(texts[0], beam_size=8, min_length=60)]",
    "translate_iter": "[None for _ in client.translate_iter(itertools.cycle(texts), window=512, beam_size=8)]",
}
"""Programs that each keep a server busy in another way."""
PROGRAM = "import itertools, jumok, sys\ntexts = sys.argv[2:]\nwith jumok.Client(sys.argv[1]) as client:\n    "
BUSY_WITHIN_S, IDLE_WITHIN_S = 120.0, 5.0

ITEMS, WINDOW = 1500, 64
STILL_S = 3.0
"""For so long nothing more is translated before a server counts as waiting for its reader."""
GROWTH_MIB = 128


async def killed_callers(plan: Plan, findings: Findings) -> None:
    """SIGKILL to clients in the middle of each kind of call; their rows are to be free soon after."""
    async with jumok_serve(plan.bundle) as server:
        for name, work in CALLERS.items():
            command = [sys.executable, "-c", PROGRAM + work, server.address, *plan.texts[:8]]
            caller = await asyncio.create_subprocess_exec(*command, stderr=subprocess.DEVNULL)
            try:
                busy = await _busy(server)
            finally:
                caller.kill()
                await caller.wait()
            took_s = await seconds_until_idle(server, IDLE_WITHIN_S) if busy else None
            findings.expect_below(f"until the rows of a killed {name} are free, s", took_s, IDLE_WITHIN_S)
            progress(f"caller: {name} was killed")
        await expect_well(findings, server)


async def _busy(server: Server) -> bool:
    """Wait until rows are decoded."""
    until = time.monotonic() + BUSY_WITHIN_S
    while time.monotonic() < until:
        if (await metrics(server)).sum("jumok_rows"):
            return True
        await asyncio.sleep(0.05)
    return False


async def slow_reader(plan: Plan, findings: Findings) -> None:
    """A caller who sends a corpus with large answers and reads none, for a while; then it reads all."""
    async with jumok_serve(plan.bundle) as server:
        bystander = Bystander(server, plan.texts)
        async with bystander.translating(5):
            before_mib = server.rss_mib()
            async with grpc.aio.insecure_channel(server.address) as channel:
                call = TranslationServiceStub(channel).TranslateCorpus(_items(plan))
                stopped_at = await _stops(server, bystander)
                progress(f"reader: the server waits, {stopped_at} of {ITEMS} items translated")
                findings.expect_below("items translated and not read", stopped_at, ITEMS, "d")
                findings.expect_below("memory more then, MiB", server.rss_mib() - before_mib, GROWTH_MIB, ".0f")
                findings.expect_more("translations of another client meanwhile", bystander.answered, 5)
                ids: list[int] = []
                async for response in call:
                    ids += [result.id for result in response.results if result.HasField("translation")]
        await expect_well(findings, server, IDLE_WITHIN_S)
    findings.expect_none("of these that failed", bystander.errors)
    findings.expect("answers read in the end, in order", len(ids), str(ITEMS), ids == list(range(ITEMS)))


async def _items(plan: Plan) -> AsyncIterator[TranslateCorpusRequest]:
    options = DecodingOptions(beam_size=8, num_hypotheses=8)
    yield TranslateCorpusRequest(settings=CorpusSettings(options=options, attention=True, window=WINDOW))
    for number in range(ITEMS):
        yield TranslateCorpusRequest(items=[CorpusItem(id=number, content=plan.texts[number % len(plan.texts)])])


async def _stops(server: Server, bystander: Bystander) -> int:
    """Wait until no more items are translated, be it all of them; gives how many were."""
    seen, since = -1, time.monotonic()
    while time.monotonic() - since < STILL_S:
        others = bystander.answered
        told = await metrics(server)
        items = int(told.sum("jumok_translated_texts_total")) - others
        if items > seen + 1:  # the bystander's next may be among them
            seen, since = items, time.monotonic()
        await asyncio.sleep(0.1)
    return seen
