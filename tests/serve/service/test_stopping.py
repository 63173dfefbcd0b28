"""SIGTERM ends a server within its grace, whatever runs; files that were begun are finished within it."""

import asyncio
import io
import os
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

import jumok
from jumok_proto.v1 import translation_pb2 as pb
from jumok_proto.v1.admin_pb2 import LoadModelRequest
from jumok_proto.v1.file_pb2 import FileSettings, TranslateFileRequest
from jumok_proto.v1.glossary_pb2 import CreateGlossaryRequest, GlossaryEntries, ListGlossariesRequest
from tests.support.command import Running, running
from tests.support.hang import HANG_S
from tests.support.models.hostile_bundles import edit_graph, loop_forever
from tests.support.processes import children
from tests.support.servers.fake_model import FakeModel, hold, received, serving, stub_of

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")

PROGRAM = """
import importlib, sys, threading
from jumok.__main__ import main

def stuck(*_, **__):
    print("stuck", flush=True)
    threading.Event().wait()

for path in sys.argv.pop(1).split(","):
    module, name = path.split(":")
    setattr(importlib.import_module(module), name, stuck)
main()
"""
"""The command, in which some functions never return, as native code on hostile input might."""
PATIENT = """
import jumok_serve.service.stop_signals as stop_signals
from jumok.__main__ import main
stop_signals.CLOSING_S = 1500.0
main()
"""
"""The command, which may take any time to close."""
SHORT: dict[str, Any] = {"beam_size": 1, "max_length": 6}


