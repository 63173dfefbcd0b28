"""Servers that cannot be reached: the messages, against real servers and sockets."""

import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

import jumok
from jumok import Tls
from jumok.testing import FakeServer
from tests.clients.conftest import served
from tests.support.hang import HANG_S
from tests.support.ports import free_port
from tests.support.servers.certificates import Authority
from tests.support.servers.scripted import Scripted


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority.make(tmp_path_factory.mktemp("authority"))
    made.issue("server")
    return made


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


@contextmanager
def tls_server(authority: Authority, *, mutual: bool = False, host: str = "localhost") -> Iterator[str]:
    certificate, key = authority.folder / "server.pem", authority.folder / "server.key"
    pair = (key.read_bytes(), certificate.read_bytes())
    server = grpc.server(ThreadPoolExecutor(1))
    root = authority.root.read_bytes() if mutual else None
    port = server.add_secure_port(f"{host}:0", grpc.ssl_server_credentials([pair], root, mutual))
    server.start()
    yield f"localhost:{port}"
    server.stop(None).wait()


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A server that answers everything with the same bytes, and closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(4096)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def message(server: str, tls: Tls | None = None) -> str:
    with (
        jumok.Client(server, tls=tls, timeout_s=HANG_S, max_attempts=1) as client,
        pytest.raises(jumok.UnavailableError) as refused,
    ):
        client.translate("a")
    return str(refused.value)


def test_a_server_that_is_not_there() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        assert message(address).startswith(
            f"cannot reach a server at {address}: no server listens there: start it, or name another (--server, "
            "JUMOK_SERVER) ("
        )


def test_a_new_client_connects_though_another_has_just_failed_to() -> None:
    """gRPC waits between two attempts to connect; new clients would share that wait."""
    address = f"127.0.0.1:{free_port()}"
    with jumok.Client(address, max_attempts=1) as early:
        with pytest.raises(jumok.UnavailableError):
            early.translate("a")
        with served(Scripted(), address=address), jumok.Client(address, max_attempts=1) as late:
            assert late.translate("a").text == "A"


def test_names_that_lead_to_no_server(tmp_path: Path) -> None:
    for server, said in (
        (f"unix:{tmp_path}/none", f"unix:{tmp_path}/none: no server listens there"),
        ("no-such-host.invalid", "no-such-host.invalid:50051: the name of the host is unknown ("),
    ):
        assert message(server).startswith(f"cannot reach a server at {said}")


def test_tls_that_does_not_fit(authority: Authority, tmp_path: Path) -> None:
    """On one side only, of a stranger, for another name, and without the client's certificate."""
    own = Tls(root_certificates=authority.root)
    strange = Tls(root_certificates=Authority.make(tmp_path).root)
    with tls_server(authority) as server, tls_server(authority, mutual=True) as mutual, FakeServer() as plain:
        for address, tls, said in (
            (server, None, "it closed the connection; if it uses TLS, give tls (--tls, --tls-ca) ("),
            (plain.address, own, "it answers without TLS: leave out tls (--tls, --tls-ca) ("),
            (server, strange, "not signed by an authority that this client trusts: give"),
            (
                server.replace("localhost", "127.0.0.1"),
                own,
                "for another name: give that name as override_name (--tls-",
            ),
            (mutual, own, "needs a certificate of this client, give client_certificate and client_key"),
        ):
            found = message(address, tls)
            assert found.startswith(f"cannot reach a server at {address}: ")
            assert said in found


def test_tls_problems_at_the_ipv4_address_of_localhost(authority: Authority, tmp_path: Path) -> None:
    """As with a server that listens on 127.0.0.1 alone, by default."""
    other = Authority.make(tmp_path)
    with tls_server(authority, host="127.0.0.1") as server:
        assert "no server listens" not in message(server)
        assert "it closed the connection; if it uses TLS, give tls (--tls, --tls-ca)" in message(server)
        said = message(server, Tls(root_certificates=other.root))
        assert re.search("TLS with it fails; call 127.0.0.1:.* to see why|not signed by an authority", said)
        said = message(server.replace("localhost", "127.0.0.1"), Tls(root_certificates=other.root))
        assert "not signed by an authority that this client trusts" in said
    assert "no server listens there: start it" in message(server)


@pytest.mark.parametrize("program", [["-m", "jumok"], [str(Path(sys.executable).with_name("jumok"))]])
def test_the_command_writes_no_line_of_grpcs_own_log(program: list[str]) -> None:
    with FakeServer(str.upper) as plain:
        done = subprocess.run(
            [sys.executable, *program, "health", "--tls", "--server", plain.address],
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: cannot reach a server at {plain.address}: it answers without TLS: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_server_of_another_kind() -> None:
    with answering(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n") as server:
        assert message(server).startswith(f"cannot reach a server at {server}: it speaks HTTP/1")


@pytest.mark.parametrize("variable", ["grpc_proxy", "https_proxy", "http_proxy"])
def test_the_proxy_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    with answering(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n") as proxy, FakeServer() as server:
        monkeypatch.setenv(variable, f"http://user:secret@{proxy}")
        said = message(server.address)
        assert said.startswith(
            f"cannot reach a server at {server.address} through the proxy http://{proxy} (variable {variable}): "
        )
        assert said.endswith("; to call it directly, add 127.0.0.1 to no_proxy")
        assert "secret" not in said
        monkeypatch.setenv("no_proxy", "example.org, 127.0.0.1")
        with jumok.Client(server.address) as client:
            assert client.translate("a").text == "A"


def test_a_silent_proxy_is_named_by_corpora_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, jumok.Client("127.0.0.1:1") as client:
        proxy = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("http_proxy", proxy)
        said = rf"127\.0\.0\.1:1( did not answer in time)? through the proxy {proxy} \(variable http_proxy\)"
        with pytest.raises(jumok.DeadlineExceededError, match=said):
            client.translate("a", timeout_s=0.2)
        with pytest.raises(jumok.DeadlineExceededError, match=said):
            list(client.translate_iter(["a"], timeout_s=0.2))
