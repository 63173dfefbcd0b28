"""A closed loop of requests: a fixed number is always outstanding.

After each answer the next request is sent.

The measured time starts and ends with an answer, while the load is steady: as many answers as outstanding requests come
before it, and nothing is awaited after it.
"""

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import jumok
from benchmarks.common.processes import Server
from jumok_proto.options import Options
from jumok_serve import Translator
from jumok_serve.search.options import DecodingOptions
from jumok_serve.tasks.model import TranslationParameters

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
class _Moment:
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

    def now() -> _Moment:
        return _Moment(time.perf_counter(), server.cpu_s(), time.process_time())

    async def ask(client: jumok.AsyncClient, waiting: Iterator[str]) -> None:
        nonlocal first, last
        for text in waiting:
            latencies.append(await _ask(client, text, decoding))
            if len(latencies) == outstanding:
                first = now()
            if len(latencies) == outstanding + sentences:
                last = now()
                enough.set()

    async with jumok.AsyncClient(server.address, timeout_s=TIMEOUT_S) as client:
        waiting = itertools.cycle(texts)  # they all take from
        asking = [asyncio.create_task(ask(client, waiting)) for _ in range(outstanding)]
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
        await _ask(client, texts[0], decoding)
    assert first is not None
    assert last is not None
    return Measured(
        latencies_s=latencies[outstanding : outstanding + sentences],
        sentences=sentences,
        wall_s=last.wall_s - first.wall_s,
        cpu_s=last.cpu_s - first.cpu_s,
        client_cpu_s=last.client_cpu_s - first.client_cpu_s,
    )


def latencies_after(server: Server, text: str, decoding: Decoding, rests_s: Sequence[float]) -> list[float]:
    """Return the latencies of calls after these rests, in seconds."""

    async def call_all() -> list[float]:
        latencies = []
        async with jumok.AsyncClient(server.address, timeout_s=TIMEOUT_S) as client:
            await _ask(client, text, decoding)  # connects
            for rest_s in rests_s:
                await asyncio.sleep(rest_s)
                latencies.append(await _ask(client, text, decoding))
        return latencies

    return asyncio.run(call_all())


async def _ask(client: jumok.AsyncClient, text: str, decoding: Decoding) -> float:
    """Translate a text; returns the seconds that the call took."""
    source_language, target_language = decoding.languages or (None, None)
    began = time.perf_counter()
    await client.translate(text, source_language=source_language, target_language=target_language, **decoding.options)
    return time.perf_counter() - began


def offline(
    translator: Translator, texts: Sequence[str], decoding: Decoding, *, beside: int, sentences: int
) -> Measured:
    """Decode all texts in this process, with one request each.

    The sentences and their order are those of the server's measurement.

    One request with all texts would be decoded in another order. The time counts from the first to the last measured
    sentence; sentences after these keep the batch full. The time to tokenize and to detokenize counts for as many
    sentences, as in a server.

    Args:
        translator: the engine.
        texts: texts to translate, repeated as needed.
        decoding: decoding options.
        beside: number of sentences before the measured ones, and again after them.
        sentences: number of measured sentences.
    """
    moments: list[_Moment] = []
    over = threading.Event()

    def note(_: object) -> None:
        cpu_s = time.process_time()
        moments.append(_Moment(time.perf_counter(), cpu_s, cpu_s))
        if len(moments) == len(futures):
            over.set()

    submitted = list(itertools.islice(itertools.cycle(texts), sentences + 2 * beside))
    began = time.thread_time()
    parameters = TranslationParameters(options=DecodingOptions(**decoding.options))
    requests = [translator.submit([text], parameters) for text in submitted]
    around_s = time.thread_time() - began
    futures = [future for request in requests for future in request.futures]
    for future in futures:
        future.add_done_callback(note)
    over.wait()
    began = time.thread_time()
    for request in requests:
        request.collect()
    around_s += time.thread_time() - began
    first, last = moments[beside - 1], moments[beside + sentences - 1]
    return Measured(
        latencies_s=(),
        sentences=sentences,
        wall_s=last.wall_s - first.wall_s,
        cpu_s=last.cpu_s - first.cpu_s + around_s * sentences / len(submitted),
        client_cpu_s=0.0,
    )