def has_open_call(server: Running) -> bool:
    """True if one call is open."""
    with urllib.request.urlopen(f"http://{server.addresses[-1]}/metrics", timeout=HANG_S) as answer:
        return "\njumok_open_requests 1.0\n" in answer.read().decode()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Send SIGTERM and wait; returns exit status and log."""
    process.send_signal(signal.SIGTERM)
    _, logged = process.communicate(timeout=HANG_S)
    return process.returncode, logged


def read_a_file(channel: grpc.Channel) -> Any:
    request = TranslateFileRequest(settings=FileSettings(format="text"), file=b"A dog.\n")
    return stub_of(channel).TranslateFile(iter([request]))


def detect(channel: grpc.Channel) -> Any:
    return stub_of(channel).DetectLanguage.future(pb.DetectLanguageRequest(contents=["A dog."]))


def create_a_glossary(channel: grpc.Channel) -> Any:
    entries = GlossaryEntries(tsv="a\tb")
    return stub_of(channel).CreateGlossary.future(CreateGlossaryRequest(name="a", dictionaries=[entries]))


def list_glossaries(channel: grpc.Channel) -> Any:
    return stub_of(channel).ListGlossaries.future(ListGlossariesRequest())


@pytest.mark.parametrize(
    "stuck",
    [
        {
            "jumok_serve.service.handlers.file_service:needed_memory": read_a_file,
            "jumok_serve.text.detection:_model": detect,
            "jumok_serve.text.terms.store:_checked": create_a_glossary,
        },
        {
            "jumok_serve.service.handlers.file_service:take_pieces": read_a_file,
            "jumok_serve.text.terms.store:_read_folder": list_glossaries,
        },
    ],
)
def test_threads_without_an_end_do_not_hold_a_server(
    tiny_bundle: Path, tmp_path: Path, stuck: dict[str, Callable[[grpc.Channel], Any]]
) -> None:
    (tmp_path / "shared").mkdir()
    options, program = ("--grace", "0.1", "--glossaries", tmp_path), ("-c", PROGRAM, ",".join(stuck))
    with (
        running(tiny_bundle, *options, program=program) as server,
        grpc.insecure_channel(server.addresses[0]) as channel,
    ):
        assert server.process.stdout is not None
        calls = []
        for begin in stuck.values():
            calls.append(begin(channel))
            assert server.process.stdout.readline() == "stuck\n"
        status, logged = ended(server.process)
        assert all(call.exception(HANG_S) is not None for call in calls)
    assert status == 1
    assert "SIGTERM: finishing open calls, for 0.1 s at most" in logged
    assert "Traceback" not in logged


def read_nothing_of_a_corpus(channel: grpc.Channel) -> Any:
    """Send items, and read no result of them; the items never end."""

    def requests() -> Iterator[pb.TranslateCorpusRequest]:
        settings = pb.CorpusSettings()
        settings.options.max_length = 2
        yield pb.TranslateCorpusRequest(settings=settings)
        for number in range(1000):
            yield pb.TranslateCorpusRequest(items=[pb.CorpusItem(id=number, content="A dog.")])
        threading.Event().wait(HANG_S)

    return stub_of(channel).TranslateCorpus(requests())


def upload_half_a_file(channel: grpc.Channel) -> Any:
    def requests() -> Iterator[TranslateFileRequest]:
        yield TranslateFileRequest(settings=FileSettings(format="text"), file=b"A dog.\n")
        threading.Event().wait(HANG_S)

    return stub_of(channel).TranslateFile(requests())


def code_of(call: Any) -> grpc.StatusCode:
    """The status of a call that fails."""
    read: Callable[[], object] = partial(list, call) if hasattr(call, "__next__") else partial(call.result, HANG_S)
    with pytest.raises(grpc.RpcError) as failed:
        read()
    return failed.value.code()


def load_an_endless_bundle(channel: grpc.Channel) -> Any:
    return stub_of(channel).LoadModel.future(LoadModelRequest(bundle="endless"))


@pytest.mark.parametrize("begin", [read_nothing_of_a_corpus, upload_half_a_file, load_an_endless_bundle])
def test_calls_without_an_end_are_cut_after_the_grace(
    tiny_bundle: Path, tmp_path: Path, begin: Callable[[grpc.Channel], Any]
) -> None:
    endless = shutil.copytree(tiny_bundle, tmp_path / "endless")
    for graph in endless.rglob("encoder*.onnx"):
        edit_graph(endless, str(graph.relative_to(endless)), loop_forever)
    options = ("--no-trusted-bundles", "--grace", "0.1", "--model-root", tmp_path)
    with (
        running(tiny_bundle, *options, program=("-c", PATIENT)) as server,
        grpc.insecure_channel(server.addresses[0]) as channel,
    ):
        call = begin(channel)
        server.wait_until(partial(has_open_call, server))
        if begin is load_an_endless_bundle:
            server.wait_until(lambda: bool(children(server.process.pid)))
        trials = children(server.process.pid)
        status, logged = ended(server.process)
        assert code_of(call) is grpc.StatusCode.UNAVAILABLE
        assert not any(Path(f"/proc/{trial}").exists() for trial in trials)
    assert status == 0
    assert "Traceback" not in logged


def test_a_pipe_among_the_glossaries_holds_nothing(tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    os.mkfifo(tmp_path / "shared" / "x.glossary")
    with (
        running(tiny_bundle, "--glossaries", tmp_path) as server,
        grpc.insecure_channel(server.addresses[0]) as channel,
    ):
        made = create_a_glossary(channel).result(HANG_S)
        assert [*list_glossaries(channel).result(HANG_S).glossaries] == [made.glossary]
        status, logged = ended(server.process)
    assert status == 0
    assert "x.glossary is left out: is not a regular file; restore the file, or delete it" in logged


@pytest.mark.parametrize("stderr", ["2>&-", "2>/dev/full"])
def test_a_server_without_a_reader_of_its_log(tiny_bundle: Path, stderr: str) -> None:
    """It serves, and ends as usual."""
    serve = f"exec {sys.executable} -m jumok serve {tiny_bundle} --port 0 --trusted-bundles"
    with subprocess.Popen(["sh", "-c", f"{serve} {stderr}"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("serving on ")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=HANG_S)
    assert process.returncode == 0


def test_a_file_that_was_begun_is_finished(tiny_bundle: Path) -> None:
    content = "".join(f"A man and {number} dogs.\n" for number in range(1500)).encode()
    stopped: list[int] = []
    with (
        running(tiny_bundle, "--grace", str(HANG_S)) as server,
        jumok.Client(server.addresses[0], max_attempts=1) as client,
    ):

        def stop(done: int, count: int) -> None:
            if done < count and not stopped:
                stopped.append(done)
                server.process.send_signal(signal.SIGTERM)

        wanted, out = io.BytesIO(), io.BytesIO()
        client.translate_file(io.BytesIO(content), wanted, file_format="text", **SHORT)
        result = client.translate_file(io.BytesIO(content), out, file_format="text", on_progress=stop, **SHORT)
        assert result.text_count == 1500
        assert not result.problems
        server.process.communicate(timeout=HANG_S)
    assert stopped[0] < 1500
    assert out.getvalue() == wanted.getvalue()
    assert server.process.returncode == 0


async def test_a_file_whose_translation_outlasts_the_grace_is_cut() -> None:
    """Its caller may send it again; a file that arrives after the signal is refused in the same way."""
    model = FakeModel(on_submit=hold)
    async with serving(model) as (server, channel):
        stub = stub_of(channel)
        request = TranslateFileRequest(settings=FileSettings(format="text"), file=b"A dog.\nA man.\n")
        call = stub.TranslateFile(iter([request]))
        answers = [await model.submitted.get() for _ in range(2)]
        answers[0].complete()
        stopping = asyncio.ensure_future(server.stop(0.1))
        # A call that overtakes the server's goodbye may end in other ways, which gRPC chooses.
        await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        for cut in (stub.TranslateFile(iter([request])), call):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await received(cut)
            assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        await stopping
        assert answers[1].futures[0].cancelled()
