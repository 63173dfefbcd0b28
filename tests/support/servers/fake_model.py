"""Fake model whose results the test controls, and a gRPC server around it."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from jumok_proto.alignments import Alignment
from jumok_proto.results import FinishReason, Hypothesis, Score, Timings, Translation
from jumok_proto.v1.admin_pb2_grpc import AdminServiceStub
from jumok_proto.v1.file_pb2_grpc import FileServiceStub
from jumok_proto.v1.glossary_pb2_grpc import GlossaryServiceStub
from jumok_proto.v1.model_pb2_grpc import ModelServiceStub
from jumok_proto.v1.translation_pb2 import TranslateTextRequest
from jumok_proto.v1.translation_pb2_grpc import TranslationServiceStub
from jumok_serve.engine.sentence import Future
from jumok_serve.engine.statistics import EngineCounters, Load
from jumok_serve.manifest.languages import Languages
from jumok_serve.manifest.manifest import (
    Architecture,
    FileEntry,
    GenerationDefaults,
    GraphSpec,
    Limits,
    Manifest,
    PrecisionVariant,
    SpecialTokens,
)
from jumok_serve.manifest.parts import REQUIRED_GRAPHS, Provenance
from jumok_serve.manifest.tokenizers import SentencePieceDescription
from jumok_serve.service import Server
from jumok_serve.service.rpc.call import Call
from jumok_serve.tasks.alignment import AttentionQuery
from jumok_serve.tasks.model import ScoringParameters, TextParameters, TranslationParameters
from jumok_serve.translator import Translator
from tests.support.servers.scripted import capitals, itself, length

FILES = ("graph.onnx", "weights.bin", "spm.model")
ONE = TranslateTextRequest(contents=["a"])
"""Request to translate one text."""
HERE = "ipv4:127.0.0.1"
"""Key of a caller without a token on this machine."""


def manifest(name: str, version: str = "1") -> Manifest:
    """Manifest of a model without files."""
    return Manifest(
        name=name,
        version=version,
        architecture=Architecture(family="transformer"),
        languages=Languages.of_pair("en", "de", suffix=(3,)),
        special_tokens=SpecialTokens(pad=0, start=2, eos=(3,)),
        limits=Limits(max_source_length=16, max_target_length=32),
        generation=GenerationDefaults(beam_size=5, max_length=24, early_stopping="never"),
        tokenizer=SentencePieceDescription(source_model="spm.model", source_vocab_size=8, target_vocab_size=8),
        precisions={
            "fp32": PrecisionVariant(
                graphs={name: GraphSpec(file="graph.onnx", inputs=(), outputs=()) for name in REQUIRED_GRAPHS},
                weights="weights.bin",
            )
        },
        provenance=Provenance(created=datetime(2025, 1, 1, tzinfo=UTC), command="none"),
        files={file: FileEntry(size=0, sha256="0" * 64) for file in FILES},
    )


class Answer:
    """Pending texts that the test completes; their translations are the texts in capitals."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts
        self.on_collect: Callable[[], object] = lambda: None
        self.on_progress: Callable[[], None] = lambda: None
        self.sure = ""
        self.has_placeholders = False
        self.futures: tuple[Future[None], ...] = tuple(Future() for _ in texts)

    def cancel(self) -> None:
        for future in self.futures:
            future.cancel()

    def by_text(self) -> "list[Answer]":
        """Return one answer for each text; each has its future of this one."""
        parts = [Answer([text]) for text in self.texts]
        for part, future in zip(parts, self.futures, strict=True):
            part.futures = (future,)
        return parts

    def complete(self) -> None:
        for future in self.futures:
            future.set_result(None)

    def write(self, sure: str) -> None:
        """Report a stable beginning."""
        self.sure = sure
        self.on_progress()

    def stable_texts(self) -> list[str]:
        return [self.sure for _ in self.texts]

    def collect(self) -> list[Translation]:
        self.on_collect()
        return [
            replace(
                capitals(text),
                hypotheses=(
                    Hypothesis(
                        text=text.upper(),
                        score=-0.5,
                        tokens=(text.upper(), "</s>"),
                        token_ids=(7, 3),
                        token_scores=(-0.75, -0.25),
                        finish_reason=FinishReason.EOS,
                    ),
                ),
                source_token_count=2,
                model="held",
            )
            for text in self.texts
        ]

    def timings(self) -> Timings:
        return Timings(queue_s=0.125, encode_s=0.25, decode_s=0.5, total_s=1.0)


