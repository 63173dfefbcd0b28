"""Each field of each API in turn fills the largest request, while another process asks for the server's health."""

import asyncio
import http.client
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import grpc

import jumok
from benchmarks.common.processes import Server
from benchmarks.common.progress import progress
from jumok_serve.http.site import HTTP_STATUSES
from jumok_serve.service.limits import ServiceLimits
from tests.faults.scenarios.fuzzing import DOCUMENTED, SERVICES, ask, has_reason
from tests.faults.tools.findings import Findings, Plan
from tests.faults.tools.health_waits import health_waits
from tests.faults.tools.largest import GrpcCall, HttpRequest, Large, largest_requests
from tests.faults.tools.servers import expect_well, is_healthy, jumok_serve
from tests.support.ports import free_port

LEAVES_AFTER_S = 2.0
"""Time for a request: then its caller leaves, as texts of all characters take minutes."""
TRIES = 5
"""Of a request beside which health waited for too long; the shortest wait counts, as others use the machine too."""
SHOWN = 20
LATER_MIB = 200
"""More memory after all requests: what glossaries, models and terms that are kept may take."""
STATUSES = frozenset(HTTP_STATUSES.values()) - {501} | {200, 201, 204, 404, 405, 413, 421}
LEFT = "left"


class Ending(NamedTuple):
    """The end of a request.

    Attributes:
        status: name or number; `LEFT` if the caller left.
        documented: True if it is a documented answer, or a refusal that says its reason.
    """

    status: str
    documented: bool


@dataclass(kw_only=True)
class Sent:
    """Outcomes of the requests."""

    endings: Counter[str] = field(default_factory=Counter)
    undocumented: list[str] = field(default_factory=list)
    waits_s: dict[str, float] = field(default_factory=dict)
    peaks_mib: dict[str, float] = field(default_factory=dict)


class Caller:
    """Sends requests over gRPC and HTTP, one after the other.

    Args:
        grpc_address: address of the gRPC port.
        http_address: address of the HTTP port.
        leaves_after_s: time for a request, in seconds.
    """

    def __init__(self, grpc_address: str, http_address: str, leaves_after_s: float) -> None:
        self._channel = grpc.insecure_channel(grpc_address, options=(("grpc.max_receive_message_length", -1),))
        self._http = http_address
        self._leaves_after_s = leaves_after_s

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def send(self, request: GrpcCall | HttpRequest) -> Ending:
        """Send a request, and wait for its end."""
        return self._call(request) if isinstance(request, GrpcCall) else self._ask(request)

    def _call(self, request: GrpcCall) -> Ending:
        code, details = ask(self._channel, request.method, request.data, self._leaves_after_s, request.metadata)
        if code == "DEADLINE_EXCEEDED":
            return Ending(LEFT, True)
        refused = code not in ("OK", "CANCELLED") and request.method.containing_service.full_name.startswith("jumok.")
        # gRPC itself refuses header fields that are too large
        return Ending(code, code in DOCUMENTED and (not refused or bool(request.metadata) or has_reason(details)))

    def _ask(self, request: HttpRequest) -> Ending:
        connection = http.client.HTTPConnection(self._http, timeout=self._leaves_after_s)
        try:
            with suppress(BrokenPipeError, ConnectionResetError):  # refused before all of it was sent
                connection.request(request.verb, request.path, request.body, dict(request.headers))
            response = connection.getresponse()
            response.read()
        except TimeoutError:
            return Ending(LEFT, True)
        except (OSError, http.client.HTTPException) as error:
            return Ending(type(error).__name__, False)
        finally:
            connection.close()
        return Ending(str(response.status), response.status in STATUSES)


def send_all(
    caller: Caller,
    requests: Iterable[Large],
    waits: Callable[[], float] = lambda: 0.0,
    peak_mib: Callable[[], float] = lambda: 0.0,
    *,
    most_s: float = 1.0,
) -> Sent:
    """Send requests one after the other.

    Args:
        waits: returns the longest wait since it was called before.
        peak_mib: returns the largest memory since it was called before.
        most_s: wait after which a request is sent again.
    """
    sent = Sent()
    told = time.monotonic()
    for large in requests:
        ending = caller.send(large.request)
        wait_s = waits()
        for _ in range(TRIES - 1):
            if wait_s <= most_s:
                break
            caller.send(large.request)
            wait_s = min(wait_s, waits())
        name = str(large)
        sent.endings[f"{large.api} {ending.status}"] += 1
        sent.waits_s[name], sent.peaks_mib[name] = wait_s, peak_mib()
        if not ending.documented:
            sent.undocumented.append(f"{ending.status}: {name}")
        if wait_s > most_s or not ending.documented:
            progress(f"largest: {1000 * wait_s:.0f} ms, {ending.status}: {name}")
        if time.monotonic() - told > 60:
            told = time.monotonic()
            progress(f"largest: {len(sent.waits_s)} requests, now {name}")
    return sent


async def largest_fields(plan: Plan, findings: Findings) -> None:
    """Each field of each API at its largest; no other caller waits for long."""
    with TemporaryDirectory(prefix="jumok-largest-") as folder:
        http_address = f"127.0.0.1:{free_port()}"
        port = http_address.rpartition(":")[2]
        async with jumok_serve(plan.bundle, "--http-port", port, "--glossaries", folder) as server:
            await is_healthy(server.address)
            await asyncio.to_thread(_warm_up, server.address)
            before_mib = server.rss_mib()
            sent = await asyncio.to_thread(_send_all, plan, server, http_address)
            await asyncio.sleep(plan.attack_rest_s)
            findings.expect_at_most("more memory afterwards, MiB", server.rss_mib() - before_mib, LATER_MIB)
            await expect_well(findings, server)
    findings.tell("requests", len(sent.waits_s))
    findings.tell_counts("of these ended", sent.endings)
    findings.expect_none("requests without a documented end", sent.undocumented)
    worst = sorted(sent.waits_s, key=lambda name: -sent.waits_s[name])
    for name in worst[:SHOWN]:
        findings.tell(f"health beside {name}, ms", f"{1000 * sent.waits_s[name]:.0f}")
    findings.expect_at_most("longest wait for health, ms", 1000 * sent.waits_s[worst[0]], plan.health_ms)
    name = max(sent.peaks_mib, key=lambda name: sent.peaks_mib[name])
    findings.tell(f"most memory, MiB more ({name})", f"{sent.peaks_mib[name] - before_mib:.0f}")


def _warm_up(address: str) -> None:
    """Do some of each task: the sessions of scores and attention keep their buffers, which are 250 MiB together."""
    texts = ["A man in a blue shirt is standing on a ladder."] * 1024
    with jumok.Client(address) as client:
        client.translate(texts)
        client.score(texts, texts)
        client.align(texts[:64], texts[:64])


def _send_all(plan: Plan, server: Server, http_address: str) -> Sent:
    everything = largest_requests(SERVICES, ServiceLimits())
    requests = (one for one in everything if re.search(plan.largest, str(one)))
    caller = Caller(server.address, http_address, LEAVES_AFTER_S)
    with health_waits(server.address) as waits:
        waits.longest_s()
        try:
            return send_all(caller, requests, waits.longest_s, lambda: _peak_mib(server), most_s=plan.health_ms / 1000)
        finally:
            caller.close()


def _peak_mib(server: Server) -> float:
    """Return the largest memory since this was asked before."""
    peak = server.peak_rss_mib()
    Path(f"/proc/{server.pid}/clear_refs").write_text("5", encoding="ascii")
    return peak
