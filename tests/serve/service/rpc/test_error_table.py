"""Every documented error, provoked at a server of real models, with its details."""

from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import pytest
from google.rpc.error_details_pb2 import ErrorInfo

from jumok_proto import errors
from jumok_proto.v1 import translation_pb2 as pb
from jumok_proto.v1.admin_pb2 import LoadModelRequest
from jumok_proto.v1.decoding_pb2 import DecodingOptions
from jumok_serve.service import Administration
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.rpc.statuses import EXPECTED, to_ending, to_status
from jumok_serve.text.terms.store import GlossaryStore
from jumok_serve.translator import Translator
from tests.support.models.variants import edited, without
from tests.support.servers.fake_model import FakeModel, fail, failure, stub_of
from tests.support.servers.fake_model import serving as serving_fake
from tests.support.servers.tokens import bearer, tokens_of

ONE = pb.TranslateTextRequest(contents=["a man"], options=DecodingOptions(beam_size=1, max_length=2))


@dataclass(frozen=True, kw_only=True)
class Provoked:
    """An error, its cause, and its details beside reason and request id.

    Attributes:
        code: of its status.
        ask: makes a call that fails, through a channel.
        model: that is served; None: a small one without scorer, sampler and aligner.
        settings: of the server.
        scope: of the token that calls come with; empty: they come without; None: the server wants none.
        field: that is blamed; empty: none is.
        resource: that was not found.
        retry: whether it says when to come back.
        glossaries: whether the server keeps glossaries.
    """

    code: grpc.StatusCode
    ask: Callable[..., Awaitable[object]]
    model: Callable[[], Any] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    scope: str | None = None
    field: str = ""
    resource: str = ""
    retry: bool = False
    glossaries: bool = False


def translate(request: pb.TranslateTextRequest = ONE) -> Callable[..., Awaitable[object]]:
    return lambda channel, **options: stub_of(channel).TranslateText(request, **options)


def load(bundle: str) -> Callable[..., Awaitable[object]]:
    return lambda channel: stub_of(channel).LoadModel(LoadModelRequest(bundle=bundle))


async def one_too_many(channel: grpc.aio.Channel) -> object:
    """A corpus during another."""
    stub = stub_of(channel)
    corpus = stub.TranslateCorpus()
    await corpus.write(pb.TranslateCorpusRequest(settings=pb.CorpusSettings(options=ONE.options)))
    await corpus.write(pb.TranslateCorpusRequest(items=[pb.CorpusItem(content="a man")]))
    assert await corpus.read()
    try:
        return await stub.TranslateCorpus().read()
    finally:
        corpus.cancel()


async def twice(channel: grpc.aio.Channel) -> object:
    assert await stub_of(channel).TranslateText(ONE)
    return await stub_of(channel).TranslateText(ONE)


CODES = grpc.StatusCode
ERRORS = {
    "INVALID_REQUEST": Provoked(
        code=CODES.INVALID_ARGUMENT,
        ask=translate(pb.TranslateTextRequest(contents=["a", "b", "c" * 10_000])),
        field="contents[2]",
    ),
    "MODEL_NOT_FOUND": Provoked(
        code=CODES.NOT_FOUND, ask=translate(pb.TranslateTextRequest(model="nothing")), resource="nothing"
    ),
    "BUNDLE_NOT_FOUND": Provoked(code=CODES.NOT_FOUND, ask=load("nothing"), resource="nothing"),
    "LANGUAGE_NOT_FOUND": Provoked(
        code=CODES.NOT_FOUND,
        ask=translate(pb.TranslateTextRequest(contents=["a"], source_language_code="xx")),
        field="source_language_code",
    ),
    "GLOSSARY_NOT_FOUND": Provoked(
        code=CODES.NOT_FOUND,
        ask=translate(pb.TranslateTextRequest(contents=["a"], glossary=pb.Glossary(stored="nothing"))),
        glossaries=True,
        resource="nothing",
    ),
    "GLOSSARIES_UNAVAILABLE": Provoked(
        code=CODES.FAILED_PRECONDITION,
        ask=translate(pb.TranslateTextRequest(contents=["a"], glossary=pb.Glossary(stored="nothing"))),
    ),
    "BUNDLE_UNUSABLE": Provoked(code=CODES.FAILED_PRECONDITION, ask=load("empty")),
    "ATTENTION_UNAVAILABLE": Provoked(
        code=CODES.FAILED_PRECONDITION, ask=translate(pb.TranslateTextRequest(contents=["a"], attention=True))
    ),
    "SCORING_UNAVAILABLE": Provoked(
        code=CODES.FAILED_PRECONDITION,
        ask=lambda channel: stub_of(channel).ScoreText(pb.ScoreTextRequest(contents=["a"], targets=["b"])),
    ),
    "SAMPLING_UNAVAILABLE": Provoked(
        code=CODES.FAILED_PRECONDITION,
        ask=translate(pb.TranslateTextRequest(contents=["a"], options=DecodingOptions(top_k=3))),
    ),
    "OVERLOADED": Provoked(
        code=CODES.RESOURCE_EXHAUSTED, ask=one_too_many, settings={"limits": ServiceLimits(max_corpora=1)}, retry=True
    ),
    "RATE_LIMITED": Provoked(
        code=CODES.RESOURCE_EXHAUSTED,
        ask=twice,
        settings={"limits": ServiceLimits(requests_per_second=0.001, request_burst=1)},
        retry=True,
    ),
    # With a real deadline the client may notice first, and an engine fails for no reason that a caller could give.
    "DEADLINE_EXCEEDED": Provoked(
        code=CODES.DEADLINE_EXCEEDED,
        ask=translate(),
        model=lambda: FakeModel(on_submit=fail(errors.DeadlineExceededError("the deadline passed"))),
    ),
    "ENGINE_FAILED": Provoked(
        code=CODES.UNAVAILABLE,
        ask=translate(),
        model=lambda: FakeModel(on_submit=fail(errors.EngineFailedError("the engine failed", retry_after_s=1.0))),
        retry=True,
    ),
    "UNAVAILABLE": Provoked(code=CODES.UNAVAILABLE, ask=translate(), retry=True),  # the test has closed the model
    "UNAUTHENTICATED": Provoked(code=CODES.UNAUTHENTICATED, ask=translate(), scope=""),
    "NOT_ALLOWED": Provoked(code=CODES.PERMISSION_DENIED, ask=translate(), scope="admin"),
    "INTERNAL": Provoked(
        code=CODES.INTERNAL, ask=translate(), model=lambda: FakeModel(on_submit=fail(RuntimeError("secret")))
    ),
}


