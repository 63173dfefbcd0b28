"""A closed loop of requests: a fixed number is always outstanding.

After each answer the next request is sent.

The measured time starts and ends with an answer, while the load is steady: as many answers as outstanding requests come
before it, and nothing is awaited after it.
"""

import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import jumok
from benchmarks.common.processes import Server
from jumok_proto.options import Options

TIMEOUT_S = 1200.0
"""Timeout of a request: a server that decodes one sentence after another makes the last one wait."""


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """Decoding options of every contender.

    As in CTranslate2, the first K finished hypotheses are final.

    Attributes:
        languages: source and target language; None: the model's.
    """

    beam_size: int
    max_length: int
    languages: tuple[str, str] | None = None

    @property
    def options(self) -> Options:
        """The options for jumok."""
        return {
            "beam_size": self.beam_size,
            "max_length": self.max_length,
            "early_stopping": True,
            "length_penalty": 1.0,
        }


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One contender in one round.

    Attributes:
        latencies_s: latencies of the answers within the measured time; none for an engine without a server.
        sentences: number of sentences.
        wall_s: measured time.
        cpu_s: processor time of the contender within it.
        client_cpu_s: processor time of the clients within it.
    """

    latencies_s: Sequence[float]
    sentences: int
    wall_s: float
    cpu_s: float
    client_cpu_s: float


@dataclass(frozen=True, slots=True)
class Moment:
    """Clocks at one moment."""

    wall_s: float
    cpu_s: float
    client_cpu_s: float


async def load(
    server: Server, texts: Sequence[str], decoding: Decoding, *, outstanding: int, sentences: int
) -> Measured:
    """Keep requests of one text each outstanding, over one connection, until enough are measured.

    Args:
        server: server under load.
        texts: texts, used over and over.
        decoding: decoding options.
        outstanding: outstanding requests.
        sentences: sentences to measure.
    """
    latencies: list[float] = []
    first = last = None
    enough = asyncio.Event()

    def now() -> Moment:
        return Moment(time.perf_counter(), server.cpu_s(), time.process_time())

    async def ask_on(client: jumok.AsyncClient, waiting: Iterator[str]) -> None:
        nonlocal first, last
        for text in waiting:
            latencies.append(await ask(client, text, decoding))
            if len(latencies) == outstanding:
                first = now()
            if len(latencies) == outstanding + sentences:
                last = now()
                enough.set()

    async with jumok.AsyncClient(server.address, timeout_s=TIMEOUT_S) as client:
        waiting = itertools.cycle(texts)  # they all take from
        asking = [asyncio.create_task(ask_on(client, waiting)) for _ in range(outstanding)]
        ended = asyncio.create_task(enough.wait())
        try:
            await asyncio.wait((*asking, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*asking, ended):
                task.cancel()
            outcomes = await asyncio.gather(*asking, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        # The server first ends its work for cancelled calls, then answers this one.
        await ask(client, texts[0], decoding)
    assert first is not None
    assert last is not None
    return Measured(
        latencies_s=latencies[outstanding : outstanding + sentences],
        sentences=sentences,
        wall_s=last.wall_s - first.wall_s,
        cpu_s=last.cpu_s - first.cpu_s,
        client_cpu_s=last.client_cpu_s - first.client_cpu_s,
    )


async def ask(client: jumok.AsyncClient, text: str, decoding: Decoding) -> float:
    """Translate a text; returns the seconds that the call took."""
    source_language, target_language = decoding.languages or (None, None)
    began = time.perf_counter()
    await client.translate(
        text,
        source_language=source_language,
        target_language=target_language,
        placeholders=False,  # as its peers
        **decoding.options,
    )
    return time.perf_counter() - began
