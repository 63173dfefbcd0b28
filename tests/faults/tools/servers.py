"""``jumok serve`` in processes of its own: started, restarted where it was, and asked how it is."""

import asyncio
import re
import signal
import time
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Self

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.common.processes import Server, serving
from benchmarks.common.progress import progress
from tests.faults.tools.findings import Findings

IDLE = ("jumok_open_requests", "jumok_queue_requests", "jumok_queue_tokens", "jumok_running_sentences", "jumok_rows")
"""Metrics that are 0 where nothing is done for anybody."""
POLL_S, SAMPLE_S = 0.05, 0.02


def jumok_serve(*arguments: str | Path, within: tuple[str, ...] = ()) -> AbstractAsyncContextManager[Server]:
    """Serve with these arguments on a free port, if none is named, and tell metrics on another."""
    port = () if "--port" in arguments else ("--port", "0")
    return serving("jumok", "serve", *port, "--metrics-port", "0", *arguments, within=within)


class Restarted(AsyncExitStack):
    """A server that is ended and started again on the same port, as often as one likes.

    Args:
        arguments: of ``jumok serve``.
    """

    def __init__(self, *arguments: str | Path) -> None:
        super().__init__()
        self._arguments = arguments
        self.server: Server

    async def __aenter__(self) -> Self:
        self.server = await self.enter_async_context(jumok_serve(*self._arguments))
        return self

    async def restart(self, number: signal.Signals) -> int:
        """End it with a signal, start it again, and give the exit status that it ended with."""
        port = self.server.address.rpartition(":")[2]
        status = await self.server.end(number)
        await self.aclose()
        self.server = await self.enter_async_context(jumok_serve(*self._arguments, "--port", port))
        return status


class Metrics:
    """A scraped state of a server.

    Args:
        samples: value of every sample, by its name and its labels.
    """

    def __init__(self, samples: Mapping[tuple[str, frozenset[tuple[str, str]]], float]) -> None:
        self._samples = samples

    def sum(self, name: str, **labels: str) -> float:
        """The sum of all samples of a name that have these labels; 0 where there are none."""
        wanted = set(labels.items())
        return sum(value for (own, of), value in self._samples.items() if own == name and wanted <= of)

    def buckets(self, name: str, **labels: str) -> dict[float, float]:
        """Sum the cumulative buckets of a histogram over samples with these labels."""
        wanted = set(labels.items())
        found: dict[float, float] = {}
        for (own, of), value in self._samples.items():
            if own == f"{name}_bucket" and wanted <= of:
                bound = float(dict(of)["le"])
                found[bound] = found.get(bound, 0.0) + value
        return dict(sorted(found.items()))


async def metrics(server: Server) -> Metrics:
    """Ask a server for its metrics."""

    def read() -> str:
        with urllib.request.urlopen(f"http://{server.metrics}/metrics", timeout=60) as answer:
            return str(answer.read().decode())

    families = text_string_to_metric_families(await asyncio.to_thread(read))
    return Metrics(
        {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }
    )


async def seconds_until_idle(server: Server, within_s: float) -> float | None:
    """Wait until the server is idle; seconds taken, or None after the limit."""
    began = time.monotonic()
    while time.monotonic() - began < within_s:
        told = await metrics(server)
        if not any(told.sum(name) for name in IDLE):
            return time.monotonic() - began
        await asyncio.sleep(POLL_S)
    return None


async def is_healthy(address: str) -> bool:
    """True if the standard health service reports SERVING."""
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            answer = await HealthStub(channel).Check(HealthCheckRequest(), timeout=60)
        except grpc.aio.AioRpcError:
            return False
    return bool(answer.status == HealthCheckResponse.SERVING)


class Peaks:
    """The most memory of a server beside each of several attacks.

    Args:
        server: the server.
        before_mib: its memory before all of them.
    """

    def __init__(self, server: Server, before_mib: float) -> None:
        self._server = server
        self._before_mib = before_mib
        self._more_mib: dict[str, float] = {}

    @classmethod
    async def begin(cls, server: Server) -> Self:
        """Note the memory, once what the first call needs is there."""
        await is_healthy(server.address)
        return cls(server, server.rss_mib())

    @asynccontextmanager
    async def watched(self, name: str) -> AsyncIterator[None]:
        """Sample the memory beside an attack."""
        watch = asyncio.ensure_future(self._peak_mib())
        try:
            yield
        finally:
            watch.cancel()
            self._more_mib[name] = await watch - self._before_mib
            progress(f"attack: {name}, {self._more_mib[name]:.0f} MiB more")

    async def _peak_mib(self) -> float:
        peak = self._server.rss_mib()
        try:
            while True:
                await asyncio.sleep(SAMPLE_S)
                peak = max(peak, self._server.rss_mib())
        except asyncio.CancelledError:
            return peak

    async def judge(
        self, findings: Findings, who: str, most_mib: float, rest_s: float, later_mib: float | None
    ) -> None:
        """Hold the largest of all against its limit, and what is left after a while; None: that may be kept."""
        await asyncio.sleep(rest_s)
        later, what = self._server.rss_mib() - self._before_mib, f"{rest_s:g} s later, MiB"
        name, peak = max(self._more_mib.items(), key=lambda item: item[1])
        findings.expect_at_most(f"memory more beside {who}, MiB ({name})", peak, most_mib)
        if later_mib is None:
            findings.tell(what, f"{later:.0f}")
        else:
            findings.expect_at_most(what, later, later_mib)


async def expect_well(
    findings: Findings, server: Server, idle_within_s: float | None = None, *, expected: str | None = None
) -> None:
    """Expect that a server becomes idle, serves, and has logged no fault of its own.

    Args:
        idle_within_s: None: it need not become idle.
        expected: part of lines that may tell of a fault.
    """
    if idle_within_s is not None:
        idle_s = await seconds_until_idle(server, idle_within_s)
        findings.expect_below("until queue and rows are empty, s", idle_s, idle_within_s)
    healthy = await is_healthy(server.address)
    findings.expect("health afterwards", "serving" if healthy else "not serving", "serving", healthy)
    fault = re.compile(r"\bERROR\b|\bCRITICAL\b|Traceback|exception was never retrieved|Fatal Python error")
    faults = [line for line in server.logged().splitlines() if fault.search(line)]
    others = [line for line in faults if expected is None or expected not in line]
    findings.expect_none("faults in the server's log", others)