class _Collected:
    """Work under the test's control until it is cancelled; the test may look at it, and raise, when it is collected."""

    def __init__(self, texts: Sequence[str], on_collect: Callable[[Any], object]) -> None:
        self.texts = texts
        self.cancelled = threading.Event()
        self._on_collect = on_collect

    def cancel(self) -> None:
        self.cancelled.set()


class FakeScoring(_Collected):
    """Scoring of targets."""

    def pieces(self) -> Generator[int, None, list[Score]]:
        yield len(self.texts)
        self._on_collect(self)
        return [
            replace(
                length(target),
                tokens=(target, "</s>"),
                token_ids=(7, 3),
                token_scores=(-0.5, -0.5),
                source_token_count=2,
                model="held",
            )
            for target in self.texts
        ]


class FakeAligning(_Collected):
    """Aligning of texts, once the test completes its futures."""

    def __init__(self, texts: Sequence[str], on_collect: Callable[["FakeAligning"], object]) -> None:
        super().__init__(texts, on_collect)
        self.futures: tuple[Future[None], ...] = tuple(Future() for _ in texts)

    def collect(self) -> list[Alignment]:
        self._on_collect(self)
        return [replace(itself(text), cross=None, model="held") for text in self.texts]


class FakeModel(Translator):
    """Model whose results the test controls; it has no bundle."""

    precision = "fp32"
    device = "cpu"

    def __init__(
        self, name: str = "held", on_submit: Callable[[Answer], None] = Answer.complete, *, version: str = "1"
    ) -> None:
        self.manifest = manifest(name, version)
        self.on_submit = on_submit
        self.submitted: asyncio.Queue[Answer] = asyncio.Queue()
        self.on_score: Callable[[FakeScoring], object] = lambda _: None
        self.on_align: Callable[[FakeAligning], object] = lambda _: None
        self.aligned: asyncio.Queue[FakeAligning] = asyncio.Queue()
        self.parameters = TranslationParameters()
        self.target_prefixes: Sequence[str | None] | None = None
        self.scoring_parameters = ScoringParameters()
        self.aligning_arguments: dict[str, object] = {}
        self.closed = threading.Event()
        """Set when the server closes the model."""
        self.counted = EngineCounters()
        self.full = self.crowded = False
        self._ready = True
        self._tell: Callable[[], None] = lambda: None
        self._loop = asyncio.get_running_loop()

    def submit(
        self,
        texts: Sequence[str],
        parameters: TranslationParameters = TranslationParameters(),  # noqa: B008 - frozen
        *,
        target_prefixes: Sequence[str | None] | None = None,
        on_progress: Callable[[], None] | None = None,
    ) -> Any:
        self.parameters, self.target_prefixes = parameters, target_prefixes
        answer = Answer(texts)
        answer.on_progress = on_progress or answer.on_progress
        self.on_submit(answer)
        self._loop.call_soon_threadsafe(self.submitted.put_nowait, answer)
        return answer

    def scoring(
        self,
        texts: Sequence[str],
        targets: Sequence[str | Sequence[int]],
        parameters: ScoringParameters = ScoringParameters(),  # noqa: B008 - frozen
    ) -> Any:
        self.scoring_parameters = parameters
        return FakeScoring(cast("Sequence[str]", targets), self.on_score)

    def aligning(
        self,
        texts: Sequence[str],
        targets: Sequence[str | None] | None,
        query: AttentionQuery,
        parameters: TextParameters = TextParameters(),  # noqa: B008 - frozen
    ) -> Any:
        self.aligning_arguments = {"targets": targets, "query": query, "parameters": parameters}
        aligning = FakeAligning(texts, self.on_align)
        self._loop.call_soon_threadsafe(self.aligned.put_nowait, aligning)
        return aligning

    def is_full(self, caller: str = "") -> bool:
        return self.full

    def is_crowded(self, caller: str = "") -> bool:
        return self.crowded

    @property
    def ready(self) -> bool:
        return self._ready

    def on_ready_change(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def become_ready(self, ready: bool) -> None:
        """Change ``ready``, as after a failure or a restart."""
        self._ready = ready
        self._tell()

    def load(self) -> Load:
        return Load(queued_requests=0, queued_tokens=0, running_sentences=0, rows=0)

    def counters(self) -> EngineCounters:
        return self.counted

    def close(self, *, drain: bool = True) -> None:
        assert drain
        self.closed.set()


@asynccontextmanager
async def serving(*models: FakeModel, **settings: Any) -> AsyncIterator[tuple[Server, grpc.aio.Channel]]:
    """Serve models on a free port; yields the server and a channel."""
    server = Server(models, port=0, **settings)
    await server.start()
    async with grpc.aio.insecure_channel(server.address) as channel:
        try:
            yield server, channel
        finally:
            await server.stop(0)


class Ended:
    """Observer that notes calls when they end, and the texts that they have then."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.contents: list[Sequence[str] | None] = []

    def ended(self, call: Call) -> None:
        self.calls.append(call)
        self.contents.append(call.record.contents)


def hold(answer: Answer) -> None:
    """Leave the futures to the test."""


def fail(error: Exception) -> Callable[[Answer], None]:
    """Raise an error at every submit."""

    def refuse(answer: Answer) -> None:
        raise error

    return refuse


@dataclass
class Failure:
    """Status and details of a failed call."""

    code: grpc.StatusCode
    message: str
    info: error_details_pb2.ErrorInfo
    bad_request: error_details_pb2.BadRequest
    resource: error_details_pb2.ResourceInfo
    retry: error_details_pb2.RetryInfo
    request: error_details_pb2.RequestInfo
    trailing: dict[str, str | bytes]

    @property
    def field(self) -> str:
        (violation,) = self.bad_request.field_violations
        return str(violation.field)


def stub_of(channel: Any) -> Any:
    """Methods of all services; gRPC's types of streams lack most of their methods."""
    stubs = (
        TranslationServiceStub(channel),
        ModelServiceStub(channel),
        FileServiceStub(channel),
        GlossaryServiceStub(channel),
        AdminServiceStub(channel),
        HealthStub(channel),
    )
    return SimpleNamespace(**{name: method for stub in stubs for name, method in vars(stub).items()})


async def received(call: Any) -> list[Any]:
    """All responses of a stream."""
    return [response async for response in call]


async def failure(call: Awaitable[object]) -> Failure:
    """Await a call that must fail."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    error = caught.value
    trailing = dict(cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata()))
    status = status_pb2.Status.FromString(cast("bytes", trailing["grpc-status-details-bin"]))
    assert status.code == error.code().value[0]
    assert status.message == error.details()
    kinds = ("ErrorInfo", "BadRequest", "ResourceInfo", "RetryInfo", "RequestInfo")
    messages: list[Any] = [getattr(error_details_pb2, kind)() for kind in kinds]
    for detail in status.details:
        assert sum(detail.Unpack(message) for message in messages) == 1
    assert messages[0].domain == "jumok"
    assert messages[0].metadata["request_id"] == messages[4].request_id == trailing["x-request-id"] != ""
    info, bad_request, resource, retry, request = messages
    return Failure(error.code(), status.message, info, bad_request, resource, retry, request, trailing)
