"""Strangers and callers who attack over HTTP: large, refused and unfinished requests, and the server's memory."""

import asyncio
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.common.processes import Server
from jumok_serve.service.limits import ServiceLimits
from tests.faults.scenarios.attack import CALLERS_MIB, LATER_MIB, STRANGERS_MIB
from tests.faults.tools.findings import Findings, Plan
from tests.faults.tools.servers import Peaks, expect_well, jumok_serve
from tests.support.ports import free_port
from tests.support.servers.tokens import token_file

LARGEST = ServiceLimits().max_message_bytes - 4096
ONE_BY_ONE, TOGETHER = 30, 32
"""Requests of each kind: one after the other, and at once."""
UNFINISHED, ADDRESSES, OPENED_TOGETHER = 2000, 2, 100
"""Connections that do not finish what they send, the addresses that they come from, and those opened at once."""
HELD_S, ANSWER_S = 3.0, 120.0
REFUSED = frozenset({"400", "401", "403", "404", "408", "413", "429", "431", "503"})


def large_requests() -> dict[str, tuple[str, Any]]:
    """Paths and bodies, nearly as large as a request may be, by name."""
    text, list_of_texts = "A man. " * (LARGEST // 7 - 100), ["a"] * (LARGEST // 6)
    entries = {"source_lang": "en", "target_lang": "de", "entries_format": "tsv", "entries": "a\tb\n" * (LARGEST // 6)}
    return {
        "a text of the own API": ("/v1/text:translate", {"contents": [text]}),
        "texts of the own API": ("/v1/text:translate", {"contents": list_of_texts}),
        "a text of LibreTranslate": ("/translate", {"q": text, "source": "en", "target": "de"}),
        "texts of LibreTranslate": ("/translate", {"q": list_of_texts, "source": "en", "target": "de"}),
        "a text of DeepL": ("/v2/translate", {"text": [text], "target_lang": "DE"}),
        "texts of DeepL": ("/v2/translate", {"text": list_of_texts, "target_lang": "DE"}),
        "tags of DeepL": ("/v2/translate", {"text": ["a"], "target_lang": "DE", "ignore_tags": "," * LARGEST}),
        "a glossary of DeepL": ("/v3/glossaries", {"name": "g", "dictionaries": [entries]}),
    }


async def attack_http(plan: Plan, findings: Findings) -> None:
    """Large, refused and unfinished HTTP requests, without and with a token; memory."""
    with tempfile.TemporaryDirectory(prefix="jumok-attack-") as folder:
        tokens, (secret,) = token_file(folder, "attacker")
        for who, key, most_mib in (("a stranger", "", STRANGERS_MIB), ("a caller", secret, CALLERS_MIB)):
            port = free_port()
            arguments = ("--tokens", tokens, "--tokens-without-tls", "--glossaries", Path(folder) / "glossaries")
            async with jumok_serve(plan.bundle, *arguments, "--http-port", str(port)) as server:
                known = _Attacker(port, secret)  # the detector of languages is loaded while the server begins
                await known.status(known.request("/v1/text:detectLanguage", {"contents": ["A dog runs."]}))
                await _all_attacks(plan, findings, server, _Attacker(port, key), who, most_mib)
                await expect_well(findings, server)


async def _all_attacks(
    plan: Plan, findings: Findings, server: Server, attacker: "_Attacker", who: str, most_mib: float
) -> None:
    peaks = await Peaks.begin(server)
    statuses: Counter[str] = Counter()
    for name, (path, body) in large_requests().items():
        request = attacker.request(path, body)
        async with peaks.watched(name):
            for _ in range(ONE_BY_ONE):
                statuses[await attacker.status(request)] += 1
            statuses.update(await asyncio.gather(*(attacker.status(request) for _ in range(TOGETHER))))
    half = attacker.request("/v1/text:translate", {"contents": ["a" * LARGEST]})[: 190 << 10]
    for name, data in (("unfinished bodies", half), ("unfinished heads", b"GET /health?q=" + b"a" * 30_000)):
        async with peaks.watched(name):
            await attacker.begin(data)
    findings.tell_counts("answers to large requests", statuses)
    if not attacker.key:
        findings.expect_none("answers other than a refusal", sorted(set(statuses) - REFUSED))
    # What a caller may use, the server may keep.
    later_mib = None if attacker.key else LATER_MIB
    await peaks.judge(findings, f"{who} over HTTP", most_mib, plan.attack_rest_s, later_mib)


class _Attacker:
    """A client that does not care about HTTP's manners.

    Args:
        port: of the server.
        key: of all its requests; "": none.
    """

    def __init__(self, port: int, key: str) -> None:
        self.key = key
        self._port = port

    def request(self, path: str, body: dict[str, Any]) -> bytes:
        """The bytes of a request, with the key where the API of this path wants it."""
        fields = ["Host: 127.0.0.1", "Content-Type: application/json"]
        if self.key and path == "/translate":
            body = {**body, "api_key": self.key}
        elif self.key:
            scheme = "Bearer" if path.startswith("/v1/") else "DeepL-Auth-Key"
            fields.append(f"Authorization: {scheme} {self.key}")
        data = json.dumps(body).encode()
        head = [f"POST {path} HTTP/1.1", *fields, f"Content-Length: {len(data)}"]
        return "\r\n".join([*head, "", ""]).encode() + data

    async def status(self, request: bytes) -> str:
        """Send a request; returns the status of its answer, or the name of the error."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                writer.write(request)
                line = await asyncio.wait_for(reader.readline(), ANSWER_S)
            finally:
                writer.close()
        except (OSError, TimeoutError) as error:
            return type(error).__name__
        return line.split(b" ")[1].decode() if line.startswith(b"HTTP/1.1 ") else repr(line[:40])

    async def begin(self, data: bytes) -> None:
        """Send the begin of a request on many connections of some addresses, and hold them for a while."""
        opened: list[asyncio.StreamWriter] = []

        async def begin_one(number: int) -> None:
            address = f"127.0.0.{2 + number % ADDRESSES}"
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self._port, local_addr=(address, 0))
                opened.append(writer)
                writer.write(data)
                await asyncio.wait_for(writer.drain(), HELD_S)
            except (OSError, TimeoutError):
                return  # it was refused, which is as well

        for first in range(0, UNFINISHED, OPENED_TOGETHER):
            await asyncio.gather(*(begin_one(number) for number in range(first, first + OPENED_TOGETHER)))
        await asyncio.sleep(HELD_S)
        for writer in opened:
            writer.close()
