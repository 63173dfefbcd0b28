"""Strangers and callers who attack: memory of the server, and an interactive caller beside them."""

import asyncio
import gzip
import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from google.protobuf.message import Message

import jumok
from benchmarks.common.processes import Server
from jumok_proto.glossaries import GlossaryEntries as GlossaryLines
from jumok_proto.v1.decoding_pb2 import DecodingOptions
from jumok_proto.v1.file_pb2 import FileSettings, TranslateFileRequest
from jumok_proto.v1.glossary_pb2 import CreateGlossaryRequest, GetGlossaryEntriesRequest, GlossaryEntries
from jumok_proto.v1.translation_pb2 import (
    MARKUP_HTML,
    CorpusItem,
    CorpusSettings,
    Glossary,
    ScoreTextRequest,
    TranslateCorpusRequest,
    TranslateTextRequest,
)
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.text.terms.store import GlossaryStore
from tests.faults.tools.findings import Findings, Plan
from tests.faults.tools.flood import Flood, message
from tests.faults.tools.servers import Peaks, expect_well, jumok_serve
from tests.support.servers.tokens import token_file

CALLS = ServiceLimits().max_streams
"""Calls of each connection: as many as the server allows."""
RESETS = 20
"""Calls that are cancelled at once, for each other call of a connection."""
GLOSSARIES = 8
"""Stored glossaries that calls name in turn."""
LASTS_S = 3.0
STRANGERS_MIB, CALLERS_MIB, LATER_MIB = 100, 400, 30
TRIED = 300
SLOWER, FAST_S = 3.0, 0.05

TRANSLATE = "/jumok.v1.TranslationService/TranslateText"
CORPUS = "/jumok.v1.TranslationService/TranslateCorpus"
FILE = "/jumok.v1.FileService/TranslateFile"
SCORE = "/jumok.v1.TranslationService/ScoreText"
CREATE_GLOSSARY = "/jumok.v1.GlossaryService/CreateGlossary"
GET_ENTRIES = "/jumok.v1.GlossaryService/GetGlossaryEntries"
CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
LARGEST = ServiceLimits().max_message_bytes

Attack = Callable[[Flood], None]
UNREAD = frozenset(
    {"health checks that are not read", "large answers that are not read", "glossaries that are not read"}
)


