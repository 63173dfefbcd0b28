"""Random calls of every service of a server: none may break it, and each is answered as documented."""

import asyncio
import shutil
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from hypothesis import strategies as st

from benchmarks.common.progress import progress
from jumok_proto.file_formats import FILE_FORMATS
from jumok_proto.v1 import admin_pb2, file_pb2, glossary_pb2, model_pb2, translation_pb2
from tests.faults.scenarios.swaps import model_name
from tests.faults.tools.findings import Findings, Plan
from tests.faults.tools.random_messages import RandomCall, each_random_call
from tests.faults.tools.servers import expect_well, jumok_serve

AT_ONCE = 16
TIMEOUT_S = 10.0
IDLE_WITHIN_S = 10.0
OURS = "jumok."
SERVICES: tuple[ServiceDescriptor, ...] = tuple(
    service
    for module in (translation_pb2, file_pb2, glossary_pb2, model_pb2, health_pb2, reflection_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
)
ADMIN = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]
OTHER, BROKEN = "other", "broken"
"""Bundles that a server may be told to load; the second cannot be."""
GLOSSARIES = st.sampled_from(("pets", "toys", ""))
ON_GLOSSARIES = ("GetGlossary", "GetGlossaryEntries", "UpdateGlossary", "DeleteGlossary")
FILES = (
    b"A dog runs.\n",
    b"# A dog\n\n- a *man* and [a dog](a)\n",
    b"<p>A <b>dog</b> runs.<p>Two men.",
    b'msgid "A dog."\nmsgstr ""\n',
    b'<xliff version="1.2"><file><body><trans-unit><source>A dog.</source></trans-unit></body></file></xliff>',
    b"1\n00:00:01,000 --> 00:00:02,000\nA dog.\n",
    b"WEBVTT\n\n00:01.000 --> 00:02.000\nA dog.\n",
)
DEADLINE = "DEADLINE_EXCEEDED"
DOCUMENTED = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED", "CANCELLED", DEADLINE}
"""Statuses of a server that neither loads nor stops, and needs no token."""


def likely_values(model: str, texts: Sequence[str], others: Sequence[str] = ()) -> Mapping[str, st.SearchStrategy[Any]]:
    """Field values with which a server of one model answers; admin calls may name others."""
    text = st.one_of(st.sampled_from(texts), st.text(max_size=20))
    token = st.integers(0, 300)
    return {
        "model": st.sampled_from(("", model)),
        "name": st.just(model),
        "UnloadModelRequest.name": st.sampled_from(("", "nothing", *others)),
        "bundle": st.sampled_from(("nothing", "../broken", BROKEN, BROKEN, OTHER)),
        "service": st.sampled_from(("", f"models/{model}", *(service.full_name for service in SERVICES))),
        "file_containing_symbol": st.sampled_from([service.full_name for service in SERVICES]),
        "content": text,
        "contents": text,
        "targets": text,
        "CreateGlossaryRequest.name": GLOSSARIES,
        **{f"{method}Request.glossary": GLOSSARIES for method in ON_GLOSSARIES},
        "stored_glossary": GLOSSARIES,
        "tsv": st.sampled_from(("dog\tHund\n", "a man\tein Mann\nice\tEis\tEiscreme\n", "dog\n", "\t\n")),
        "format": st.sampled_from(tuple(FILE_FORMATS)),
        "TranslateFileRequest.file": st.sampled_from(FILES),
        "target_prefix": st.text(max_size=5),
        "target_prefixes": st.text(max_size=5),
        "source_language_code": st.sampled_from(("", "en")),
        "target_language_code": st.sampled_from(("", "de")),
        "beam_size": st.integers(1, 6),
        "num_hypotheses": st.integers(1, 3),
        "length_penalty": st.floats(-1, 2),
        "early_stopping": st.integers(0, 3),
        "min_length": st.integers(0, 5),
        "max_length": st.integers(1, 30),
        "no_repeat_ngram_size": st.integers(0, 3),
        "repetition_penalty": st.floats(0.5, 2),
        "ids": token,
        "forced_first_token": token,
        "temperature": st.floats(0.1, 2),
        "top_k": st.integers(0, 20),
        "top_p": st.floats(0.1, 1),
        "kinds": st.integers(1, 3),
        "layer": st.integers(0, 2),
        "head": st.integers(0, 4),
        "window": st.integers(0, 300),
        "order": st.integers(0, 2),
    }


