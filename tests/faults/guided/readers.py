"""Readers of strangers' bytes, as functions that raise only for a fault of the server."""

import asyncio
import json
import logging
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any, cast

from google.protobuf.message import Message
from grpc.aio import EOF  # type: ignore[attr-defined]  # its types lack it

from jumok_proto.v1 import model_pb2, translation_pb2
from jumok_serve.bundle.bundle import Bundle, read_manifest
from jumok_serve.bundle.describe import as_json, describe
from jumok_serve.engine.engine import Engine
from jumok_serve.engine.request_queue import EngineLimits
from jumok_serve.engine.sentence import Sentence
from jumok_serve.errors import BundleError
from jumok_serve.manifest.manifest import Manifest
from jumok_serve.manifest.parts import MANIFEST_FILE
from jumok_serve.service.handlers.api import Api
from jumok_serve.service.handlers.model_service import ModelService
from jumok_serve.service.handlers.translation_service import TranslationService
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.models.registry import ModelRegistry
from jumok_serve.service.rpc.call import CALL, Call
from jumok_serve.service.rpc.interceptor import guarded_handlers
from jumok_serve.service.rpc.request_reader import make_intake
from jumok_serve.service.rpc.statuses import Ending
from jumok_serve.tasks.alignment import prepare_alignment
from jumok_serve.tasks.model import TaskModel
from jumok_serve.tasks.scoring import prepare_scoring
from jumok_serve.text.translation import submit_texts
from jumok_serve.tokenizers.input_processor import check_texts
from tests.faults.scenarios.fuzzing import DOCUMENTED, likely_values
from tests.faults.scenarios.mutated_bundles import change_field
from tests.faults.tools.random_messages import RandomCall, each_random_call
from tests.faults.tools.texts import scenes
from tests.support.servers.fake_model import Answer, FakeAligning, FakeModel, FakeScoring

SERVICES = tuple(
    service for module in (translation_pb2, model_pb2) for service in module.DESCRIPTOR.services_by_name.values()
)
METHODS = tuple(method for service in SERVICES for method in service.methods)
CALL_S = 10.0
"""Time that a call says it has left."""
HANG_S = 5 * CALL_S
"""Time after which a call hangs, also on a busy machine; less than libFuzzer gives an input."""
SEEDS = 400
"""Requests that fuzzing begins with."""
LENGTH_BYTES = 2
"""Bytes that hold the length of each message of a call."""


class UndocumentedStatusError(Exception):
    """A call ended with a status that callers are not told of."""


class _LastFault(logging.Handler):
    """The last exception that the server has logged."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.error: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record's exception."""
        self.error = record.exc_info[1] if record.exc_info else None


class _DecodesNothing:
    """An engine that takes sentences, begins their searches, and decodes none."""

    limits = EngineLimits()

    def check_open(self) -> None:
        """Never stop."""

    def check_room(self, sentences: int, caller: str) -> None:
        """Find room."""

    def charge(self, caller: str, work: int) -> None:
        """Have no rate."""
        assert work >= 0

    def submit(self, sentences: Sequence[Sentence]) -> None:
        """Begin searches; sentences of bounded work, as a scheduler admits them."""
        self.limits.check_work(sum(sentence.plan.most_work for sentence in sentences))
        for sentence in sentences:
            assert sentence.work >= 0
            assert sentence.waiting_bytes > 0
            if sentence.rows <= 64:  # the searches of many rows take long to make, and no other way
                assert sentence.search is not None


class _ReadingModel(FakeModel):
    """A model that reads texts and options as a real one does, and answers at once."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(bundle.manifest.name)
        self.manifest = bundle.manifest
        self._task = TaskModel(bundle, next(iter(bundle.manifest.precisions)), cast("Any", None), None)
        self._engine = cast("Engine", _DecodesNothing())

    def submit(self, texts: Sequence[str], parameters: Any = None, **others: Any) -> Any:
        check_texts(texts)
        submit_texts(self._task, self._engine, texts, parameters, **others).cancel()
        answer = Answer(texts)
        answer.complete()
        return answer

    def scoring(self, texts: Sequence[str], targets: Any, parameters: Any = None) -> Any:
        prepare_scoring(self._task, self._engine, texts, targets, parameters)
        return FakeScoring(targets, self.on_score)

    def aligning(self, texts: Sequence[str], targets: Any, query: Any, parameters: Any = None) -> Any:
        prepare_alignment(self._task, self._engine, texts, targets, query, parameters).cancel()
        answer = FakeAligning(texts, self.on_align)
        for future in answer.futures:
            future.set_result(None)
        return answer


class _Context:
    """gRPC's side of a call, whose caller has sent these messages."""

    def __init__(self, messages: Sequence[bytes]) -> None:
        self._messages = iter(messages)

    async def read(self) -> Any:
        """Return the next message, or EOF."""
        return next(self._messages, EOF)

    def time_remaining(self) -> float:
        """Return the time to the call's deadline."""
        return CALL_S

    def done(self) -> bool:
        """Return False: the caller stays."""
        return False


