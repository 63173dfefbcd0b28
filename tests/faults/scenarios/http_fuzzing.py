"""Random HTTP requests, made from OpenAPI documents: none may break a server, with tokens or without."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import requests

from benchmarks.common.processes import Server
from benchmarks.common.progress import progress
from tests.faults.tools.findings import Findings, Plan
from tests.faults.tools.servers import expect_well, jumok_serve
from tests.serve.http.fuzz.documents import OPERATIONS, VARIED, each_random_request
from tests.support.ports import free_port
from tests.support.servers.tokens import token_file

TIMEOUT_S = 60.0
MORE_MIB = 48
"""More memory at the end than after a first round: allocators keep a little, and glossaries stay."""
FIRST = 10
"""Step between two requests of the first round."""


class Answered:
    """Sends random requests, and keeps what is wrong with the answers.

    Args:
        url: of the HTTP port.
        token: the right one; empty: the server has none. Each third request is without it.
    """

    def __init__(self, url: str, token: str = "") -> None:
        self._url = url
        self._headers: Mapping[str, str] = {"authorization": f"Bearer {token}"} if token else {}
        self._session = requests.Session()
        self._turns = itertools.cycle((True, True, False))
        self.statuses: Counter[int] = Counter()
        self.wrong: list[str] = []

    def send_each(self, count: int, seed: int) -> None:
        """Make requests up, some of each operation, and send them."""
        for name, path, verb in OPERATIONS:
            try:
                each_random_request(name, path, verb, self._send, count=count // VARIED + 1, number=seed)
            except (Exception, BaseExceptionGroup) as error:  # of a check, or a broken connection: the operation ends
                self.wrong.append(f"{verb} {path}: {error!r}")

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def _send(self, case: Any) -> Any:
        headers = self._headers if next(self._turns) else {}
        response = case.call(base_url=self._url, session=self._session, headers=headers, timeout=TIMEOUT_S)
        self.statuses[response.status_code] += 1
        return response


async def fuzz_http(plan: Plan, findings: Findings) -> None:
    """Random requests to all HTTP endpoints, with tokens and without."""
    with TemporaryDirectory(prefix="jumok-http-") as folder:
        tokens, (secret,) = token_file(folder, "caller")
        for who, token, options in (
            ("without tokens", "", ()),
            ("with tokens", secret, ("--tokens", tokens, "--tokens-without-tls")),
        ):
            glossaries = Path(folder) / who
            glossaries.mkdir()
            port = str(free_port())
            async with jumok_serve(plan.bundle, "--http-port", port, "--glossaries", glossaries, *options) as server:
                answered = Answered(f"http://127.0.0.1:{port}", token)
                try:
                    more_mib = await asyncio.to_thread(_send_all, plan, server, answered)
                finally:
                    answered.close()
                sent = answered.statuses.total()
                findings.expect_at_least(f"requests {who}", sent, plan.messages // 2, "d")
                findings.tell_counts("of these answered", answered.statuses)
                findings.expect_none("answers that are not as documented", answered.wrong)
                findings.expect_at_most("more memory at the end, MiB", more_mib, MORE_MIB)
                await expect_well(findings, server)


def _send_all(plan: Plan, server: Server, answered: Answered) -> float:
    """Send half of the requests of a plan; returns the memory that most of them added, in MiB."""
    half = plan.messages // 2
    answered.send_each(half // FIRST, plan.seed + 1)
    before_mib = server.rss_mib()
    progress(f"http: {answered.statuses.total()} requests, {before_mib:.0f} MiB")
    answered.send_each(half, plan.seed)
    progress(f"http: {answered.statuses.total()} requests, {server.rss_mib():.0f} MiB")
    return server.rss_mib() - before_mib