@pytest.mark.parametrize(
    "error",
    [
        errors.OverloadedError("the queue is full", retry_after_s=1.5),
        errors.RateLimitedError("é" * 600, retry_after_s=1e-9),
        errors.UnavailableError("stopping", retry_after_s=1.0),
        errors.EngineFailedError("", retry_after_s=0.1),
        errors.InvalidArgumentError("no", field="contents[1]"),
        errors.ModelNotFoundError.of("a", ["b"]),
        RuntimeError("secret"),
    ],
)
def test_what_is_remembered_of_an_error_is_what_is_made_anew(error: Exception) -> None:
    for request_id in ("x", "y", "0" * 32, "a-b" * 40, "é", "7" * 128):
        status = to_status(error, request_id)
        ending = to_ending(error, request_id)
        assert ending.status == status.SerializeToString()
        assert (ending.code.value[0], ending.message) == (status.code, status.message)
        info = ErrorInfo()
        assert status.details[0].Unpack(info)
        assert ending.reason == info.reason


def test_every_error_is_provoked() -> None:
    assert set(ERRORS) == {kind.reason for kind in EXPECTED} | {"INTERNAL"}


@pytest.fixture(scope="module")
def root(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("root")
    edited(tiny_bundle, folder / "plain", without("sampler", "scorer", "aligner"))
    (folder / "empty").mkdir()
    (folder / "empty" / "manifest.json").write_text("{}", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def plain(root: Path) -> Any:
    with Translator(root / "plain", threads=1) as translator:
        yield translator


@asynccontextmanager
async def serving(provoked: Provoked, model: Any, root: Path, folder: Path) -> AsyncIterator[Awaitable[object]]:
    """Serve the model; yields a call that fails."""
    settings, options = dict(provoked.settings), dict[str, Any]()
    if provoked.scope is not None:
        settings["tokens"], secrets = tokens_of(folder, caller=provoked.scope or "translate")
        options = {"metadata": bearer(secrets["caller"])} if provoked.scope else {}
    if provoked.glossaries:
        settings["glossaries"] = GlossaryStore(folder / "glossaries")
    administration = Administration(root=root, load=Translator)
    async with serving_fake(model, administration=administration, **settings) as (_, channel):
        yield provoked.ask(channel, **options)


@pytest.mark.parametrize("reason", ERRORS)
async def test_an_error_says_all_that_it_should(reason: str, plain: Translator, root: Path, tmp_path: Path) -> None:
    provoked = ERRORS[reason]

    model: Any = plain if provoked.model is None else provoked.model()
    if reason == "UNAVAILABLE":
        model = Translator(root / "plain", threads=1)
        model.close()
    async with serving(provoked, model, root, tmp_path) as call:
        found = await failure(call)
    assert found.code is provoked.code
    assert (found.info.reason, found.info.domain) == (reason, "jumok")
    assert found.info.metadata["request_id"] == found.request.request_id == found.trailing["x-request-id"]
    fields = [violation.field for violation in found.bad_request.field_violations]
    assert fields == ([provoked.field] if provoked.field else [])
    assert found.resource.resource_name == provoked.resource
    assert bool(found.resource.description) == bool(provoked.resource)
    assert (found.retry.retry_delay.ToNanoseconds() > 0) == provoked.retry
    assert found.message
    assert "secret" not in found.message


@pytest.mark.parametrize("character", ["a", "%", "é", "한", "😀"])
def test_a_status_fits_into_headers(character: str) -> None:
    """Peers refuse headers of more than 8 KiB, and would see another status."""
    error = errors.ModelNotFoundError.of(character * 2000, [character * 100] * 20)
    ending = to_ending(error, "x" * 128)
    assert len(quote(ending.message)) + len(b64encode(ending.status)) < 7000
    assert f"model '{character * 100}" in ending.message
    assert ending.message.endswith("…")
