"""``jumok serve`` and ``jumok inspect``: output, shutdown and refusals."""

import json
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest

import jumok
from jumok_proto.v1.decoding_pb2 import DecodingOptions
from jumok_proto.v1.model_pb2 import ListModelsRequest
from jumok_proto.v1.model_pb2_grpc import ModelServiceStub
from jumok_proto.v1.translation_pb2 import TranslateTextRequest
from jumok_proto.v1.translation_pb2_grpc import TranslationServiceStub
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.runtime.process_memory import ARENAS
from tests.support.command import run, run_here, serve
from tests.support.hang import HANG_S
from tests.support.models.variants import directed, edited

HEAP = 64 * 2**20
"""Bytes of address space that glibc's arenas of threads reserve at a time, where addresses have 64 bits."""


def test_ready_line_names_address_and_models(tiny_bundle: Path) -> None:
    manifest = Bundle.open(tiny_bundle).manifest
    with serve(tiny_bundle, "--precision", "fp32") as (process, address):
        with jumok.Client(address) as client:
            (model,) = client.list_models()
            assert (model.name, model.precision, model.device) == (manifest.name, "fp32", "cpu")
            assert client.translate("a man", max_length=3).model == manifest.name
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=HANG_S)
        assert process.returncode == 0
        assert out == ""
        assert "SIGTERM" in err
        assert "Traceback" not in err


STOPPED_AT_THE_MANIFEST = """
import os, runpy, signal, sys

def stop(event, arguments):
    if event == "open" and str(arguments[0]).endswith("manifest.json"):
        os.kill(os.getpid(), signal.SIGTERM)

sys.addaudithook(stop)
runpy.run_module("jumok", run_name="__main__")
"""
"""``python -m jumok`` that gets SIGTERM whenever it opens a manifest, before it reads it."""


def test_sigterm_ends_loading(tiny_bundle: Path) -> None:
    command = [sys.executable, "-c", STOPPED_AT_THE_MANIFEST, "serve", str(tiny_bundle), "--port", "0"]
    finished = subprocess.run(command, check=False, capture_output=True, timeout=HANG_S)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, b"", b"")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no arenas")
@pytest.mark.parametrize(("variables", "most"), [({}, ARENAS), ({"MALLOC_ARENA_MAX": "1"}, 1)])
def test_replicas_share_a_server_and_its_threads_few_arenas(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], most: int
) -> None:
    for name in ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with serve(tiny_bundle, "--replicas", "4", "--threads", "2") as (process, address), jumok.Client(address) as client:
        answers = client.translate(["a man in a blue shirt", "two dogs", "a girl reads"] * 10)
        assert len({answer.text for answer in answers}) <= 3
        assert 1 + arenas_of_threads(process.pid) <= most


def arenas_of_threads(pid: int) -> int:
    """Count the arenas except the first: each starts a 64 MiB block, accessible only in part."""
    lines = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines()
    maps = [re.match(r"([0-9a-f]+)-([0-9a-f]+) (....)", line) for line in lines]
    blocks = [(int(found[1], 16), int(found[2], 16), found[3]) for found in maps if found]
    return sum(
        start % HEAP == 0 and rights == "rw-p" and following == (end, start + HEAP, "---p")
        for (start, end, rights), following in pairwise(blocks)
    )


@contextmanager
def translating(bundle: Path, address: str, texts: int, beam_size: int) -> Iterator[Any]:
    """Start a long call and wait until the server works on it."""
    longest = Bundle.open(bundle).manifest.limits.max_target_length
    options = DecodingOptions(beam_size=beam_size, min_length=longest - 1, max_length=longest)
    request = TranslateTextRequest(contents=["a man in a blue shirt"] * texts, options=options)
    with grpc.insecure_channel(address) as channel:
        grpc.channel_ready_future(channel).result(HANG_S)
        call = TranslationServiceStub(channel).TranslateText.future(request)
        # A connection keeps the order of its calls: this one's answer says that the one before has arrived.
        ModelServiceStub(channel).ListModels(ListModelsRequest(), timeout=HANG_S)
        yield call


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_sigterm_lets_calls_finish(tiny_bundle: Path, number: signal.Signals) -> None:
    with (
        serve(tiny_bundle, "--grace", "3600") as (process, address),
        translating(tiny_bundle, address, 200, beam_size=8) as call,
    ):
        process.send_signal(number)
        assert len(call.result(HANG_S).translations) == 200
        process.communicate(timeout=HANG_S)
        assert process.returncode == 0


def test_a_second_signal_ends_it_at_once(tiny_bundle: Path) -> None:
    with (
        serve(tiny_bundle, "--grace", "3600") as (process, address),
        translating(tiny_bundle, address, 1000, beam_size=64) as call,
    ):
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        while "SIGTERM" not in (line := process.stderr.readline()):
            assert line, "the server ended"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=HANG_S)
        assert process.returncode == 0
        assert call.exception(HANG_S) is not None


def test_several_bundles_are_served_by_name(tiny_bundle: Path, tmp_path: Path) -> None:
    name = Bundle.open(tiny_bundle).manifest.name
    other = edited(tiny_bundle, tmp_path / "other", lambda manifest: manifest.update(name="a-second-model"))
    with serve(tiny_bundle, other) as (_, address), jumok.Client(address) as client:
        assert [model.name for model in client.list_models()] == sorted([name, "a-second-model"])
        assert client.translate("a man", model="a-second-model", max_length=2).model == "a-second-model"
        with pytest.raises(jumok.InvalidArgumentError, match="name a model") as caught:
            client.translate("a man")
        assert caught.value.field == "model"


