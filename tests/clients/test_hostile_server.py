"""A server that answers anything at all: every answer becomes a result or an error of the SDK."""

import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

import jumok
from jumok_proto.error_conversion import error_from_proto
from jumok_proto.v1.file_pb2 import TranslateFileResponse
from jumok_proto.v1.glossary_pb2 import GetGlossaryEntriesResponse, ListGlossariesResponse
from jumok_proto.v1.model_pb2 import ListModelsResponse
from jumok_proto.v1.translation_pb2 import (
    FINISH_REASON_EOS,
    CorpusResult,
    ScoreTextResponse,
    StreamTranslateTextResponse,
    TranslateCorpusResponse,
    TranslateTextResponse,
    Translation,
)
from tests.support.clients import await_, wait
from tests.support.hang import HANG_S

ESCAPE = "\x1b]0;owned\x07\x9b31m\u202e\r\nError: forged\ttab"
"""Text that would change a terminal, or write lines and columns of its own."""

Respond = Callable[[Any, grpc.ServicerContext], Iterator[bytes]]


@contextmanager
def answering(respond: Respond) -> Iterator[str]:
    """Serve one response or several of all methods; yields the address."""

    class Handler(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic only for type checkers
        def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
            return grpc.stream_stream_rpc_method_handler(respond)

    with ThreadPoolExecutor(8) as threads:
        server = grpc.server(threads, handlers=[Handler()])
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield address
        finally:
            server.stop(None).wait()


def always(*answers: bytes | Message) -> Respond:
    """Answer each call with these messages, after its first request."""

    def respond(requests: Iterator[bytes], _: grpc.ServicerContext) -> Iterator[bytes]:
        next(requests)
        yield from (one if isinstance(one, bytes) else one.SerializeToString() for one in answers)

    return respond


def failing(message: str, details: bytes) -> Respond:
    """End each call with an error."""

    def respond(_: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        context.set_trailing_metadata((("grpc-status-details-bin", details),))
        context.set_code(grpc.StatusCode.INVALID_ARGUMENT)
        context.set_details(message)
        yield from ()

    return respond


CALLS: dict[str, tuple[Any, ...]] = {
    "translate": ("translate", "a"),
    "score": ("score", "a", "b"),
    "align": ("align", "a", "b"),
    "detect": ("detect_language", "a"),
    "stream": ("translate_stream", "a"),
    "corpus": ("translate_iter", ["a", "b"]),
    "file": ("translate_file", "in.txt", "out.txt"),
    "models": ("list_models",),
    "routes": ("list_routes",),
    "glossaries": ("glossaries.list",),
    "entries": ("glossaries.entries", "a"),
}
"""Methods and arguments of calls, by name."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a file to translate."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("a\nb\n", encoding="utf-8")
    return tmp_path


def check_fails(name: str, address: str) -> None:
    """Check that a call fails with an error of the SDK, for both clients."""
    method, *arguments = CALLS[name]
    for call in (wait, await_):
        with pytest.raises(jumok.JumokError):
            call(method, address, *arguments)


def test_answers_that_are_no_messages_are_errors(folder: Path) -> None:
    random_ = random.Random(3)
    answers = iter(lambda: b"\xff\xff" + random_.randbytes(random_.randrange(20)), None)

    def respond(requests: Iterator[bytes], _: grpc.ServicerContext) -> Iterator[bytes]:
        next(requests)
        yield next(answers)

    with answering(respond) as address:
        for name in CALLS:
            check_fails(name, address)
    assert not (folder / "out.txt").exists()


LATE = ListGlossariesResponse()
LATE.glossaries.add().create_time.seconds = 2**62
ENTRIES = GetGlossaryEntriesResponse()
ENTRIES.entries.tsv = "no target term"
DAMAGED = Status(code=3, details=[AnyMessage(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=b"\xff")])


@pytest.mark.parametrize(
    ("name", "answers"),
    [
        ("translate", [TranslateTextResponse()]),
        ("score", [ScoreTextResponse()]),
        ("stream", [StreamTranslateTextResponse(stable_text="a"), StreamTranslateTextResponse(stable_text="b")]),
        ("stream", [StreamTranslateTextResponse(stable_text="a")]),
        ("corpus", [TranslateCorpusResponse(results=[CorpusResult(id=7)])]),
        ("corpus", [TranslateCorpusResponse(results=[CorpusResult(id=0, error=DAMAGED)] * 2)]),
        ("corpus", []),
        ("file", []),
        ("file", [TranslateFileResponse(file=b"a", text_count=2, translated_count=1)]),
        ("glossaries", [LATE]),
        ("entries", [ENTRIES]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_answers_that_do_not_fit_are_errors(name: str, answers: Sequence[Message], folder: Path) -> None:
    with answering(always(*answers)) as address:
        check_fails(name, address)
    assert not (folder / "out.txt").exists()


def test_empty_answers_do_not_keep_a_corpus_waiting() -> None:
    def respond(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        next(requests)
        while context.is_active():
            yield b"\xa2\x06\x00"  # an unknown field alone

    with answering(respond) as address, jumok.Client(address) as client:
        iterated = client.translate_iter(["a", "b"], timeout_s=0.5)
        with pytest.raises(jumok.DeadlineExceededError):
            list(iterated)


def test_damaged_details_of_an_error_are_left_out() -> None:
    broken = [
        AnyMessage(type_url=f"type.googleapis.com/google.rpc.{name}", value=b"\xff\xff")
        for name in ("ErrorInfo", "BadRequest", "RetryInfo", "ResourceInfo", "RequestInfo", "Unknown")
    ]
    error = error_from_proto(Status(code=3, message="a", details=broken))
    assert isinstance(error, jumok.InvalidArgumentError)
    assert (error.reason, error.field, error.retry_after_s, error.request_id) == ("", "", None, "")


@pytest.mark.parametrize(("seconds", "expected"), [(-5, 0.0), (0, 0.0), (3, 3.0), (2**62, 86_400.0)])
def test_waits_of_servers_are_bounded(seconds: int, expected: float) -> None:
    status = Status(code=14)
    retry = RetryInfo()
    retry.retry_delay.seconds = seconds
    status.details.add().Pack(retry)
    assert error_from_proto(status).retry_after_s == expected


def errors(text: str) -> bytes:
    """Details of an error with a text in all fields that are shown."""
    status = Status(code=3, message=text)
    status.details.add().Pack(ErrorInfo(reason=text, domain="jumok"))
    violation = BadRequest.FieldViolation(field=text, description=text)
    status.details.add().Pack(BadRequest(field_violations=[violation]))
    data: bytes = status.SerializeToString()
    return data


def models(text: str) -> ListModelsResponse:
    """Models and routes whose names and languages are a text."""
    answer = ListModelsResponse()
    answer.models.add(name=text, version=text, source_language_codes=[text], target_language_codes=[text])
    answer.routes.add(source_language_code=text, target_language_code=text, models=[text, text])
    return answer


def glossaries(text: str) -> ListGlossariesResponse:
    """A glossary whose name, id and languages are a text."""
    answer = ListGlossariesResponse()
    one = answer.glossaries.add(name=text, id=text)
    one.dictionaries.add(source_language_code=text, target_language_code=text)
    return answer


def foreign_language(text: str, score: float = 0.0) -> TranslateCorpusResponse:
    """A translation of a language that is a text, with too long sentences and a missing term."""
    translation = Translation(source_language_code=text, cut_sentences=[text], source_unknown_count=1)
    hypothesis = translation.hypotheses.add(text="ein Hund", score=score, finish_reason=FINISH_REASON_EOS)
    hypothesis.terms.add(source=text)
    translation.source_language_confidence = 0.1
    return TranslateCorpusResponse(results=[CorpusResult(id=0, translation=translation)])


def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "jumok", *arguments], capture_output=True, timeout=HANG_S, check=False)


@pytest.mark.parametrize(
    ("respond", "arguments", "lines"),
    [
        (failing(ESCAPE, errors(ESCAPE)), ["translate", "a dog"], 1),
        (failing(ESCAPE, errors(ESCAPE)), ["models"], 1),
        (failing(ESCAPE, errors(ESCAPE)), ["glossary", "list"], 1),
        (failing(ESCAPE, errors(ESCAPE)), ["admin", "list"], 1),
        (always(models(ESCAPE)), ["models"], 2),
        (always(glossaries(ESCAPE)), ["glossary", "list"], 1),
        (always(foreign_language(ESCAPE)), ["translate", "a dog"], 5),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_server_writes_no_lines_and_no_commands_of_a_terminal(
    respond: Respond, arguments: list[str], lines: int
) -> None:
    with answering(respond) as address:
        done = run(*arguments, "--server", address)
    written = (done.stdout + done.stderr).decode()
    assert b"Traceback" not in done.stderr
    assert re.fullmatch(r"(?:[^\n]+\n)+", written)
    assert all(line.replace("\t", "").isprintable() for line in written.splitlines()), written
    assert len(written.splitlines()) == lines
    assert "owned" in written


def test_scores_that_are_no_numbers_are_an_error_of_the_command() -> None:
    with answering(always(foreign_language("en", float("nan")))) as address:
        done = run("translate", "--json", "a dog", "--server", address)
    assert (done.returncode, b"Traceback" in done.stderr, done.stdout) == (1, False, b"")
    assert "not finite" in done.stderr.decode()