def attacks(calls: int) -> dict[str, Attack]:
    """Attacks of one connection, by name; ``calls``: calls of each."""
    bombs = [message(gzip.compress(field * (LARGEST // len(field) - 1)), compressed=True) for field in FIELDS]
    large = packed(TranslateTextRequest(contents=["word " * 19_000] * 40, truncate=True))
    settings = CorpusSettings(options=DecodingOptions(beam_size=1, max_length=2))
    silent = packed(TranslateCorpusRequest(settings=settings))
    unfinished = message(bytes(LARGEST - 100), declared=LARGEST)
    tags = packed(TranslateTextRequest(contents=[TAGS * 100] * 900, markup=MARKUP_HTML))
    comments = packed(TranslateTextRequest(contents=["<!--" + "x" * 99_000 + "-->"] * 40, markup=MARKUP_HTML))
    entries = packed(GetGlossaryEntriesRequest(glossary="0"))
    texts = ["word " * 19_000] * 20
    score = packed(ScoreTextRequest(contents=texts, targets=texts, truncate=True))
    words = GlossaryEntries(tsv=words_of_terms(LARGEST))
    glossary = packed(CreateGlossaryRequest(name="words", dictionaries=[words]))
    named = [
        packed(TranslateTextRequest(contents=["a"], glossary=Glossary(stored=str(one)))) for one in range(GLOSSARIES)
    ]
    corpora = {
        "texts": corpus_of(["word " * 19_000] * 30, truncate=True),
        "tags": corpus_of([TAGS * 12_000] * 30, markup=MARKUP_HTML),
    }
    files = {
        "HTML": file_of("html", b"<p>" + WIDE + TAGS.encode() * 124_000 + b"word " * 1_300_000),
        "XLIFF": file_of("xliff", XLIFF % (XLIFF_UNIT * 55_000 + WIDE + b"word " * 900_000)),
        "Markdown": file_of("markdown", b"*a*\n\n" * 150_000),
        "text": file_of("text", WIDE + b"word " * 1_600_000),
    }

    def repeat(path: str, *messages: bytes, end: bool = True, **fields: str) -> Attack:
        return mix([(path, data) for data in messages], end=end, **fields)

    def mix(kinds: Sequence[tuple[str, bytes]], *, end: bool = True, **fields: str) -> Attack:
        def send(flood: Flood) -> None:
            for (path, data), _ in zip(itertools.cycle(kinds), range(calls), strict=False):
                flood.call(path, data, end=end and data is not unfinished, **fields)

        return send

    kinds = [
        (TRANSLATE, tags),
        (FILE, files["HTML"]),
        (CORPUS, corpora["tags"]),
        (TRANSLATE, large),
        (CREATE_GLOSSARY, glossary),
        (FILE, files["XLIFF"]),
        (SCORE, score),
        (CORPUS, corpora["texts"]),
        (FILE, files["text"]),
        (TRANSLATE, unfinished),
        (FILE, files["Markdown"]),
    ]
    return {
        "gzip bombs": repeat(TRANSLATE, *bombs, grpc_encoding="gzip"),
        "gzip bombs for health": repeat(CHECK, *bombs, grpc_encoding="gzip"),
        "unfinished uploads": repeat(TRANSLATE, unfinished),
        "unfinished health checks": repeat(CHECK, unfinished),
        "messages that say they are 4 GiB": repeat(TRANSLATE, message(bytes(2**20), declared=2**32 - 1), end=False),
        "watches": repeat(WATCH, message(b"")),
        "health checks that are not read": repeat(CHECK, message(b"")),
        "large answers that are not read": repeat(TRANSLATE, comments),
        "glossaries that are not read": repeat(GET_ENTRIES, entries),
        "silent corpora": repeat(CORPUS, silent, end=False),
        "texts of many pages": repeat(TRANSLATE, large),
        "texts of tags": repeat(TRANSLATE, tags),
        "scores of long texts": repeat(SCORE, score),
        "glossaries of words": repeat(CREATE_GLOSSARY, glossary),
        "texts with stored glossaries": repeat(TRANSLATE, *named),
        **{f"corpora of {name}": repeat(CORPUS, data) for name, data in corpora.items()},
        **{f"large {name} files": repeat(FILE, data) for name, data in files.items()},
        "calls that are cancelled at once": lambda flood: flood.cancel(TRANSLATE, RESETS * calls),
        "a mix of kinds": mix(kinds),
        "nothing": lambda _: None,
    }


def packed(*requests: Message) -> bytes:
    """Messages of gRPC."""
    return b"".join(message(one.SerializeToString()) for one in requests)


def corpus_of(texts: Sequence[str], **settings: Any) -> bytes:
    """Messages of a corpus of texts, one each."""
    first = CorpusSettings(options=DecodingOptions(beam_size=1, max_length=2), **settings)
    items = [TranslateCorpusRequest(items=[CorpusItem(id=number, content=text)]) for number, text in enumerate(texts)]
    return packed(TranslateCorpusRequest(settings=first), *items)


def words_of_terms(size: int) -> str:
    """Entries whose terms have as many words as a term may have."""
    letters = random.Random(1)
    return "".join(" ".join(letters.choices(ascii_lowercase, k=120)) + "\tb\n" for _ in range(size // 300))


def wide_terms() -> str:
    """Entries that take the most memory: short ones, in which one character makes all others take four bytes."""
    return "".join(f"\U0001f600{number:018}\t\U0001f600b\n" for number in range(100_000))


def file_of(file_format: str, content: bytes) -> bytes:
    """Messages of a call that translates a file."""
    first = TranslateFileRequest(settings=FileSettings(format=file_format))
    parts = [TranslateFileRequest(file=content[at : at + 2**20]) for at in range(0, len(content), 2**20)]
    return packed(first, *parts)


TAGS = "a<b></b>"
WIDE = "\U0001f600".encode()
"""A character that makes all others of a file take four bytes."""
XLIFF = b"""<?xml version="1.0"?><xliff xmlns="urn:oasis:names:tc:xliff:document:1.2" version="1.2">
<file source-language="en" target-language="de" datatype="plaintext" original="a"><body>%s</body></file></xliff>"""
XLIFF_UNIT = b"<trans-unit id='1'><source>a<g id='1'>b</g></source></trans-unit>"
FIELDS = (b"\x12\x00", b"\xf8\x7f\x01", b"\xfb\x7f\xfc\x7f")
"""Small fields that become large objects: empty texts, unknown fields, unknown groups."""


async def attack(plan: Plan, findings: Findings) -> None:
    """Bombs, uploads, watches and silent calls, without and with a token; memory and an interactive caller."""
    with tempfile.TemporaryDirectory(prefix="jumok-attack-") as folder:
        tokens, (secret,) = token_file(folder, "attacker")
        glossaries = Path(folder) / "glossaries"
        store = GlossaryStore(glossaries)
        for number in range(GLOSSARIES):
            store.create("attacker", str(number), [GlossaryLines(tsv=wide_terms())])
        arguments = (plan.bundle, "--tokens", tokens, "--tokens-without-tls", "--glossaries", glossaries)
        token = {"authorization": f"Bearer {secret}"}
        for who, fields, most_mib in (("a stranger", {}, STRANGERS_MIB), ("a caller", token, CALLERS_MIB)):
            async with jumok_serve(*arguments) as server:
                await _all_attacks(plan, findings, server, who, fields, most_mib)
                await expect_well(findings, server)
        async with jumok_serve(plan.bundle) as server:
            await _beside_watches(plan, findings, server)


async def _all_attacks(
    plan: Plan, findings: Findings, server: Server, who: str, fields: dict[str, str], most_mib: float
) -> None:
    peaks = await Peaks.begin(server)
    for name, send in attacks(CALLS).items():
        async with peaks.watched(name):
            await _send_for_a_while(server, plan.attackers, send, fields, reads=name not in UNREAD)
    # What a caller may use, the server may keep.
    await peaks.judge(findings, who, most_mib, plan.attack_rest_s, None if fields else LATER_MIB)


async def _send_for_a_while(
    server: Server, connections: int, send: Attack, fields: dict[str, str], *, reads: bool
) -> None:
    """Attack from several connections."""
    floods = [await Flood.connect(server.address, reads=reads, **fields) for _ in range(connections)]
    try:
        for flood in floods:
            send(flood)
        await asyncio.sleep(LASTS_S)
    finally:
        for flood in floods:
            flood.close()


async def _beside_watches(plan: Plan, findings: Findings, server: Server) -> None:
    watch = attacks(CALLS)["watches"]
    async with jumok.AsyncClient(server.address) as client:
        alone_s = await _p99_s(client, plan)
        floods = [await Flood.connect(server.address) for _ in range(plan.attackers + 1)]
        for flood in floods:
            watch(flood)
        beside_s = await _p99_s(client, plan)
        for flood in floods:
            flood.close()
    most_ms = 1000 * max(SLOWER * alone_s, FAST_S)
    findings.tell("99th percentile of an interactive caller alone, ms", f"{1000 * alone_s:.1f}")
    findings.expect_at_most(f"beside {CALLS * (plan.attackers + 1)} watches, ms", 1000 * beside_s, most_ms, ".1f")


async def _p99_s(client: jumok.AsyncClient, plan: Plan) -> float:
    """99th percentile of calls one after the other, in seconds."""
    took = []
    for _, text in zip(range(TRIED), itertools.cycle(plan.texts), strict=False):
        began = time.monotonic()
        await client.translate(text, beam_size=1)
        took.append(time.monotonic() - began)
    return statistics.quantiles(took, n=100)[98]
