"""Files that are replaced in unusual ways while a server uses them."""

import logging
import os
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path

import grpc
import pytest

from jumok_proto.v1.model_pb2 import ListModelsRequest
from jumok_serve.errors import CredentialsError
from jumok_serve.service.auth import tokens
from jumok_serve.service.auth.tokens import MAX_BYTES, ReloadedFiles, TokenFile, make_token
from tests.serve.service.auth.test_tokens import write
from tests.support.logs import own_records
from tests.support.servers.fake_model import FakeModel, failure, serving, stub_of
from tests.support.servers.tokens import bearer, tokens_of


def make_sparse_file(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(2**40)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (os.mkfifo, "is not a regular file"),
        (Path.mkdir, "is not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "is not a regular file"),
        (make_sparse_file, "is sparse"),
        (lambda path: path.write_bytes(b"#" * (MAX_BYTES + 1)), f"is too large: {MAX_BYTES + 1} bytes"),
        (lambda _: None, "No such file"),
    ],
)
async def test_a_server_goes_on_with_the_tokens_that_it_has(
    make: Callable[[Path], object], problem: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "tokens"
    tokens, secrets = tokens_of(tmp_path, reports="translate")
    other, added = make_token("other", ["translate"])
    async with serving(FakeModel(), tokens=tokens) as (_, channel):
        list_models = stub_of(channel).ListModels
        assert await list_models(ListModelsRequest(), metadata=bearer(secrets["reports"]))
        file.unlink()
        make(file)
        for _ in range(3):
            assert await list_models(ListModelsRequest(), metadata=bearer(secrets["reports"]))
        assert len([record for record in caplog.records if problem in record.getMessage()]) == 1
        if file.is_dir():
            file.rmdir()
        write(file, added.line())
        assert await list_models(ListModelsRequest(), metadata=bearer(other))
        refused = await failure(list_models(ListModelsRequest(), metadata=bearer(secrets["reports"])))
        assert refused.code is grpc.StatusCode.UNAUTHENTICATED


def test_a_server_does_not_start_with_a_pipe_for_tokens(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CredentialsError, match="is not a regular file"):
        TokenFile(tmp_path / "pipe")


def test_an_edit_of_the_same_size_and_time_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    times = path.stat()
    files = ReloadedFiles([path], itemgetter(0))
    for content in (b"two", b"six", b"ten"):
        with path.open("r+b") as stream:  # the same inode
            stream.write(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert files.get() == content


def test_a_second_edit_within_the_clock_of_the_file_system_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    frozen = tokens._FileState(*[0] * 6)
    monkeypatch.setattr(tokens, "_state", lambda _: frozen)
    now = [frozen.changed + 1]
    monkeypatch.setattr("jumok_serve.service.auth.tokens.time.time_ns", lambda: now[0])
    files = ReloadedFiles([path], itemgetter(0))
    path.write_bytes(b"two")  # the frozen times do not show it
    assert files.get() == b"two"
    now[0] += tokens.RACY_NS
    assert files.get() == b"two"
    path.write_bytes(b"six")
    assert files.get() == b"two"  # times that are old enough are trusted, so that a call reads no file


def test_a_file_that_everybody_can_change_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tokens"
    path.write_text("", encoding="utf-8")
    path.chmod(0o600)
    with caplog.at_level(logging.WARNING):
        tokens = TokenFile(path)
        tokens.find("any")
        assert not own_records(caplog)
        path.chmod(0o602)
        tokens.find("any")
        tokens.find("any")
        (warning,) = own_records(caplog)
        assert f"run chmod o-w {path}" in warning.getMessage()
        caplog.clear()
        TokenFile(path)
        assert len(own_records(caplog)) == 1
