"""Callers who want all of a server, beside one who translates a sentence now and then."""

import asyncio
import io
import itertools
import math
import statistics
import tempfile
import time
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from benchmarks.common.progress import progress
from jumok_proto.v1.decoding_pb2 import DecodingOptions
from jumok_proto.v1.file_pb2 import FileSettings, TranslateFileRequest
from jumok_proto.v1.file_pb2_grpc import FileServiceStub
from jumok_proto.v1.translation_pb2 import (
    CORPUS_ORDER_COMPLETION,
    MARKUP_HTML,
    MARKUP_XML,
    CorpusItem,
    CorpusSettings,
    DoNotTranslate,
    Glossary,
    GlossaryEntry,
    ScoreTextRequest,
    TranslateCorpusRequest,
    TranslateTextRequest,
)
from jumok_proto.v1.translation_pb2_grpc import TranslationServiceStub
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.share import PRESENCE_S
from tests.faults.tools.findings import Findings, Plan
from tests.faults.tools.servers import expect_well, jumok_serve
from tests.support.servers.tokens import token_file

PAUSE_S = 0.1
"""Mean pause of the interactive caller between two sentences."""
SETTLE_S, GONE_S = 2.0, PRESENCE_S + 1
"""Until heavy callers have filled the batch, and until the interactive caller no longer counts as present."""
PERCENT = 99
TIMES_IDLE, LEAST_S = 3.0, 0.050
BULK_SHARE = 0.85
ROUNDS = 3
"""Of all measurements, alone and beside others by turns: latencies of all rounds together, medians of throughput."""
ALONE = "no other caller"
CORPORA, WINDOW, SCORERS = 8, 1024, 64
COSTLIEST = DecodingOptions(beam_size=64, repetition_penalty=1.3, no_repeat_ngram_size=4)
COSTLIEST_TEXTS, COSTLY_TEXTS = 1024, 4
"""The most texts of a request: with `COSTLIEST` and a maximum length of 100 tokens nearly the most work too."""
CALLS_AT_ONCE, TEXTS_AT_ONCE = 4, 32
FILE_BYTES, FILE_PART = ServiceLimits().max_file_bytes, 2**20
"""Bytes of the largest files, and of one of their messages."""
PARAGRAPH = "<w:p><w:r><w:t>A man rides a </w:t></w:r><w:r><w:rPr><w:b/></w:rPr><w:t>red bicycle.</w:t></w:r></w:p>"
ATTRIBUTES = "".join(f' a{number}="{number}"' for number in range(3_500))
TERMS_OF = (
    "a man rides the red bicycle on his way past some old houses of two quiet little towns near lake and dog woman "
    "plays with ball child in green field while"
)
CALLERS = ("interactive", *(f"heavy{number}" for number in range(CORPORA)))


def freezing_requests() -> dict[str, TranslateTextRequest]:
    """Requests that take much of the processor outside of the search, by name."""
    texts = TEXTS_AT_ONCE * [f"<b{ATTRIBUTES}>A man</b> rides a bicycle."]
    words = TERMS_OF.split()
    entries = [GlossaryEntry(source=word, targets=[f"Wort{word}{n}" for n in range(8)]) for word in words]
    patterns = [f"x{number}" + "a*" * 60 + "b" for number in range(64)]
    return {
        "XML of 3,500 attributes": TranslateTextRequest(contents=texts, markup=MARKUP_XML),
        "HTML of 3,500 attributes": TranslateTextRequest(contents=texts, markup=MARKUP_HTML),
        "64 patterns of stars": TranslateTextRequest(
            contents=["x1 " + "a" * 5_000] * TEXTS_AT_ONCE,
            truncate=True,
            do_not_translate=DoNotTranslate(patterns=patterns),
        ),
        "terms of 8 words each": TranslateTextRequest(
            truncate=True, contents=[TERMS_OF], glossary=Glossary(entries=entries)
        ),
    }


def largest_files() -> dict[str, bytes]:
    """Files of the most bytes or parts that are allowed, by name."""

    def filled(before: str, part: str, after: str, most: int = FILE_BYTES) -> bytes:
        room = FILE_BYTES - 1024 - len(before + after)  # for the names of an archive
        return f"{before}{part * min(room // len(part), most)}{after}".encode()

    word = io.BytesIO()
    with zipfile.ZipFile(word, "w", zipfile.ZIP_STORED) as archive:
        namespace = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
        archive.writestr("[Content_Types].xml", "<Types/>")
        document = filled(f"<w:document xmlns:w='{namespace}'><w:body>", PARAGRAPH, "</w:body></w:document>")
        archive.writestr("word/document.xml", document)
    return {
        "page.md": filled("", "A man *rides* a [red](a.html) bicycle.\n\n", "", 50_000),
        "line.txt": filled("", "A man rides a red bicycle. ", "\n"),
        "page.html": filled("<body>", "<p>A man <b>rides</b> a red bicycle.</p>", "</body>", 70_000),
        "letter.docx": word.getvalue(),
        "messages.properties": filled("", "a.b.c=A man rides a {0} bicycle.\n", ""),
        "messages.po": filled("", 'msgid "A man rides a %s bicycle."\nmsgstr ""\n\n', "", 70_000),
    }