class Requests:
    """Handlers of all methods of a server of one model, from the bytes of a request to the end of the call.

    The first byte of an input chooses the method; each message follows its length.
    """

    def __init__(self, bundle: Path) -> None:
        self._fault = _LastFault()
        logging.basicConfig(handlers=[self._fault])
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._bundle = Bundle.open(bundle)
        self._loop.run_until_complete(self._start())

    async def _start(self) -> None:
        limits = ServiceLimits()
        models = ModelRegistry([_ReadingModel(self._bundle)])
        servicers = dict(zip(SERVICES, (TranslationService(Api(models, limits)), ModelService(models)), strict=True))
        handlers = [guarded_handlers(service, servicers[service], make_intake(limits)) for service in SERVICES]
        self._handlers = [self._find(handlers, f"/{m.containing_service.full_name}/{m.name}") for m in METHODS]

    @staticmethod
    def _find(handlers: Sequence[Any], method: str) -> tuple[str, Callable[..., Any]]:
        details = SimpleNamespace(method=method, invocation_metadata=())
        (found,) = filter(None, (handler.service(details) for handler in handlers))
        return method, found.stream_stream or found.stream_unary

    def read(self, data: bytes) -> None:
        """Make a call."""
        if data:
            self._loop.run_until_complete(asyncio.wait_for(self._call(data), HANG_S))

    async def _call(self, data: bytes) -> None:
        method, handler = self._handlers[data[0] % len(METHODS)]
        context = _Context(_split(data[1:]))
        CALL.set(Call(method=method, request_id="fuzz", peer="ipv4:127.0.0.1:1", write=_write))
        ended = await handler(None, context)
        if isinstance(ended, Ending):
            ended.message.encode("utf-8")
            if ended.code.name not in DOCUMENTED:
                raise UndocumentedStatusError(f"{ended.code.name}: {method}") from self._fault.error

    def seeds(self) -> Sequence[bytes]:
        """Return random calls as the other fuzzer makes them."""
        seeds: list[bytes] = []

        def keep(call: RandomCall) -> None:
            messages = b"".join(len(part).to_bytes(LENGTH_BYTES) + part for part in call.data if len(part) < 2**16)
            seeds.append(bytes([METHODS.index(call.method)]) + messages)

        likely = likely_values(self._bundle.manifest.name, scenes(20, 1))
        each_random_call(SERVICES, likely, keep, count=SEEDS, seed=1)
        return seeds

    def mutate(self, data: bytes, source: random.Random) -> bytes | None:
        """Leave it to bytes."""
        return None


async def _write(message: Message, /, *, counted: bool = False) -> None:
    message.SerializeToString()


def _split(data: bytes) -> list[bytes]:
    messages = []
    while data:
        length = int.from_bytes(data[:LENGTH_BYTES])
        messages.append(data[LENGTH_BYTES : LENGTH_BYTES + length])
        data = data[LENGTH_BYTES + length :]
    return messages


class Manifests:
    """Reading, description and writing of a manifest."""

    def __init__(self, bundle: Path) -> None:
        self._bundles = sorted(path.parent for path in bundle.parent.glob(f"*/{MANIFEST_FILE}"))
        self._folder = Path(mkdtemp())

    def read(self, data: bytes) -> None:
        """Read a manifest, and describe the bundle if it is valid."""
        (self._folder / MANIFEST_FILE).write_bytes(data)
        try:
            manifest = read_manifest(self._folder)
        except BundleError as error:
            str(error).encode("utf-8")
            if error.problems:
                return
            raise
        assert Manifest.model_validate_json(manifest.model_dump_json()) == manifest
        nothing = cast("Any", None)
        bundle = Bundle(path=self._folder, manifest=manifest, tokenizer=nothing, pinned=nothing)
        for whole in (False, True):
            describe(bundle, whole=whole).encode("utf-8")
        json.dumps(as_json(bundle)).encode("utf-8")

    def seeds(self) -> Sequence[bytes]:
        """Return the manifests beside the bundle."""
        return [(folder / MANIFEST_FILE).read_bytes() for folder in self._bundles]

    def mutate(self, data: bytes, source: random.Random) -> bytes | None:
        """Change a field of a JSON object, most of the time."""
        try:
            fields = json.loads(data)
        except (ValueError, RecursionError):
            return None
        if not isinstance(fields, dict) or not fields or source.random() < 0.3:
            return None
        for _ in range(source.choice((1, 1, 2, 4))):
            if fields:
                change_field(fields, source)
        return json.dumps(fields).encode()
