"""``jumok health``, and the health service by model."""

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from jumok.commands._main import jumok as jumok_command
from jumok.commands._main import run as run_command
from jumok_serve.service.auth.tls import TlsFiles
from tests.support.servers.certificates import Authority
from tests.support.servers.fake_model import FakeModel, hold, serving, stub_of
from tests.support.servers.tokens import tokens_of


def ask(*arguments: str) -> Result:
    return CliRunner().invoke(jumok_command, ["health", *arguments])


async def test_models_have_health_of_their_own() -> None:
    async with serving(FakeModel("en-de"), FakeModel("en-fr")) as (_, channel):
        stub = stub_of(channel)
        for name in ("en-de", "en-fr"):
            checked = await stub.Check(HealthCheckRequest(service=f"models/{name}"))
            assert checked.status == HealthCheckResponse.SERVING
        if hasattr(stub, "List"):  # which older packages of the health service lack
            listed = await stub.List(health_pb2.HealthListRequest())
            states = {name: state.status for name, state in listed.statuses.items()}
            assert states == dict.fromkeys(("", "models/en-de", "models/en-fr"), HealthCheckResponse.SERVING)


async def test_a_server_that_serves_is_healthy(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue("server")
    tls = TlsFiles(certificate=certificate, key=key)
    tokens, secrets = tokens_of(tmp_path, a="translate")
    async with serving(FakeModel(), host="localhost", tls=tls, tokens=tokens) as (server, _):
        here = ("--server", server.address, "--tls-ca", str(authority.root), "--timeout", "60")
        for arguments, code, words in (
            ((), 0, f"the server at {server.address} is serving"),
            (("--model", "held"), 0, "model 'held'"),
            (("--model", "other"), 1, f"model 'other' at {server.address} is not known there\n"),
            (("--model", "other", "--token", secrets["a"]), 1, "is not known there; available: held\n"),
        ):
            asked = await asyncio.to_thread(ask, *here, *arguments)
            assert (asked.exit_code, words in asked.output) == (code, True)


async def test_each_of_several_servers_is_checked() -> None:
    async with serving(FakeModel()) as (first, _), serving(FakeModel()) as (second, _):
        asked = await asyncio.to_thread(ask, "--server", f"{first.address},{second.address}", "--wait", "60")
        assert (asked.exit_code, asked.stderr) == (0, "")
        lines = [f"the server at {server.address} is serving" for server in (first, second)]
        assert asked.stdout.splitlines() == lines
        asked = await asyncio.to_thread(ask, "--server", f"127.0.0.1:1,{second.address}")
        assert asked.exit_code == 1
        assert asked.stdout.splitlines() == lines[1:]
        assert asked.stderr.startswith("Error: cannot reach a server at 127.0.0.1:1: no server listens there")


async def test_one_that_stops_is_not() -> None:
    model = FakeModel(on_submit=hold)
    async with serving(model) as (server, _):
        server.stop_serving()  # as a stop begins; a connection of before still gets answers
        asked = await asyncio.to_thread(ask, "--server", server.address)
        assert asked.exit_code == 1
        assert "is not serving: NOT_SERVING" in asked.output
        assert not server.serving


def test_a_refused_connection_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["health", "--server", "127.0.0.1:1", "--timeout", "5"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("Error: cannot reach a server at 127.0.0.1:1")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--token", "secret"], "over TLS only"),
        (["--tls-key", __file__], "need each other"),
        (["--timeout", "0"], "--timeout"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], words: str) -> None:
    asked = ask(*arguments)
    assert asked.exit_code == 2
    assert words in asked.output