@dataclass
class Done:
    """Sentences that a caller has had translated or scored, and when."""

    at: list[float] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)

    def rate(self, since: float, until: float) -> float:
        """Sentences per second between two moments."""
        return sum(since <= moment < until for moment in self.at) / (until - since)


Work = Callable[[str, Done], Awaitable[None]]


class Callers:
    """Callers of a server, each with its token and connection."""

    def __init__(self, address: str, secrets: dict[str, str], texts: Sequence[str]) -> None:
        self._channels = {name: grpc.aio.insecure_channel(address) for name in secrets}
        self._metadata = {name: (("authorization", f"Bearer {secret}"),) for name, secret in secrets.items()}
        self._texts = texts

    async def close(self) -> None:
        """Close the connections."""
        for channel in self._channels.values():
            await channel.close(None)

    def call(self, caller: str, method: str, request: Any, timeout_s: float | None = None) -> Any:
        """Begin a call of a caller; `request` is one, or iterates over them."""
        call = getattr(TranslationServiceStub(self._channels[caller]), method)
        return call(request, metadata=self._metadata[caller], timeout=timeout_s)

    def _some(self, number: int) -> list[str]:
        return list(itertools.islice(itertools.cycle(self._texts), number))

    async def translate_now_and_then(self, seconds: float) -> list[float]:
        """Translate a sentence, pause, and so on; returns the seconds that each took."""
        took: list[float] = []
        until = time.monotonic() + seconds
        for text in itertools.cycle(self._texts):
            if time.monotonic() > until:
                return took
            began = time.monotonic()
            await self.call("interactive", "TranslateText", TranslateTextRequest(contents=[text]), timeout_s=60)
            took.append(time.monotonic() - began)
            await asyncio.sleep(PAUSE_S)
        raise AssertionError("the texts never end")

    async def corpus(self, caller: str, done: Done) -> None:
        """Send a corpus without end."""

        async def items() -> AsyncIterator[TranslateCorpusRequest]:
            yield TranslateCorpusRequest(settings=CorpusSettings(window=WINDOW, order=CORPUS_ORDER_COMPLETION))
            for number, text in enumerate(itertools.cycle(self._texts)):
                yield TranslateCorpusRequest(items=[CorpusItem(id=number, content=text)])

        async for answer in self.call(caller, "TranslateCorpus", items()):
            done.at += [time.monotonic()] * len(answer.results)

    def costliest(self, number: int = COSTLIEST_TEXTS) -> Work:
        """Send costly requests, by default the costliest that is allowed, one after the other."""
        return self.again(TranslateTextRequest(contents=self._some(number), options=COSTLIEST), at_once=1)

    def scorers(self) -> Work:
        """Score as many requests at a time as one caller may have waiting."""
        texts = self._some(64)
        return self.again(ScoreTextRequest(contents=texts, targets=texts), at_once=SCORERS)

    def file(self, name: str, content: bytes) -> Work:
        """Send a file again and again; reads its translation."""

        async def parts() -> AsyncIterator[TranslateFileRequest]:
            yield TranslateFileRequest(settings=FileSettings(name=name))
            for first in range(0, len(content), FILE_PART):
                yield TranslateFileRequest(file=content[first : first + FILE_PART])

        async def work(caller: str, done: Done) -> None:
            stub, metadata = FileServiceStub(self._channels[caller]), self._metadata[caller]
            while True:
                async for _ in stub.TranslateFile(parts(), metadata=metadata):
                    done.at.append(time.monotonic())

        return work

    def again(self, request: TranslateTextRequest | ScoreTextRequest, at_once: int = CALLS_AT_ONCE) -> Work:
        """Send a request again and again, several times at once."""
        method = "ScoreText" if isinstance(request, ScoreTextRequest) else "TranslateText"

        async def work(caller: str, done: Done) -> None:
            async def one() -> None:
                while True:
                    await self.call(caller, method, request)
                    done.at += [time.monotonic()] * len(request.contents)

            await asyncio.gather(*(one() for _ in range(at_once)))

        return work

    @asynccontextmanager
    async def busy(self, *work: Work) -> AsyncIterator[list[Done]]:
        """Let heavy callers work meanwhile, one for each kind of work."""
        done = [Done() for _ in work]
        names = [name for name in CALLERS if name != "interactive"]
        tasks = [asyncio.ensure_future(one(name, own)) for one, name, own in zip(work, names, done, strict=False)]
        try:
            await asyncio.sleep(SETTLE_S)
            yield done
        finally:
            for task in tasks:
                task.cancel()
            for own, outcome in zip(done, await asyncio.gather(*tasks, return_exceptions=True), strict=True):
                if isinstance(outcome, Exception):
                    own.errors.append(outcome)