def test_a_folder_of_bundles_serves_all_their_pairs(tiny_bundle: Path, tmp_path: Path) -> None:
    for source, target in (("de", "en"), ("en", "fr-CA")):
        edited(tiny_bundle, tmp_path / f"models/{source}-{target}", directed(source, target))
    with serve(tmp_path / "models", "--precision", "fp32") as (_, address), jumok.Client(address) as client:
        answers = [
            client.translate("a man", source_language=source, target_language=target, max_length=2)
            for source, target in (("DE", "en"), ("en", "fr_ca"))
        ]
        assert [answer.model for answer in answers] == ["tiny-de-en", "tiny-en-fr-CA"]
        over = client.translate("a man", source_language="de", target_language="fr-CA", max_length=2)
        assert (over.pivot and over.pivot.model, over.model) == ("tiny-de-en", "tiny-en-fr-CA")
        with pytest.raises(jumok.LanguageNotFoundError, match="no model translates from 'en' to 'de', directly"):
            client.translate("a man", source_language="en", target_language="de")


def refusal(done_stderr: bytes) -> str:
    """Return the error message of a failure without traceback, without the log before it."""
    text = re.sub(r"^\d{4}-\S+ \S+ INFO .*\n", "", done_stderr.decode(), flags=re.MULTILINE)
    assert "Traceback" not in text
    assert text.startswith("Error: ")
    return text


def test_two_bundles_of_a_name_are_refused(tiny_bundle: Path) -> None:
    done = run("serve", tiny_bundle, tiny_bundle, "--port", "0")
    assert (done.returncode, done.stdout) == (1, b"")
    assert f"two bundles are named '{Bundle.open(tiny_bundle).manifest.name}'" in refusal(done.stderr)


@pytest.mark.parametrize("setting", ["--port", "--admin-port", "--metrics-port"])
def test_a_port_in_use_is_refused_before_models_are_loaded(tmp_path: Path, setting: str) -> None:
    no_bundle = tmp_path
    ports = {"--port": "0", "--admin-port": "0", "--metrics-port": "0"}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports[setting] = str(taken.getsockname()[1])
        done = run("serve", no_bundle, "--model-root", tmp_path, *chain.from_iterable(ports.items()))
    assert (done.returncode, done.stdout) == (1, b"")
    assert refusal(done.stderr) == (
        f"Error: cannot listen on 127.0.0.1:{ports[setting]}: Address already in use; another program uses it, so "
        f"choose another {setting}\n"
    )


def test_a_port_of_another_server_is_refused_and_that_one_still_serves(tiny_bundle: Path) -> None:
    with serve(tiny_bundle) as (_, address), jumok.Client(address) as client:
        done = run("serve", tiny_bundle, "--port", address.rpartition(":")[2])
        assert done.returncode == 1
        assert "in use" in refusal(done.stderr)
        assert client.list_models()


def test_a_host_that_is_not_here_is_refused_before_models_are_loaded(tmp_path: Path) -> None:
    no_bundle = tmp_path
    done = run("serve", no_bundle, "--port", "0", "--host", "no-such-host.invalid")
    assert done.returncode == 1
    assert refusal(done.stderr).startswith("Error: cannot listen on no-such-host.invalid:0: ")
    assert refusal(done.stderr).endswith("; give --host an address of this machine, or 0.0.0.0 for all\n")


def test_a_damaged_bundle_is_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(tiny_bundle, tmp_path / "damaged"))
    weights = next(damaged.rglob("weights.bin"))
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    for done in (run("serve", damaged), run_here("inspect", damaged), run_here("translate", "a", "--bundle", damaged)):
        assert (done.returncode, done.stdout) == (1, b"")
        assert "weights.bin" in refusal(done.stderr)


def test_cuda_without_cuda_is_refused(tiny_bundle: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has CUDA")
    done = run("serve", tiny_bundle, "--device", "cuda", "--port", "0")
    assert (done.returncode, done.stdout) == (1, b"")
    assert "CUDA" in refusal(done.stderr)


def test_inspect_shows_the_bundle(tiny_bundle: Path) -> None:
    manifest = Bundle.open(tiny_bundle).manifest
    shown = run("inspect", tiny_bundle)
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert manifest.name in shown.stdout.decode()
    whole = run_here("inspect", tiny_bundle, "--all")
    assert whole.returncode == 0
    for title in ("Verification", "Made", "Files"):
        assert f"\n{title}\n" in whole.stdout.decode()
        assert f"\n{title}\n" not in shown.stdout.decode()
    assert len(shown.stdout.splitlines()) < 30
    machine = run_here("inspect", tiny_bundle, "--json")
    assert machine.returncode == 0
    assert json.loads(machine.stdout)["limits"] == manifest.limits.model_dump()


def test_a_start_imports_nothing_that_only_some_servers_need() -> None:
    program = "import sys, jumok_serve.cli.serve_commands; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_S, check=True)
    known = set(done.stdout.split())
    assert {"grpc", "onnxruntime", "pydantic"} <= known
    assert known.isdisjoint({"prometheus_client", "wsgiref", "starlette", "uvicorn", "onnx", "torch", "transformers"})