class Answers:
    """Sends calls, several at a time, and keeps what was answered.

    Args:
        address: of the server.
    """

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, options=(("grpc.max_receive_message_length", -1),))
        self._threads = ThreadPoolExecutor(AT_ONCE)
        self._free = threading.Semaphore(AT_ONCE)
        self._changing = threading.Lock()
        self.codes: Counter[str] = Counter()
        self.methods: Counter[str] = Counter()
        self.late: Counter[str] = Counter()
        """Calls that the client ended at their deadline, by path: its error has no reason of the server's."""
        self.undocumented: list[str] = []
        self.without_details: list[str] = []

    def send(self, call: RandomCall) -> None:
        """Send a call, once there are few enough."""
        self._free.acquire()
        self._threads.submit(self._send, call).add_done_callback(lambda _: self._free.release())

    def close(self) -> None:
        """Wait for all answers."""
        self._threads.shutdown()
        self._channel.close()

    def _send(self, call: RandomCall) -> None:
        try:
            code, details = ask(self._channel, call.method, call.data, TIMEOUT_S)
        except Exception as error:  # a fault of this program, which must not be lost in a thread
            code, details = type(error).__name__, b""
        with self._changing:
            self.codes[code] += 1
            self.methods[call.path] += 1
            if self.codes.total() % 1000 == 0:
                progress(f"fuzz: {self.codes.total()} calls")
            if code not in DOCUMENTED:
                self.undocumented.append(f"{code}: {call}")
            elif code == DEADLINE and not details:
                self.late[call.path] += 1
            elif call.path.startswith(f"/{OURS}") and code not in ("OK", "CANCELLED") and not has_reason(details):
                self.without_details.append(f"{code}: {call}")


def ask(
    channel: grpc.Channel,
    method: MethodDescriptor,
    data: Sequence[bytes],
    timeout_s: float,
    metadata: Sequence[tuple[str, str]] = (),
) -> tuple[str, bytes]:
    """Make a call: the name of its status, and the details of an error."""
    kinds = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
    call = getattr(channel, kinds[2 * method.client_streaming + method.server_streaming])(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=None,
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )
    try:
        if not method.server_streaming:
            call(data[0], timeout=timeout_s, metadata=metadata)
            return "OK", b""
        answers = call(iter(data) if method.client_streaming else data[0], timeout=timeout_s, metadata=metadata)
        for _ in answers:
            if method.name == "Watch":  # which does not end by itself
                answers.cancel()
                return "OK", b""
    except grpc.RpcError as error:
        trailing = dict(cast("Any", error).trailing_metadata() or ())
        return cast("Any", error).code().name, trailing.get("grpc-status-details-bin", b"")
    return "OK", b""


def has_reason(details: bytes) -> bool:
    """True if an error carries a machine-readable reason."""
    info = error_details_pb2.ErrorInfo()
    try:
        return any(detail.Unpack(info) and info.reason for detail in status_pb2.Status.FromString(details).details)
    except DecodeError:
        return False


def call_at_random(
    address: str,
    likely: Mapping[str, st.SearchStrategy[Any]],
    services: Sequence[ServiceDescriptor] = SERVICES,
    *,
    count: int,
    seed: int,
) -> Answers:
    """Send random calls of services to a server, and give what it answered."""
    answers = Answers(address)
    try:
        each_random_call(services, likely, answers.send, count=count, seed=seed)
    finally:
        answers.close()
    return answers


async def fuzz(plan: Plan, findings: Findings) -> None:
    """Random messages to all methods of all services, several at a time."""
    likely = likely_values(model_name(plan.bundle), plan.texts, [model_name(plan.other)])
    with TemporaryDirectory() as root, TemporaryDirectory() as glossaries:
        shutil.copytree(plan.other, Path(root) / OTHER)
        (Path(root) / BROKEN).mkdir()
        (Path(root) / BROKEN / "manifest.json").write_text("{}", encoding="utf-8")
        async with jumok_serve(plan.bundle, "--model-root", root, "--glossaries", glossaries) as server:
            answers = await asyncio.to_thread(
                call_at_random, server.address, likely, (*SERVICES, ADMIN), count=plan.messages, seed=plan.seed
            )
            expected = f"bundle {Path(root).resolve() / BROKEN}: "
            await expect_well(findings, server, IDLE_WITHIN_S, expected=expected)
    findings.expect_equal("random calls", answers.codes.total(), plan.messages)
    findings.tell("methods that they called", len(answers.methods))
    findings.tell_counts("of these answered", answers.codes)
    findings.expect_none(f"methods with calls unanswered after {TIMEOUT_S:g} s", sorted(answers.late))
    findings.expect_none("answers with a status that is not documented", answers.undocumented)
    findings.expect_none("errors that do not say their reason", answers.without_details)