async def sharing(plan: Plan, findings: Findings) -> None:
    """One caller translates a sentence now and then, and others all that the server takes."""
    with tempfile.TemporaryDirectory() as folder:
        tokens, secrets = token_file(folder, *CALLERS)
        async with jumok_serve(plan.bundle, "--tokens", tokens, "--tokens-without-tls") as server:
            callers = Callers(server.address, dict(zip(CALLERS, secrets, strict=True)), plan.texts)
            try:
                await _latencies(callers, plan.sharing_s, findings)
                await _throughput(callers, plan.sharing_s, findings)
            finally:
                await callers.close()
            await expect_well(findings, server)


async def _latencies(callers: Callers, seconds: float, findings: Findings) -> None:
    beside: dict[str, Sequence[Work]] = {
        ALONE: [],
        "the costliest request": [callers.costliest()],
        "a corpus": [callers.corpus],
        f"{SCORERS} requests to score": [callers.scorers()],
        **{name: [callers.again(one)] for name, one in freezing_requests().items()},
        **{f"the file {name}": [callers.file(name, one)] for name, one in largest_files().items()},
        f"{CORPORA} corpora of as many callers": [callers.corpus] * CORPORA,
    }
    took: dict[str, list[float]] = {name: [] for name in beside}
    errors: dict[str, list[Exception]] = {name: [] for name in beside}
    await callers.translate_now_and_then(seconds / 4)  # warms it up
    for number in range(ROUNDS):
        for name, work in beside.items():
            async with callers.busy(*work) as done:
                of_round = await callers.translate_now_and_then(seconds)
            took[name] += of_round
            errors[name] += [error for own in done for error in own.errors]
            progress(f"sharing: round {number + 1} of {ROUNDS}, beside {name}: {1e3 * percentile(of_round):.1f} ms")
    idle_s = percentile(took[ALONE])
    goal_ms = 1e3 * max(TIMES_IDLE * idle_s, LEAST_S)
    for name in beside:
        what, found_ms = f"beside {name}, {PERCENT} % within, ms", 1e3 * percentile(took[name])
        if name == ALONE:
            findings.tell(what, f"{found_ms:.1f}")
        else:
            findings.expect_at_most(what, found_ms, goal_ms, ".1f")
        findings.expect_none(f"errors of {name}", errors[name])


async def _throughput(callers: Callers, seconds: float, findings: Findings) -> None:
    await asyncio.sleep(GONE_S)

    async def rates(*work: Work, interactive: bool = False) -> list[float]:
        async with callers.busy(*work) as done:
            since = time.monotonic()
            await (callers.translate_now_and_then(seconds) if interactive else asyncio.sleep(seconds))
            return [own.rate(since, time.monotonic()) for own in done]

    costly = callers.costliest(COSTLY_TEXTS)
    found: dict[str, list[float]] = {}
    for number in range(ROUNDS):
        (alone,) = await rates(callers.corpus)
        (beside,) = await rates(callers.corpus, interactive=True)
        slower = min(await rates(callers.corpus, callers.corpus))
        (costly_alone,) = await rates(costly)
        among, costly_among = await rates(callers.corpus, costly)
        for name, per_s, share_per_s in (
            ("a corpus beside an interactive caller", beside, alone),
            ("the slower of two corpora", slower, alone / 2),
            ("a corpus beside costly requests", among, alone / 2),
            ("costly requests beside a corpus", costly_among, costly_alone / 2),
        ):
            found.setdefault(name, []).append(per_s / share_per_s if share_per_s else 0.0)
        progress(f"sharing: round {number + 1} of {ROUNDS}: a corpus alone {alone:.1f} sentences per second")
    for name, parts in found.items():
        part, spread = statistics.median(parts), f"{min(parts):.2f} to {max(parts):.2f}"
        what = f"{name}, in parts of its share"
        findings.expect(what, f"{part:.2f} ({spread})", f">= {BULK_SHARE}", part >= BULK_SHARE)


def percentile(took: Sequence[float]) -> float:
    """Return the time within which most calls were answered."""
    return sorted(took)[math.ceil(PERCENT * len(took) / 100) - 1] if took else math.inf
