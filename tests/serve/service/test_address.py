"""Listening on IPv6 and on Unix sockets."""

import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import jumok
from jumok_serve.errors import ListenError
from jumok_serve.service import Server
from jumok_serve.service.connections import format_address, listen
from jumok_serve.service.telemetry.metrics import MetricsPort
from tests.support.servers.fake_model import FakeModel, serving


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for the name of a socket."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1:7"),
        ("::1", "[::1]:7"),
        ("[::]", "[::]:7"),
        ("example.org", "example.org:7"),
        ("unix:/run/jumok", "unix:/run/jumok"),
    ],
)
def test_addresses_are_written_as_clients_write_them(host: str, address: str) -> None:
    assert format_address(host, 7) == address


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


async def _translated(address: str) -> str:
    async with jumok.AsyncClient(address) as client:
        return (await client.translate("a")).text


@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("host", ["::1", "[::1]"])
async def test_a_server_listens_on_ipv6(host: str) -> None:
    async with serving(FakeModel(), host=host) as (server, _):
        assert server.address == f"[::1]:{server.port}"
        assert await _translated(server.address)
        with pytest.raises(ListenError, match=r"cannot listen on \[::1\]:\d+: .*; another program uses it"):
            await Server([FakeModel()], host=host, port=server.port).start()
        with MetricsPort(server, host=host, port=0) as metrics:
            assert metrics.address.startswith("[::1]:")


async def test_a_server_listens_on_a_unix_socket(folder: Path) -> None:
    host = f"unix:{folder}/jumok.sock"
    for _ in range(2):  # the second finds no trace of the first
        async with serving(FakeModel(), host=host) as (server, _):
            assert server.address == host
            assert await _translated(host)
            with pytest.raises(ListenError, match="in use; another program uses it, so choose another --host"):
                await Server([FakeModel()], host=host).start()
            assert await _translated(host)


async def test_a_socket_that_a_killed_server_left_is_replaced(folder: Path) -> None:
    path = folder / "jumok.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    async with serving(FakeModel(), host=f"unix:{path}"):
        assert await _translated(f"unix:{path}")


async def test_a_path_that_cannot_be_a_socket_is_refused(folder: Path) -> None:
    file = folder / "file"
    file.write_text("precious", encoding="utf-8")
    for path, problem in (
        (file, "the file exists and is no socket; choose another path"),
        (folder / "none" / "socket", "No such file or directory"),
        (folder / ("x" * 200), "path too long"),
    ):
        with pytest.raises(ListenError, match=f"cannot listen on unix:{path}: .*{problem}"):
            await Server([FakeModel()], host=f"unix:{path}").start()
    assert file.read_text(encoding="utf-8") == "precious"
    assert os.listdir(folder) == ["file"]


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        Path.mkdir,
        lambda path: path.symlink_to("/dev/null"),
        lambda path: path.symlink_to("nowhere"),
        lambda path: path.symlink_to(path.name),
    ],
)
def test_what_is_in_the_place_of_a_unix_socket_stays(folder: Path, make: Callable[[Path], None]) -> None:
    path = folder / "jumok.sock"
    make(path)
    before = path.lstat()
    with pytest.raises(ListenError, match="choose another"):
        listen(f"unix:{path}", 0, "--port")
    assert path.lstat().st_ino == before.st_ino


def test_a_server_that_accepts_nothing_keeps_its_unix_socket(folder: Path) -> None:
    """A blocking connection to it would wait for room in its queue."""
    path = folder / "jumok.sock"
    with socket.socket(socket.AF_UNIX) as busy, ExitStack() as stack:
        busy.bind(str(path))
        busy.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
            waiting.setblocking(False)
            waiting.connect_ex(str(path))
        with pytest.raises(ListenError, match="the socket is in use"):
            listen(f"unix:{path}", 0, "--port")
    listen(f"unix:{path}", 0, "--port").close()  # left by a server that was killed
